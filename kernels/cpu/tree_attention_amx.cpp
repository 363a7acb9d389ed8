// bfloat16 tree attention on Intel AMX. The scores have the keys as the left matrix and the rows as the 16 columns of
// the right one, so that they keep the layout of tree_attention_impl.h:
//   S^T[key][row] = K Q^T     K needs no packing, Q^T is packed once a task
// Few rows leave V as it lies, many rows pay for its transposition:
//   O[row][d]    += P V       P is transposed; V's row of a key passes for pairs of keys, see AmxFewRowsKernel
//   O^T[d][row]  += V^T P^T   V is transposed once a block, P^T comes out of the softmax packed
#include <immintrin.h>

#include "tree_attention.h"
#include "tree_attention_bf16.h"
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

constexpr int kLoadWork = 3;  // of a tile load and its product

// What the two kernels share.
class AmxKernel : public BFloat16Softmax {
 public:
  AmxKernel(const TreeAttentionParams& p, int64_t max_rows)
      : BFloat16Softmax(p),
        ahead(p),
        p_(p),
        d_qk_(round_up(p.d_qk, kPairs)),
        queries_(max_rows * d_qk_ / 2),
        query_rows_(kSide * d_qk_),
        zeros_(round_up(std::max(p.d_qk, p.d_v), kPairs)) {
    zeros_.clear();
    const TileConfig config;
    asm volatile("" ::"r"(&config) : "memory");  // GCC's intrinsic says that it reads 8 bytes of the 64
    _tile_loadconfig(&config);
  }
  ~AmxKernel() { _tile_release(); }

  ReadAhead ahead;

 protected:
  struct Left {
    const BFloat16* data;
    int64_t stride;  // bytes
  };

  // The task's queries, in tiles of `tile_rows`, times the sign of the scale.
  void take_queries(const Task& task, int64_t tile_rows) {
    const auto* pairs = reinterpret_cast<const float*>(query_rows_.get());
    for_each_query_vector(p_, task, tile_rows, d_qk_, query_rows_.get(), signed_queries(p_), [&](int64_t r) {
      float* to = reinterpret_cast<float*>(queries_.get()) + r * d_qk_ / 2;
      transpose_rows(pairs, d_qk_ / 2, d_qk_ / 2, to, kSide);
    });
  }

  // 16 of a block's keys or values, from `rows` on, of which `count` are left: where they lie if `direct` and whole and
  // evenly spaced, else in `copy`, whose padding stays as it is.
  Left place(const char* const* rows, int count, bool direct, int64_t n, int64_t padded, BFloat16* copy) const {
    const int64_t stride = count > 1 ? rows[1] - rows[0] : 0;
    direct &= n == padded && count >= kSide;
    for (int i = 2; i < kSide && direct; ++i) direct = rows[i] - rows[i - 1] == stride;
    if (direct) return {reinterpret_cast<const BFloat16*>(rows[0]), stride};
    for (int i = 0; i < kSide; ++i) {
      const void* row = i < count && rows[i] ? rows[i] : static_cast<const void*>(zeros_.get());
      std::memcpy(copy + i * padded, row, n * sizeof(BFloat16));
    }
    return {copy, padded * int64_t(sizeof(BFloat16))};
  }

  const TreeAttentionParams& p_;
  const int64_t d_qk_;        // padded
  Buffer<uint32_t> queries_;  // [tile][d / 2][row], two d each
  Buffer<BFloat16> query_rows_, zeros_;
};

// A row of V, taken for a row of a right matrix, is a key's pairs of d and d + 1. A left matrix of (P[row][key], 0)
// sums up the even d, one of (0, P[row][key]) the odd ones: twice the products, and V stays where it lies.
class AmxFewRowsKernel : public AmxKernel {
 public:
  static constexpr int kMaxRows = 64;  // beyond, transposing V pays
  static constexpr int kTileRows = kSide;
  static constexpr int kKeys = 4 * kSide;  // scores() has an accumulator for each 16
  static constexpr int stride(int) { return kTileRows; }

