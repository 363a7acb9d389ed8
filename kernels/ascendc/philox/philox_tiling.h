// What host and device share of philox: the tiling, the function that fills it, and the launch.
#pragma once

#include <cstdint>

namespace specdec::ascendc {

struct PhiloxTiling {
  uint64_t total;  // batch * n numbers
  uint64_t n;
  uint64_t share;  // numbers a core makes: whole 32-byte lines
  uint32_t stream;
  uint32_t cores;
};

inline PhiloxTiling philox_tiling(uint64_t batch, uint64_t n, uint32_t stream, uint32_t vector_cores) {
  constexpr uint64_t kLine = 8;
  PhiloxTiling t{batch * n, n, 0, stream, 0};
  const uint64_t lines = (t.total + kLine - 1) / kLine;
  t.share = (lines + vector_cores - 1) / vector_cores * kLine;
  t.cores = static_cast<uint32_t>((t.total + t.share - 1) / t.share);
  return t;
}

// seeds, offsets int64 [batch] -> out float32 [batch, n]
void launch_philox_uniform(void* stream, const void* seeds, const void* offsets, void* out, const PhiloxTiling& tiling);

}  // namespace specdec::ascendc
