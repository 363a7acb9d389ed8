// Philox4x32-10 counter-based random numbers (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11).
#pragma once

#include <cstdint>

#include "dispatch.h"

namespace specdec::cpu {

struct PhiloxUniformParams {
  const int64_t* seeds;    // [batch]
  const int64_t* offsets;  // [batch]
  float* out;              // [batch, n]
  int64_t batch;
  int64_t n;
  uint32_t stream;
};

SPECDEC_CPU_KERNEL(philox_uniform, PhiloxUniformParams)

}  // namespace specdec::cpu
