#include "kernels/cpu/sample.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "bindings/cpu/logits.h"

namespace specdec {

namespace {

std::tuple<at::Tensor, at::Tensor, at::Tensor> sample(const at::Tensor& logits, const at::Tensor& uniforms,
                                                      const OptionalTensor& temperature, const OptionalTensor& top_k,
                                                      const OptionalTensor& top_p, const OptionalTensor& min_p) {
  const SamplingTensors sampling{temperature, top_k, top_p, min_p};
  check_sample(logits, uniforms, sampling);
  const int64_t rows = logits.size(0);
  at::Tensor tokens = at::empty({rows}, logits.options().dtype(at::kLong));
  at::Tensor logprobs = at::empty({rows}, logits.options().dtype(at::kFloat));
  at::Tensor status = at::empty({rows}, logits.options().dtype(at::kInt));
  cpu::sample({logits_of(logits), sampling_of(sampling), uniforms.const_data_ptr<float>(), rows,
               tokens.data_ptr<int64_t>(), logprobs.data_ptr<float>(), status.data_ptr<int32_t>()});
  return {tokens, logprobs, status};
}

std::tuple<at::Tensor, at::Tensor> sample_topk(const at::Tensor& logits, const OptionalTensor& uniforms, int64_t k,
                                               const OptionalTensor& temperature, const OptionalTensor& top_k,
                                               const OptionalTensor& top_p, const OptionalTensor& min_p) {
  const SamplingTensors sampling{temperature, top_k, top_p, min_p};
  check_sample_topk(logits, uniforms, k, sampling);
  const int64_t rows = logits.size(0);
  at::Tensor tokens = at::empty({rows, k}, logits.options().dtype(at::kLong));
  at::Tensor logprobs = at::empty({rows, k}, logits.options().dtype(at::kFloat));
  cpu::sample_topk({logits_of(logits), sampling_of(sampling), optional_ptr<float>(uniforms), rows, k,
                    tokens.data_ptr<int64_t>(), logprobs.data_ptr<float>()});
  return {tokens, logprobs};
}

}  // namespace

TORCH_LIBRARY_IMPL(specdec, CPU, m) {
  m.impl("sample", sample);
  m.impl("sample_topk", sample_topk);
}

}  // namespace specdec
