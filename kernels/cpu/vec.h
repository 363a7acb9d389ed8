// Vectors of the machine's width on the compiler's vector types: one source for SSE2, AVX2, AVX-512 and NEON. Only what
// the compiler does not find by itself (max, exponent scaling, reductions, half conversion) has an intrinsic.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "dtype.h"

namespace specdec::cpu::SPECDEC_CAPABILITY {

#define SPECDEC_INLINE inline __attribute__((always_inline))

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif
constexpr float kInf = std::numeric_limits<float>::infinity();

typedef float F __attribute__((vector_size(4 * kLanes)));
typedef int32_t I __attribute__((vector_size(4 * kLanes)));
typedef uint32_t U __attribute__((vector_size(4 * kLanes)));
typedef uint16_t U16 __attribute__((vector_size(2 * kLanes)));
typedef int8_t I8 __attribute__((vector_size(kLanes)));

SPECDEC_INLINE F splat(float x) { return x - F{}; }
SPECDEC_INLINE I lane_ids() {
  I ids;
  for (int i = 0; i < kLanes; ++i) ids[i] = i;
  return ids;
}

// max(a, b) and min(a, b) give b where either is NaN, as the x86 instructions do.
SPECDEC_INLINE F max(F a, F b) {
#if defined(__AVX512F__)
  return (F)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
  return (F)_mm256_max_ps((__m256)a, (__m256)b);
#else
  return a > b ? a : b;
#endif
}
SPECDEC_INLINE F min(F a, F b) {
#if defined(__AVX512F__)
  return (F)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
  return (F)_mm256_min_ps((__m256)a, (__m256)b);
#else
  return a < b ? a : b;
#endif
}

// Loads and stores; every element type is widened to float32.
SPECDEC_INLINE F load(const float* p) {
  F v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
SPECDEC_INLINE F load(const BFloat16* p) {
  U16 v;
  std::memcpy(&v, p, sizeof v);
#if defined(__AVX512F__)
  return (F)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)v), 16);
#elif defined(__AVX2__)
  return (F)_mm256_slli_epi32(_mm256_cvtepu16_epi32((__m128i)v), 16);
#else
  return (F)(__builtin_convertvector(v, U) << 16);
#endif
}
SPECDEC_INLINE F load(const Float16* p) {
  U16 v;
  std::memcpy(&v, p, sizeof v);
#if defined(__AVX512F__)
  return (F)_mm512_cvtph_ps((__m256i)v);
#elif defined(__AVX2__)
  return (F)_mm256_cvtph_ps((__m128i)v);
#else
  // Shift the half into a float's fields and let a multiplication by 2^112 fix the exponent bias, subnormals included.
  const U bits = __builtin_convertvector(v, U);
  const U magnitude = (bits & 0x7fffu) << 13;
  const F scaled = (F)magnitude * splat(0x1p112f);
  const U inf_or_nan = (U)(magnitude >= (0x7c00u << 13));
  return (F)(((U)scaled | (inf_or_nan & 0x7f800000u)) | ((bits & 0x8000u) << 16));
#endif
}
SPECDEC_INLINE F load(const int8_t* p) {
  I8 v;
  std::memcpy(&v, p, sizeof v);
  return __builtin_convertvector(v, F);
}

// 2 * kLanes elements in an order that costs least: for sums and maxima.
template <typename T>
SPECDEC_INLINE void load_pair(const T* p, F* a, F* b) {
  *a = load(p);
  *b = load(p + kLanes);
}
SPECDEC_INLINE void load_pair(const BFloat16* p, F* even, F* odd) {
  U v;
  std::memcpy(&v, p, sizeof v);
  *even = (F)(v << 16);
  *odd = (F)(v & 0xffff0000u);
}

SPECDEC_INLINE float widen(float x) { return x; }
template <typename T>
SPECDEC_INLINE float widen(T x) {
  T lanes[kLanes] = {x};
  return load(lanes)[0];
}

// The first n < kLanes elements; the other lanes hold `fill`, and no byte past the n-th element is touched.
template <typename T>
SPECDEC_INLINE F load_partial(const T* p, int64_t n, float fill) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == sizeof(float)) {
    const __mmask16 live = (__mmask16)((1u << n) - 1);
    return (F)_mm512_mask_loadu_ps(_mm512_set1_ps(fill), live, p);
  }
#endif
  T lanes[kLanes] = {};
  std::memcpy(lanes, p, n * sizeof(T));
  const F v = load(lanes);
  return lane_ids() < (I{} + (int32_t)n) ? v : splat(fill);
}

SPECDEC_INLINE void store(float* p, F v) { std::memcpy(p, &v, sizeof v); }
// A store past the caches, `p` aligned to a vector; stream_fence() comes before another thread may read it.
SPECDEC_INLINE void stream(float* p, F v) {
#if defined(__AVX512F__)
  _mm512_stream_ps(p, (__m512)v);
#elif defined(__AVX2__)
  _mm256_stream_ps(p, (__m256)v);
#elif defined(__x86_64__)
  _mm_stream_ps(p, (__m128)v);
#else
  store(p, v);
#endif
}
SPECDEC_INLINE void stream_fence() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}
SPECDEC_INLINE void store(BFloat16* p, F v) {
  // Round to nearest even; a NaN keeps its sign and becomes quiet instead of being rounded to infinity.
  const U bits = (U)v;
  const U rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const U quiet = (bits >> 16) | 0x40u;
  const U16 out = __builtin_convertvector(v == v ? rounded : quiet, U16);
  std::memcpy(p, &out, sizeof out);
}
SPECDEC_INLINE void store(Float16* p, F v) {
#if defined(__AVX512F__)
  const __m256i out = _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT);
  std::memcpy(p, &out, sizeof out);
