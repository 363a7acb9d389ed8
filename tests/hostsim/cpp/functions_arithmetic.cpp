// Rounding, casts and element-wise arithmetic.
#include "functions.h"

// ---- numbers -------------------------------------------------------------------------------------------------------

// All finite values of a 16-bit format, decoded from the definition, in order.
static std::vector<std::pair<double, uint16_t>> Table(int exponent_bits, int mantissa_bits) {
  std::vector<std::pair<double, uint16_t>> table;
  int bias = (1 << (exponent_bits - 1)) - 1;
  for (uint32_t bits = 0; bits < 1u << 15; ++bits) {
    int e = static_cast<int>(bits >> mantissa_bits), m = static_cast<int>(bits & ((1u << mantissa_bits) - 1));
    if (e == (1 << exponent_bits) - 1) break;
    double value = e == 0 ? std::ldexp(m, 1 - bias - mantissa_bits)
                          : std::ldexp((1 << mantissa_bits) + m, e - bias - mantissa_bits);
    table.push_back({value, static_cast<uint16_t>(bits)});
  }
  return table;
}

// The definition of each mode, by looking at the two neighbours.
static uint16_t RoundByTable(const std::vector<std::pair<double, uint16_t>>& table, double x, hostsim::Round mode,
                             uint16_t infinity) {
  bool negative = std::signbit(x);
  double magnitude = std::fabs(x);
  uint16_t sign = negative ? 0x8000 : 0;
  auto above = std::lower_bound(table.begin(), table.end(), std::make_pair(magnitude, uint16_t{0}));
  if (above != table.end() && above->first == magnitude) return sign | above->second;
  auto below = above - 1;
  bool has_above = above != table.end();
  // Past the largest value the next step would be where infinity stands.
  double step = (table.end() - 1)->first - (table.end() - 2)->first;
  double above_value = has_above ? above->first : (table.end() - 1)->first + step;
  uint16_t above_bits = has_above ? above->second : infinity;
  bool up = false;
  double middle = (below->first + above_value) / 2;
  switch (mode) {
    case hostsim::Round::kNone:
    case hostsim::Round::kRint:
      up = magnitude > middle || (magnitude == middle && (below->second & 1));
      break;
    case hostsim::Round::kRound:
      up = magnitude >= middle;
      break;
    case hostsim::Round::kFloor:
      up = negative;
      break;
    case hostsim::Round::kCeil:
      up = !negative;
      break;
    case hostsim::Round::kTrunc:
      break;
    case hostsim::Round::kOdd:
      up = !(below->second & 1);
      break;
  }
  return sign | (up ? above_bits : below->second);
}

static void CheckFormat(int exponent_bits, int mantissa_bits, uint16_t infinity,
                        const std::function<uint16_t(double, hostsim::Round)>& convert,
                        const std::function<float(uint16_t)>& widen) {
  auto table = Table(exponent_bits, mantissa_bits);
  for (auto& [value, bits] : table) {
    Expect(widen(bits) == static_cast<float>(value), "widening " + std::to_string(bits));
    Expect(widen(bits | 0x8000) == static_cast<float>(-value), "widening " + std::to_string(bits | 0x8000));
  }
  std::vector<double> points;
  std::mt19937 random(5);
  for (size_t i = 0; i + 1 < table.size(); i += 37) {
    double low = table[i].first, high = table[i + 1].first;
    for (double t : {0.0, 0.25, 0.5, 0.75}) points.push_back(low + (high - low) * t);
    points.push_back(std::nextafter((low + high) / 2, high));
    points.push_back(std::nextafter((low + high) / 2, low));
  }
  double largest = table.back().first;
  points.insert(points.end(), {largest * 1.0001, largest * 1.5, largest * 8});
  for (double x : points) {
    for (double sign : {1.0, -1.0}) {
      for (int mode = 0; mode <= static_cast<int>(hostsim::Round::kOdd); ++mode) {
        hostsim::Round round = static_cast<hostsim::Round>(mode);
        uint16_t got = convert(sign * x, round), want = RoundByTable(table, sign * x, round, infinity);
        if (x > largest * 1.4 && (mode >= 2 || mode == 0)) continue;  // far overflow: modes saturate, checked below
        Expect(got == want, "mode " + std::to_string(mode) + " of " + std::to_string(sign * x) + ": " +
                                std::to_string(got) + ", not " + std::to_string(want));
      }
    }
  }
  Expect(convert(largest * 8, hostsim::Round::kRint) == infinity, "overflow to nearest");
  Expect(convert(largest * 8, hostsim::Round::kTrunc) == infinity - 1, "overflow to zero");
  Expect(convert(-largest * 8, hostsim::Round::kCeil) == ((infinity - 1) | 0x8000), "overflow up");
  Expect(convert(largest * 8, hostsim::Round::kCeil) == infinity, "overflow up");
  Expect(std::isnan(widen(convert(NAN, hostsim::Round::kRint))), "NaN");
}

