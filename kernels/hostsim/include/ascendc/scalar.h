// What the scalar unit computes by itself, and its accesses around the data cache.
#pragma once

#include "ascendc/reduce.h"

namespace AscendC {

template <int countValue>
int64_t GetBitCount(uint64_t valueIn) {
  static_assert(countValue == 0 || countValue == 1, "countValue must be 1 or 0");
  return __builtin_popcountll(countValue == 1 ? valueIn : ~valueIn);
}
inline int64_t CountLeadingZero(uint64_t valueIn) { return valueIn == 0 ? 64 : __builtin_clzll(valueIn); }
// Bits below the sign bit that equal it.
inline int64_t CountBitsCntSameAsSignBit(int64_t valueIn) {
  return CountLeadingZero(static_cast<uint64_t>(valueIn < 0 ? ~valueIn : valueIn)) - 1;
}
// Position of the lowest bit of this value, -1 if there is none.
template <int countValue>
int64_t GetSFFValue(uint64_t valueIn) {
  static_assert(countValue == 0 || countValue == 1, "countValue must be 1 or 0");
  uint64_t bits = countValue == 1 ? valueIn : ~valueIn;
  return bits == 0 ? -1 : __builtin_ctzll(bits);
}

template <typename T, typename U, RoundMode roundMode>
U Cast(T valueIn) {
  static_assert(std::is_same_v<T, float> && detail::kIsOneOf<U, half, int32_t>,
                "scalar Cast converts float to half or int32_t");
  return detail::CastValue<U>(valueIn, detail::RoundOf(roundMode), 1.0f);
}
inline bfloat16_t Cast(const float& fVal) { return bfloat16_t(fVal); }
inline float Cast(const bfloat16_t& bVal) { return bVal; }

inline int32_t CeilDivision(int32_t num1, int32_t num2) { return num2 == 0 ? 0 : (num1 + num2 - 1) / num2; }

// Past the data cache, straight to global memory.
template <typename T>
void WriteGmByPassDCache(__gm__ T* addr, T value, Loc loc = Loc::Here()) {
  hostsim::Core& core = hostsim::Current();
  core.Begin(hostsim::Pipe::kS, "WriteGmByPassDCache", loc);
  if (core.WriteGm(addr, sizeof(T))) *addr = value;
  core.Finish(hostsim::cost::kScalarGm, 0, sizeof(T), 0);
}
template <typename T>
T ReadGmByPassDCache(__gm__ T* addr, Loc loc = Loc::Here()) {
  hostsim::Core& core = hostsim::Current();
  core.Begin(hostsim::Pipe::kS, "ReadGmByPassDCache", loc);
  T value = core.ReadGm(addr, sizeof(T)) ? *addr : T{};
  core.Finish(hostsim::cost::kScalarGm, 0, sizeof(T), 0);
  return value;
}

// Older names.
template <int countValue>
int64_t ScalarGetCountOfValue(uint64_t valueIn) {
  return GetBitCount<countValue>(valueIn);
}
inline int64_t ScalarCountLeadingZero(uint64_t valueIn) { return CountLeadingZero(valueIn); }
template <int countValue>
int64_t ScalarGetSFFValue(uint64_t valueIn) {
  return GetSFFValue<countValue>(valueIn);
}
template <typename T, typename U, RoundMode roundMode>
U ScalarCast(T valueIn) {
  return Cast<T, U, roundMode>(valueIn);
}
inline bfloat16_t ToBfloat16(const float& fVal) { return Cast(fVal); }
inline float ToFloat(const bfloat16_t& bVal) { return Cast(bVal); }
template <typename T, bool isSetMask = true>
void RepeatReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src, const int32_t repeatTime, const int32_t mask,
                     const int32_t dstBlkStride, const int32_t srcBlkStride, const int32_t dstRepStride,
                     const int32_t srcRepStride, Loc loc = Loc::Here()) {
  ReduceRepeat<ReduceType::SUM, T, T, isSetMask>(dst, src, mask, repeatTime, dstRepStride, srcBlkStride, srcRepStride,
                                                 ReduceOrder::ORDER_ONLY_VALUE, loc);
}

}  // namespace AscendC