#elif defined(__AVX2__)
  const __m128i out = _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT);
  std::memcpy(p, &out, sizeof out);
#else
  const U bits = (U)v;
  const U sign = (bits >> 16) & 0x8000u;
  const U magnitude = bits & 0x7fffffffu;
  const U normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  // Below 2^-14 the sum with 0.5 puts the half's bits, correctly rounded, at the bottom of the float's.
  const U subnormal = (U)((F)magnitude + splat(0.5f)) - 0x3f000000u;
  U half = magnitude < (113u << 23) ? subnormal : normal;
  half = magnitude >= 0x477ff000u ? U{} + 0x7c00u : half;  // 65520 and above round to infinity
  half = magnitude > 0x7f800000u ? U{} + 0x7e00u : half;   // NaN
  const U16 out = __builtin_convertvector(half | sign, U16);
  std::memcpy(p, &out, sizeof out);
#endif
}
template <typename T>
SPECDEC_INLINE void store_partial(T* p, F v, int64_t n) {
  T lanes[kLanes];
  store(lanes, v);
  std::memcpy(p, lanes, n * sizeof(T));
}

SPECDEC_INLINE float reduce_add(F v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)v);
#else
  float lanes[kLanes];
  store(lanes, v);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  return lanes[0];
#endif
}
SPECDEC_INLINE float reduce_max(F v) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps((__m512)v);
#else
  float lanes[kLanes];
  store(lanes, v);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] = lanes[i] > lanes[i + half] ? lanes[i] : lanes[i + half];
  return lanes[0];
#endif
}

SPECDEC_INLINE bool any(I mask) {
#if defined(__AVX512F__)
  return _mm512_movepi32_mask((__m512i)mask) != 0;
#elif defined(__AVX2__)
  return _mm256_movemask_ps((__m256)mask) != 0;
#else
  int32_t set = 0;
  for (int i = 0; i < kLanes; ++i) set |= mask[i];
  return set != 0;
#endif
}

#if defined(__AVX512F__)
// p * 2^floor(n), but 0 for n < -126: an underflow would cost the instruction some 180 cycles.
SPECDEC_INLINE F scale_or_flush(F p, F n) {
  const __mmask16 normal = _mm512_cmp_ps_mask((__m512)n, _mm512_set1_ps(-126.f), _CMP_NLT_UQ);  // or NaN
  return (F)_mm512_maskz_scalef_ps(normal, (__m512)p, (__m512)n);
}
#endif

// e^x to about one ulp for x <= 88. exp(-inf) is exactly 0, a NaN stays a NaN; a result below 2^-126 may be flushed to
// 0.
SPECDEC_INLINE F exp(F x) {
  // n = round(x / ln 2) by adding and taking away 1.5 * 2^23; then x = n ln 2 + r with |r| <= ln 2 / 2.
  const F magic = splat(0x1.8p23f);
  const F shifted = x * splat(1.44269504088896341f) + magic;
  const F n = shifted - magic;
  F r = x - n * splat(0.693145751953125f);
  r = r - n * splat(1.428606765330187045e-6f);
  F p = splat(1.9875691500e-4f);
  p = p * r + splat(1.3981999507e-3f);
  p = p * r + splat(8.3334519073e-3f);
  p = p * r + splat(4.1665795894e-2f);
  p = p * r + splat(1.6666665459e-1f);
  p = p * r + splat(5.0000001201e-1f);
  p = p * (r * r) + (r + splat(1.f));
#if defined(__AVX512F__)
  return scale_or_flush(p, n);
#else
  const F scale = (F)(((I)shifted - (I)magic + 127) << 23);
  return x < splat(-87.33654f) ? F{} : p * scale;
#endif
}

// 2^x for x <= 127 to 1e-7 relative. exp2(0) is exactly 1 and exp2(-inf) exactly 0, a NaN stays a NaN; a result below
// 2^-126 may be flushed to 0.
SPECDEC_INLINE F exp2(F x) {
#if defined(__AVX512F__)
  const F r = (F)_mm512_reduce_ps((__m512)x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);  // x - floor(x)
#else
  x = max(splat(-150.f), x);  // in this order a NaN survives
  const F magic = splat(0x1.8p23f);
  const F shifted = (x - splat(0.5f)) + magic;
  const F r = x - (shifted - magic);
#endif
  F p = splat(0x1.e97412p-10f);
  p = p * r + splat(0x1.277892p-7f);
  p = p * r + splat(0x1.c91cdcp-5f);
  p = p * r + splat(0x1.ebdb58p-3f);
  p = p * r + splat(0x1.62e4bap-1f);
  p = p * r + splat(1.f);
#if defined(__AVX512F__)
  return scale_or_flush(p, x);
#else
  const F scale = (F)(((I)shifted - (I)magic + 127) << 23);
  return x < splat(-126.f) ? F{} : p * scale;
#endif
}

// The lanes where keep is set, packed to the front of out; returns how many. May write all kLanes lanes.
SPECDEC_INLINE int compress(float* out, F v, I keep) {
#if defined(__AVX512F__)
  const __mmask16 mask = _mm512_movepi32_mask((__m512i)keep);
  _mm512_storeu_ps(out, _mm512_maskz_compress_ps(mask, (__m512)v));
  return __builtin_popcount(mask);
#else
  int count = 0;
  for (int i = 0; i < kLanes; ++i) {
    out[count] = v[i];
    count -= keep[i];
  }
  return count;
#endif
}

}  // namespace specdec::cpu::SPECDEC_CAPABILITY
