// DataCopy, DataCopyPad, atomic writes and the scalar data cache.
#pragma once

#include "ascendc/sync.h"
#include "hostsim/dma.h"

namespace AscendC {
namespace detail {

template <class T>
constexpr hostsim::Element ElementOf() {
  using hostsim::Element;
  if (std::is_same_v<T, int8_t>) return Element::kInt8;
  if (std::is_same_v<T, int16_t>) return Element::kInt16;
  if (std::is_same_v<T, int32_t>) return Element::kInt32;
  if (std::is_same_v<T, half>) return Element::kHalf;
  if (std::is_same_v<T, bfloat16_t>) return Element::kBfloat16;
  return std::is_same_v<T, float> ? Element::kFloat : Element::kOther;
}

// Lengths in 32-byte blocks.
inline hostsim::Bursts BlockBursts(const DataCopyParams& p) {
  constexpr uint64_t kUnit = hostsim::kBlock;
  return {p.blockCount, p.blockLen * hostsim::kBlock, (uint64_t{p.blockLen} + p.srcGap) * kUnit,
          (uint64_t{p.blockLen} + p.dstGap) * kUnit};
}
inline uint64_t Extent(uint32_t count, uint64_t bytes, uint64_t step) {
  return count == 0 ? 0 : (count - 1) * step + bytes;
}

inline bool CheckCount(const char* op, hostsim::Pipe pipe, uint64_t bytes, Loc loc) {
  if (bytes % hostsim::kBlock == 0) return true;
  hostsim::Current().FailAt(hostsim::Fault::kBadArgument, pipe, op, loc,
                            std::to_string(bytes) + " bytes are not a multiple of 32; use DataCopyPad");
  return false;
}

template <class T>
bool CheckPad(hostsim::Pipe pipe, uint32_t count, uint32_t bytes, Loc loc) {
  constexpr uint32_t kMaxCount = 4095, kMaxBytes = 2097151;
  if (count <= kMaxCount && bytes <= kMaxBytes && bytes % sizeof(T) == 0) return true;
  hostsim::Current().FailAt(hostsim::Fault::kBadArgument, pipe, "DataCopyPad", loc,
                            "blockCount " + std::to_string(count) + " (at most 4095), blockLen " +
                                std::to_string(bytes) + " (at most 2097151, whole elements)");
  return false;
}

template <class T>
void PadIn(const LocalTensor<T>& dst, const GlobalTensor<T>& src, uint32_t count, uint32_t bytes, uint64_t src_stride,
           uint64_t dst_stride, bool pad, uint32_t left, uint32_t right, uint64_t value, Loc loc) {
  if (count == 0 || bytes == 0 || !CheckPad<T>(hostsim::Pipe::kMte2, count, bytes, loc)) return;
  hostsim::Padding padding{left * uint32_t{sizeof(T)}, right * uint32_t{sizeof(T)}, pad, value, sizeof(T)};
  if (padding.left > hostsim::kBlock || padding.right > hostsim::kBlock) {
    hostsim::Current().FailAt(hostsim::Fault::kBadArgument, hostsim::Pipe::kMte2, "DataCopyPad", loc,
                              "padding of more than 32 bytes");
    return;
  }
  uint32_t whole = hostsim::CeilDiv(padding.left + bytes + padding.right, hostsim::kBlock) * hostsim::kBlock;
  hostsim::Bursts bursts{count, bytes, bytes + src_stride, whole + dst_stride * hostsim::kBlock};
  if (!src.Inside(0, Extent(count, bytes, bursts.src_step) / sizeof(T), "DataCopyPad", loc)) return;
  hostsim::DmaIn("DataCopyPad", loc, dst.ref(), src.GetPhyAddr(), bursts, &padding);
}

template <class T>
void PadOut(const GlobalTensor<T>& dst, const LocalTensor<T>& src, uint32_t count, uint32_t bytes, uint64_t src_stride,
            uint64_t dst_stride, Loc loc) {
  if (count == 0 || bytes == 0 || !CheckPad<T>(hostsim::Pipe::kMte3, count, bytes, loc)) return;
  uint32_t whole = hostsim::CeilDiv(bytes, hostsim::kBlock) * hostsim::kBlock;
  hostsim::Bursts bursts{count, bytes, whole + src_stride * hostsim::kBlock, bytes + dst_stride};
  if (!dst.Inside(0, Extent(count, bytes, bursts.dst_step) / sizeof(T), "DataCopyPad", loc)) return;
  hostsim::DmaOut("DataCopyPad", loc, dst.GetPhyAddr(0), src.ref(), bursts, ElementOf<T>());
}

template <class T>
uint64_t BitsOf(T value) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}

}  // namespace detail

