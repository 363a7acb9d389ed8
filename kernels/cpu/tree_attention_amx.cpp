// bfloat16 tree attention on Intel AMX. Both products have the keys' or values' side as the left matrix and the rows as
// the 16 columns of the right one, so that scores and outputs keep the layout of tree_attention_impl.h:
//   S^T[key][row] = K Q^T     K is read from the cache as it lies, Q^T is packed once a task
//   O^T[d][row]  += V^T P^T   V is transposed once a block, P^T comes out of the softmax packed
#include <immintrin.h>

#include "tree_attention.h"
#include "tree_attention_impl.h"

namespace specdec::cpu::SPECDEC_CAPABILITY {

namespace {

// What AMX calls a tile, palette 1: 16 rows of 64 bytes. A right matrix keeps pairs of its rows interleaved.
constexpr int kSide = 16;
constexpr int kPairs = 32;  // bfloat16 a row

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t columns[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

class AmxKernel {
 public:
  static constexpr int kTileRows = kSide;
  static constexpr int kKeys = 128;

  AmxKernel(const TreeAttentionParams& p, int64_t max_rows)
      : p_(p),
        d_qk_(round_up(p.d_qk, kPairs)),
        d_v_(round_up(p.d_v, kSide)),
        queries_(max_rows * d_qk_ / 2),
        outputs_(max_rows * d_v_),
        keys_(kKeys * d_qk_),
        values_(kKeys * round_up(d_v_, kPairs)),
        zeros_(std::max(d_qk_, d_v_)) {
    const TileConfig config;
    _tile_loadconfig(&config);
  }
  ~AmxKernel() { _tile_release(); }

  // The sign of the scale goes into the queries: a negative factor would turn the -inf of an unseen key around.
  float score_factor() const { return p_.scale == 0.f ? 1.f : std::fabs(p_.scale); }

  void start(const Task& task) {
    const float sign = p_.scale == 0.f ? 0.f : std::copysign(1.f, p_.scale);
    for_each_query(p_, task, kTileRows, sign, [&](int64_t r, const float* q) {
      auto* out = reinterpret_cast<uint16_t*>(queries_.get() + r / kSide * kSide * d_qk_ / 2 + r % kSide);
      for (int64_t d = 0; d < p_.d_qk; ++d) {
        uint32_t bits;
        std::memcpy(&bits, q + d, sizeof bits);
        out[d / 2 * 2 * kSide + d % 2] = uint16_t(bits >> 16);  // exact: the queries are bfloat16
      }
    });
    const int64_t rows = round_up(task.row_end - task.row_begin, kTileRows);
    std::fill_n(outputs_.get(), (task.head_end - task.head_begin) * rows * d_v_, 0.f);
  }

  void fetch(const KeyBlock& block, const KeyBlock& next, int64_t tiles) {
    const int64_t key_groups = (block.count + 4 * kSide - 1) / (4 * kSide), pairs = (block.count + kPairs - 1) / kPairs;
    const int64_t value_groups = (d_v_ + 4 * kSide - 1) / (4 * kSide);
    const int64_t steps = tiles * (key_groups * d_qk_ / kPairs + value_groups * pairs) + pairs * d_v_ / 8;
    prefetcher_.start(next, p_.d_qk * 2, p_.d_v * 2, steps);
    for (int j = 0; j < block.count; j += kSide) place_keys(block, j);
    for (int64_t j = round_up(block.count, kSide); j < key_groups * 4 * kSide; j += kSide)
      key_tiles_[j / kSide] = {zeros_.get(), 0};
    for (int64_t pair = 0; pair < pairs; ++pair) {
      const BFloat16* rows[kPairs];
      for (int i = 0; i < kPairs; ++i) {
        const int64_t j = pair * kPairs + i;
        const char* row = j < block.count ? block.rows[block.count + j] : nullptr;
        rows[i] = row ? reinterpret_cast<const BFloat16*>(row) : zeros_.get();
      }
      for (int64_t d = 0; d < p_.d_v; d += 8) {
        prefetcher_.step();
        transpose(rows, d, values_.get() + pair * d_v_ * kPairs + d * kPairs);
      }
    }
  }

  template <int kVecs>
  void scores(int64_t tile, const KeyBlock& block, float* s) {
    const uint32_t* q = queries_.get() + tile * kSide * d_qk_ / 2;
    for (int j = 0; j < block.count; j += 4 * kSide) {
      const KeyTile* keys = key_tiles_ + j / kSide;
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
      asm volatile("" ::: "memory");  // GCC's tile loads do not say that they read memory
      for (int64_t d = 0; d < d_qk_; d += kPairs) {
        prefetcher_.step();
        _tile_loadd(4, q + d / 2 * kSide, 64);
        _tile_loadd(5, keys[0].data + d, keys[0].stride);
        _tile_dpbf16ps(0, 5, 4);
        _tile_loadd(6, keys[1].data + d, keys[1].stride);
        _tile_dpbf16ps(1, 6, 4);
        _tile_loadd(5, keys[2].data + d, keys[2].stride);
        _tile_dpbf16ps(2, 5, 4);
        _tile_loadd(6, keys[3].data + d, keys[3].stride);
        _tile_dpbf16ps(3, 6, 4);
      }
      _tile_stored(0, s + j * kSide, 64);
      _tile_stored(1, s + (j + kSide) * kSide, 64);
      _tile_stored(2, s + (j + 2 * kSide) * kSide, 64);
      _tile_stored(3, s + (j + 3 * kSide) * kSide, 64);
    }
  }

  template <int kVecs>
  void accumulate(int64_t tile, const KeyBlock& block, float* s, const F* alpha) {
    float* out = outputs_.get() + tile * kSide * d_v_;
    if (_mm512_cmp_ps_mask((__m512)alpha[0], _mm512_set1_ps(1.f), _CMP_NEQ_UQ))
      for (int64_t d = 0; d < p_.d_v; ++d) store(out + d * kSide, load(out + d * kSide) * alpha[0]);
    const int64_t pairs = (block.count + kPairs - 1) / kPairs;
    std::fill(s + (block.count + 1) / 2 * kSide, s + pairs * kPairs / 2 * kSide, 0.f);
    asm volatile("" ::: "memory");
    int64_t d = 0;
    for (; d + 4 * kSide <= d_v_; d += 4 * kSide) {
      const BFloat16* values = values_.get() + d * kPairs;
      float* o = out + d * kSide;
      _tile_loadd(0, o, 64);
      _tile_loadd(1, o + kSide * kSide, 64);
      _tile_loadd(2, o + 2 * kSide * kSide, 64);
      _tile_loadd(3, o + 3 * kSide * kSide, 64);
      for (int64_t pair = 0; pair < pairs; ++pair, values += d_v_ * kPairs) {
        prefetcher_.step();
        _tile_loadd(4, s + pair * kSide * kSide, 64);
        _tile_loadd(5, values, 64);
        _tile_dpbf16ps(0, 5, 4);
        _tile_loadd(6, values + kSide * kPairs, 64);
        _tile_dpbf16ps(1, 6, 4);
        _tile_loadd(5, values + 2 * kSide * kPairs, 64);
        _tile_dpbf16ps(2, 5, 4);
        _tile_loadd(6, values + 3 * kSide * kPairs, 64);
        _tile_dpbf16ps(3, 6, 4);
      }
      _tile_stored(0, o, 64);
      _tile_stored(1, o + kSide * kSide, 64);
      _tile_stored(2, o + 2 * kSide * kSide, 64);
      _tile_stored(3, o + 3 * kSide * kSide, 64);
    }
    for (; d < d_v_; d += kSide) {
      const BFloat16* values = values_.get() + d * kPairs;
      _tile_loadd(0, out + d * kSide, 64);
      for (int64_t pair = 0; pair < pairs; ++pair, values += d_v_ * kPairs) {
        _tile_loadd(4, s + pair * kSide * kSide, 64);
        _tile_loadd(5, values, 64);
        _tile_dpbf16ps(0, 5, 4);
      }
      _tile_stored(0, out + d * kSide, 64);
    }
  }

  // A probability becomes a bfloat16: e^x to 2^-17 is enough, with one polynomial degree less than exp().
  static SPECDEC_INLINE F exp_of(F x) {
    x = max(splat(-150.f), x) * splat(1.44269504088896341f);
    const F magic = splat(0x1.8p23f);
    const F n = (x + magic) - magic;
    const F r = x - n;
    F p = splat(9.6181291e-3f);
    p = p * r + splat(5.5504109e-2f);
    p = p * r + splat(2.4022651e-1f);
    p = p * r + splat(6.9314718e-1f);
    p = p * r + splat(1.f);
    return (F)_mm512_scalef_ps((__m512)p, (__m512)n);
  }

  // Pairs of keys interleaved, as the right matrix wants them.
  template <int kVecs>
  static SPECDEC_INLINE void store_probabilities(float* s, int j, const F* even, const F* odd) {
    const U low = ((U)even[0] + 0x8000u) >> 16, high = ((U)odd[0] + 0x8000u) & 0xffff0000u;
    store(s + j / 2 * kSide, (F)(low | high));
  }

  void output(int64_t tile, int64_t lane, float* row) const {
    const float* out = outputs_.get() + tile * kSide * d_v_ + lane;
    for (int64_t d = 0; d < p_.d_v; ++d) row[d] = out[d * kSide];
  }

 private:
  struct KeyTile {
    const BFloat16* data;
    int64_t stride;  // bytes
  };

  // 16 keys where they lie if they are evenly spaced, else a copy.
  void place_keys(const KeyBlock& block, int j) {
    const char* const* rows = block.rows + j;
    const int64_t stride = j + 1 < block.count ? rows[1] - rows[0] : 0;
    bool direct = d_qk_ == p_.d_qk && j + kSide <= block.count && !block.holes;
    for (int i = 2; i < kSide && direct; ++i) direct = rows[i] - rows[i - 1] == stride;
    if (direct) {
      key_tiles_[j / kSide] = {reinterpret_cast<const BFloat16*>(rows[0]), stride};
      return;
    }
    BFloat16* copy = keys_.get() + j * d_qk_;
    key_tiles_[j / kSide] = {copy, d_qk_ * 2};
    for (int i = 0; i < kSide; ++i) {
      const void* row = j + i < block.count && rows[i] ? rows[i] : static_cast<const void*>(zeros_.get());
      std::memcpy(copy + i * d_qk_, row, p_.d_qk * 2);
    }
  }

  // out[i][key] = rows[key][d + i] for 8 i and 32 keys. Lane l of a vector takes keys 8l to 8l + 7, so that the loads
  // have done half of the transposition and three rounds of interleaving inside the lanes are left.
  static void transpose(const BFloat16* const* rows, int64_t d, BFloat16* out) {
    __m512i x[8], y[8];
    for (int i = 0; i < 8; ++i) {
      const auto part = [&](int lane) {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[8 * lane + i] + d));
      };
      x[i] = _mm512_castsi128_si512(part(0));
      x[i] = _mm512_inserti32x4(x[i], part(1), 1);
      x[i] = _mm512_inserti32x4(x[i], part(2), 2);
      x[i] = _mm512_inserti32x4(x[i], part(3), 3);
    }
    for (int i = 0; i < 4; ++i) {  // y[2i + h]: keys 2i and 2i + 1, 16-bit pairs of d = 4h ... 4h + 3
      y[2 * i] = _mm512_unpacklo_epi16(x[2 * i], x[2 * i + 1]);
      y[2 * i + 1] = _mm512_unpackhi_epi16(x[2 * i], x[2 * i + 1]);
    }
    for (int h = 0; h < 2; ++h) {  // x[4g + 2h + k]: keys 4g ... 4g + 3 of d = 4h + 2k and 4h + 2k + 1
      for (int g = 0; g < 2; ++g) {
        x[4 * g + 2 * h] = _mm512_unpacklo_epi32(y[4 * g + h], y[4 * g + 2 + h]);
        x[4 * g + 2 * h + 1] = _mm512_unpackhi_epi32(y[4 * g + h], y[4 * g + 2 + h]);
      }
    }
    for (int i = 0; i < 4; ++i) {
      _mm512_store_si512(out + 2 * i * kPairs, _mm512_unpacklo_epi64(x[i], x[4 + i]));
      _mm512_store_si512(out + (2 * i + 1) * kPairs, _mm512_unpackhi_epi64(x[i], x[4 + i]));
    }
  }

  const TreeAttentionParams& p_;
  const int64_t d_qk_, d_v_;  // padded
  Buffer<uint32_t> queries_;  // [tile][d / 2][row], two d each
  Buffer<float> outputs_;     // [tile][d][row]
  Buffer<BFloat16> keys_;     // [key][d], for those that cannot be used in place
  Buffer<BFloat16> values_;   // [key / 32][d][32 keys]
  Buffer<BFloat16> zeros_;
  KeyTile key_tiles_[kKeys / kSide];
  Prefetcher prefetcher_;
};

}  // namespace

void tree_attention(const TreeAttentionParams& p) { attend<AmxKernel, AmxKernel, 0>(p); }

}  // namespace specdec::cpu::SPECDEC_CAPABILITY
