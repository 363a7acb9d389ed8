// Tree attention for requests with few query rows a KV head, where reading the cache is all that counts.
#pragma once

#include "tree_attention.h"
#include "tree_attention_impl.h"

namespace specdec::cpu::SPECDEC_CAPABILITY {

namespace {

// Scores and probabilities stay float32 [key][row].
struct Float32Softmax {
  static constexpr float score_factor() { return 1.f; }  // the queries carry the scale
  static SPECDEC_INLINE F exp_of(F x) { return exp(x); }
};

// Sums of kLanes vectors: lane i of the result is the sum of v[i]. Each level adds neighbours that are `kStep` apart.
template <int kStep = 1>
SPECDEC_INLINE F reduce_lanes(F* v) {
  if constexpr (kStep == kLanes) {
    return v[0];
  } else {
    I own, other;
    for (int i = 0; i < kLanes; ++i) {
      own[i] = i & kStep ? i + kLanes : i;
      other[i] = own[i] ^ kStep;
    }
    for (int i = 0; i < kLanes; i += 2 * kStep)
      v[i] = __builtin_shuffle(v[i], v[i + kStep], own) + __builtin_shuffle(v[i], v[i + kStep], other);
    return reduce_lanes<2 * kStep>(v);
  }
}

// The first n elements of a row, whole pairs of vectors, to the order in which load_pair() takes a bfloat16 row
// (kSplit: the evens of a pair before its odds) or back from it.
template <bool kSplit>
inline void reorder_pairs(int64_t n, float* row) {
  I low, high;
  for (int i = 0; i < kLanes; ++i) {
    low[i] = kSplit ? 2 * i : i / 2 + i % 2 * kLanes;
    high[i] = low[i] + (kSplit ? 1 : kLanes / 2);
  }
  for (int64_t d = 0; d < n; d += 2 * kLanes) {
    const F a = load(row + d), b = load(row + d + kLanes);
    store(row + d, __builtin_shuffle(a, b, low));
    store(row + d + kLanes, __builtin_shuffle(a, b, high));
  }
}

// What the kernels for few rows share: dot products along d, keys and values straight from the cache, the rows kRows at
// a time. Head sizes are padded to kPad elements.
template <typename T, typename Query, int64_t kPad>
class FewRows {
 public:
  static constexpr int kMaxRows = 8;  // beyond, tiles are faster
  static constexpr int kTileRows = kLanes;
  static constexpr int kKeys = 32;
  static constexpr int stride(int) { return kTileRows; }

  ReadAhead ahead;

  int64_t fetch_work(int64_t) const { return 0; }
  int64_t tile_work(int64_t, int64_t) const {
    const int64_t groups = (std::min<int64_t>(rows_, kTileRows) + kRows - 1) / kRows;
    return groups * (kKeys / kDotKeys * kDotWork + p_.d_v / kWideStep * (kKeys / kStepKeys) * kWeighWork);
  }

  void fetch(const KeyBlock& block, int64_t) {
    for (int j = 0; j < 2 * block.count; ++j)
      cache_rows_[j] = block.rows[j] ? reinterpret_cast<const T*>(block.rows[j]) : zeros_.get();
    cache_rows_[2 * block.count] = zeros_.get();  // beside the last value of an odd number
  }

 protected:
  static constexpr int kRows = 4;
  static constexpr int kDotKeys = kLanes == 16 ? 4 : 2;  // times kRows accumulators
  static constexpr int kStepKeys = 8;                    // between two steps of reading ahead
  static constexpr int kDotWork = 5, kWeighWork = 4;
  static constexpr int kWide = kLanes == 16 ? 4 : 2;  // vectors of d at once, times kRows accumulators
  static constexpr int kPairStep = 2 * kLanes, kWideStep = kWide * kLanes;

