#include <ATen/ops/empty.h>

#include "bindings/npu/logits.h"

namespace specdec::npu {

namespace {

// k = 0: one draw a row.
void launch(const char* name, const at::Tensor& logits, const OptionalTensor& uniforms, int64_t k,
            const SamplingTensors& sampling, const at::Tensor& tokens, const at::Tensor& logprobs,
            const OptionalTensor& status) {
  ascendc::SampleTiling tiling{rows_tiling("logits", logits, logits.size(0), 1, "k", std::max<int64_t>(k, 1)),
                               static_cast<uint32_t>(k), k > 0 && !uniforms};
  if (tokens.numel() == 0) return;
  tiling.rows.maxima = k > 0;
  ascendc::set_layout(&tiling.rows, 2, cores().vector);
  const at::Tensor workspace = workspace_of(tiling.rows, logits);
  const auto [temperature, top_k, top_p, min_p] = sampling;
  submit(name, touched({logits, tokens, logprobs, workspace}, {uniforms, status, temperature, top_k, top_p, min_p}),
         [=](void* stream) {
           ascendc::launch_sample(stream, logits.const_data_ptr(), optional_ptr(uniforms), optional_ptr(temperature),
                                  optional_ptr(top_k), optional_ptr(top_p), optional_ptr(min_p), tokens.data_ptr(),
                                  logprobs.data_ptr(), status ? status->data_ptr() : nullptr, workspace.data_ptr(),
                                  tiling);
         });
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> sample(const at::Tensor& logits, const at::Tensor& uniforms,
                                                      const OptionalTensor& temperature, const OptionalTensor& top_k,
                                                      const OptionalTensor& top_p, const OptionalTensor& min_p) {
  const SamplingTensors sampling{temperature, top_k, top_p, min_p};
  check_sample(logits, uniforms, sampling);
  const int64_t rows = logits.size(0);
  at::Tensor tokens = at::empty({rows}, logits.options().dtype(at::kLong));
  at::Tensor logprobs = at::empty({rows}, logits.options().dtype(at::kFloat));
  at::Tensor status = at::empty({rows}, logits.options().dtype(at::kInt));
  launch("specdec::sample", logits, uniforms, 0, sampling, tokens, logprobs, status);
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
  launch("specdec::sample_topk", logits, uniforms, k, sampling, tokens, logprobs, std::nullopt);
  return {tokens, logprobs};
}

}  // namespace

SPECDEC_NPU_IMPL(m) {
  m.impl("sample", sample);
  m.impl("sample_topk", sample_topk);
}

}  // namespace specdec::npu
