// Element types of the tensors that kernels read: storage only, arithmetic is float32 (see vec.h).
#pragma once

#include <cstdint>

namespace specdec {

enum class DType : int32_t { kFloat32, kBFloat16, kFloat16, kInt8 };

struct BFloat16 {
  uint16_t bits;
};

struct Float16 {
  uint16_t bits;
};

}  // namespace specdec
