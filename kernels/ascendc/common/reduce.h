// One number from 64, 512 or 4096, of one run of floats or of several.
#pragma once

#include "kernels/ascendc/common/pipe.h"

namespace specdec::ascendc {

constexpr uint32_t kFloatLanes = 64;  // of a repeat
constexpr uint32_t kReduceScratch = 512 + 64;

enum class Reduction { kMax, kSum };

// `rows` runs of `count`; their results are `step` floats apart, and `dst` needs no alignment. `src` is left as it is;
// `scratch` holds kReduceScratch a row.
template <Reduction kind>
__aicore__ inline void Reduce(const AscendC::LocalTensor<float>& dst, const AscendC::LocalTensor<float>& src,
                              const AscendC::LocalTensor<float>& scratch, uint32_t count, uint32_t rows = 1,
                              uint32_t step = 1) {
  constexpr int32_t kMask = kFloatLanes;
  constexpr uint32_t kRepeats = 128;  // of an instruction; it may have 255
  AscendC::LocalTensor<float> from = src, to = scratch;
  // A reduction of data blocks makes eight of 64, at a seventh of the cost of making one.
  for (; count > kFloatLanes; count /= 8) {
    const uint32_t all = rows * count / kFloatLanes;
    for (uint32_t at = 0; at < all; at += kRepeats) {
      const int32_t repeats = static_cast<int32_t>(all - at < kRepeats ? all - at : kRepeats);
      if constexpr (kind == Reduction::kMax) {
        AscendC::BlockReduceMax(to[at * 8], from[at * kFloatLanes], repeats, kMask, 1, 1, 8);
      } else {
        AscendC::BlockReduceSum(to[at * 8], from[at * kFloatLanes], repeats, kMask, 1, 1, 8);
      }
    }
    AscendC::PipeBarrier<PIPE_V>();
    from = to;
    to = to[rows * count / 8];
  }
  const int32_t repeats = static_cast<int32_t>(rows), apart = static_cast<int32_t>(step);
  if constexpr (kind == Reduction::kMax) {
    AscendC::WholeReduceMax(dst, from, kMask, repeats, apart, 1, 8, AscendC::ReduceOrder::ORDER_ONLY_VALUE);
  } else {
    AscendC::WholeReduceSum(dst, from, kMask, repeats, apart, 1, 8);
  }
  AscendC::PipeBarrier<PIPE_V>();
}

}  // namespace specdec::ascendc
