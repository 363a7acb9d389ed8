// bfloat16 tree attention by AVX-512's dot products of pairs, for CPUs without AMX: twice the products of float32 an
// instruction, and neither keys nor values are widened.
//   scores       pairs along d: keys and queries as they lie
//   O += P V     pairs of keys: two rows of V interleaved, P comes out of the softmax so
#include <immintrin.h>

#include "tree_attention.h"
#include "tree_attention_bf16.h"
#include "tree_attention_few_rows.h"
#include "tree_attention_impl.h"
#include "tree_attention_tiles.h"

namespace specdec::cpu::SPECDEC_CAPABILITY {

namespace {

constexpr int kPairs = 2 * kLanes;  // bfloat16 a vector

struct Pair {
  BFloat16 even, odd;
};

struct PairProducts {
  using Element = BFloat16;
  using Unit = Pair;
  static constexpr int kKeys = 96;
  static SPECDEC_INLINE F splat_unit(Pair x) {
    int32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return (F)splat_int(bits);
  }
  static SPECDEC_INLINE F add(F sum, F x, F y) { return (F)_mm512_dpbf16_ps((__m512)sum, (__m512bh)x, (__m512bh)y); }
};

// The first n elements of a row, zeros behind them; n may be more than a vector has.
SPECDEC_INLINE __m512i load_pairs(const BFloat16* row, int64_t n) {
  return n >= kPairs ? _mm512_loadu_si512(row) : _mm512_maskz_loadu_epi16((__mmask32)((1u << n) - 1), row);
}

class PairTileKernel : public BFloat16Softmax, public Tiles<PairProducts> {
  using Base = Tiles<PairProducts>;

 public:
  PairTileKernel(const TreeAttentionParams& p, int64_t max_rows)
      : BFloat16Softmax(p),
        Base(p, max_rows),
        d_qk_(round_up(p.d_qk, 2)),
        d_v_(round_up(p.d_v, kPairs)),
        key_copies_(kKeys * d_qk_),
        value_pairs_(kKeys / 2 * d_v_) {
    key_copies_.clear();  // padding meets zeros of the query and must be finite
  }

  int64_t fetch_work(int64_t tiles) const { return (tiles == 1 ? 1 : 3) * kKeys / 2 * kRowWork; }

  void start(const Task& task) { Base::start(task, signed_queries(p_)); }

  void fetch(const KeyBlock& block, int64_t tiles) {
    one_tile_ = tiles == 1;
    const auto row = [&](int j) { return reinterpret_cast<const BFloat16*>(block.rows[j]); };
    for (int j = 0; j < block.count; ++j) {
      const BFloat16* key = block.rows[j] ? row(j) : &zeros_.get()->even;
      if (tiles > 1) ahead.step(kRowWork);
      if (tiles > 1 || d_qk_ > p_.d_qk) {
        BFloat16* copy = key_copies_.get() + j * d_qk_;
        std::memcpy(copy, key, p_.d_qk * sizeof(BFloat16));
        key = copy;
      }
      keys_[j] = reinterpret_cast<const Pair*>(key);
    }
    for (int j = 0; j < block.count; j += 2) {
      const BFloat16* even = row(block.count + j);
      const BFloat16* odd = j + 1 < block.count ? row(block.count + j + 1) : nullptr;
      Pair* pairs = value_pairs_.get() + j / 2 * d_v_;
      ahead.step(kRowWork);
      for (int64_t d = 0; d < p_.d_v; d += kPairs) interleave(even, odd, d, p_.d_v - d, pairs + d);
      values_[j / 2] = pairs;
    }
  }

  template <int kVecs>
  static SPECDEC_INLINE void store_probabilities(float* s, int j, const F* even, const F* odd) {
    for (int v = 0; v < kVecs; ++v) store(s + j / 2 * stride(kVecs) + v * kLanes, pair_of(even[v], odd[v]));
  }

 private:
  // Of the elements d ... of two rows, or of zeros in place of none, `n` are left.
  static SPECDEC_INLINE void interleave(const BFloat16* even, const BFloat16* odd, int64_t d, int64_t n, Pair* out) {
    U16x2 low, high;
    for (int i = 0; i < kPairs; ++i) {
      low[i] = uint16_t(i / 2 + i % 2 * kPairs);
      high[i] = uint16_t(low[i] + kLanes);
    }
    const __m512i a = even ? load_pairs(even + d, n) : _mm512_setzero_si512();
    const __m512i b = odd ? load_pairs(odd + d, n) : _mm512_setzero_si512();
    _mm512_store_si512(out, _mm512_permutex2var_epi16(a, (__m512i)low, b));
    _mm512_store_si512(out + kLanes, _mm512_permutex2var_epi16(a, (__m512i)high, b));
  }

  typedef uint16_t U16x2 __attribute__((vector_size(2 * kPairs)));

  const int64_t d_qk_, d_v_;  // padded
  Buffer<BFloat16> key_copies_;
  Buffer<Pair> value_pairs_;  // [key / 2][d]
};

// The outputs keep the order of d that the interleaving of two rows within 16 bytes gives until they leave.
class PairFewRowsKernel : public BFloat16Softmax, public FewRows<BFloat16, BFloat16, kPairs> {
  using Base = FewRows<BFloat16, BFloat16, kPairs>;

