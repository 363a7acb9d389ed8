// Element-wise vector arithmetic, logic, casts and fills.
//
// Every function comes in the three forms of the interface: the first `count` elements, a mask of the first n lanes
// with repeats, and one mask bit a lane with repeats.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "ascendc/sync.h"
#include "hostsim/vector_call.h"

namespace AscendC {
namespace detail {

// Cycles a repeat, from asc-devkit's table of vector instructions' theoretical performance.
constexpr double kCostOp = 1, kCostGatherMask = 2;
constexpr double kCostThreeSources = 2;  // FusedMulAdd: 1 in the table, halved by reading three places (its page)
template <class T>
constexpr double kCostSlow = sizeof(T) == 4 ? 2 : 4;  // Exp, Ln, Sqrt, Div, MulAddDst: 32 elements a cycle

template <class T>
hostsim::VecArg Dense(const hostsim::VectorCall& call, const LocalTensor<T>& t) {
  return call.Dense(t.ref(), sizeof(T));
}
template <class T>
hostsim::VecArg Strided(const LocalTensor<T>& t, uint32_t blk, uint32_t rep) {
  return {t.ref(), sizeof(T), blk, rep};
}

// The mask of the repeat forms; with isSetMask false the mask register rules.
template <bool isSetMask>
void SetLanes(hostsim::VectorCall& call, uint64_t mask, int64_t repeats) {
  isSetMask ? call.Lanes(mask, repeats) : call.Register(repeats);
}
template <bool isSetMask>
void SetLanes(hostsim::VectorCall& call, const uint64_t mask[], int64_t repeats) {
  isSetMask ? call.Bits(mask, repeats) : call.Register(repeats);
}

template <class D, class S, class F>
void UnaryCount(const char* op, Loc loc, double cycles, const LocalTensor<D>& dst, const LocalTensor<S>& src,
                int64_t count, F f) {
  hostsim::VectorCall call(op, loc, std::max(sizeof(D), sizeof(S)));
  call.Count(count).CyclesPerRepeat(cycles);
  hostsim::Map<D, S>(call, Dense(call, dst), Dense(call, src), f);
}
template <bool isSetMask, class D, class S, class M, class F>
void UnaryRepeat(const char* op, Loc loc, double cycles, const LocalTensor<D>& dst, const LocalTensor<S>& src, M mask,
                 int64_t repeats, const UnaryRepeatParams& p, F f) {
  hostsim::VectorCall call(op, loc, std::max(sizeof(D), sizeof(S)));
  SetLanes<isSetMask>(call, mask, repeats);
  call.CyclesPerRepeat(cycles);
  hostsim::Map<D, S>(call, Strided(dst, p.dstBlkStride, p.dstRepStride), Strided(src, p.srcBlkStride, p.srcRepStride),
                     f);
}
template <class T, class F>
void BinaryCount(const char* op, Loc loc, double cycles, const LocalTensor<T>& dst, const LocalTensor<T>& src0,
                 const LocalTensor<T>& src1, int64_t count, F f) {
  hostsim::VectorCall call(op, loc, sizeof(T));
  call.Count(count).CyclesPerRepeat(cycles);
  hostsim::Map<T, T>(call, Dense(call, dst), Dense(call, src0), Dense(call, src1), f);
}
template <bool isSetMask, class T, class M, class F>
void BinaryRepeat(const char* op, Loc loc, double cycles, const LocalTensor<T>& dst, const LocalTensor<T>& src0,
                  const LocalTensor<T>& src1, M mask, int64_t repeats, const BinaryRepeatParams& p, F f) {
  hostsim::VectorCall call(op, loc, sizeof(T));
  SetLanes<isSetMask>(call, mask, repeats);
  call.CyclesPerRepeat(cycles);
  hostsim::Map<T, T>(call, Strided(dst, p.dstBlkStride, p.dstRepStride),
                     Strided(src0, p.src0BlkStride, p.src0RepStride), Strided(src1, p.src1BlkStride, p.src1RepStride),
                     f);
}

// Arithmetic the way the vector unit does it: half through float with one rounding, integers wrapping.
template <class T>
using Wide = std::conditional_t<std::is_integral_v<T>, uint32_t, float>;

struct AddOp {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(Wide<T>(a) + Wide<T>(b));
  }
};
struct SubOp {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(Wide<T>(a) - Wide<T>(b));
  }
};
struct MulOp {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(Wide<T>(a) * Wide<T>(b));
  }
};
struct DivOp {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(float(a) / float(b));
  }
};
struct MaxOp {
  template <class T>
  T operator()(T a, T b) const {
    return a != a ? a : (b != b ? b : (a < b ? b : a));
  }
};
struct MinOp {
  template <class T>
  T operator()(T a, T b) const {
    return a != a ? a : (b != b ? b : (b < a ? b : a));
  }
};
struct AndOp {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a & b);
  }
};
struct OrOp {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a | b);
  }
};

