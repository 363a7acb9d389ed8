// One number from 64, 512 or 4096, of one run of floats or of several.
#pragma once

#include "kernels/ascendc/common/pipe.h"

namespace specdec::ascendc {

constexpr uint32_t kFloatLanes = 64;  // of a repeat
constexpr uint32_t kReduceScratch = 512 + 64;

enum class Reduction { kMax, kSum };

// `count` floats, which are 64 or a multiple, to one from eight each. It costs a seventh of making one from 64.
template <Reduction kind>
__aicore__ inline void ReduceEights(const AscendC::LocalTensor<float>& dst, const AscendC::LocalTensor<float>& src,
                                    uint32_t count) {
  constexpr int32_t kMask = kFloatLanes;
  constexpr uint32_t kRepeats = 128;  // of an instruction; it may have 255
  const uint32_t all = count / kFloatLanes;
  for (uint32_t at = 0; at < all; at += kRepeats) {
    const int32_t repeats = static_cast<int32_t>(all - at < kRepeats ? all - at : kRepeats);
    if constexpr (kind == Reduction::kMax) {
      AscendC::BlockReduceMax(dst[at * 8], src[at * kFloatLanes], repeats, kMask, 1, 1, 8);
    } else {
      AscendC::BlockReduceSum(dst[at * 8], src[at * kFloatLanes], repeats, kMask, 1, 1, 8);
    }
  }
  AscendC::PipeBarrier<PIPE_V>();
}

// 64 of each of `rows` runs of `count`: in `scratch`, or in `src` where there are no more.
template <Reduction kind>
__aicore__ inline AscendC::LocalTensor<float> ReduceTo64(const AscendC::LocalTensor<float>& src,
                                                         const AscendC::LocalTensor<float>& scratch, uint32_t count,
                                                         uint32_t rows) {
  AscendC::LocalTensor<float> from = src, to = scratch;
  for (; count > kFloatLanes; count /= 8) {
    ReduceEights<kind>(to, from, rows * count);
    from = to;
    to = to[rows * count / 8];
  }
  return from;
}

// `rows` runs of `count`; their results are `step` floats apart, and `dst` needs no alignment. `src` is left as it is;
// `scratch` holds kReduceScratch a row.
template <Reduction kind>
__aicore__ inline void Reduce(const AscendC::LocalTensor<float>& dst, const AscendC::LocalTensor<float>& src,
                              const AscendC::LocalTensor<float>& scratch, uint32_t count, uint32_t rows = 1,
                              uint32_t step = 1) {
  constexpr int32_t kMask = kFloatLanes;
  const AscendC::LocalTensor<float> from = ReduceTo64<kind>(src, scratch, count, rows);
  const int32_t repeats = static_cast<int32_t>(rows), apart = static_cast<int32_t>(step);
  if constexpr (kind == Reduction::kMax) {
    AscendC::WholeReduceMax(dst, from, kMask, repeats, apart, 1, 8, AscendC::ReduceOrder::ORDER_ONLY_VALUE);
  } else {
    AscendC::WholeReduceSum(dst, from, kMask, repeats, apart, 1, 8);
  }
  AscendC::PipeBarrier<PIPE_V>();
}

}  // namespace specdec::ascendc