  AmxFewRowsKernel(const TreeAttentionParams& p, int64_t max_rows)
      : AmxKernel(p, max_rows),
        d_v_(round_up(p.d_v, kPairs)),
        outputs_(max_rows * d_v_),
        key_copies_(kKeys * d_qk_),
        value_copies_(kKeys * d_v_),
        left_(2 * kKeys * kSide) {
    key_copies_.clear();  // padding must be finite
    value_copies_.clear();
  }

  int64_t fetch_work(int64_t) const { return 0; }
  int64_t tile_work(int64_t, int64_t) const { return kKeys / kSide * ((d_qk_ + d_v_) / kPairs) * kLoadWork; }

  void start(const Task& task) {
    take_queries(task, kTileRows);
    rows_ = task.row_end - task.row_begin;
    tiles_ = (rows_ + kTileRows - 1) / kTileRows;
    std::fill_n(outputs_.get(), (task.head_end - task.head_begin) * tiles_ * kTileRows * d_v_, 0.f);
  }

  void fetch(const KeyBlock& block, int64_t) {
    for (int j = 0; j < kKeys; j += kSide) {
      const auto put = [&](const char* const* rows, int64_t n, int64_t padded, const Buffer<BFloat16>& copies) {
        return place(rows + j, block.count - j, !block.holes, n, padded, copies.get() + j * padded);
      };
      keys_[j / kSide] = put(block.rows, p_.d_qk, d_qk_, key_copies_);
      values_[j / kSide] = put(block.rows + block.count, p_.d_v, d_v_, value_copies_);
    }
  }

