#pragma once

#include "checks.h"

namespace specdec {

struct SamplingTensors {
  const OptionalTensor& temperature;
  const OptionalTensor& top_k;
  const OptionalTensor& top_p;
  const OptionalTensor& min_p;
};

// [rows, V] in any of the three floating dtypes. Rows may lie any distance apart, also 0 (expanded).
void check_logits(const char* name, const at::Tensor& logits, int64_t rows, int64_t vocab_size,
                  const at::Tensor& reference);

// One value a request.
void check_sampling(const SamplingTensors& sampling, int64_t batch, const at::Tensor& reference);

void check_sample(const at::Tensor& logits, const at::Tensor& uniforms, const SamplingTensors& sampling);
void check_sample_topk(const at::Tensor& logits, const OptionalTensor& uniforms, int64_t k,
                       const SamplingTensors& sampling);

}  // namespace specdec
