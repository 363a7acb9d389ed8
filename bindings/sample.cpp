#include "sample.h"

#include <c10/util/Exception.h>

namespace specdec {

void check_logits(const char* name, const at::Tensor& logits, int64_t rows, int64_t vocab_size,
                  const at::Tensor& reference) {
  check_dtype(name, logits, {at::kFloat, at::kBFloat16, at::kHalf});
  check_shape(name, logits, {rows, vocab_size});
  check_device(name, logits, reference);
  TORCH_CHECK_VALUE(logits.size(1) > 0, name, ": expected at least one column, got ", describe(logits));
  check_unit_stride(name, logits);
}

void check_sampling(const SamplingTensors& sampling, int64_t batch, const at::Tensor& reference) {
  const auto check = [&](const char* name, const OptionalTensor& tensor, at::ScalarType type) {
    if (tensor) check_dense(name, *tensor, {batch}, {type}, reference);
  };
  check("temperature", sampling.temperature, at::kFloat);
  check("top_k", sampling.top_k, at::kInt);
  check("top_p", sampling.top_p, at::kFloat);
  check("min_p", sampling.min_p, at::kFloat);
}

void check_sample(const at::Tensor& logits, const at::Tensor& uniforms, const SamplingTensors& sampling) {
  check_logits("logits", logits, kAny, kAny, logits);
  check_dense("uniforms", uniforms, {logits.size(0)}, {at::kFloat}, logits);
  check_sampling(sampling, logits.size(0), logits);
}

void check_sample_topk(const at::Tensor& logits, const OptionalTensor& uniforms, int64_t k,
                       const SamplingTensors& sampling) {
  check_logits("logits", logits, kAny, kAny, logits);
  check_range("k", k, 1, logits.size(1));
  if (uniforms) check_dense("uniforms", *uniforms, {logits.size(0), k}, {at::kFloat}, logits);
  check_sampling(sampling, logits.size(0), logits);
}

}  // namespace specdec