  template <int kVecs>
  void scores(int64_t tile, const KeyBlock&, int, float* s) {
    const uint32_t* q = queries_.get() + tile * kTileRows * d_qk_ / 2;
    constexpr int64_t kBytes = kTileRows * sizeof(float), kDown = kSide * kTileRows;
    asm volatile("" ::: "memory");  // GCC's tile loads do not say that they read memory
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t d = 0; d < d_qk_; d += kPairs, q += kSide * kSide) {
      _tile_loadd(4, q, kSide * sizeof(uint32_t));
      ahead.step(kLoadWork);
      _tile_loadd(5, keys_[0].data + d, keys_[0].stride);
      _tile_dpbf16ps(0, 5, 4);
      ahead.step(kLoadWork);
      _tile_loadd(6, keys_[1].data + d, keys_[1].stride);
      _tile_dpbf16ps(1, 6, 4);
      ahead.step(kLoadWork);
      _tile_loadd(7, keys_[2].data + d, keys_[2].stride);
      _tile_dpbf16ps(2, 7, 4);
      ahead.step(kLoadWork);
      _tile_loadd(5, keys_[3].data + d, keys_[3].stride);
      _tile_dpbf16ps(3, 5, 4);
    }
    _tile_stored(0, s, kBytes);
    _tile_stored(1, s + kDown, kBytes);
    _tile_stored(2, s + 2 * kDown, kBytes);
    _tile_stored(3, s + 3 * kDown, kBytes);
  }

  template <int kVecs>
  static SPECDEC_INLINE void store_probabilities(float* s, int j, const F* even, const F* odd) {
    store(s + j * kTileRows, even[0]);
    store(s + (j + 1) * kTileRows, odd[0]);
  }

  template <int kVecs>
  void accumulate(int64_t tile, const KeyBlock&, int count, float* s, const F* alpha) {
    float* out = outputs_.get() + tile * kTileRows * d_v_;
    if (_mm512_cmp_ps_mask((__m512)alpha[0], _mm512_set1_ps(1.f), _CMP_NEQ_UQ))
      for (int64_t i = 0; i < d_v_; ++i) {
        float* o = out + i * kLanes;
        store(o, load(o) * splat(alpha[0][i % kPairs / kSide * kRows + i % kRows]));
      }
    const int groups = (count + kSide - 1) / kSide;
    std::fill(s + round_up(count, 2) * kTileRows, s + groups * kSide * kTileRows, 0.f);
    if (rows_ - tile % tiles_ * kTileRows > kRows)
      weigh_all<2>(groups, s, out);
    else
      weigh_all<1>(groups, s, out);
  }

  void output(int64_t tile, float* rows) const {
    const float* out = outputs_.get() + tile * kTileRows * d_v_;
    const int64_t stride = round_up(p_.d_v, kLanes);
    for (int64_t d = 0; d < d_v_; d += kPairs, out += kPairs * kSide)
      for (int i = 0; i < kTileRows; ++i) {
        const float* even = out + i / kRows * kHalf + i % kRows * kSide;
        float pair[kPairs];
        std::copy_n(even, kSide, pair);
        std::copy_n(even + kRows * kSide, kSide, pair + kSide);
        reorder_pairs<false>(kPairs, pair);
        std::copy_n(pair, std::min<int64_t>(kPairs, stride - d), rows + i * stride + d);
      }
  }

 private:
  static constexpr int kRows = kSide / 2;      // a tile's, half of them
  static constexpr int kHalf = kSide * kSide;  // a tile of float32

  // O += P V for one or two halves of the rows.
  template <int kHalves>
  void weigh_all(int groups, const float* s, float* out) {
    for (int g = 0; g < groups; ++g)
      for (int h = 0; h < kHalves; ++h) {
        F p[kRows];  // two keys each
        for (int i = 0; i < kRows; ++i) {
          const float* from = s + (g * kSide + i) * kTileRows + h * kRows;
          const __m512 low = _mm512_castps256_ps512(_mm256_loadu_ps(from));
          p[i] = (F)_mm512_insertf32x8(low, _mm256_loadu_ps(from + kRows * kTileRows), 1);
        }
        transpose(p);
        float* left = left_.get() + (2 * g + h) * kHalf;
        for (int i = 0; i < kRows; ++i) {
          const U rounded = (U)p[i] + 0x8000u;
          store(left + i * kSide, (F)(rounded >> 16));
          store(left + (kRows + i) * kSide, (F)(rounded & 0xffff0000u));
        }
      }
    constexpr int kWidth = 4 / kHalves;
    int64_t d = 0;
    for (; d + kWidth * kPairs <= d_v_; d += kWidth * kPairs) weigh<kHalves, kWidth>(groups, d, out + d * kSide);
    for (; d < d_v_; d += kPairs) weigh<kHalves, 1>(groups, d, out + d * kSide);
  }

  // The same for kWidth times 32 d.
  template <int kHalves, int kWidth>
  void weigh(int groups, int64_t d, float* c) {
    constexpr int kTiles = kHalves * kWidth;
    constexpr int64_t kBytes = kSide * sizeof(float), kRight = kPairs * kSide;
    float* c1 = c + (kHalves == 2 ? kHalf : kRight);
    float* c2 = c + (kHalves == 2 ? kRight : 2 * kRight);
    float* c3 = c2 + (kHalves == 2 ? kHalf : kRight);
    asm volatile("" ::: "memory");  // see scores()
    _tile_loadd(0, c, kBytes);
    if constexpr (kTiles > 1) _tile_loadd(1, c1, kBytes);
    if constexpr (kTiles == 4) {
      _tile_loadd(2, c2, kBytes);
      _tile_loadd(3, c3, kBytes);
    }
    for (int g = 0; g < groups; ++g) {
      const BFloat16* v = values_[g].data + d;
      const int64_t stride = values_[g].stride;
      const float* left = left_.get() + 2 * g * kHalf;
      _tile_loadd(4, left, kBytes);
      ahead.step(kLoadWork);
      _tile_loadd(5, v, stride);
      _tile_dpbf16ps(0, 4, 5);
      if constexpr (kHalves == 2) {
        _tile_loadd(6, left + kHalf, kBytes);
        _tile_dpbf16ps(1, 6, 5);
        if constexpr (kWidth == 2) {
          ahead.step(kLoadWork);
          _tile_loadd(7, v + kPairs, stride);
          _tile_dpbf16ps(2, 4, 7);
          _tile_dpbf16ps(3, 6, 7);
        }
      } else if constexpr (kWidth == 4) {
        ahead.step(kLoadWork);
        _tile_loadd(6, v + kPairs, stride);
        _tile_dpbf16ps(1, 4, 6);
        ahead.step(kLoadWork);
        _tile_loadd(7, v + 2 * kPairs, stride);
        _tile_dpbf16ps(2, 4, 7);
        ahead.step(kLoadWork);
        _tile_loadd(5, v + 3 * kPairs, stride);
        _tile_dpbf16ps(3, 4, 5);
      }
    }
    _tile_stored(0, c, kBytes);
    if constexpr (kTiles > 1) _tile_stored(1, c1, kBytes);
    if constexpr (kTiles == 4) {
      _tile_stored(2, c2, kBytes);
      _tile_stored(3, c3, kBytes);
    }
  }

  const int64_t d_v_;             // padded
  int64_t rows_ = 0, tiles_ = 0;  // of each head
  Buffer<float> outputs_;         // [tile][d / 32][half of the rows][even, odd d][row][16]
  Buffer<BFloat16> key_copies_, value_copies_;
  Buffer<float> left_;  // [key / 16][half of the rows][(P, 0), (0, P)][row][16 keys]
  Left keys_[kKeys / kSide], values_[kKeys / kSide];
};

