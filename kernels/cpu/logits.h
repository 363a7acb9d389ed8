// What operators that work on rows of logits are given, as raw pointers.
#pragma once

#include <cstdint>

#include "dtype.h"

namespace specdec::cpu {

struct Logits {
  const void* data = nullptr;
  DType dtype = DType::kFloat32;
  int64_t row_stride = 0;  // in elements
  int64_t vocab_size = 0;
};

// One value a request; nullptr is the default of all.
struct SamplingParams {
  const float* temperature = nullptr;
  const int32_t* top_k = nullptr;
  const float* top_p = nullptr;
  const float* min_p = nullptr;
};

}  // namespace specdec::cpu