CHECK_FUNCTIONS(half_rounding) { CheckFormat(5, 10, 0x7c00, hostsim::ToHalfBits, hostsim::HalfToFloat); }
CHECK_FUNCTIONS(bfloat16_rounding) { CheckFormat(8, 7, 0x7f80, hostsim::ToBfloat16Bits, hostsim::Bfloat16ToFloat); }

CHECK_FUNCTIONS(cast_integers) {
  std::vector<float> x = {0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 2.4f, -2.6f, 3e9f, -3e9f, NAN, 7.0f};
  struct {
    RoundMode mode;
    double (*round)(double);
  } const modes[] = {{RoundMode::CAST_RINT, [](double v) { return std::nearbyint(v); }},
                     {RoundMode::CAST_FLOOR, [](double v) { return std::floor(v); }},
                     {RoundMode::CAST_CEIL, [](double v) { return std::ceil(v); }},
                     {RoundMode::CAST_ROUND, [](double v) { return std::round(v); }},
                     {RoundMode::CAST_TRUNC, [](double v) { return std::trunc(v); }}};
  for (auto& m : modes) {
    std::vector<int32_t> want;
    for (float v : x) {
      double r = std::isnan(v) ? 0 : std::clamp(m.round(v), -2147483648.0, 2147483647.0);
      want.push_back(static_cast<int32_t>(r));
    }
    auto got = Compute<float, int32_t>(x, x, x.size(), [&](auto d, auto a, auto) { Cast(d, a, m.mode, 12); });
    Same(got, want, "float to int32");
    std::vector<float> whole;
    for (float v : x) whole.push_back(std::isnan(v) ? NAN : static_cast<float>(m.round(v)));
    auto floats = Compute<float>(x, x, x.size(), [&](auto d, auto a, auto) { Cast(d, a, m.mode, 12); });
    Same(floats, whole, "float to float");
  }
  std::vector<int32_t> big = {16777217, -16777217, 2147483647, 5, -7, 33554435};
  auto near = Compute<int32_t, float>(big, big, 6, [](auto d, auto a, auto) { Cast(d, a, RoundMode::CAST_RINT, 6); });
  Same(near, {16777216.f, -16777216.f, 2147483648.f, 5.f, -7.f, 33554436.f}, "int32 to float, nearest");
  auto up = Compute<int32_t, float>(big, big, 6, [](auto d, auto a, auto) { Cast(d, a, RoundMode::CAST_CEIL, 6); });
  Same(up, {16777218.f, -16777216.f, 2147483648.f, 5.f, -7.f, 33554436.f}, "int32 to float, up");
  auto shorts = Compute<int32_t, int16_t>({70000, -70000, 9}, {0, 0, 0}, 3,
                                          [](auto d, auto a, auto) { Cast(d, a, RoundMode::CAST_NONE, 3); });
  Same(shorts, {32767, -32768, 9}, "int32 to int16");
}

// ---- element-wise --------------------------------------------------------------------------------------------------