class AmxManyRowsKernel : public AmxKernel {
 public:
  static constexpr int kTileRows = 2 * kSide;
  static constexpr int kKeys = 128;
  static_assert(kKeys % (4 * kSide) == 0);  // multiply() takes up to four tiles of keys
  static constexpr int stride(int) { return kTileRows; }

  AmxManyRowsKernel(const TreeAttentionParams& p, int64_t max_rows)
      : AmxKernel(p, max_rows),
        d_v_(round_up(p.d_v, 4 * kSide)),
        outputs_(max_rows * d_v_),
        keys_(kKeys * d_qk_),
        values_(kKeys * d_v_),
        value_rows_(kPairs * d_v_) {
    keys_.clear();  // the padding of a key meets zeros of the query and must be finite
  }

  int64_t fetch_work(int64_t) const { return kKeys / kPairs * (d_v_ / 8) * kTransposeWork; }
  int64_t tile_work(int64_t, int64_t vecs) const {
    return kKeys * (d_qk_ + d_v_) * vecs / (kSide * kPairs) * kProductWork;
  }

  void start(const Task& task) {
    take_queries(task, kTileRows);
    const int64_t rows = round_up(task.row_end - task.row_begin, kTileRows);
    std::fill_n(outputs_.get(), (task.head_end - task.head_begin) * rows * d_v_, 0.f);
  }

  void fetch(const KeyBlock& block, int64_t tiles) {
    const int64_t pairs = (block.count + kPairs - 1) / kPairs;
    for (int j = 0; j < block.count; j += kSide) {
      // Used more than once, a copy is better: it has no conflicts in the L1.
      key_tiles_[j / kSide] =
          place(block.rows + j, block.count - j, tiles == 1 && !block.holes, p_.d_qk, d_qk_, keys_.get() + j * d_qk_);
    }
    for (int64_t j = round_up(block.count, kSide); j < kKeys; j += kSide) key_tiles_[j / kSide] = {zeros_.get(), 0};
    for (int64_t pair = 0; pair < pairs; ++pair) {
      for (int i = 0; i < kPairs; ++i) {
        const int64_t j = pair * kPairs + i;
        const char* row = j < block.count ? block.rows[block.count + j] : nullptr;
        std::memcpy(value_rows_.get() + i * d_v_, row ? row : static_cast<const void*>(zeros_.get()), p_.d_v * 2);
      }
      for (int64_t d = 0; d < p_.d_v; d += 8) {
        ahead.step(kTransposeWork);
        transpose(value_rows_.get() + d, d_v_, values_.get() + pair * d_v_ * kPairs + d * kPairs);
      }
    }
  }

  template <int kVecs>
  void scores(int64_t tile, const KeyBlock&, int count, float* s) {
    const uint32_t* q = queries_.get() + tile * kTileRows * d_qk_ / 2;
    constexpr int kLefts = 4 / kVecs;
    for (int j = 0; j < count; j += kLefts * kSide) {
      multiply<kVecs>(key_tiles_ + j / kSide, kPairs, {q, kSide, kSide * d_qk_ / 2}, kSide * kSide, d_qk_ / kPairs,
                      false, s + j * kTileRows);
    }
  }