template <typename T>
void DataCopy(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const DataCopyParams& repeatParams,
              Loc loc = Loc::Here()) {
  hostsim::Bursts bursts = detail::BlockBursts(repeatParams);
  uint64_t extent = detail::Extent(bursts.count, bursts.bytes, bursts.src_step);
  if (extent == 0 || !src.Inside(0, extent / sizeof(T), "DataCopy", loc)) return;
  hostsim::DmaIn("DataCopy", loc, dst.ref(), src.GetPhyAddr(), bursts, nullptr);
}
template <typename T>
void DataCopy(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const uint32_t count, Loc loc = Loc::Here()) {
  uint32_t bytes = count * uint32_t{sizeof(T)};
  if (bytes == 0 || !detail::CheckCount("DataCopy", hostsim::Pipe::kMte2, bytes, loc)) return;
  if (!src.Inside(0, count, "DataCopy", loc)) return;
  hostsim::DmaIn("DataCopy", loc, dst.ref(), src.GetPhyAddr(), {1, bytes, 0, 0}, nullptr);
}
template <typename T>
void DataCopy(const GlobalTensor<T>& dst, const LocalTensor<T>& src, const DataCopyParams& repeatParams,
              Loc loc = Loc::Here()) {
  hostsim::Bursts bursts = detail::BlockBursts(repeatParams);
  uint64_t extent = detail::Extent(bursts.count, bursts.bytes, bursts.dst_step);
  if (extent == 0 || !dst.Inside(0, extent / sizeof(T), "DataCopy", loc)) return;
  hostsim::DmaOut("DataCopy", loc, dst.GetPhyAddr(0), src.ref(), bursts, detail::ElementOf<T>());
}
template <typename T>
void DataCopy(const GlobalTensor<T>& dst, const LocalTensor<T>& src, const uint32_t count, Loc loc = Loc::Here()) {
  uint32_t bytes = count * uint32_t{sizeof(T)};
  if (bytes == 0 || !detail::CheckCount("DataCopy", hostsim::Pipe::kMte3, bytes, loc)) return;
  if (!dst.Inside(0, count, "DataCopy", loc)) return;
  hostsim::DmaOut("DataCopy", loc, dst.GetPhyAddr(0), src.ref(), {1, bytes, 0, 0}, detail::ElementOf<T>());
}
template <typename T>
void DataCopy(const LocalTensor<T>& dst, const LocalTensor<T>& src, const DataCopyParams& repeatParams,
              Loc loc = Loc::Here()) {
  hostsim::DmaLocal("DataCopy", loc, dst.ref(), src.ref(), detail::BlockBursts(repeatParams));
}
template <typename T>
void DataCopy(const LocalTensor<T>& dst, const LocalTensor<T>& src, const uint32_t count, Loc loc = Loc::Here()) {
  uint32_t bytes = count * uint32_t{sizeof(T)};
  if (bytes == 0 || !detail::CheckCount("DataCopy", hostsim::Pipe::kV, bytes, loc)) return;
  hostsim::DmaLocal("DataCopy", loc, dst.ref(), src.ref(), {1, bytes, 0, 0});
}

template <typename T>
void DataCopy(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const Nd2NzParams& p, Loc loc = Loc::Here()) {
  if (p.ndNum == 0 || p.nValue == 0 || p.dValue == 0) return;
  constexpr uint32_t kMaxRows = 16384;
  if (p.ndNum > 4095 || p.nValue > kMaxRows || p.srcDValue == 0 || p.dstNzC0Stride == 0 || p.dstNzNStride == 0 ||
      p.dstNzC0Stride > kMaxRows || p.dstNzNStride > kMaxRows) {
    hostsim::Current().FailAt(hostsim::Fault::kBadArgument, hostsim::Pipe::kMte2, "DataCopy Nd2Nz", loc,
                              "ndNum <= 4095, nValue <= 16384, srcDValue >= 1, destination strides in [1, 16384]");
    return;
  }
  uint64_t elements = uint64_t{p.ndNum - 1u} * p.srcNdMatrixStride + uint64_t{p.nValue - 1u} * p.srcDValue + p.dValue;
  if (!src.Inside(0, elements, "DataCopy Nd2Nz", loc)) return;
  hostsim::DmaNd2Nz(loc, dst.ref(), src.GetPhyAddr(),
                    {p.ndNum, p.nValue, p.dValue, sizeof(T), uint64_t{p.srcNdMatrixStride} * sizeof(T),
                     uint64_t{p.srcDValue} * sizeof(T), uint64_t{p.dstNzC0Stride} * hostsim::kBlock,
                     uint64_t{p.dstNzNStride} * hostsim::kBlock, uint64_t{p.dstNzMatrixStride} * sizeof(T)});
}

