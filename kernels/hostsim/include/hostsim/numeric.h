// The 16-bit floating types of the device and its rounding modes, bit exact.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>

namespace hostsim {

enum class Round : uint8_t { kNone, kRint, kFloor, kCeil, kRound, kTrunc, kOdd };

template <class To, class From>
To BitCast(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "BitCast needs equal sizes");
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

// Float to a binary format of `kMantissa` explicit mantissa and `kExponent` exponent bits. kNone rounds to nearest
// even.
uint16_t ToHalfBits(double value, Round mode);
uint16_t ToBfloat16Bits(double value, Round mode);
float HalfToFloat(uint16_t bits);
inline float Bfloat16ToFloat(uint16_t bits) { return BitCast<float>(static_cast<uint32_t>(bits) << 16); }

// To float32 with any rounding mode, and to an integral value (still a double; exact for every int32 and half).
float ToFloat(double value, Round mode);
float ToFloat(int64_t value, Round mode);
double ToIntegral(double value, Round mode);

// Saturating conversion of an integral double; NaN becomes 0.
template <class Int>
Int Saturate(double value) {
  if (value != value) return 0;
  constexpr double kLow = static_cast<double>(std::numeric_limits<Int>::min());
  constexpr double kHigh = static_cast<double>(std::numeric_limits<Int>::max());
  if (value <= kLow) return std::numeric_limits<Int>::min();
  if (value >= kHigh) return std::numeric_limits<Int>::max();
  return static_cast<Int>(value);
}

// Storage plus the arithmetic a scalar unit would do: widen to float, operate, round once.
template <class Tag>
struct Float16 {
  uint16_t bits = 0;

  Float16() = default;
  Float16(float value) : bits(Tag::FromFloat(value)) {}
  Float16(double value) : bits(Tag::FromFloat(value)) {}
  Float16(int value) : bits(Tag::FromFloat(value)) {}
  Float16(unsigned value) : bits(Tag::FromFloat(value)) {}
  Float16(long value) : bits(Tag::FromFloat(static_cast<double>(value))) {}
  Float16(unsigned long value) : bits(Tag::FromFloat(static_cast<double>(value))) {}
  operator float() const { return Tag::ToFloat(bits); }

  static Float16 FromBits(uint16_t bits) {
    Float16 value;
    value.bits = bits;
    return value;
  }
  Float16& operator+=(Float16 other) { return *this = Float16(float(*this) + float(other)); }
  Float16& operator-=(Float16 other) { return *this = Float16(float(*this) - float(other)); }
  Float16& operator*=(Float16 other) { return *this = Float16(float(*this) * float(other)); }
  Float16& operator/=(Float16 other) { return *this = Float16(float(*this) / float(other)); }
};

struct HalfTag {
  static uint16_t FromFloat(double value) { return ToHalfBits(value, Round::kRint); }
  static float ToFloat(uint16_t bits) { return HalfToFloat(bits); }
};
struct Bfloat16Tag {
  static uint16_t FromFloat(double value) { return ToBfloat16Bits(value, Round::kRint); }
  static float ToFloat(uint16_t bits) { return Bfloat16ToFloat(bits); }
};

}  // namespace hostsim

using half = hostsim::Float16<hostsim::HalfTag>;
using bfloat16_t = hostsim::Float16<hostsim::Bfloat16Tag>;