  template <int kVecs>
  void accumulate(int64_t tile, const KeyBlock&, int count, float* s, const F* alpha) {
    float* out = outputs_.get() + tile * kTileRows * d_v_;
    for (int v = 0; v < kVecs; ++v) {
      if (!_mm512_cmp_ps_mask((__m512)alpha[v], _mm512_set1_ps(1.f), _CMP_NEQ_UQ)) continue;
      for (float* o = out + v * kLanes; o < out + p_.d_v * kTileRows; o += kTileRows) store(o, load(o) * alpha[v]);
    }
    const int64_t steps = (count + kPairs - 1) / kPairs;
    std::fill(s + (count + 1) / 2 * kTileRows, s + steps * kSide * kTileRows, 0.f);
    constexpr int kLefts = 4 / kVecs;
    for (int64_t d = 0; d < p_.d_v; d += kLefts * kSide) {
      Left values[kLefts];
      for (int i = 0; i < kLefts; ++i) values[i] = {values_.get() + (d + i * kSide) * kPairs, 2 * kPairs};
      multiply<kVecs>(values, d_v_ * kPairs, {reinterpret_cast<const uint32_t*>(s), kTileRows, kSide},
                      kSide * kTileRows, steps, true, out + d * kTileRows);
    }
  }

  // Pairs of keys interleaved, as the right matrix wants them.
  template <int kVecs>
  static SPECDEC_INLINE void store_probabilities(float* s, int j, const F* even, const F* odd) {
    for (int v = 0; v < kVecs; ++v) store(s + j / 2 * kTileRows + v * kLanes, pair_of(even[v], odd[v]));
  }

  void output(int64_t tile, float* rows) const {
    const int64_t stride = round_up(p_.d_v, kLanes);
    for (int v = 0; v < 2; ++v)
      transpose_columns(outputs_.get() + tile * kTileRows * d_v_ + v * kLanes, kTileRows, stride,
                        rows + v * kLanes * stride, stride);
  }

 private:
  static constexpr int kProductWork = 3, kTransposeWork = 3;

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
    asm volatile("" ::: "memory");  // see AmxFewRowsKernel::scores()
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
        ahead.step(2 * kProductWork);
        _tile_loadd(7, left[2].data + at, left[2].stride);
        _tile_dpbf16ps(2, 7, 4);
        _tile_loadd(5, left[3].data + at, left[3].stride);
        _tile_dpbf16ps(3, 5, 4);
        ahead.step(2 * kProductWork);
      } else {
        _tile_loadd(6, left[0].data + at, left[0].stride);
        _tile_dpbf16ps(0, 6, 4);
        _tile_loadd(5, right.data + right.next, right.stride * sizeof(uint32_t));
        _tile_dpbf16ps(1, 6, 5);
        ahead.step(2 * kProductWork);
        _tile_loadd(7, left[1].data + at, left[1].stride);
        _tile_dpbf16ps(2, 7, 4);
        _tile_dpbf16ps(3, 7, 5);
        ahead.step(2 * kProductWork);
      }
      right.data += right_step;
    }
    _tile_stored(0, c, kBytes);
    _tile_stored(1, c1, kBytes);
    _tile_stored(2, c2, kBytes);
    _tile_stored(3, c3, kBytes);
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

  const int64_t d_v_;            // padded
  Buffer<float> outputs_;        // [tile][d][row]
  Buffer<BFloat16> keys_;        // [key][d], for those that cannot be used in place
  Buffer<BFloat16> values_;      // [key / 32][d][32 keys]
  Buffer<BFloat16> value_rows_;  // [32 keys][d], on their way there
  Left key_tiles_[kKeys / kSide];
};

}  // namespace

void tree_attention(const TreeAttentionParams& p) { attend<AmxManyRowsKernel, AmxFewRowsKernel>(p); }

}  // namespace specdec::cpu::SPECDEC_CAPABILITY
