// bfloat16 tree attention on Intel AMX. Both products have the keys' or values' side as the left matrix and the rows as
// the 16 columns of the right one, so that scores and outputs keep the layout of tree_attention_impl.h:
//   S^T[key][row] = K Q^T     K needs no packing, Q^T is packed once a task
//   O^T[d][row]  += V^T P^T   V is transposed once a block, P^T comes out of the softmax packed
#include <immintrin.h>

#include "tree_attention.h"
#include "tree_attention_few_rows.h"
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
  static constexpr int kTileRows = 2 * kSide;
  static constexpr int kKeys = 128;
  static_assert(kKeys % (4 * kSide) == 0);  // multiply() takes up to four tiles of keys
  static constexpr int stride(int) { return kTileRows; }

  AmxKernel(const TreeAttentionParams& p, int64_t max_rows)
      : ahead(p),
        p_(p),
        d_qk_(round_up(p.d_qk, kPairs)),
        d_v_(round_up(p.d_v, 4 * kSide)),
        queries_(max_rows * d_qk_ / 2),
        outputs_(max_rows * d_v_),
        keys_(kKeys * d_qk_),
        values_(kKeys * d_v_),
        value_rows_(kPairs * d_v_),
        zeros_(std::max(d_qk_, d_v_)) {
    zeros_.clear();
    keys_.clear();  // the padding of a key meets zeros of the query and must be finite
    const TileConfig config;
    _tile_loadconfig(&config);
  }
  ~AmxKernel() { _tile_release(); }

  ReadAhead ahead;

  int64_t fetch_steps(int64_t) const { return kKeys / kSide + kKeys / kPairs * (d_v_ / kSide); }
  int64_t tile_steps(int64_t) const { return kKeys / 32 + d_v_ / 32; }

  // The sign of the scale goes into the queries: a negative factor would turn the -inf of an unseen key around.
  float score_factor() const { return p_.scale == 0.f ? 1.f : std::fabs(p_.scale); }

  void start(const Task& task) {
    const float sign = p_.scale == 0.f ? 0.f : std::copysign(1.f, p_.scale);
    Buffer<BFloat16> rows16(kSide * d_qk_);  // exact: the queries are bfloat16
    for_each_query_vector(p_, task, kTileRows, sign, d_qk_, [&](int64_t r, const float* q) {
      narrow_row(q, 1.f, kSide * d_qk_, rows16.get());
      const auto* pairs = reinterpret_cast<const float*>(rows16.get());
      transpose_rows(pairs, d_qk_ / 2, d_qk_ / 2, reinterpret_cast<float*>(queries_.get()) + r * d_qk_ / 2, kSide);
    });
    const int64_t rows = round_up(task.row_end - task.row_begin, kTileRows);
    std::fill_n(outputs_.get(), (task.head_end - task.head_begin) * rows * d_v_, 0.f);
  }

  void fetch(const KeyBlock& block, int64_t tiles) {
    const int64_t pairs = (block.count + kPairs - 1) / kPairs;
    for (int j = 0; j < block.count; j += kSide) {
      ahead.step();
      place_keys(block, j, tiles == 1);
    }
    for (int64_t j = round_up(block.count, kSide); j < kKeys; j += kSide) key_tiles_[j / kSide] = {zeros_.get(), 0};
    for (int64_t pair = 0; pair < pairs; ++pair) {
      for (int i = 0; i < kPairs; ++i) {
        const int64_t j = pair * kPairs + i;
        const char* row = j < block.count ? block.rows[block.count + j] : nullptr;
        std::memcpy(value_rows_.get() + i * d_v_, row ? row : static_cast<const void*>(zeros_.get()), p_.d_v * 2);
      }
      for (int64_t d = 0; d < p_.d_v; d += 8) {
        if (d % kSide == 0) ahead.step();
        transpose(value_rows_.get() + d, d_v_, values_.get() + pair * d_v_ * kPairs + d * kPairs);
      }
    }
  }

  template <int kVecs>
  void scores(int64_t tile, const KeyBlock& block, float* s) {
    const uint32_t* q = queries_.get() + tile * kTileRows * d_qk_ / 2;
    constexpr int kLefts = 4 / kVecs;
    for (int j = 0; j < block.count; j += kLefts * kSide) {
      ahead.step();
      multiply<kVecs>(key_tiles_ + j / kSide, kPairs, {q, kSide, kSide * d_qk_ / 2}, kSide * kSide, d_qk_ / kPairs,
                      false, s + j * kTileRows);
    }
  }

  template <int kVecs>
  void accumulate(int64_t tile, const KeyBlock& block, float* s, const F* alpha) {
    float* out = outputs_.get() + tile * kTileRows * d_v_;
    for (int v = 0; v < kVecs; ++v) {
      if (!_mm512_cmp_ps_mask((__m512)alpha[v], _mm512_set1_ps(1.f), _CMP_NEQ_UQ)) continue;
      for (float* o = out + v * kLanes; o < out + p_.d_v * kTileRows; o += kTileRows) store(o, load(o) * alpha[v]);
    }
    const int64_t steps = (block.count + kPairs - 1) / kPairs;
    std::fill(s + (block.count + 1) / 2 * kTileRows, s + steps * kSide * kTileRows, 0.f);
    constexpr int kLefts = 4 / kVecs;
    for (int64_t d = 0; d < p_.d_v; d += kLefts * kSide) {
      ahead.step();
      Left values[kLefts];
      for (int i = 0; i < kLefts; ++i) values[i] = {values_.get() + (d + i * kSide) * kPairs, 2 * kPairs};
      multiply<kVecs>(values, d_v_ * kPairs, {reinterpret_cast<const uint32_t*>(s), kTileRows, kSide},
                      kSide * kTileRows, steps, true, out + d * kTileRows);
    }
  }

  // A probability becomes a bfloat16: e^x to 2^-17 is enough, with one polynomial degree less than exp().
  static SPECDEC_INLINE F exp_of(F x) {
    x *= splat(1.44269504088896341f);
    const F magic = splat(0x1.8p23f);
    const F n = (x + magic) - magic;
    const F r = x - n;
    F p = splat(9.6181291e-3f);
    p = p * r + splat(5.5504109e-2f);
    p = p * r + splat(2.4022651e-1f);
    p = p * r + splat(6.9314718e-1f);
    p = p * r + splat(1.f);
    return scale_or_flush(p, n);
  }

  // Pairs of keys interleaved, as the right matrix wants them.
  template <int kVecs>
  static SPECDEC_INLINE void store_probabilities(float* s, int j, const F* even, const F* odd) {
    for (int v = 0; v < kVecs; ++v) {
      const U low = ((U)even[v] + 0x8000u) >> 16, high = ((U)odd[v] + 0x8000u) & 0xffff0000u;
      store(s + j / 2 * kTileRows + v * kLanes, (F)(low | high));
    }
  }

  void output(int64_t tile, float* rows) const {
    const int64_t stride = round_up(p_.d_v, kLanes);
    for (int v = 0; v < 2; ++v)
      transpose_columns(outputs_.get() + tile * kTileRows * d_v_ + v * kLanes, kTileRows, stride,
                        rows + v * kLanes * stride, stride);
  }

 private:
  struct Left {
    const BFloat16* data;
    int64_t stride;  // bytes
  };
  struct Right {
    const uint32_t* data;
    int64_t stride, next;  // between rows and from one vector of columns to the next
  };

  // C (+)= left * right for kVecs vectors of columns and 4 / kVecs tiles of C below each other: four accumulators, as
  // many as it takes to hide the latency. The steps go along the inner dimension.
  template <int kVecs>
  SPECDEC_INLINE void multiply(const Left* left, int64_t left_step, Right right, int64_t right_step, int64_t steps,
                               bool add, float* c) {
    constexpr int64_t kBytes = kTileRows * sizeof(float), kDown = kSide * kTileRows;
    float* c1 = kVecs == 1 ? c + kDown : c + kSide;
    float* c2 = kVecs == 1 ? c + 2 * kDown : c + kDown;
    float* c3 = kVecs == 1 ? c + 3 * kDown : c + kDown + kSide;
    asm volatile("" ::: "memory");  // GCC's tile loads do not say that they read memory
    if (add) {
      _tile_loadd(0, c, kBytes);
      _tile_loadd(1, c1, kBytes);
      _tile_loadd(2, c2, kBytes);
      _tile_loadd(3, c3, kBytes);
    } else {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
    }
    for (int64_t i = 0; i < steps; ++i) {
      const int64_t at = i * left_step;
      _tile_loadd(4, right.data, right.stride * sizeof(uint32_t));
      if constexpr (kVecs == 1) {
        _tile_loadd(5, left[0].data + at, left[0].stride);
        _tile_dpbf16ps(0, 5, 4);
        _tile_loadd(6, left[1].data + at, left[1].stride);
        _tile_dpbf16ps(1, 6, 4);
        _tile_loadd(7, left[2].data + at, left[2].stride);
        _tile_dpbf16ps(2, 7, 4);
        _tile_loadd(5, left[3].data + at, left[3].stride);
        _tile_dpbf16ps(3, 5, 4);
      } else {
        _tile_loadd(6, left[0].data + at, left[0].stride);
        _tile_dpbf16ps(0, 6, 4);
        _tile_loadd(5, right.data + right.next, right.stride * sizeof(uint32_t));
        _tile_dpbf16ps(1, 6, 5);
        _tile_loadd(7, left[1].data + at, left[1].stride);
        _tile_dpbf16ps(2, 7, 4);
        _tile_dpbf16ps(3, 7, 5);
      }
      right.data += right_step;
    }
    _tile_stored(0, c, kBytes);
    _tile_stored(1, c1, kBytes);
    _tile_stored(2, c2, kBytes);
    _tile_stored(3, c3, kBytes);
  }

  // 16 keys where they lie if they are used once and evenly spaced; else a copy, which has no conflicts in the L1.
  void place_keys(const KeyBlock& block, int j, bool once) {
    const char* const* rows = block.rows + j;
    const int64_t stride = j + 1 < block.count ? rows[1] - rows[0] : 0;
    bool direct = once && d_qk_ == p_.d_qk && j + kSide <= block.count && !block.holes;
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

  // out[i][key] = rows[key][i] for 8 i and 32 keys. Lane l of a vector takes keys 8l to 8l + 7, so that the loads have
  // done half of the transposition and three rounds of interleaving inside the lanes are left.
  static void transpose(const BFloat16* rows, int64_t stride, BFloat16* out) {
    __m512i x[8], y[8];
    for (int i = 0; i < 8; ++i) {
      const auto part = [&](int lane) {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows + (8 * lane + i) * stride));
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
  const int64_t d_qk_, d_v_;     // padded
  Buffer<uint32_t> queries_;     // [tile][d / 2][row], two d each
  Buffer<float> outputs_;        // [tile][d][row]
  Buffer<BFloat16> keys_;        // [key][d], for those that cannot be used in place
  Buffer<BFloat16> values_;      // [key / 32][d][32 keys]
  Buffer<BFloat16> value_rows_;  // [32 keys][d], on their way there
  Buffer<BFloat16> zeros_;
  Left key_tiles_[kKeys / kSide];
};

}  // namespace

void tree_attention(const TreeAttentionParams& p) { attend<AmxKernel, FewRowsKernel<BFloat16>>(p); }

}  // namespace specdec::cpu::SPECDEC_CAPABILITY
