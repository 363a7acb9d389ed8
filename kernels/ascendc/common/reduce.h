// One number from 64, 512 or 4096.
#pragma once

#include "kernels/ascendc/common/pipe.h"

namespace specdec::ascendc {

constexpr uint32_t kFloatLanes = 64;  // of a repeat
constexpr uint32_t kReduceScratch = 512 + 64;

enum class Reduction { kMax, kSum };

// `dst` needs no alignment. `src` is left as it is; `scratch` holds kReduceScratch.
template <Reduction kind>
__aicore__ inline void Reduce(const AscendC::LocalTensor<float>& dst, const AscendC::LocalTensor<float>& src,
                              const AscendC::LocalTensor<float>& scratch, uint32_t count) {
  constexpr int32_t kMask = kFloatLanes;
  AscendC::LocalTensor<float> from = src, to = scratch;
  // A reduction of data blocks makes eight of 64, at a seventh of the cost of making one.
  for (; count > kFloatLanes; count /= 8) {
    const int32_t repeats = static_cast<int32_t>(count / kFloatLanes);
    if constexpr (kind == Reduction::kMax) {
      AscendC::BlockReduceMax(to, from, repeats, kMask, 1, 1, 8);
    } else {
      AscendC::BlockReduceSum(to, from, repeats, kMask, 1, 1, 8);
    }
    AscendC::PipeBarrier<PIPE_V>();
    from = to;
    to = to[count / 8];
  }
  if constexpr (kind == Reduction::kMax) {
    AscendC::WholeReduceMax(dst, from, kMask, 1, 1, 1, 8, AscendC::ReduceOrder::ORDER_ONLY_VALUE);
  } else {
    AscendC::WholeReduceSum(dst, from, kMask, 1, 1, 1, 8);
  }
  AscendC::PipeBarrier<PIPE_V>();
}

}  // namespace specdec::ascendc
