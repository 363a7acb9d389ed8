// Gathers, broadcasts, index vectors and copies inside UB.
#pragma once

#include "ascendc/reduce.h"

namespace AscendC {
namespace detail {

template <class T>
void GatherInto(hostsim::VectorCall& call, const hostsim::VecArg& dst, const LocalTensor<T>& src,
                const LocalTensor<uint32_t>& offsets, uint32_t base) {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4, "Gather supports 16 and 32 bit types");
  hostsim::Core& core = hostsim::Current();
  call.CyclesPerRepeat(call.per_repeat() / 5.0);  // 5 elements a cycle
  hostsim::VecArg offset_arg{offsets.ref(), sizeof(uint32_t), 1, call.per_repeat() * 4 / hostsim::kBlock};
  if (!call.StartGather(dst, offset_arg)) return;
  uint8_t* ub = core.Data(hostsim::Mem::kUb);
  const uint32_t* off = reinterpret_cast<const uint32_t*>(ub + offsets.ref().addr);
  for (uint32_t r = 0; r < call.repeats(); ++r) {
    hostsim::VecMask mask = call.MaskOf(r);
    for (uint32_t i = 0; i < call.per_repeat(); ++i) {
      if (!(mask.word[i / 64] >> (i % 64) & 1)) continue;
      uint64_t from = uint64_t{src.ref().addr} + base + off[r * call.per_repeat() + i];
      if (from % sizeof(T) != 0 || from > 0xffffffffu - sizeof(T)) {
        core.FailRange(hostsim::Fault::kMisaligned, hostsim::Mem::kUb, from, from + sizeof(T),
                       "gathered address is not a multiple of the element size");
        return;
      }
      if (!core.ReadLocal(src.ref(), static_cast<uint32_t>(from), sizeof(T))) return;
      uint32_t to = dst.ref.addr + hostsim::VectorCall::Offset(dst, r, i);
      std::memcpy(ub + to, ub + from, sizeof(T));
    }
  }
  call.Touch(dst, true);
}

}  // namespace detail

template <typename T>
void Gather(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<uint32_t>& srcOffset,
            const uint32_t srcBaseOffset, const uint32_t count, Loc loc = Loc::Here()) {
  hostsim::VectorCall call("Gather", loc, sizeof(T));
  call.Count(count);
  detail::GatherInto(call, detail::Dense(call, dst), src, srcOffset, srcBaseOffset);
}
template <typename T>
void Gather(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<uint32_t>& srcOffset,
            const uint32_t srcBaseOffset, const uint64_t mask, const int32_t repeatTime, const uint16_t dstRepStride,
            Loc loc = Loc::Here()) {
  hostsim::VectorCall call("Gather", loc, sizeof(T));
  call.Lanes(mask, repeatTime);
  detail::GatherInto(call, detail::Strided(dst, 1, dstRepStride), src, srcOffset, srcBaseOffset);
}
template <typename T>
void Gather(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<uint32_t>& srcOffset,
            const uint32_t srcBaseOffset, const uint64_t mask[], const int32_t repeatTime, const uint16_t dstRepStride,
            Loc loc = Loc::Here()) {
  hostsim::VectorCall call("Gather", loc, sizeof(T));
  call.Bits(mask, repeatTime);
  detail::GatherInto(call, detail::Strided(dst, 1, dstRepStride), src, srcOffset, srcBaseOffset);
}