template <class T>
static void Unary(const char* name, double low, double high, void (*op)(LocalTensor<T>, LocalTensor<T>, int32_t),
                  double (*reference)(double), double tolerance) {
  auto a = Random<T>(1000, low, high);
  std::vector<T> want;
  for (T v : a) want.push_back(T(reference(double(v))));
  auto got = Compute<T>(a, a, 1000, [&](auto d, auto x, auto) { op(d, x, 1000); });
  Same(got, want, name, tolerance);
}

CHECK_FUNCTIONS(element_wise) {
  constexpr double kUlp = 0x1p-23;  // two half-ulps: the result and the reference each round once
  Unary<float>(
      "Exp", -80, 80, [](auto d, auto s, int32_t n) { Exp(d, s, n); }, [](double v) { return std::exp(v); }, kUlp);
  Unary<float>(
      "Ln", 1e-3, 1e6, [](auto d, auto s, int32_t n) { Ln(d, s, n); }, [](double v) { return std::log(v); }, kUlp);
  Unary<float>(
      "Sqrt", 0, 1e6, [](auto d, auto s, int32_t n) { Sqrt(d, s, n); }, [](double v) { return std::sqrt(v); }, 0);
  Unary<float>(
      "Rsqrt", 1e-3, 1e3, [](auto d, auto s, int32_t n) { Rsqrt(d, s, n); }, [](double v) { return 1 / std::sqrt(v); },
      kUlp);
  Unary<float>(
      "Reciprocal", 1, 1e3, [](auto d, auto s, int32_t n) { Reciprocal(d, s, n); }, [](double v) { return 1 / v; },
      kUlp);
  Unary<float>("Abs", -5, 5, [](auto d, auto s, int32_t n) { Abs(d, s, n); }, [](double v) { return std::fabs(v); }, 0);
  Unary<float>(
      "Relu", -5, 5, [](auto d, auto s, int32_t n) { Relu(d, s, n); }, [](double v) { return v < 0 ? 0 : v; }, 0);
  Unary<half>(
      "half Exp", -5, 5, [](auto d, auto s, int32_t n) { Exp(d, s, n); }, [](double v) { return std::exp(v); }, 0);
  Unary<half>(
      "half Relu", -5, 5, [](auto d, auto s, int32_t n) { Relu(d, s, n); }, [](double v) { return v < 0 ? 0 : v; }, 0);

  auto a = Random<float>(300, -9, 9, 2), b = Random<float>(300, 1, 9, 3);
  auto ha = Random<half>(300, -9, 9, 2), hb = Random<half>(300, 1, 9, 3);
  auto ia = Random<int32_t>(300, -90000, 90000, 2), ib = Random<int32_t>(300, -90000, 90000, 3);
  auto check = [](const char* name, const auto& x, const auto& y, auto op, auto reference) {
    using T = std::decay_t<decltype(x[0])>;
    std::vector<T> want;
    for (size_t i = 0; i < x.size(); ++i) want.push_back(reference(x[i], y[i]));
    Same(Compute<T>(x, y, x.size(), [&](auto d, auto p, auto q) { op(d, p, q); }), want, name);
  };
  [[maybe_unused]] static constexpr int32_t n = 300;
  check("Add", a, b, [](auto d, auto p, auto q) { Add(d, p, q, n); }, [](float x, float y) { return x + y; });
  check("Sub", a, b, [](auto d, auto p, auto q) { Sub(d, p, q, n); }, [](float x, float y) { return x - y; });
  check("Mul", a, b, [](auto d, auto p, auto q) { Mul(d, p, q, n); }, [](float x, float y) { return x * y; });
  check("Div", a, b, [](auto d, auto p, auto q) { Div(d, p, q, n); }, [](float x, float y) { return x / y; });
  check("Max", a, b, [](auto d, auto p, auto q) { Max(d, p, q, n); }, [](float x, float y) { return std::max(x, y); });
  check("Min", a, b, [](auto d, auto p, auto q) { Min(d, p, q, n); }, [](float x, float y) { return std::min(x, y); });
  check(
      "half Add", ha, hb, [](auto d, auto p, auto q) { Add(d, p, q, n); },
      [](half x, half y) { return half(double(x) + double(y)); });
  check(
      "half Mul", ha, hb, [](auto d, auto p, auto q) { Mul(d, p, q, n); },
      [](half x, half y) { return half(double(x) * double(y)); });
  check(
      "half Div", ha, hb, [](auto d, auto p, auto q) { Div(d, p, q, n); },
      [](half x, half y) { return half(double(x) / double(y)); });
  check("int Add", ia, ib, [](auto d, auto p, auto q) { Add(d, p, q, n); }, [](int32_t x, int32_t y) { return x + y; });
  check(
      "int Mul wraps", ia, ib, [](auto d, auto p, auto q) { Mul(d, p, q, n); },
      [](int32_t x, int32_t y) { return static_cast<int32_t>(static_cast<uint32_t>(x) * static_cast<uint32_t>(y)); });
  check("Adds", a, a, [](auto d, auto p, auto) { Adds(d, p, 1.5f, n); }, [](float x, float) { return x + 1.5f; });
  check("Muls", a, a, [](auto d, auto p, auto) { Muls(d, p, 1.5f, n); }, [](float x, float) { return x * 1.5f; });
  check(
      "Maxs", a, a, [](auto d, auto p, auto) { Maxs(d, p, 0.5f, n); },
      [](float x, float) { return std::max(x, 0.5f); });
  check(
      "Mins", a, a, [](auto d, auto p, auto) { Mins(d, p, 0.5f, n); },
      [](float x, float) { return std::min(x, 0.5f); });
  check(
      "LeakyRelu", a, a, [](auto d, auto p, auto) { LeakyRelu(d, p, 0.25f, n); },
      [](float x, float) { return x < 0 ? x * 0.25f : x; });
  check(
      "Axpy", a, b,
      [](auto d, auto p, auto q) {
        Adds(d, q, 0.0f, n);
        PipeBarrier<PIPE_V>();
        Axpy(d, p, 2.0f, n);
      },
      [](float x, float y) { return std::fma(x, 2.0f, y); });
  check(
      "MulAddDst", a, b,
      [](auto d, auto p, auto q) {
        Adds(d, q, 0.0f, n);
        PipeBarrier<PIPE_V>();
        MulAddDst(d, p, q, n);
      },
      [](float x, float y) { return std::fma(x, y, y); });
  check(
      "FusedMulAdd", a, b,
      [](auto d, auto p, auto q) {
        Adds(d, q, 1.0f, n);
        PipeBarrier<PIPE_V>();
        FusedMulAdd(d, p, q, n);
      },
      [](float x, float y) { return std::fma(x, y + 1.0f, y); });
}