 public:
  PairFewRowsKernel(const TreeAttentionParams& p, int64_t max_rows) : BFloat16Softmax(p), Base(p, max_rows) {}

  void start(const Task& task) { Base::start(task, signed_queries(p_)); }

  template <int kVecs>
  void scores(int64_t tile, const KeyBlock&, int count, float* s) {
    scores_of(tile, count, s, [&](int64_t r, int j, float* to) { dots(r, count, j, to); });
  }

  template <int kVecs>
  static SPECDEC_INLINE void store_probabilities(float* s, int j, const F* even, const F* odd) {
    store(s + j / 2 * kTileRows, pair_of(even[0], odd[0]));
  }

  template <int kVecs>
  void accumulate(int64_t tile, const KeyBlock& block, int count, const float* s, const F* alpha) {
    for (int64_t r = 0; r < live_rows(tile); r += kRows) {
      float* out = outputs_.get() + (tile * kTileRows + r) * ldo_;
      int64_t d = 0;
      for (; d + kWideStep <= p_.d_v; d += kWideStep)
        weigh<kWide / 2>(block, count, s + r, &alpha[0][r], d, kPairs, out);
      for (; d < p_.d_v; d += kPairs) weigh<1>(block, count, s + r, &alpha[0][r], d, p_.d_v - d, out);
    }
  }

  void output(int64_t tile, float* rows) const {
    const int64_t stride = round_up(p_.d_v, kLanes);
    I low, high;
    for (int i = 0; i < kLanes; ++i) {
      low[i] = i / 8 * 4 + i % 4 + i % 8 / 4 * kLanes;
      high[i] = low[i] + kLanes / 2;
    }
    for (int i = 0; i < kTileRows; ++i) {
      const float* out = outputs_.get() + (tile * kTileRows + i) * ldo_;
      float* row = rows + i * stride;
      for (int64_t d = 0; d < stride; d += kLanes)
        store(row + d, __builtin_shuffle(load(out + d / kPairs * kPairs), load(out + d / kPairs * kPairs + kLanes),
                                         d % kPairs ? high : low));
    }
  }

 private:
  // S[j + k][r + i] for kDotKeys keys and kRows rows.
  void dots(int64_t r, int count, int j, float* s) const {
    const BFloat16* keys[kDotKeys];
    for (int k = 0; k < kDotKeys; ++k) keys[k] = j + k < count ? cache_rows_[j + k] : zeros_.get();
    const BFloat16* q = queries_.get() + r * ldq_;
    F sum[kDotKeys * kRows] = {};
    for (int64_t d = 0; d < p_.d_qk; d += kPairs) {
      F key[kDotKeys];
      for (int k = 0; k < kDotKeys; ++k) key[k] = (F)load_pairs(keys[k] + d, p_.d_qk - d);
      for (int i = 0; i < kRows; ++i) {
        const F row = load(reinterpret_cast<const float*>(q + i * ldq_ + d));
        for (int k = 0; k < kDotKeys; ++k) sum[k * kRows + i] = PairProducts::add(sum[k * kRows + i], key[k], row);
      }
    }
    float dot[kDotKeys * kRows];
    store(dot, reduce_lanes(sum));
    for (int k = 0; k < kDotKeys && j + k < count; ++k) std::copy_n(dot + k * kRows, kRows, s + k * kTileRows);
  }

  // out[i][d...] <- alpha[i] * out[i][d...] + sum over keys of p[key][i] * V[key][d...], `n` elements of the last
  // vector.
  template <int kWidth>
  void weigh(const KeyBlock& block, int count, const float* s, const float* alpha, int64_t d, int64_t n, float* out) {
    F sum[kRows][2 * kWidth];
    for (int i = 0; i < kRows; ++i)
      for (int w = 0; w < 2 * kWidth; ++w) sum[i][w] = load(out + i * ldo_ + d + w * kLanes) * splat(alpha[i]);
    for (int j = 0; j < count; j += 2) {
      if (j % kStepKeys == 0) ahead.step(kWeighWork);
      const BFloat16* const* values = cache_rows_ + block.count + j;
      F in[2 * kWidth];
      for (int w = 0; w < kWidth; ++w) {
        const __m512i even = load_pairs(values[0] + d + w * kPairs, n), odd = load_pairs(values[1] + d + w * kPairs, n);
        in[2 * w] = (F)_mm512_unpacklo_epi16(even, odd);
        in[2 * w + 1] = (F)_mm512_unpackhi_epi16(even, odd);
      }
      for (int i = 0; i < kRows; ++i) {
        int32_t bits;
        std::memcpy(&bits, s + j / 2 * kTileRows + i, sizeof bits);
        for (int w = 0; w < 2 * kWidth; ++w) sum[i][w] = PairProducts::add(sum[i][w], (F)splat_int(bits), in[w]);
      }
    }
    for (int i = 0; i < kRows; ++i)
      for (int w = 0; w < 2 * kWidth; ++w) store(out + i * ldo_ + d + w * kLanes, sum[i][w]);
  }
};

}  // namespace

void tree_attention(const TreeAttentionParams& p) { attend<PairTileKernel, PairFewRowsKernel>(p); }

}  // namespace specdec::cpu::SPECDEC_CAPABILITY