template <typename T>
void DataCopyPad(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const DataCopyExtParams& p,
                 const DataCopyPadExtParams<T>& pad, Loc loc = Loc::Here()) {
  detail::PadIn(dst, src, p.blockCount, p.blockLen, p.srcStride, p.dstStride, pad.isPad, pad.leftPadding,
                pad.rightPadding, detail::BitsOf(pad.paddingValue), loc);
}
template <typename T>
void DataCopyPad(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const DataCopyParams& p,
                 const DataCopyPadParams& pad, Loc loc = Loc::Here()) {
  detail::PadIn(dst, src, p.blockCount, p.blockLen, p.srcGap, p.dstGap, pad.isPad, pad.leftPadding, pad.rightPadding,
                pad.paddingValue, loc);
}
template <typename T>
void DataCopyPad(const GlobalTensor<T>& dst, const LocalTensor<T>& src, const DataCopyExtParams& p,
                 Loc loc = Loc::Here()) {
  detail::PadOut(dst, src, p.blockCount, p.blockLen, p.srcStride, p.dstStride, loc);
}
template <typename T>
void DataCopyPad(const GlobalTensor<T>& dst, const LocalTensor<T>& src, const DataCopyParams& p,
                 Loc loc = Loc::Here()) {
  detail::PadOut(dst, src, p.blockCount, p.blockLen, p.srcGap, p.dstGap, loc);
}
template <typename T, TPosition pos = TPosition::MAX>
void SetPadValue(T paddingValue) {
  hostsim::Current().pad_value = detail::BitsOf(paddingValue);
  hostsim::Current().pad_value_set = true;
}

// Atomic DMA writes to global memory.
namespace detail {
template <class T>
void SetAtomic(hostsim::AtomicOp op) {
  static_assert(ElementOf<T>() != hostsim::Element::kOther, "no atomic operation for this type");
  hostsim::Current().atomic = {op, ElementOf<T>()};
}
}  // namespace detail
template <typename T>
void SetAtomicAdd() {
  detail::SetAtomic<T>(hostsim::AtomicOp::kAdd);
}
template <typename T>
void SetAtomicMax() {
  detail::SetAtomic<T>(hostsim::AtomicOp::kMax);
}
template <typename T>
void SetAtomicMin() {
  detail::SetAtomic<T>(hostsim::AtomicOp::kMin);
}
inline void DisableDmaAtomic() { hostsim::Current().atomic = {}; }
inline void SetAtomicNone() { DisableDmaAtomic(); }  // the older name

// Scalar data cache.
template <typename T, CacheLine entireType, DcciDst dcciDst>
void DataCacheCleanAndInvalid(const GlobalTensor<T>& dst, Loc loc = Loc::Here()) {
  hostsim::Current().CleanCache(dst.GetPhyAddr(), entireType == CacheLine::ENTIRE_DATA_CACHE, loc);
}
template <typename T, CacheLine entireType>
void DataCacheCleanAndInvalid(const GlobalTensor<T>& dst, Loc loc = Loc::Here()) {
  hostsim::Current().CleanCache(dst.GetPhyAddr(), entireType == CacheLine::ENTIRE_DATA_CACHE, loc);
}
template <typename T>
void DataCachePreload(const GlobalTensor<uint64_t>& src, const T cacheOffset, Loc loc = Loc::Here()) {
  static_assert(std::is_same_v<T, int16_t> || std::is_same_v<T, int64_t>, "offsets are int16_t or int64_t");
  hostsim::Current().PreloadCache(reinterpret_cast<const uint8_t*>(src.GetPhyAddr()) + cacheOffset, loc);
}
inline void ICachePreLoad(const int64_t) {}

}  // namespace AscendC