// Each of 8 elements a repeat fills one data block.
template <typename T>
void Brcb(const LocalTensor<T>& dst, const LocalTensor<T>& src, const int32_t repeatTime,
          const BrcbRepeatParams& repeatParams, Loc loc = Loc::Here()) {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4, "Brcb supports 16 and 32 bit types");
  if (ASCEND_IS_AIC || repeatTime == 0) return;
  hostsim::Core& core = hostsim::Current();
  core.Begin(hostsim::Pipe::kV, "Brcb", loc);
  if (repeatTime < 0 || repeatTime > MAX_REPEAT_TIMES) {
    core.Fail(hostsim::Fault::kBadRepeat, std::to_string(repeatTime) + " repeats; at most 255");
    return;
  }
  if (repeatParams.dstBlkStride == 0) core.Fail(hostsim::Fault::kBadStride, "dstBlkStride must not be 0");
  constexpr uint32_t kPerRepeat = 8;
  uint32_t n = static_cast<uint32_t>(repeatTime) * kPerRepeat;
  bool fine = core.CheckAligned(dst.ref(), 32) && core.CheckAligned(src.ref(), 32) &&
              core.ReadLocal(src.ref(), src.ref().addr, n * sizeof(T));
  for (uint32_t i = 0; i < n && fine; ++i) {
    uint32_t block = i / kPerRepeat * repeatParams.dstRepStride + i % kPerRepeat * repeatParams.dstBlkStride;
    fine = core.WriteLocal(dst.ref(), dst.ref().addr + block * hostsim::kBlock, hostsim::kBlock);
    if (!fine) break;
    uint8_t* ub = core.Data(hostsim::Mem::kUb);
    T value = reinterpret_cast<const T*>(ub + src.ref().addr)[i];
    std::fill_n(reinterpret_cast<T*>(ub + dst.ref().addr + block * hostsim::kBlock), hostsim::kBlock / sizeof(T),
                value);
  }
  core.Finish(hostsim::cost::kVectorHead + repeatTime * detail::kCostOp, hostsim::cost::kVectorTail,
              n * hostsim::kBlock, repeatTime);
}

// dst[i] = firstValue + i. The first block is written by the scalar unit, the rest by chained Adds, as on the device.
template <typename T>
void CreateVecIndex(LocalTensor<T> dst, const T& firstValue, uint32_t count, Loc loc = Loc::Here()) {
  static_assert(detail::kIsArithmetic<T>, "CreateVecIndex does not support this type");
  if (ASCEND_IS_AIC || count == 0 || !detail::CheckTPipe("CreateVecIndex", loc)) return;
  hostsim::Core& core = hostsim::Current();
  constexpr uint32_t kPerBlock = hostsim::kBlock / sizeof(T);
  auto value = [&](uint32_t i) { return detail::AddOp{}(firstValue, T(static_cast<int>(i))); };
  core.Begin(hostsim::Pipe::kS, "CreateVecIndex", loc);
  bool fine = core.CheckAligned(dst.ref(), 32) &&
              core.WriteLocal(dst.ref(), dst.ref().addr, std::min(count, kPerBlock) * uint32_t{sizeof(T)});
  core.Finish(std::min(count, kPerBlock) * hostsim::cost::kScalar, 0, 0, 0);
  detail::InternalSync(HardEvent::S_V, loc);
  if (!fine) return;
  T* d = reinterpret_cast<T*>(core.Data(hostsim::Mem::kUb) + dst.ref().addr);
  for (uint32_t i = 0; i < std::min(count, kPerBlock); ++i) d[i] = value(i);
  if (count > kPerBlock) {
    hostsim::VectorCall call("CreateVecIndex", loc, sizeof(T));
    call.Count(count);
    if (!call.Start(detail::Dense(call, dst), nullptr, 0)) return;
    for (uint32_t i = 0; i < count; ++i) d[i] = value(i);
    core.Barrier(hostsim::Pipe::kV);
  }
}
// Copy inside UB by mask and repeats.
namespace detail {
template <class T, class M>
void CopyRepeats(Loc loc, const LocalTensor<T>& dst, const LocalTensor<T>& src, M mask, int32_t repeats,
                 const CopyRepeatParams& p) {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4, "Copy supports 16 and 32 bit types");
  hostsim::VectorCall call("Copy", loc, sizeof(T));
  SetLanes<true>(call, mask, repeats);
  call.CyclesPerRepeat(kCostOp);
  hostsim::Map<T, T>(call, Strided(dst, p.dstStride, p.dstRepeatSize), Strided(src, p.srcStride, p.srcRepeatSize),
                     [](T v) { return v; });
}
}  // namespace detail
template <typename T, bool isSetMask = true>
void Copy(const LocalTensor<T>& dst, const LocalTensor<T>& src, const uint64_t mask, const int32_t repeatTime,
          const CopyRepeatParams& repeatParams, Loc loc = Loc::Here()) {
  detail::CopyRepeats(loc, dst, src, mask, repeatTime, repeatParams);
}
template <typename T, bool isSetMask = true>
void Copy(const LocalTensor<T>& dst, const LocalTensor<T>& src, const uint64_t mask[], const int32_t repeatTime,
          const CopyRepeatParams& repeatParams, Loc loc = Loc::Here()) {
  detail::CopyRepeats<T, const uint64_t*>(loc, dst, src, mask, repeatTime, repeatParams);
}

}  // namespace AscendC
