// Comparison, selection and compaction by bit masks.
#pragma once

#include "ascendc/vector.h"

namespace AscendC {
namespace detail {

template <class T>
bool Compares(T a, T b, CMPMODE mode) {
  switch (mode) {
    case CMPMODE::LT:
      return a < b;
    case CMPMODE::GT:
      return a > b;
    case CMPMODE::EQ:
      return a == b;
    case CMPMODE::LE:
      return a <= b;
    case CMPMODE::GE:
      return a >= b;
    case CMPMODE::NE:
      return a != b;
  }
  return false;
}

template <class T, class U>
bool CheckCompare(const char* op, CMPMODE mode, Loc loc) {
  static_assert(kIsOneOf<T, half, float, int32_t>, "Compare supports half, float and int32_t");
  static_assert(sizeof(U) == 1, "Compare writes its bits to int8_t or uint8_t");
  if (!std::is_same_v<T, int32_t> || mode == CMPMODE::EQ) return true;
  hostsim::Current().FailAt(hostsim::Fault::kUnsupported, hostsim::Pipe::kV, op, loc, "int32_t compares with EQ only");
  return false;
}

// Whole repeats only: the last partial 256 bytes would not be compared at all.
template <class T>
bool CheckCompareCount(const char* op, int64_t count, Loc loc) {
  if (count * sizeof(T) % hostsim::kRepeat == 0) return true;
  hostsim::Current().FailAt(hostsim::Fault::kBadArgument, hostsim::Pipe::kV, op, loc,
                            std::to_string(count) + " elements are not a multiple of 256 bytes");
  return false;
}

// `second` gives the right-hand operand of a lane.
template <class T, class F>
void CompareInto(hostsim::VectorCall& call, const hostsim::LocalRef& dst, const hostsim::VecArg* sources, int n,
                 CMPMODE mode, F second) {
  uint32_t bytes_per_repeat = call.per_repeat() / 8;
  hostsim::VecArg bits{dst, 1, 1, 0};
  // The destination is a packed bit string, not a lane-wise operand: declare it by hand.
  if (!call.StartPacked(bits, call.repeats() * bytes_per_repeat, sources, n)) return;
  uint8_t* ub = hostsim::Current().Data(hostsim::Mem::kUb);
  const T* a = reinterpret_cast<const T*>(ub + sources[0].ref.addr);
  for (uint32_t r = 0; r < call.repeats(); ++r) {
    uint8_t* out = ub + dst.addr + r * bytes_per_repeat;
    for (uint32_t byte = 0; byte < bytes_per_repeat; ++byte) {
      uint8_t value = 0;
      for (uint32_t k = 0; k < 8; ++k) {
        uint32_t lane = byte * 8 + k;
        T left = a[hostsim::VectorCall::Offset(sources[0], r, lane) / sizeof(T)];
        value |= static_cast<uint8_t>(Compares<T>(left, second(r, lane), mode) << k);
      }
      out[byte] = value;
    }
  }
}

template <class T, class U>
void CompareTensors(hostsim::VectorCall& call, const LocalTensor<U>& dst, const hostsim::VecArg& a,
                    const hostsim::VecArg& b, CMPMODE mode) {
  hostsim::VecArg sources[] = {a, b};
  const T* right = reinterpret_cast<const T*>(hostsim::Current().Data(hostsim::Mem::kUb) + b.ref.addr);
  CompareInto<T>(call, dst.ref(), sources, 2, mode,
                 [&](uint32_t r, uint32_t lane) { return right[hostsim::VectorCall::Offset(b, r, lane) / sizeof(T)]; });
}

}  // namespace detail

template <typename T, typename U>
void Compare(const LocalTensor<U>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1, CMPMODE cmpMode,
             uint32_t count, Loc loc = Loc::Here()) {
  if (ASCEND_IS_AIC || !detail::CheckCompare<T, U>("Compare", cmpMode, loc)) return;
  if (!detail::CheckCompareCount<T>("Compare", count, loc)) return;
  hostsim::VectorCall call("Compare", loc, sizeof(T));
  call.Count(count);
  detail::CompareTensors<T>(call, dst, detail::Dense(call, src0), detail::Dense(call, src1), cmpMode);
}
// The mask has no effect on this architecture: every repeat compares 256 bytes.
template <typename T, typename U, bool isSetMask = true>
void Compare(const LocalTensor<U>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1, CMPMODE cmpMode,
             const uint64_t mask, const int32_t repeatTime, const BinaryRepeatParams& p, Loc loc = Loc::Here()) {
  if (ASCEND_IS_AIC || !detail::CheckCompare<T, U>("Compare", cmpMode, loc)) return;
  hostsim::VectorCall call("Compare", loc, sizeof(T));
  call.Lanes(call.per_repeat(), repeatTime);
  detail::CompareTensors<T>(call, dst, detail::Strided(src0, p.src0BlkStride, p.src0RepStride),
                            detail::Strided(src1, p.src1BlkStride, p.src1RepStride), cmpMode);
}
template <typename T, typename U, bool isSetMask = true>
void Compare(const LocalTensor<U>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1, CMPMODE cmpMode,
             const uint64_t mask[], const int32_t repeatTime, const BinaryRepeatParams& p, Loc loc = Loc::Here()) {
  Compare(dst, src0, src1, cmpMode, uint64_t{0}, repeatTime, p, loc);
}

template <typename T, typename U>
void Compares(const LocalTensor<U>& dst, const LocalTensor<T>& src0, const T src1Scalar, CMPMODE cmpMode,
              uint32_t count, Loc loc = Loc::Here()) {
  if (ASCEND_IS_AIC || !detail::CheckCompare<T, U>("Compares", cmpMode, loc)) return;
  if (!detail::CheckCompareCount<T>("Compares", count, loc)) return;
  hostsim::VectorCall call("Compares", loc, sizeof(T));
  call.Count(count);
  hostsim::VecArg source = detail::Dense(call, src0);
  detail::CompareInto<T>(call, dst.ref(), &source, 1, cmpMode, [&](uint32_t, uint32_t) { return src1Scalar; });
}
template <typename T, typename U, bool isSetMask = true>
void Compares(const LocalTensor<U>& dst, const LocalTensor<T>& src0, const T src1Scalar, CMPMODE cmpMode,
              const uint64_t mask, const int32_t repeatTime, const UnaryRepeatParams& p, Loc loc = Loc::Here()) {
  if (ASCEND_IS_AIC || !detail::CheckCompare<T, U>("Compares", cmpMode, loc)) return;
  hostsim::VectorCall call("Compares", loc, sizeof(T));
  call.Lanes(call.per_repeat(), repeatTime);
  hostsim::VecArg source = detail::Strided(src0, p.srcBlkStride, p.srcRepStride);
  detail::CompareInto<T>(call, dst.ref(), &source, 1, cmpMode, [&](uint32_t, uint32_t) { return src1Scalar; });
}
template <typename T, typename U, bool isSetMask = true>
void Compares(const LocalTensor<U>& dst, const LocalTensor<T>& src0, const T src1Scalar, CMPMODE cmpMode,
              const uint64_t mask[], const int32_t repeatTime, const UnaryRepeatParams& p, Loc loc = Loc::Here()) {
  Compares(dst, src0, src1Scalar, cmpMode, uint64_t{0}, repeatTime, p, loc);
}

// The older name of Compares.
template <typename T, typename U>
void CompareScalar(const LocalTensor<U>& dst, const LocalTensor<T>& src0, const T src1Scalar, CMPMODE cmpMode,
                   uint32_t count, Loc loc = Loc::Here()) {
  Compares(dst, src0, src1Scalar, cmpMode, count, loc);
}
template <typename T, typename U, bool isSetMask = true>
void CompareScalar(const LocalTensor<U>& dst, const LocalTensor<T>& src0, const T src1Scalar, CMPMODE cmpMode,
                   const uint64_t mask, const int32_t repeatTime, const UnaryRepeatParams& p, Loc loc = Loc::Here()) {
  Compares(dst, src0, src1Scalar, cmpMode, mask, repeatTime, p, loc);
}
template <typename T, typename U, bool isSetMask = true>
void CompareScalar(const LocalTensor<U>& dst, const LocalTensor<T>& src0, const T src1Scalar, CMPMODE cmpMode,
                   const uint64_t mask[], const int32_t repeatTime, const UnaryRepeatParams& p, Loc loc = Loc::Here()) {
  Compares(dst, src0, src1Scalar, cmpMode, mask, repeatTime, p, loc);
}

// Select: bit 1 takes src0, bit 0 takes src1.
namespace detail {

// Modes 1 and 2 keep an intermediate mask in the last 8 KB of UB.
inline bool CheckSelect(SELMODE mode, Loc loc) {
  hostsim::Core& core = hostsim::Current();
  if (mode == SELMODE::VSEL_CMPMASK_SPR || core.Limit(hostsim::Mem::kUb) <= TMP_UB_OFFSET) return true;
  core.FailAt(hostsim::Fault::kLocalOverflow, hostsim::Pipe::kV, "Select", loc,
              "modes 1 and 2 use the last 8 KB of UB, which this launch gives to the kernel");
  return false;
}

template <class T, class U, class F>
void SelectInto(hostsim::VectorCall& call, const hostsim::VecArg& dst, const LocalTensor<U>& selMask,
                const hostsim::VecArg* sources, int n, SELMODE mode, F second) {
  static_assert(kIsFloat<T>, "Select supports half and float");
  bool reuse = mode == SELMODE::VSEL_CMPMASK_SPR;
  uint32_t elements = call.counting() && !reuse ? call.count() : (reuse ? 1 : call.repeats()) * call.per_repeat();
  if (reuse && call.counting()) elements = std::min(call.count(), call.per_repeat());
  if (!call.StartWithBits(dst, sources, n, selMask.ref(), hostsim::CeilDiv<uint32_t>(elements, 8))) return;
  uint8_t* ub = hostsim::Current().Data(hostsim::Mem::kUb);
  const uint8_t* bits = ub + selMask.ref().addr;
  T* d = reinterpret_cast<T*>(ub + dst.ref.addr);
  const T* a = reinterpret_cast<const T*>(ub + sources[0].ref.addr);
  for (uint32_t r = 0; r < call.repeats(); ++r) {
    hostsim::VecMask mask = call.MaskOf(r);
    for (uint32_t i = 0; i < call.per_repeat(); ++i) {
      if (!(mask.word[i / 64] >> (i % 64) & 1)) continue;
      uint32_t bit = (reuse ? 0 : r * call.per_repeat()) + i;
      bool take = bits[bit / 8] >> (bit % 8) & 1;
      d[hostsim::VectorCall::Offset(dst, r, i) / sizeof(T)] =
          take ? a[hostsim::VectorCall::Offset(sources[0], r, i) / sizeof(T)] : second(r, i);
    }
  }
}

template <class T, class U>
void SelectTensors(hostsim::VectorCall& call, const hostsim::VecArg& dst, const LocalTensor<U>& selMask,
                   const hostsim::VecArg& a, const hostsim::VecArg& b, SELMODE mode, Loc loc) {
  if (mode == SELMODE::VSEL_TENSOR_SCALAR_MODE) {
    hostsim::Current().FailAt(hostsim::Fault::kUnsupported, hostsim::Pipe::kV, "Select", loc,
                              "two tensors need mode 0 or 2");
    return;
  }
  if (!CheckSelect(mode, loc)) return;
  hostsim::VecArg sources[] = {a, b};
  const T* right = reinterpret_cast<const T*>(hostsim::Current().Data(hostsim::Mem::kUb) + b.ref.addr);
  SelectInto<T>(call, dst, selMask, sources, 2, mode,
                [&](uint32_t r, uint32_t lane) { return right[hostsim::VectorCall::Offset(b, r, lane) / sizeof(T)]; });
}

template <class T, class U>
void SelectScalar(hostsim::VectorCall& call, const hostsim::VecArg& dst, const LocalTensor<U>& selMask,
                  const hostsim::VecArg& a, T scalar, SELMODE mode, Loc loc) {
  if (mode != SELMODE::VSEL_TENSOR_SCALAR_MODE) {
    hostsim::Current().FailAt(hostsim::Fault::kUnsupported, hostsim::Pipe::kV, "Select", loc,
                              "tensor and scalar need mode 1");
    return;
  }
  if (!CheckSelect(mode, loc)) return;
  SelectInto<T>(call, dst, selMask, &a, 1, mode, [&](uint32_t, uint32_t) { return scalar; });
}

}  // namespace detail

template <typename T, typename U>
void Select(const LocalTensor<T>& dst, const LocalTensor<U>& selMask, const LocalTensor<T>& src0,
            const LocalTensor<T>& src1, SELMODE selMode, uint32_t count, Loc loc = Loc::Here()) {
  if (ASCEND_IS_AIC) return;
  hostsim::VectorCall call("Select", loc, sizeof(T));
  call.Count(count);
  detail::SelectTensors<T>(call, detail::Dense(call, dst), selMask, detail::Dense(call, src0),
                           detail::Dense(call, src1), selMode, loc);
}
template <typename T, typename U, bool isSetMask = true>
void Select(const LocalTensor<T>& dst, const LocalTensor<U>& selMask, const LocalTensor<T>& src0,
            const LocalTensor<T>& src1, SELMODE selMode, uint64_t mask, const int32_t repeatTime,
            const BinaryRepeatParams& p, Loc loc = Loc::Here()) {
  if (ASCEND_IS_AIC) return;
  hostsim::VectorCall call("Select", loc, sizeof(T));
  call.Lanes(mask, repeatTime);
  detail::SelectTensors<T>(call, detail::Strided(dst, p.dstBlkStride, p.dstRepStride), selMask,
                           detail::Strided(src0, p.src0BlkStride, p.src0RepStride),
                           detail::Strided(src1, p.src1BlkStride, p.src1RepStride), selMode, loc);
}
template <typename T, typename U, bool isSetMask = true>
void Select(const LocalTensor<T>& dst, const LocalTensor<U>& selMask, const LocalTensor<T>& src0,
            const LocalTensor<T>& src1, SELMODE selMode, uint64_t mask[], const int32_t repeatTime,
            const BinaryRepeatParams& p, Loc loc = Loc::Here()) {
  if (ASCEND_IS_AIC) return;
  hostsim::VectorCall call("Select", loc, sizeof(T));
  call.Bits(mask, repeatTime);
  detail::SelectTensors<T>(call, detail::Strided(dst, p.dstBlkStride, p.dstRepStride), selMask,
                           detail::Strided(src0, p.src0BlkStride, p.src0RepStride),
                           detail::Strided(src1, p.src1BlkStride, p.src1RepStride), selMode, loc);
}
template <typename T, typename U>
void Select(const LocalTensor<T>& dst, const LocalTensor<U>& selMask, const LocalTensor<T>& src0, T src1,
            SELMODE selMode, uint32_t count, Loc loc = Loc::Here()) {
  if (ASCEND_IS_AIC) return;
  hostsim::VectorCall call("Select", loc, sizeof(T));
  call.Count(count);
  detail::SelectScalar<T>(call, detail::Dense(call, dst), selMask, detail::Dense(call, src0), src1, selMode, loc);
}
template <typename T, typename U, bool isSetMask = true>
void Select(const LocalTensor<T>& dst, const LocalTensor<U>& selMask, const LocalTensor<T>& src0, T src1,
            SELMODE selMode, uint64_t mask, const int32_t repeatTime, const BinaryRepeatParams& p,
            Loc loc = Loc::Here()) {
  if (ASCEND_IS_AIC) return;
  hostsim::VectorCall call("Select", loc, sizeof(T));
  call.Lanes(mask, repeatTime);
  detail::SelectScalar<T>(call, detail::Strided(dst, p.dstBlkStride, p.dstRepStride), selMask,
                          detail::Strided(src0, p.src0BlkStride, p.src0RepStride), src1, selMode, loc);
}

template <typename T, typename U, bool isSetMask = true>
void Select(const LocalTensor<T>& dst, const LocalTensor<U>& selMask, const LocalTensor<T>& src0, T src1,
            SELMODE selMode, uint64_t mask[], const int32_t repeatTime, const BinaryRepeatParams& p,
            Loc loc = Loc::Here()) {
  if (ASCEND_IS_AIC) return;
  hostsim::VectorCall call("Select", loc, sizeof(T));
  call.Bits(mask, repeatTime);
  detail::SelectScalar<T>(call, detail::Strided(dst, p.dstBlkStride, p.dstRepStride), selMask,
                          detail::Strided(src0, p.src0BlkStride, p.src0RepStride), src1, selMode, loc);
}

// GatherMask: keeps the elements whose mask bit is 1, packed, and says how many.
namespace detail {

template <class T, class F>
void GatherMaskInto(const char* op, Loc loc, const LocalTensor<T>& dst, const LocalTensor<T>& src,
                    const hostsim::LocalRef* pattern, bool counter, uint32_t mask, const GatherMaskParams& p,
                    uint64_t& kept, F bit) {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4, "GatherMask supports 16 and 32 bit types");
  hostsim::Core& core = hostsim::Current();
  kept = 0;
  if (ASCEND_IS_AIC || p.repeatTimes == 0) return;
  constexpr uint32_t kPerRepeat = hostsim::kRepeat / sizeof(T);
  uint32_t per_repeat = counter ? mask : kPerRepeat;
  core.Begin(hostsim::Pipe::kV, op, loc);
  bool fine = core.CheckAligned(dst.ref(), 32) && core.CheckAligned(src.ref(), 32);
  if (per_repeat == 0) {
    core.Fail(hostsim::Fault::kBadMask, "counter mode with a mask of 0 elements");
    return;
  }
  hostsim::VecArg source{src.ref(), sizeof(T), p.src0BlockStride, p.src0RepeatStride};
  for (uint32_t r = 0; r < p.repeatTimes && fine; ++r) {
    uint32_t start = r * p.src0RepeatStride * hostsim::kBlock;
    if (p.src0BlockStride == 1) {
      fine = core.ReadLocal(src.ref(), src.ref().addr + start, per_repeat * sizeof(T));
    } else {
      for (uint32_t i = 0; i < per_repeat && fine; ++i) {
        fine = core.ReadLocal(src.ref(), src.ref().addr + hostsim::VectorCall::Offset(source, r, i), sizeof(T));
      }
    }
    if (fine && pattern != nullptr) {
      fine = core.CheckAligned(*pattern, 32) &&
             core.ReadLocal(*pattern, pattern->addr + r * p.src1RepeatStride * hostsim::kBlock,
                            hostsim::CeilDiv<uint32_t>(per_repeat, 8));
    }
  }
  if (fine) {
    uint8_t* ub = core.Data(hostsim::Mem::kUb);
    const T* s = reinterpret_cast<const T*>(ub + src.ref().addr);
    T* d = reinterpret_cast<T*>(ub + dst.ref().addr);
    // Selected first, stored after: the range written is known only then.
    for (uint32_t r = 0; r < p.repeatTimes; ++r) {
      for (uint32_t i = 0; i < per_repeat; ++i) kept += bit(r, i);
    }
    if (core.WriteLocal(dst.ref(), dst.ref().addr, static_cast<uint32_t>(kept * sizeof(T)))) {
      uint64_t at = 0;
      for (uint32_t r = 0; r < p.repeatTimes; ++r) {
        for (uint32_t i = 0; i < per_repeat; ++i) {
          if (bit(r, i)) d[at++] = s[hostsim::VectorCall::Offset(source, r, i) / sizeof(T)];
        }
      }
    }
  }
  uint32_t repeats = p.repeatTimes * hostsim::CeilDiv(per_repeat, kPerRepeat);
  core.Finish(hostsim::cost::kVectorHead + repeats * detail::kCostGatherMask, hostsim::cost::kVectorTail,
              kept * sizeof(T), repeats);
}

}  // namespace detail

