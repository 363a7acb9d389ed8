// Arithmetic on rows of floats in UB. What belongs to a row, a maximum or a weight, is kept either one float a row, or
// repeated in a block of eight, which a vector instruction can apply to the whole row. Numbers of rows are multiples of
// eight in the first form.
#pragma once

#include "kernels/ascendc/common/pipe.h"
#include "kernels/ascendc/tree_attention/tree_attention_tiling.h"

namespace specdec::ascendc {

constexpr uint32_t kLanes = kRepeatBytes / sizeof(float);
constexpr float kNothing = -1e30f;  // below every score, above what hides a key: exp(hidden - kNothing) is 0
constexpr float kTiny = 1e-30f;

__aicore__ inline void Barrier() { AscendC::PipeBarrier<PIPE_V>(); }

__aicore__ inline void FillMinusInfinity(const AscendC::LocalTensor<float>& to, uint32_t count) {
  AscendC::Duplicate(to.ReinterpretCast<uint32_t>(), uint32_t{0xff800000}, static_cast<int32_t>(count));
}

enum class RowOp { kSub, kMul, kDiv, kAnd };

// x <- x op factor, where `factors` [rows, 8] are the rows'; kAnd is of their bits.
template <RowOp op>
__aicore__ inline void ByRow(const AscendC::LocalTensor<float>& x, const AscendC::LocalTensor<float>& factors,
                             uint32_t rows, uint32_t width) {
  const uint8_t stride = static_cast<uint8_t>(width / BlockOf<float>());
  const AscendC::BinaryRepeatParams repeat(1, 1, 0, stride, stride, 1);
  const uint8_t repeats = static_cast<uint8_t>(rows);
  for (uint32_t at = 0; at < width; at += kLanes) {
    const uint64_t lanes = width - at < kLanes ? width - at : kLanes;
    if constexpr (op == RowOp::kSub) {
      AscendC::Sub(x[at], x[at], factors, lanes, repeats, repeat);
    } else if constexpr (op == RowOp::kMul) {
      AscendC::Mul(x[at], x[at], factors, lanes, repeats, repeat);
    } else if constexpr (op == RowOp::kAnd) {
      const AscendC::LocalTensor<uint16_t> halves = x[at].template ReinterpretCast<uint16_t>();
      AscendC::And(halves, halves, factors.template ReinterpretCast<uint16_t>(), 2 * lanes, repeats, repeat);
    } else {
      AscendC::Div(x[at], x[at], factors, lanes, repeats, repeat);
    }
  }
}

// x <- x factor + addend, where `factors` [rows, 8] are the rows'.
__aicore__ inline void MulAddByRow(const AscendC::LocalTensor<float>& x, const AscendC::LocalTensor<float>& factors,
                                   const AscendC::LocalTensor<float>& addend, uint32_t rows, uint32_t width) {
  const uint8_t stride = static_cast<uint8_t>(width / BlockOf<float>());
  const AscendC::BinaryRepeatParams repeat(1, 0, 1, stride, 1, stride);
  for (uint32_t at = 0; at < width; at += kLanes) {
    const uint64_t lanes = width - at < kLanes ? width - at : kLanes;
    AscendC::FusedMulAdd(x[at], factors, addend[at], lanes, static_cast<uint8_t>(rows), repeat);
  }
}

// One float a row to a block of eight a row.
__aicore__ inline void Spread(const AscendC::LocalTensor<float>& to, const AscendC::LocalTensor<float>& from,
                              uint32_t rows) {
  AscendC::Brcb(to, from, static_cast<uint8_t>(rows / 8), AscendC::BrcbRepeatParams(1, 8));
}

// Each block of eight to its maximum or sum.
template <bool kMax>
__aicore__ inline void Fold(const AscendC::LocalTensor<float>& to, const AscendC::LocalTensor<float>& from,
                            uint32_t repeats) {
  if constexpr (kMax) {
    AscendC::BlockReduceMax(to, from, static_cast<int32_t>(repeats), static_cast<int32_t>(kLanes), 1, 1, 8);
  } else {
    AscendC::BlockReduceSum(to, from, static_cast<int32_t>(repeats), static_cast<int32_t>(kLanes), 1, 1, 8);
  }
}

// Weights of partial results: `parts` [n, lanes] hold each part's lse, `lanes` is the number of
// rows times eight. They become weights that sum to 1, or 0 where every part is -inf; `lse` [lanes] is that of the
// whole; `top` [2, lanes] is scratch.
__aicore__ inline void MergeWeights(const AscendC::LocalTensor<float>& parts, uint32_t n, uint32_t lanes,
                                    const AscendC::LocalTensor<float>& lse, const AscendC::LocalTensor<float>& top) {
  const int32_t count = static_cast<int32_t>(lanes);
  AscendC::Maxs(top, parts, kNothing, count);
  Barrier();
  for (uint32_t i = 1; i < n; ++i) {
    AscendC::Max(top, top, parts[i * lanes], count);
    Barrier();
  }
  for (uint32_t i = 0; i < n; ++i) AscendC::Sub(parts[i * lanes], parts[i * lanes], top, count);
  Barrier();
  AscendC::Exp(parts, parts, static_cast<int32_t>(n * lanes));
  AscendC::Duplicate(lse, 0.0f, count);
  Barrier();
  for (uint32_t i = 0; i < n; ++i) {
    AscendC::Add(lse, lse, parts[i * lanes], count);
    Barrier();
  }
  const AscendC::LocalTensor<float> sum = top[lanes];
  AscendC::Maxs(sum, lse, kTiny, count);
  AscendC::Ln(lse, lse, count);
  Barrier();
  AscendC::Add(lse, lse, top, count);
  for (uint32_t i = 0; i < n; ++i) AscendC::Div(parts[i * lanes], parts[i * lanes], sum, count);
  Barrier();
}

// Float rows to the output's type.
template <typename T>
__aicore__ inline void Narrow(const AscendC::LocalTensor<T>& to, const AscendC::LocalTensor<float>& from,
                              uint32_t count) {
  if constexpr (sizeof(T) == 4) {
    AscendC::DataCopy(to, from, count);
  } else {
    AscendC::Cast(to, from, AscendC::RoundMode::CAST_RINT, count);
  }
}

}  // namespace specdec::ascendc