CHECK_FUNCTIONS(logic) {
  auto a = Random<uint16_t>(200, 0, 65535, 2), b = Random<uint16_t>(200, 0, 65535, 3);
  auto w = Random<int32_t>(200, -2e9, 2e9, 4);
  std::vector<uint16_t> want_and, want_or, want_not, right, rounded;
  std::vector<int32_t> left, arithmetic;
  for (size_t i = 0; i < 200; ++i) {
    want_and.push_back(a[i] & b[i]);
    want_or.push_back(a[i] | b[i]);
    want_not.push_back(static_cast<uint16_t>(~a[i]));
    right.push_back(a[i] >> 3);
    left.push_back(static_cast<int32_t>(static_cast<uint32_t>(w[i]) << 5));
    arithmetic.push_back(w[i] >> 4);
  }
  for (size_t i = 0; i < 128; ++i) rounded.push_back((a[i] + 4) >> 3);
  Same(Compute<uint16_t>(a, b, 200, [](auto d, auto p, auto q) { And(d, p, q, 200); }), want_and, "And");
  Same(Compute<uint16_t>(a, b, 200, [](auto d, auto p, auto q) { Or(d, p, q, 200); }), want_or, "Or");
  Same(Compute<uint16_t>(a, b, 200, [](auto d, auto p, auto) { Not(d, p, 200); }), want_not, "Not");
  Same(Compute<uint16_t>(a, b, 200, [](auto d, auto p, auto) { ShiftRight(d, p, uint16_t{3}, 200); }), right,
       "ShiftRight");
  Same(Compute<int32_t>(w, w, 200, [](auto d, auto p, auto) { ShiftLeft(d, p, 5, 200); }), left, "ShiftLeft");
  Same(Compute<int32_t>(w, w, 200, [](auto d, auto p, auto) { ShiftRight(d, p, 4, 200); }), arithmetic,
       "signed ShiftRight");
  Same(Compute<uint16_t>(a, b, 128,
                         [](auto d, auto p, auto) { ShiftRight(d, p, uint16_t{3}, 128, 1, {1, 1, 8, 8}, true); }),
       rounded, "rounding ShiftRight");
}

