// Tensors as the raw pointers that the CPU kernels take.
#pragma once

#include "bindings/sample.h"
#include "kernels/cpu/logits.h"

namespace specdec {

inline cpu::Logits logits_of(const at::Tensor& tensor) {
  const DType dtype = tensor.scalar_type() == at::kFloat      ? DType::kFloat32
                      : tensor.scalar_type() == at::kBFloat16 ? DType::kBFloat16
                                                              : DType::kFloat16;
  return {tensor.const_data_ptr(), dtype, tensor.stride(0), tensor.size(1)};
}

inline cpu::SamplingParams sampling_of(const SamplingTensors& sampling) {
  return {optional_ptr<float>(sampling.temperature), optional_ptr<int32_t>(sampling.top_k),
          optional_ptr<float>(sampling.top_p), optional_ptr<float>(sampling.min_p)};
}

}  // namespace specdec