  FewRows(const TreeAttentionParams& p, int64_t max_rows)
      : ahead(p),
        p_(p),
        ldq_(round_up(p.d_qk, kPad)),
        ldo_(round_up(p.d_v, kPad)),
        queries_(max_rows * ldq_),
        outputs_(max_rows * ldo_),
        query_rows_(kLanes * ldq_),
        zeros_(std::max(p.d_qk, p.d_v)) {
    zeros_.clear();
  }

  template <class Take>
  void start(const Task& task, Take take) {
    rows_ = task.row_end - task.row_begin;
    tiles_ = (rows_ + kTileRows - 1) / kTileRows;
    for_each_query_vector(p_, task, kTileRows, ldq_, query_rows_.get(), take,
                          [&](int64_t r) { std::copy_n(query_rows_.get(), kLanes * ldq_, queries_.get() + r * ldq_); });
    std::fill_n(outputs_.get(), (task.head_end - task.head_begin) * tiles_ * kTileRows * ldo_, 0.f);
  }

  int64_t live_rows(int64_t tile) const { return std::min<int64_t>(kTileRows, rows_ - tile % tiles_ * kTileRows); }

  // dots(row, first key, scores) for the first `count` keys.
  template <class Dots>
  void scores_of(int64_t tile, int count, float* s, Dots dots) {
    for (int j = 0; j < count; j += kDotKeys) {
      for (int64_t r = 0; r < live_rows(tile); r += kRows) {
        dots(tile * kTileRows + r, j, s + j * kTileRows + r);
        ahead.step(kDotWork);
      }
    }
  }

  const TreeAttentionParams& p_;
  const int64_t ldq_, ldo_;
  int64_t rows_ = 0, tiles_ = 0;  // of each head
  Buffer<Query> queries_;         // [row][d]
  Buffer<float> outputs_;         // [row][d]
  Buffer<Query> query_rows_;
  Buffer<T> zeros_;
  const T* cache_rows_[2 * kKeys + 1];  // `count` keys, then as many values
};

template <typename T>
class FewRowsKernel : public Float32Softmax, public FewRows<T, float, kLanes> {
  using Base = FewRows<T, float, kLanes>;
  using Base::kRows, Base::kDotKeys, Base::kStepKeys, Base::kWeighWork, Base::kWide, Base::kPairStep, Base::kWideStep;
  using Base::p_, Base::ldq_, Base::ldo_, Base::queries_, Base::outputs_, Base::zeros_, Base::cache_rows_;

 public:
  using Base::ahead, Base::kTileRows;

  FewRowsKernel(const TreeAttentionParams& p, int64_t max_rows) : Base(p, max_rows) {}

  void start(const Task& task) {
    const auto widen = widened_queries(p_);
    Base::start(task, [&](int64_t at, float* query) {
      widen(at, query);
      if (kPairs) reorder_pairs<true>(p_.d_qk / kPairStep * kPairStep, query);
    });
  }

  template <int kVecs>
  void scores(int64_t tile, const KeyBlock& block, int count, float* s) {
    Base::scores_of(tile, count, s, [&](int64_t r, int j, float* to) { dots(r, count, j, to); });
    if (p_.k_scale) scale_rows(block.scales, count, s);
  }

  template <int kVecs>
  void accumulate(int64_t tile, const KeyBlock& block, int count, float* s, const F* alpha) {
    if (p_.v_scale) scale_rows(block.scales + block.count, count, s);
    for (int64_t r = 0; r < Base::live_rows(tile); r += kRows) {
      float* out = outputs_.get() + (tile * kTileRows + r) * ldo_;
      int64_t d = 0;
      for (; d + kWideStep <= p_.d_v; d += kWideStep) weigh<kWide>(block, count, s + r, &alpha[0][r], d, kLanes, out);
      for (; d < p_.d_v; d += kLanes)
        weigh<1>(block, count, s + r, &alpha[0][r], d, std::min<int64_t>(kLanes, p_.d_v - d), out);
    }
  }

  template <int kVecs>
  static SPECDEC_INLINE void store_probabilities(float* s, int j, const F* even, const F* odd) {
    store(s + j * kTileRows, even[0]);
    store(s + (j + 1) * kTileRows, odd[0]);
  }

