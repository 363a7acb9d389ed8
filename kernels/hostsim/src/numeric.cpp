#include "hostsim/numeric.h"

#include <cmath>

namespace hostsim {
namespace {

// Whether a magnitude truncated to `kept` grows by one unit, given the discarded part.
bool RoundsUp(bool negative, bool odd, bool any, int against_half, Round mode) {
  switch (mode) {
    case Round::kNone:
    case Round::kRint:
      return against_half > 0 || (against_half == 0 && any && odd);
    case Round::kRound:
      return against_half >= 0 && any;
    case Round::kFloor:
      return negative && any;
    case Round::kCeil:
      return !negative && any;
    case Round::kTrunc:
      return false;
    case Round::kOdd:
      return any && !odd;
  }
  return false;
}

// Rounds a positive mantissa `m` of which the low `drop` bits go. `drop` may exceed 63.
uint64_t RoundShift(uint64_t m, int drop, bool negative, Round mode) {
  if (drop <= 0) return m << -drop;
  uint64_t kept = drop < 64 ? m >> drop : 0;
  uint64_t rest = drop < 64 ? m & ((uint64_t{1} << drop) - 1) : m;
  int against_half = -1;
  if (drop < 64) {
    uint64_t half = uint64_t{1} << (drop - 1);
    against_half = rest > half ? 1 : (rest == half ? 0 : -1);
  }
  return kept + RoundsUp(negative, kept & 1, rest != 0, against_half, mode);
}

// Packs a double into sign, `exponent` and `mantissa` bits, subnormals and overflow included.
uint32_t Pack(double value, int exponent, int mantissa, Round mode) {
  uint64_t raw = BitCast<uint64_t>(value);
  bool negative = raw >> 63;
  uint32_t sign = static_cast<uint32_t>(negative) << (exponent + mantissa);
  uint32_t infinity = ((1u << exponent) - 1) << mantissa;
  if (std::isnan(value)) return sign | infinity | (1u << (mantissa - 1));
  if (std::isinf(value)) return sign | infinity;
  int e = static_cast<int>((raw >> 52) & 0x7ff);
  uint64_t m = raw & ((uint64_t{1} << 52) - 1);
  if (e == 0) return sign | static_cast<uint32_t>(RoundShift(m, 2000, negative, mode));  // far below the target's range
  m |= uint64_t{1} << 52;
  int bias = (1 << (exponent - 1)) - 1;
  int biased = e - 1023 + bias;
  int drop = 52 - mantissa + (biased < 1 ? 1 - biased : 0);
  uint64_t rounded = RoundShift(m, drop, negative, mode);
  // A normal number carries its hidden bit, so adding it to (biased - 1) also handles the carry into the exponent.
  uint64_t packed = biased < 1 ? rounded : (static_cast<uint64_t>(biased - 1) << mantissa) + rounded;
  if (packed >= infinity) {
    bool finite = mode == Round::kTrunc || mode == Round::kOdd || (mode == Round::kFloor && !negative) ||
                  (mode == Round::kCeil && negative);
    packed = finite ? infinity - 1 : infinity;
  }
  return sign | static_cast<uint32_t>(packed);
}

}  // namespace

uint16_t ToHalfBits(double value, Round mode) { return static_cast<uint16_t>(Pack(value, 5, 10, mode)); }
uint16_t ToBfloat16Bits(double value, Round mode) { return static_cast<uint16_t>(Pack(value, 8, 7, mode)); }
float ToFloat(double value, Round mode) { return BitCast<float>(Pack(value, 8, 23, mode)); }

float ToFloat(int64_t value, Round mode) {
  // Through an exact 64-bit mantissa: a double would round twice.
  bool negative = value < 0;
  uint64_t m = negative ? ~static_cast<uint64_t>(value) + 1 : static_cast<uint64_t>(value);
  if (m == 0) return 0.0f;
  int top = 63 - __builtin_clzll(m);
  uint64_t rounded = RoundShift(m, top - 23, negative, mode);
  float magnitude = std::ldexp(static_cast<float>(rounded), top - 23);
  return negative ? -magnitude : magnitude;
}

double ToIntegral(double value, Round mode) {
  switch (mode) {
    case Round::kFloor:
      return std::floor(value);
    case Round::kCeil:
      return std::ceil(value);
    case Round::kRound:
      return std::round(value);
    case Round::kTrunc:
      return std::trunc(value);
    default:
      return std::nearbyint(value);
  }
}

float HalfToFloat(uint16_t bits) {
  uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  uint32_t exponent = (bits >> 10) & 0x1f;
  uint32_t mantissa = bits & 0x3ff;
  if (exponent == 0x1f) return BitCast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent == 0) {
    float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  return BitCast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

}  // namespace hostsim