struct ReluOp {
  template <class T>
  T operator()(T a) const {
    return a < T(0) ? T(0) : a;
  }
};
struct AbsOp {
  template <class T>
  T operator()(T a) const {
    return static_cast<T>(std::fabs(float(a)));
  }
};
// Transcendental functions: double precision, rounded once, so within 0.51 ulp of the exact value.
struct ExpOp {
  template <class T>
  T operator()(T a) const {
    return static_cast<T>(std::exp(double(a)));
  }
};
struct LnOp {
  template <class T>
  T operator()(T a) const {
    return static_cast<T>(std::log(double(a)));
  }
};
struct SqrtOp {
  template <class T>
  T operator()(T a) const {
    return static_cast<T>(std::sqrt(double(a)));
  }
};
struct RsqrtOp {
  template <class T>
  T operator()(T a) const {
    return static_cast<T>(1.0 / std::sqrt(double(a)));
  }
};
struct ReciprocalOp {
  template <class T>
  T operator()(T a) const {
    return static_cast<T>(1.0 / double(a));
  }
};
struct NotOp {
  template <class T>
  T operator()(T a) const {
    return static_cast<T>(~a);
  }
};

template <class T>
T ShiftLeftOp(T a, T by) {
  using U = std::make_unsigned_t<T>;
  return by >= T(sizeof(T) * 8) ? T(0) : static_cast<T>(static_cast<U>(a) << by);
}
template <class T>
T ShiftRightOp(T a, T by, bool round) {
  int bits = static_cast<int>(sizeof(T) * 8);
  int n = static_cast<int>(by);
  int64_t wide = static_cast<int64_t>(a);
  if (n >= bits && !round) return wide < 0 ? T(-1) : T(0);
  int64_t shifted = wide >> n;
  if (round && n > 0) shifted += wide >> (n - 1) & 1;
  return static_cast<T>(shifted);
}

}  // namespace detail