  void output(int64_t tile, float* rows) const {
    std::copy_n(outputs_.get() + tile * kTileRows * ldo_, kTileRows * ldo_, rows);
    if (kPairs)
      for (int i = 0; i < kTileRows; ++i) reorder_pairs<false>(p_.d_v / kWideStep * kWideStep, rows + i * ldo_);
  }

 private:
  static constexpr bool kPairs = std::is_same_v<T, BFloat16>;  // load_pair() changes the order of elements

  static SPECDEC_INLINE F load_some(const T* in, int64_t n) {
    return n == kLanes ? load(in) : load_partial(in, n, 0.f);
  }

  static void scale_rows(const float* scales, int count, float* s) {
    for (int j = 0; j < count; ++j) store(s + j * kTileRows, load(s + j * kTileRows) * splat(scales[j]));
  }

  // S[j + k][r + i] for kDotKeys keys and kRows rows.
  void dots(int64_t r, int count, int j, float* s) const {
    const T* keys[kDotKeys];
    for (int k = 0; k < kDotKeys; ++k) keys[k] = j + k < count ? cache_rows_[j + k] : zeros_.get();
    const float* q = queries_.get() + r * ldq_;
    F sum[kDotKeys * kRows] = {};
    const auto add = [&](int64_t d, const F* key) __attribute__((always_inline)) {
      for (int i = 0; i < kRows; ++i) {
        const F row = load(q + i * ldq_ + d);
        for (int k = 0; k < kDotKeys; ++k) sum[k * kRows + i] += key[k] * row;
      }
    };
    F key[kDotKeys], odd[kDotKeys];
    int64_t d = 0;
    for (; d + kPairStep <= p_.d_qk; d += kPairStep) {
      for (int k = 0; k < kDotKeys; ++k) load_pair(keys[k] + d, &key[k], &odd[k]);
      add(d, key);
      add(d + kLanes, odd);
    }
    for (; d < p_.d_qk; d += kLanes) {
      for (int k = 0; k < kDotKeys; ++k) key[k] = load_some(keys[k] + d, std::min<int64_t>(kLanes, p_.d_qk - d));
      add(d, key);
    }
    float dot[kDotKeys * kRows];
    for (int i = 0; i < kDotKeys * kRows; i += kLanes) store(dot + i, reduce_lanes(sum + i));
    for (int k = 0; k < kDotKeys && j + k < count; ++k) std::copy_n(dot + k * kRows, kRows, s + k * kTileRows);
  }

  // out[i][d...] <- alpha[i] * out[i][d...] + sum over keys of p[key][i] * V[key][d...]
  template <int kWidth>
  void weigh(const KeyBlock& block, int count, const float* s, const float* alpha, int64_t d, int64_t n, float* out) {
    F sum[kRows][kWidth];
    for (int i = 0; i < kRows; ++i)
      for (int w = 0; w < kWidth; ++w) sum[i][w] = load(out + i * ldo_ + d + w * kLanes) * splat(alpha[i]);
    for (int j = 0; j < count; ++j) {
      if (j % kStepKeys == 0) ahead.step(kWeighWork);
      const T* value = cache_rows_[block.count + j] + d;
      F in[kWidth];
      if constexpr (kWidth == 1)
        in[0] = load_some(value, n);
      else
        for (int w = 0; w < kWidth; w += 2) load_pair(value + w * kLanes, &in[w], &in[w + 1]);
      for (int i = 0; i < kRows; ++i) {
        const F p = splat(s[j * kTileRows + i]);
        for (int w = 0; w < kWidth; ++w) sum[i][w] += p * in[w];
      }
    }
    for (int i = 0; i < kRows; ++i)
      for (int w = 0; w < kWidth; ++w) store(out + i * ldo_ + d + w * kLanes, sum[i][w]);
  }
};

}  // namespace

}  // namespace specdec::cpu::SPECDEC_CAPABILITY
