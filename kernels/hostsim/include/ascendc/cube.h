// LoadData, Mmad and Fixpipe.
#pragma once

#include "ascendc/data_copy.h"
#include "hostsim/cube.h"

namespace AscendC {

template <typename T>
void LoadData(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LoadData2DParams& p, Loc loc = Loc::Here()) {
  hostsim::LoadFractals(loc, dst.ref(), src.ref(),
                        {p.startIndex, p.repeatTimes, p.srcStride, p.dstGap, p.ifTranspose, p.addrMode != 0},
                        sizeof(T));
}

template <typename T>
void LoadDataWithTranspose(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LoadData2dTransposeParams& p,
                           Loc loc = Loc::Here()) {
  hostsim::LoadSquares(loc, dst.ref(), src.ref(),
                       {p.startIndex, p.repeatTimes, p.srcStride, p.dstGap, true, p.addrMode != 0}, p.dstFracGap,
                       sizeof(T));
}

template <typename T>
void Fill(const LocalTensor<T>& dst, const InitConstValueParams<T>& p, Loc loc = Loc::Here()) {
  // L1 counts in blocks of 32 bytes, L0A and L0B in fractals of 512.
  uint32_t unit = dst.ref().mem == hostsim::Mem::kL1 ? 32 : 512;
  hostsim::FillFractals(loc, dst.ref(), p.repeatTimes, p.blockNum * unit, p.dstGap * unit, detail::BitsOf(p.initValue),
                        sizeof(T));
}
template <typename T>
void InitConstValue(const LocalTensor<T>& dst, const InitConstValueParams<T>& p, Loc loc = Loc::Here()) {
  Fill(dst, p, loc);  // the older name
}

namespace detail {

template <class T, class U, class S>
constexpr bool kCanMultiply =
    (std::is_same_v<U, S> && std::is_same_v<T, float> && kIsOneOf<U, half, bfloat16_t, float>) ||
    (std::is_same_v<U, S> && std::is_same_v<T, int32_t> && std::is_same_v<U, int8_t>);

template <class T, class U>
void Product(const LocalTensor<T>& dst, const LocalTensor<U>& a, const LocalTensor<U>& b, const hostsim::LocalRef* bias,
             const MmadParams& p, Loc loc) {
  bool accumulate = bias == nullptr && (!p.cmatrixInitVal || p.isBias);
  hostsim::Multiply(loc, dst.ref(), a.ref(), b.ref(), ElementOf<U>(),
                    {p.m, p.n, p.k, accumulate, p.kDirectionAlign && sizeof(U) == 4, bias, p.unitFlag});
}

}  // namespace detail

template <typename T, typename U, typename S>
void Mmad(const LocalTensor<T>& dst, const LocalTensor<U>& fm, const LocalTensor<S>& filter, const MmadParams& p,
          Loc loc = Loc::Here()) {
  static_assert(detail::kCanMultiply<T, U, S>, "Mmad does not support these types");
  if (p.cmatrixSource && !p.cmatrixInitVal) {
    hostsim::Current().FailAt(hostsim::Fault::kUnsupported, hostsim::Pipe::kM, "Mmad", loc,
                              "cmatrixSource without a bias tensor");
    return;
  }
  detail::Product(dst, fm, filter, nullptr, p, loc);
}
template <typename T, typename U, typename S, typename V>
void Mmad(const LocalTensor<T>& dst, const LocalTensor<U>& fm, const LocalTensor<S>& filter, const LocalTensor<V>& bias,
          const MmadParams& p, Loc loc = Loc::Here()) {
  static_assert(detail::kCanMultiply<T, U, S> && std::is_same_v<T, V>, "Mmad does not support these types");
  detail::Product(dst, fm, filter, &bias.ref(), p, loc);
}

namespace detail {

// How L0C elements of type U become T; reports a quantisation mode that does not fit.
template <class T, class U>
bool ConvertOf(QuantMode_t mode, hostsim::Convert& convert, Loc loc) {
  using hostsim::Convert;
  static_assert(kIsOneOf<U, float, int32_t>, "L0C holds float or int32_t");
  convert = Convert::kNone;
  bool fits = std::is_same_v<T, U> && mode == QuantMode_t::NoQuant;
  if (std::is_same_v<U, float> && std::is_same_v<T, half> && mode == QuantMode_t::F322F16) {
    convert = Convert::kHalf;
    fits = true;
  } else if (std::is_same_v<U, float> && std::is_same_v<T, bfloat16_t> && mode == QuantMode_t::F322BF16) {
    convert = Convert::kBfloat16;
    fits = true;
  } else if (std::is_same_v<U, int32_t> && std::is_same_v<T, half> && mode == QuantMode_t::DEQF16) {
    convert = Convert::kIntToHalf;
    fits = true;
  }
  if (!fits) {
    hostsim::Current().FailAt(hostsim::Fault::kUnsupported, hostsim::Pipe::kFix, "Fixpipe", loc,
                              "quantPre " + std::to_string(static_cast<int>(mode)) + " for these types");
  }
  return fits;
}

template <class T, class U, const FixpipeConfig& config>
bool DrainOf(const FixpipeParamsV220& p, hostsim::Drain& drain, Loc loc) {
  static_assert(config.format != CO2Layout::COLUMN_MAJOR, "column-major Fixpipe does not exist on this architecture");
  constexpr bool kRows = config.format == CO2Layout::ROW_MAJOR;
  hostsim::Core& core = hostsim::Current();
  if (core.id().cube && (p.unitFlag != 0 || p.isChannelSplit)) {
    core.FailAt(hostsim::Fault::kUnsupported, hostsim::Pipe::kFix, "Fixpipe", loc, "unitFlag and isChannelSplit");
    return false;
  }
  if (core.id().cube &&
      (p.nSize > 4095 || (kRows && p.mSize > 8192) || (!kRows && p.nSize % 16 != 0) || p.dstStride == 0)) {
    core.FailAt(hostsim::Fault::kBadArgument, hostsim::Pipe::kFix, "Fixpipe", loc,
                "nSize <= 4095 (a multiple of 16 in NZ), mSize <= 8192 in row-major order, dstStride >= 1");
    return false;
  }
  if (!ConvertOf<T, U>(p.quantPre, drain.convert, loc)) return false;
  constexpr uint64_t kColumn = 16 * 4;  // bytes of 16 elements of L0C
  drain.n = p.nSize;
  drain.m = p.mSize;
  drain.src_column = p.srcStride * kColumn;
  drain.dst_step = kRows ? uint64_t{p.dstStride} * sizeof(T) : uint64_t{p.dstStride} * hostsim::kBlock;
  drain.row_major = kRows;
  drain.relu = p.reluEn;
  drain.scale = hostsim::BitCast<float>(static_cast<uint32_t>(p.deqScalar));
  drain.matrices = kRows ? p.ndNum : 1;
  drain.src_matrix = p.srcNdStride * kColumn * 16;
  drain.dst_matrix = uint64_t{p.dstNdStride} * sizeof(T);
  return true;
}

}  // namespace detail

template <typename T, typename U, const FixpipeConfig& config = CFG_ROW_MAJOR>
void Fixpipe(const GlobalTensor<T>& dst, const LocalTensor<U>& src, const FixpipeParamsV220& p, Loc loc = Loc::Here()) {
  hostsim::Drain drain{};
  if (!detail::DrainOf<T, U, config>(p, drain, loc)) return;
  hostsim::DrainToGm(loc, dst.GetPhyAddr(0), src.ref(), drain, detail::ElementOf<T>());
}
template <typename T, typename U, const FixpipeConfig& config = CFG_ROW_MAJOR>
void Fixpipe(const LocalTensor<T>& dst, const LocalTensor<U>& src, const FixpipeParamsV220& p, Loc loc = Loc::Here()) {
  hostsim::Drain drain{};
  if (!detail::DrainOf<T, U, config>(p, drain, loc)) return;
  hostsim::DrainToL1(loc, dst.ref(), src.ref(), drain);
}

}  // namespace AscendC