#define HOSTSIM_UNARY(NAME, OP, CYCLES, ALLOWED)                                                                 \
  template <typename T>                                                                                          \
  void NAME(const LocalTensor<T>& dst, const LocalTensor<T>& src, const int32_t& count, Loc loc = Loc::Here()) { \
    static_assert(ALLOWED, #NAME " does not support this type");                                                 \
    detail::UnaryCount(#NAME, loc, CYCLES, dst, src, count, detail::OP{});                                       \
  }                                                                                                              \
  template <typename T, bool isSetMask = true>                                                                   \
  void NAME(const LocalTensor<T>& dst, const LocalTensor<T>& src, uint64_t mask, const int32_t repeatTime,       \
            const UnaryRepeatParams& repeatParams, Loc loc = Loc::Here()) {                                      \
    static_assert(ALLOWED, #NAME " does not support this type");                                                 \
    detail::UnaryRepeat<isSetMask>(#NAME, loc, CYCLES, dst, src, mask, repeatTime, repeatParams, detail::OP{});  \
  }                                                                                                              \
  template <typename T, bool isSetMask = true>                                                                   \
  void NAME(const LocalTensor<T>& dst, const LocalTensor<T>& src, uint64_t mask[], const int32_t repeatTime,     \
            const UnaryRepeatParams& repeatParams, Loc loc = Loc::Here()) {                                      \
    static_assert(ALLOWED, #NAME " does not support this type");                                                 \
    detail::UnaryRepeat<isSetMask, T, T, const uint64_t*>(#NAME, loc, CYCLES, dst, src, mask, repeatTime,        \
                                                          repeatParams, detail::OP{});                           \
  }
HOSTSIM_UNARY(Relu, ReluOp, detail::kCostOp, (detail::kIsOneOf<T, half, float, int32_t>))
HOSTSIM_UNARY(Exp, ExpOp, detail::kCostSlow<T>, detail::kIsFloat<T>)
HOSTSIM_UNARY(Ln, LnOp, detail::kCostSlow<T>, detail::kIsFloat<T>)
HOSTSIM_UNARY(Abs, AbsOp, detail::kCostOp, detail::kIsFloat<T>)
HOSTSIM_UNARY(Reciprocal, ReciprocalOp, detail::kCostOp, detail::kIsFloat<T>)
HOSTSIM_UNARY(Rsqrt, RsqrtOp, detail::kCostOp, detail::kIsFloat<T>)
HOSTSIM_UNARY(Sqrt, SqrtOp, detail::kCostSlow<T>, detail::kIsFloat<T>)
HOSTSIM_UNARY(Not, NotOp, detail::kCostOp, (detail::kIsOneOf<T, int16_t, uint16_t>))
#undef HOSTSIM_UNARY

#define HOSTSIM_BINARY(NAME, OP, CYCLES, ALLOWED)                                                                    \
  template <typename T>                                                                                              \
  void NAME(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1, const int32_t& count, \
            Loc loc = Loc::Here()) {                                                                                 \
    static_assert(ALLOWED, #NAME " does not support this type");                                                     \
    detail::BinaryCount(#NAME, loc, CYCLES, dst, src0, src1, count, detail::OP{});                                   \
  }                                                                                                                  \
  template <typename T, bool isSetMask = true>                                                                       \
  void NAME(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1, uint64_t mask,        \
            const int32_t repeatTime, const BinaryRepeatParams& repeatParams, Loc loc = Loc::Here()) {               \
    static_assert(ALLOWED, #NAME " does not support this type");                                                     \
    detail::BinaryRepeat<isSetMask>(#NAME, loc, CYCLES, dst, src0, src1, mask, repeatTime, repeatParams,             \
                                    detail::OP{});                                                                   \
  }                                                                                                                  \
  template <typename T, bool isSetMask = true>                                                                       \
  void NAME(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1, uint64_t mask[],      \
            const int32_t repeatTime, const BinaryRepeatParams& repeatParams, Loc loc = Loc::Here()) {               \
    static_assert(ALLOWED, #NAME " does not support this type");                                                     \
    detail::BinaryRepeat<isSetMask, T, const uint64_t*>(#NAME, loc, CYCLES, dst, src0, src1, mask, repeatTime,       \
                                                        repeatParams, detail::OP{});                                 \
  }
HOSTSIM_BINARY(Add, AddOp, detail::kCostOp, detail::kIsArithmetic<T>)
HOSTSIM_BINARY(Sub, SubOp, detail::kCostOp, detail::kIsArithmetic<T>)
HOSTSIM_BINARY(Mul, MulOp, detail::kCostOp, detail::kIsArithmetic<T>)
HOSTSIM_BINARY(Div, DivOp, detail::kCostSlow<T>, detail::kIsFloat<T>)
HOSTSIM_BINARY(Max, MaxOp, detail::kCostOp, detail::kIsArithmetic<T>)
HOSTSIM_BINARY(Min, MinOp, detail::kCostOp, detail::kIsArithmetic<T>)
HOSTSIM_BINARY(And, AndOp, detail::kCostOp, (detail::kIsOneOf<T, int16_t, uint16_t>))
HOSTSIM_BINARY(Or, OrOp, detail::kCostOp, (detail::kIsOneOf<T, int16_t, uint16_t>))
#undef HOSTSIM_BINARY

// Tensor with scalar. EXPR is the result for element `a` and the scalar `s`.
#define HOSTSIM_SCALAR(NAME, EXPR, CYCLES, ALLOWED)                                                           \
  template <typename T, bool isSetMask = true>                                                                \
  void NAME(const LocalTensor<T>& dst, const LocalTensor<T>& src, const T& scalarValue, const int32_t& count, \
            Loc loc = Loc::Here()) {                                                                          \
    static_assert(ALLOWED, #NAME " does not support this type");                                              \
    T s = scalarValue;                                                                                        \
    detail::UnaryCount(#NAME, loc, CYCLES, dst, src, count, [s](T a) -> T { return EXPR; });                  \
  }                                                                                                           \
  template <typename T, bool isSetMask = true>                                                                \
  void NAME(const LocalTensor<T>& dst, const LocalTensor<T>& src, const T& scalarValue, uint64_t mask,        \
            const int32_t repeatTime, const UnaryRepeatParams& repeatParams, Loc loc = Loc::Here()) {         \
    static_assert(ALLOWED, #NAME " does not support this type");                                              \
    T s = scalarValue;                                                                                        \
    detail::UnaryRepeat<isSetMask>(#NAME, loc, CYCLES, dst, src, mask, repeatTime, repeatParams,              \
                                   [s](T a) -> T { return EXPR; });                                           \
  }                                                                                                           \
  template <typename T, bool isSetMask = true>                                                                \
  void NAME(const LocalTensor<T>& dst, const LocalTensor<T>& src, const T& scalarValue, uint64_t mask[],      \
            const int32_t repeatTime, const UnaryRepeatParams& repeatParams, Loc loc = Loc::Here()) {         \
    static_assert(ALLOWED, #NAME " does not support this type");                                              \
    T s = scalarValue;                                                                                        \
    detail::UnaryRepeat<isSetMask, T, T, const uint64_t*>(#NAME, loc, CYCLES, dst, src, mask, repeatTime,     \
                                                          repeatParams, [s](T a) -> T { return EXPR; });      \
  }
HOSTSIM_SCALAR(Adds, detail::AddOp{}(a, s), detail::kCostOp, detail::kIsArithmetic<T>)
HOSTSIM_SCALAR(Muls, detail::MulOp{}(a, s), detail::kCostOp, detail::kIsArithmetic<T>)
HOSTSIM_SCALAR(Maxs, detail::MaxOp{}(a, s), detail::kCostOp, detail::kIsArithmetic<T>)
HOSTSIM_SCALAR(Mins, detail::MinOp{}(a, s), detail::kCostOp, detail::kIsArithmetic<T>)
HOSTSIM_SCALAR(LeakyRelu, a < T(0) ? detail::MulOp{}(a, s) : a, detail::kCostOp, detail::kIsFloat<T>)
HOSTSIM_SCALAR(ShiftLeft, detail::ShiftLeftOp(a, s), detail::kCostOp,
               (detail::kIsOneOf<T, int16_t, uint16_t, int32_t, uint32_t>))
#undef HOSTSIM_SCALAR

template <typename T, bool isSetMask = true>
void ShiftRight(const LocalTensor<T>& dst, const LocalTensor<T>& src, const T& scalarValue, const int32_t& count,
                Loc loc = Loc::Here()) {
  static_assert(detail::kIsOneOf<T, int16_t, uint16_t, int32_t, uint32_t>, "ShiftRight does not support this type");
  T s = scalarValue;
  detail::UnaryCount("ShiftRight", loc, detail::kCostOp, dst, src, count,
                     [s](T a) { return detail::ShiftRightOp(a, s, false); });
}
template <typename T, bool isSetMask = true>
void ShiftRight(const LocalTensor<T>& dst, const LocalTensor<T>& src, const T& scalarValue, uint64_t mask,
                const int32_t repeatTime, const UnaryRepeatParams& repeatParams, bool roundEn = false,
                Loc loc = Loc::Here()) {
  T s = scalarValue;
  detail::UnaryRepeat<isSetMask>("ShiftRight", loc, detail::kCostOp, dst, src, mask, repeatTime, repeatParams,
                                 [s, roundEn](T a) { return detail::ShiftRightOp(a, s, roundEn); });
}
template <typename T, bool isSetMask = true>
void ShiftRight(const LocalTensor<T>& dst, const LocalTensor<T>& src, const T& scalarValue, uint64_t mask[],
                const int32_t repeatTime, const UnaryRepeatParams& repeatParams, bool roundEn = false,
                Loc loc = Loc::Here()) {
  T s = scalarValue;
  detail::UnaryRepeat<isSetMask, T, T, const uint64_t*>(
      "ShiftRight", loc, detail::kCostOp, dst, src, mask, repeatTime, repeatParams,
      [s, roundEn](T a) { return detail::ShiftRightOp(a, s, roundEn); });
}

// dst += src * scalar.
template <typename T, typename U>
void Axpy(const LocalTensor<T>& dst, const LocalTensor<U>& src, const U& scalarValue, const int32_t& count,
          Loc loc = Loc::Here()) {
  static_assert(std::is_same_v<T, U> && detail::kIsFloat<T>, "Axpy of mixed types is not simulated");
  float s = float(scalarValue);
  detail::BinaryCount("Axpy", loc, detail::kCostOp, dst, src, dst, count,
                      [s](T a, T d) { return static_cast<T>(std::fma(double(a), double(s), double(d))); });
}

// dst <- f(src0, src1, dst).
namespace detail {
template <class T, class F>
void Ternary(hostsim::VectorCall& call, const hostsim::VecArg& dst, const hostsim::VecArg& src0,
             const hostsim::VecArg& src1, F f) {
  const hostsim::VecArg sources[] = {src0, src1, dst};
  if (!call.Start(dst, sources, 3)) return;
  T* ub = reinterpret_cast<T*>(hostsim::Current().Data(hostsim::Mem::kUb));
  for (uint32_t r = 0; r < call.repeats(); ++r) {
    const hostsim::VecMask mask = call.MaskOf(r);
    for (uint32_t i = 0; i < call.per_repeat(); ++i) {
      if (!(mask.word[i / 64] >> (i % 64) & 1)) continue;
      const auto at = [&](const hostsim::VecArg& arg) -> T& {
        return ub[(arg.ref.addr + hostsim::VectorCall::Offset(arg, r, i)) / sizeof(T)];
      };
      at(dst) = f(at(src0), at(src1), at(dst));
    }
  }
}
}  // namespace detail

// dst = src0 * src1 + dst.
template <typename T>
void MulAddDst(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1, const int32_t& count,
               Loc loc = Loc::Here()) {
  static_assert(detail::kIsFloat<T>, "MulAddDst does not support this type");
  hostsim::VectorCall call("MulAddDst", loc, sizeof(T));
  call.Count(count).CyclesPerRepeat(detail::kCostSlow<T>);
  detail::Ternary<T>(call, detail::Dense(call, dst), detail::Dense(call, src0), detail::Dense(call, src1),
                     [](T a, T b, T d) { return static_cast<T>(std::fma(double(a), double(b), double(d))); });
}

// dst = src0 * dst + src1.
template <typename T>
void FusedMulAdd(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1,
                 const int32_t& count, Loc loc = Loc::Here()) {
  static_assert(detail::kIsFloat<T>, "FusedMulAdd does not support this type");
  hostsim::VectorCall call("FusedMulAdd", loc, sizeof(T));
  call.Count(count).CyclesPerRepeat(detail::kCostThreeSources);
  detail::Ternary<T>(call, detail::Dense(call, dst), detail::Dense(call, src0), detail::Dense(call, src1),
                     [](T a, T b, T d) { return static_cast<T>(std::fma(double(a), double(d), double(b))); });
}
template <typename T, bool isSetMask = true>
void FusedMulAdd(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1, uint64_t mask,
                 const uint8_t repeatTime, const BinaryRepeatParams& p, Loc loc = Loc::Here()) {
  static_assert(detail::kIsFloat<T>, "FusedMulAdd does not support this type");
  hostsim::VectorCall call("FusedMulAdd", loc, sizeof(T));
  detail::SetLanes<isSetMask>(call, mask, repeatTime);
  call.CyclesPerRepeat(detail::kCostThreeSources);
  detail::Ternary<T>(call, detail::Strided(dst, p.dstBlkStride, p.dstRepStride),
                     detail::Strided(src0, p.src0BlkStride, p.src0RepStride),
                     detail::Strided(src1, p.src1BlkStride, p.src1RepStride),
                     [](T a, T b, T d) { return static_cast<T>(std::fma(double(a), double(d), double(b))); });
}

// Duplicate: one value everywhere.
namespace detail {
template <class T>
constexpr bool kCanDuplicate = kIsOneOf<T, half, bfloat16_t, int16_t, uint16_t, int32_t, uint32_t, float>;

template <class T>
void Fill(hostsim::VectorCall& call, const hostsim::VecArg& dst, T value) {
  if (!call.Start(dst, nullptr, 0)) return;
  T* d = reinterpret_cast<T*>(hostsim::Current().Data(hostsim::Mem::kUb) + dst.ref.addr);
  for (uint32_t r = 0; r < call.repeats(); ++r) {
    hostsim::VecMask mask = call.MaskOf(r);
    for (uint32_t i = 0; i < call.per_repeat(); ++i) {
      if (mask.word[i / 64] >> (i % 64) & 1) d[hostsim::VectorCall::Offset(dst, r, i) / sizeof(T)] = value;
    }
  }
}
}  // namespace detail

template <typename T>
void Duplicate(const LocalTensor<T>& dst, const T& scalarValue, const int32_t& count, Loc loc = Loc::Here()) {
  static_assert(detail::kCanDuplicate<T>, "Duplicate does not support this type");
  hostsim::VectorCall call("Duplicate", loc, sizeof(T));
  call.Count(count).CyclesPerRepeat(detail::kCostOp);
  detail::Fill(call, detail::Dense(call, dst), scalarValue);
}
template <typename T, bool isSetMask = true>
void Duplicate(const LocalTensor<T>& dst, const T& scalarValue, uint64_t mask, const int32_t repeatTime,
               const uint16_t dstBlockStride, const uint8_t dstRepeatStride, Loc loc = Loc::Here()) {
  static_assert(detail::kCanDuplicate<T>, "Duplicate does not support this type");
  hostsim::VectorCall call("Duplicate", loc, sizeof(T));
  detail::SetLanes<isSetMask>(call, mask, repeatTime);
  call.CyclesPerRepeat(detail::kCostOp);
  detail::Fill(call, detail::Strided(dst, dstBlockStride, dstRepeatStride), scalarValue);
}
template <typename T, bool isSetMask = true>
void Duplicate(const LocalTensor<T>& dst, const T& scalarValue, uint64_t mask[], const int32_t repeatTime,
               const uint16_t dstBlockStride, const uint8_t dstRepeatStride, Loc loc = Loc::Here()) {
  static_assert(detail::kCanDuplicate<T>, "Duplicate does not support this type");
  hostsim::VectorCall call("Duplicate", loc, sizeof(T));
  detail::SetLanes<isSetMask>(call, static_cast<const uint64_t*>(mask), repeatTime);
  call.CyclesPerRepeat(detail::kCostOp);
  detail::Fill(call, detail::Strided(dst, dstBlockStride, dstRepeatStride), scalarValue);
}

// Mask register.
inline void SetMaskCount() { hostsim::Current().mask_count = true; }
inline void SetMaskNorm() { hostsim::Current().mask_count = false; }
template <typename T, MaskMode mode = MaskMode::NORMAL>
void SetVectorMask(const uint64_t maskHigh, const uint64_t maskLow) {
  hostsim::Current().vector_mask[1] = maskHigh;
  hostsim::Current().vector_mask[0] = maskLow;
}
template <typename T, MaskMode mode = MaskMode::NORMAL>
void SetVectorMask(int32_t len) {
  if (mode == MaskMode::COUNTER) return SetVectorMask<T, mode>(0, static_cast<uint64_t>(len));
  auto word = [](int32_t n) { return n >= 64 ? ~uint64_t{0} : (n <= 0 ? 0 : (uint64_t{1} << n) - 1); };
  SetVectorMask<T, mode>(word(len - 64), word(len));
}
inline void ResetMask() { SetVectorMask<half>(~uint64_t{0}, ~uint64_t{0}); }

// Cast.
namespace detail {

template <class D, class S>
constexpr bool CanCast() {
  using std::is_same_v;
  constexpr bool kFromHalf = is_same_v<S, half> && kIsOneOf<D, int8_t, uint8_t, int16_t, int32_t, float>;
  constexpr bool kFromFloat = is_same_v<S, float> && kIsOneOf<D, int16_t, half, bfloat16_t, int32_t, float, int64_t>;
  return kFromHalf || kFromFloat || (kIsOneOf<S, int8_t, uint8_t> && is_same_v<D, half>) ||
         (is_same_v<S, int16_t> && kIsOneOf<D, half, float>) ||
         (is_same_v<S, bfloat16_t> && kIsOneOf<D, int32_t, float>) ||
         (is_same_v<S, int32_t> && kIsOneOf<D, int16_t, half, float, int64_t>) ||
         (is_same_v<S, int64_t> && kIsOneOf<D, int32_t, float>);
}
// Rounding modes a conversion accepts besides RINT to TRUNC.
template <class D, class S>
constexpr bool RoundAllowed(RoundMode mode) {
  using std::is_same_v;
  constexpr bool kExact =
      (is_same_v<S, half> && is_same_v<D, float>) || (is_same_v<S, bfloat16_t> && is_same_v<D, float>) ||
      (kIsOneOf<S, int8_t, uint8_t> && is_same_v<D, half>) || (is_same_v<S, int16_t> && is_same_v<D, float>) ||
      (std::is_integral_v<S> && std::is_integral_v<D>);
  if (kExact) return mode == RoundMode::CAST_NONE;
  if (mode == RoundMode::CAST_ODD) return is_same_v<S, float> && is_same_v<D, half>;
  if (mode == RoundMode::CAST_NONE) {
    return (is_same_v<S, float> && is_same_v<D, half>) || (is_same_v<S, int16_t> && is_same_v<D, half>) ||
           (is_same_v<S, half> && sizeof(D) == 1) || (is_same_v<S, int32_t> && kIsOneOf<D, float, half>);
  }
  return true;
}

template <class D, class S>
D CastValue(S value, hostsim::Round mode, float deq_scale) {
  if constexpr (std::is_integral_v<D> && std::is_integral_v<S>) {
    int64_t v = value;
    return static_cast<D>(std::clamp<int64_t>(v, std::numeric_limits<D>::min(), std::numeric_limits<D>::max()));
  } else if constexpr (std::is_integral_v<D>) {
    return hostsim::Saturate<D>(hostsim::ToIntegral(double(value), mode));
  } else if constexpr (std::is_same_v<S, int32_t> && std::is_same_v<D, half>) {
    return half(double(value) * deq_scale);
  } else if constexpr (std::is_same_v<D, half>) {
    return half::FromBits(hostsim::ToHalfBits(double(value), mode));
  } else if constexpr (std::is_same_v<D, bfloat16_t>) {
    return bfloat16_t::FromBits(hostsim::ToBfloat16Bits(double(value), mode));
  } else if constexpr (std::is_same_v<S, float>) {
    return static_cast<float>(hostsim::ToIntegral(value, mode));  // float to float rounds to an integer
  } else if constexpr (std::is_integral_v<S>) {
    return hostsim::ToFloat(static_cast<int64_t>(value), mode);
  } else {
    return float(value);
  }
}

template <class D, class S>
bool CheckCast(RoundMode mode, Loc loc) {
  static_assert(CanCast<D, S>(), "Cast does not support this pair of types");
  if (RoundAllowed<D, S>(mode)) return true;
  hostsim::Current().FailAt(hostsim::Fault::kUnsupported, hostsim::Pipe::kV, "Cast", loc,
                            "rounding mode " + std::to_string(static_cast<int>(mode)) + " for this pair of types");
  return false;
}

}  // namespace detail

template <typename T, typename U>
void Cast(const LocalTensor<T>& dst, const LocalTensor<U>& src, const RoundMode& roundMode, const uint32_t count,
          Loc loc = Loc::Here()) {
  if (!detail::CheckCast<T, U>(roundMode, loc)) return;
  hostsim::Round mode = detail::RoundOf(roundMode);
  float scale = hostsim::Current().deq_scale;
  detail::UnaryCount("Cast", loc, detail::kCostOp, dst, src, count,
                     [mode, scale](U v) { return detail::CastValue<T, U>(v, mode, scale); });
}
template <typename T, typename U, bool isSetMask = true>
void Cast(const LocalTensor<T>& dst, const LocalTensor<U>& src, const RoundMode& roundMode, const uint64_t mask,
          const int32_t repeatTime, const UnaryRepeatParams& repeatParams, Loc loc = Loc::Here()) {
  if (!detail::CheckCast<T, U>(roundMode, loc)) return;
  hostsim::Round mode = detail::RoundOf(roundMode);
  float scale = hostsim::Current().deq_scale;
  detail::UnaryRepeat<isSetMask>("Cast", loc, detail::kCostOp, dst, src, mask, repeatTime, repeatParams,
                                 [mode, scale](U v) { return detail::CastValue<T, U>(v, mode, scale); });
}
template <typename T, typename U, bool isSetMask = true>
void Cast(const LocalTensor<T>& dst, const LocalTensor<U>& src, const RoundMode& roundMode, const uint64_t mask[],
          const int32_t repeatTime, const UnaryRepeatParams& repeatParams, Loc loc = Loc::Here()) {
  if (!detail::CheckCast<T, U>(roundMode, loc)) return;
  hostsim::Round mode = detail::RoundOf(roundMode);
  float scale = hostsim::Current().deq_scale;
  detail::UnaryRepeat<isSetMask, T, U, const uint64_t*>(
      "Cast", loc, detail::kCostOp, dst, src, mask, repeatTime, repeatParams,
      [mode, scale](U v) { return detail::CastValue<T, U>(v, mode, scale); });
}
inline void SetDeqScale(half scale) { hostsim::Current().deq_scale = float(scale); }

}  // namespace AscendC