// Masks, strides and repeats against a loop over lanes.
CHECK_FUNCTIONS(repeats) {
  auto a = Random<float>(1024, -9, 9, 2);
  std::vector<float> want(1024, 0.0f);
  for (int r = 0; r < 3; ++r) {
    for (int i = 0; i < 40; ++i) want[r * 128 + i / 8 * 16 + i % 8] = a[r * 64 + i] + 1;
  }
  Same(Compute<float>(a, a, 1024, [](auto d, auto p, auto) { Adds(d, p, 1.0f, 40, 3, {2, 1, 16, 8}); }), want,
       "mask 40, destination blocks apart");
  std::vector<float> bits(1024, 0.0f);
  for (int r = 0; r < 2; ++r) {
    for (int i = 0; i < 64; ++i) {
      if (i % 3 == 0) bits[r * 64 + i] = a[r * 64 + i] * a[i];
    }
  }
  Same(Compute<float>(a, a, 1024,
                      [](auto d, auto p, auto q) {
                        uint64_t mask[2] = {0, 0};
                        for (int i = 0; i < 64; i += 3) mask[0] |= uint64_t{1} << i;
                        Mul(d, p, q, mask, 2, {1, 1, 1, 8, 8, 0});
                      }),
       bits, "bit mask, repeated second source");
  std::vector<float> by_row(256, 0.0f);
  for (int r = 0; r < 2; ++r) {
    for (int i = 0; i < 40; ++i) by_row[r * 128 + i] = std::fma(a[r * 8 + i % 8], 2.0f, a[r * 64 + i]);
  }
  Same(Compute<float>(a, a, 256,
                      [](auto d, auto p, auto q) {
                        Duplicate(d, 2.0f, 40, 2, 1, 16);
                        PipeBarrier<PIPE_V>();
                        FusedMulAdd(d, p, q, 40, 2, {1, 0, 1, 16, 1, 8});
                      }),
       by_row, "FusedMulAdd of a block a row");
  // A destination that accumulates on itself: repeat stride 0.
  std::vector<float> sum(64, 0.0f);
  for (int r = 0; r < 16; ++r) {
    for (int i = 0; i < 64; ++i) sum[i] += a[r * 64 + i];
  }
  Same(Compute<float>(a, a, 64, [](auto d, auto p, auto) { Add(d, p, d, 64, 16, {1, 1, 1, 0, 8, 0}); }), sum,
       "accumulating Add");
  std::vector<float> counted(256, 0.0f);
  for (int i = 0; i < 100; ++i) counted[i] = a[i] + 1;
  Same(Compute<float>(a, a, 256,
                      [](auto d, auto p, auto) {
                        SetMaskCount();
                        SetVectorMask<float, MaskMode::COUNTER>(100);
                        Adds<float, false>(d, p, 1.0f, MASK_PLACEHOLDER, 1, {1, 1, 8, 8});
                        SetMaskNorm();
                        ResetMask();
                      }),
       counted, "counter mode of the mask register");
  std::vector<float> widened(256);
  auto h = Random<half>(256, -9, 9, 7);
  for (int i = 0; i < 256; ++i) widened[i] = h[i];
  Same(Compute<half, float>(h, h, 256,
                            [](auto d, auto p, auto) { Cast(d, p, RoundMode::CAST_NONE, 64, 4, {1, 1, 8, 4}); }),
       widened, "Cast by repeats");
}