template <typename T, typename U, GatherMaskMode mode = defaultGatherMaskMode>
void GatherMask(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<U>& src1Pattern,
                const bool reduceMode, const uint32_t mask, const GatherMaskParams& gatherMaskParams, uint64_t& rsvdCnt,
                Loc loc = Loc::Here()) {
  static_assert(std::is_unsigned_v<U> && sizeof(U) == sizeof(T),
                "the pattern is the unsigned type of the data's width");
  hostsim::LocalRef pattern = src1Pattern.ref();
  uint32_t stride = gatherMaskParams.src1RepeatStride * hostsim::kBlock;
  auto bit = [&](uint32_t r, uint32_t i) -> uint64_t {
    return hostsim::Current().Data(hostsim::Mem::kUb)[pattern.addr + r * stride + i / 8] >> (i % 8) & 1;
  };
  detail::GatherMaskInto("GatherMask", loc, dst, src0, &pattern, reduceMode, mask, gatherMaskParams, rsvdCnt, bit);
}
template <typename T, GatherMaskMode mode = defaultGatherMaskMode>
void GatherMask(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const uint8_t src1Pattern, const bool reduceMode,
                const uint32_t mask, const GatherMaskParams& gatherMaskParams, uint64_t& rsvdCnt,
                Loc loc = Loc::Here()) {
  if (src1Pattern < 1 || src1Pattern > 7) {
    hostsim::Current().FailAt(hostsim::Fault::kBadArgument, hostsim::Pipe::kV, "GatherMask", loc,
                              "pattern " + std::to_string(src1Pattern) + " is not in [1, 7]");
    return;
  }
  // 1 and 2: even and odd elements; 3 to 6: one of four; 7: all.
  auto bit = [src1Pattern](uint32_t, uint32_t i) -> uint64_t {
    if (src1Pattern == 7) return 1;
    return src1Pattern <= 2 ? i % 2 == src1Pattern - 1u : i % 4 == src1Pattern - 3u;
  };
  detail::GatherMaskInto("GatherMask", loc, dst, src0, nullptr, reduceMode, mask, gatherMaskParams, rsvdCnt, bit);
}

}  // namespace AscendC
