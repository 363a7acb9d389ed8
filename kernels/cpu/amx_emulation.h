// AMX's tiles in plain AVX-512, in place of the intrinsics: the sanitizers do not see what a tile load reads, and not
// every machine that builds and tests has AMX. A build with SPECDEC_SANITIZE=1 includes it before the AMX sources.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace specdec::cpu::amx_emulation {

struct Tile {
  __m512i rows[16];
};
inline thread_local Tile tiles[8];

inline void zero(int t) { tiles[t] = {}; }
inline void load(int t, const void* from, int64_t stride) {
  for (int i = 0; i < 16; ++i) tiles[t].rows[i] = _mm512_loadu_si512(static_cast<const char*>(from) + i * stride);
}
inline void store(int t, void* to, int64_t stride) {
  for (int i = 0; i < 16; ++i) _mm512_storeu_si512(static_cast<char*>(to) + i * stride, tiles[t].rows[i]);
}

// c[m][n] += a[m][2k] b[k][2n] + a[m][2k + 1] b[k][2n + 1] of bfloat16, summed in float32.
inline void add_product(int c, int a, int b) {
  const auto even = [](__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); };
  const auto odd = [](__m512i pairs) {
    return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(int(0xffff0000))));
  };
  for (int m = 0; m < 16; ++m) {
    __m512 sum = _mm512_castsi512_ps(tiles[c].rows[m]);
    for (int k = 0; k < 16; ++k) {
      const __m512i left = _mm512_permutexvar_epi32(_mm512_set1_epi32(k), tiles[a].rows[m]);
      sum = _mm512_fmadd_ps(odd(left), odd(tiles[b].rows[k]), sum);
      sum = _mm512_fmadd_ps(even(left), even(tiles[b].rows[k]), sum);
    }
    tiles[c].rows[m] = _mm512_castps_si512(sum);
  }
}

}  // namespace specdec::cpu::amx_emulation

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#define _tile_loadconfig(config) static_cast<void>(config)
#define _tile_release() static_cast<void>(0)
#define _tile_zero(t) specdec::cpu::amx_emulation::zero(t)
#define _tile_loadd(t, from, stride) specdec::cpu::amx_emulation::load(t, from, stride)
#define _tile_stored(t, to, stride) specdec::cpu::amx_emulation::store(t, to, stride)
#define _tile_dpbf16ps(c, a, b) specdec::cpu::amx_emulation::add_product(c, a, b)
