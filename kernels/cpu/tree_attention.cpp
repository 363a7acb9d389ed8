#include "tree_attention.h"

#include "tree_attention_impl.h"

namespace specdec::cpu::SPECDEC_CAPABILITY {

namespace {

// Scores and probabilities stay float32 [key][row].
struct Float32Softmax {
  static constexpr float score_factor() { return 1.f; }  // the queries carry the scale
  static SPECDEC_INLINE F exp_of(F x) { return exp(x); }
};

// Many rows: rows in the lanes, keys and values broadcast from a block converted to float32 once.
template <typename T>
class TileKernel : public Float32Softmax {
 public:
  static constexpr int kVecs = 2;
  static constexpr int kTileRows = kVecs * kLanes;
  static constexpr int kUnroll = kLanes == 16 ? 12 : 6;  // times kVecs accumulators: what the register file holds
  static constexpr int kKeys = 96;

  TileKernel(const TreeAttentionParams& p, int64_t max_rows)
      : p_(p),
        ldq_(round_up(p.d_qk, kLanes)),
        ldo_(round_up(p.d_v, kLanes)),
        queries_(max_rows * ldq_),
        outputs_(max_rows * ldo_),
        block_(kKeys * (p.d_qk + p.d_v)),
        zeros_(std::max(p.d_qk, p.d_v)) {
    zeros_.clear();
  }

  void start(const Task& task) {
    for_each_query_vector(p_, task, kTileRows, p_.scale, ldq_, [&](int64_t r, const float* q) {
      transpose_rows(q, ldq_, ldq_, queries_.get() + r / kTileRows * kTileRows * ldq_ + r % kTileRows, kTileRows);
    });
    const int64_t rows = round_up(task.row_end - task.row_begin, kTileRows);
    std::fill_n(outputs_.get(), (task.head_end - task.head_begin) * rows * ldo_, 0.f);
  }

  void fetch(const KeyBlock& block, const KeyBlock& next, int64_t tiles) {
    float* copy = block_.get();
    const auto place = [&](int j, int64_t n) -> const float* {
      if (!block.rows[j]) return zeros_.get();
      const auto* in = reinterpret_cast<const T*>(block.rows[j]);
      if constexpr (std::is_same_v<T, float>)
        if (tiles == 1) return in;  // a copy pays from the second use on: it has no conflicts in the L1
      widen_row(in, block.scales[j], n, copy);
      copy += n;
      return copy - n;
    };
    for (int j = 0; j < block.count; ++j) keys_[j] = place(j, p_.d_qk);
    for (int j = 0; j < block.count; ++j) values_[j] = place(block.count + j, p_.d_v);
    const int64_t key_steps = (block.count + kUnroll - 1) / kUnroll * (p_.d_qk / kStep + 1);
    const int64_t value_steps = (p_.d_v + kUnroll - 1) / kUnroll * (block.count / kStep + 1);
    prefetcher_.start(next, p_.d_qk * sizeof(T), p_.d_v * sizeof(T), tiles * (key_steps + value_steps));
  }

  template <int kVecs>
  void scores(int64_t tile, const KeyBlock& block, float* s) {
    for_each_unroll(block.count, [&](int64_t j, auto unroll) {
      dots<kVecs, unroll.value>(keys_ + j, queries_.get() + tile * kTileRows * ldq_, s + j * kTileRows);
    });
  }

  template <int kVecs>
  void accumulate(int64_t tile, const KeyBlock& block, const float* s, const F* alpha) {
    float* out = outputs_.get() + tile * kTileRows * ldo_;
    for_each_unroll(p_.d_v, [&](int64_t d, auto unroll) {
      weigh<kVecs, unroll.value>(block.count, d, s, alpha, out + d * kTileRows);
    });
  }

  template <int kVecs>
  static SPECDEC_INLINE void store_probabilities(float* s, int j, const F* even, const F* odd) {
    for (int v = 0; v < kVecs; ++v) {
      store(s + j * kTileRows + v * kLanes, even[v]);
      store(s + (j + 1) * kTileRows + v * kLanes, odd[v]);
    }
  }

  void output(int64_t tile, float* rows) const {
    const float* out = outputs_.get() + tile * kTileRows * ldo_;
    for (int v = 0; v < kVecs; ++v)
      transpose_columns(out + v * kLanes, kTileRows, ldo_, rows + v * kLanes * ldo_, ldo_);
  }

 private:
  static constexpr int64_t kStep = 16;  // iterations between prefetches

  // Covers [0, n) by kUnroll at a time and the rest in smaller steps.
  template <typename Function>
  static SPECDEC_INLINE void for_each_unroll(int64_t n, Function function) {
    int64_t i = 0;
    for (; i + kUnroll <= n; i += kUnroll) function(i, std::integral_constant<int, kUnroll>{});
    for (; i + kUnroll / 3 <= n; i += kUnroll / 3) function(i, std::integral_constant<int, kUnroll / 3>{});
    for (; i < n; ++i) function(i, std::integral_constant<int, 1>{});
  }

  // s[t][row] = keys[t] . Q^T[.][row]
  template <int kVecs, int kUnrolled>
  void __attribute__((noinline)) dots(const float* const* keys, const float* queries, float* s) {
    const float* key[kUnrolled];
    F sum[kUnrolled][kVecs] = {};
    for (int t = 0; t < kUnrolled; ++t) key[t] = keys[t];
    for (int64_t d = 0; d < p_.d_qk;) {
      prefetcher_.step();
      for (const int64_t end = std::min(d + kStep, p_.d_qk); d < end; ++d, queries += kTileRows) {
        F row[kVecs];
        for (int v = 0; v < kVecs; ++v) row[v] = load(queries + v * kLanes);
        for (int t = 0; t < kUnrolled; ++t) {
          const F x = splat(key[t][d]);
          for (int v = 0; v < kVecs; ++v) sum[t][v] += x * row[v];
        }
      }
    }
    for (int t = 0; t < kUnrolled; ++t)
      for (int v = 0; v < kVecs; ++v) store(s + t * kTileRows + v * kLanes, sum[t][v]);
  }

  // out[t][row] <- alpha[row] * out[t][row] + sum over keys of V[key][d + t] * p[key][row]
  template <int kVecs, int kUnrolled>
  void __attribute__((noinline)) weigh(int count, int64_t d, const float* p, const F* alpha, float* out) {
    F sum[kUnrolled][kVecs];
    for (int t = 0; t < kUnrolled; ++t)
      for (int v = 0; v < kVecs; ++v) sum[t][v] = load(out + t * kTileRows + v * kLanes) * alpha[v];
    for (int j = 0; j < count;) {
      prefetcher_.step();
      for (const int end = std::min<int>(j + kStep, count); j < end; ++j, p += kTileRows) {
        const float* value = values_[j] + d;
        F row[kVecs];
        for (int v = 0; v < kVecs; ++v) row[v] = load(p + v * kLanes);
        for (int t = 0; t < kUnrolled; ++t) {
          const F x = splat(value[t]);
          for (int v = 0; v < kVecs; ++v) sum[t][v] += x * row[v];
        }
      }
    }
    for (int t = 0; t < kUnrolled; ++t)
      for (int v = 0; v < kVecs; ++v) store(out + t * kTileRows + v * kLanes, sum[t][v]);
  }

  const TreeAttentionParams& p_;
  const int64_t ldq_, ldo_;          // padded head sizes
  Buffer<float> queries_, outputs_;  // [tile][d][row]
  Buffer<float> block_, zeros_;
  const float *keys_[kKeys], *values_[kKeys];
  Prefetcher prefetcher_;
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

// Few rows, where reading the cache is all that counts: dot products along d, straight from the cache.
template <typename T>
class FewRowsKernel : public Float32Softmax {
 public:
  static constexpr int kTileRows = kLanes;
  static constexpr int kKeys = 64;

  FewRowsKernel(const TreeAttentionParams& p, int64_t max_rows)
      : p_(p),
        ldq_(round_up(p.d_qk, kLanes)),
        ldo_(round_up(p.d_v, kLanes)),
        queries_(max_rows * ldq_),
        outputs_(max_rows * ldo_),
        zeros_(std::max(p.d_qk, p.d_v)) {
    zeros_.clear();
  }

  void start(const Task& task) {
    rows_ = task.row_end - task.row_begin;
    tiles_ = (rows_ + kTileRows - 1) / kTileRows;
    for_each_query_vector(p_, task, kTileRows, p_.scale, ldq_,
                          [&](int64_t r, const float* q) { std::copy_n(q, kLanes * ldq_, queries_.get() + r * ldq_); });
    std::fill_n(outputs_.get(), (task.head_end - task.head_begin) * tiles_ * kTileRows * ldo_, 0.f);
  }

  void fetch(const KeyBlock& block, const KeyBlock& next, int64_t tiles) {
    for (int j = 0; j < 2 * block.count; ++j)
      cache_rows_[j] = block.rows[j] ? reinterpret_cast<const T*>(block.rows[j]) : zeros_.get();
    prefetcher_.start(next, p_.d_qk * sizeof(T), p_.d_v * sizeof(T),
                      tiles * (block.count / kDotKeys + block.count / 4));
  }

  template <int kVecs>
  void scores(int64_t tile, const KeyBlock& block, float* s) {
    for (int j = 0; j < block.count; j += kDotKeys) {
      prefetcher_.step();
      for (int64_t r = 0; r < live_rows(tile); r += kRows) dots(tile * kTileRows + r, block, j, s + j * kTileRows + r);
    }
  }

  template <int kVecs>
  void accumulate(int64_t tile, const KeyBlock& block, const float* s, const F* alpha) {
    for (int64_t r = 0; r < live_rows(tile); r += kRows) {
      float* out = outputs_.get() + (tile * kTileRows + r) * ldo_;
      int64_t d = 0;
      for (; d + kWide * kLanes <= p_.d_v; d += kWide * kLanes)
        weigh<kWide>(block, s + r, &alpha[0][r], d, kLanes, out);
      for (; d < p_.d_v; d += kLanes)
        weigh<1>(block, s + r, &alpha[0][r], d, std::min<int64_t>(kLanes, p_.d_v - d), out);
    }
  }

  template <int kVecs>
  static SPECDEC_INLINE void store_probabilities(float* s, int j, const F* even, const F* odd) {
    store(s + j * kTileRows, even[0]);
    store(s + (j + 1) * kTileRows, odd[0]);
  }

  void output(int64_t tile, float* rows) const {
    std::copy_n(outputs_.get() + tile * kTileRows * ldo_, kTileRows * ldo_, rows);
  }

 private:
  static constexpr int kRows = 4;
  static constexpr int kDotKeys = kLanes == 16 ? 4 : 2;  // times kRows accumulators
  static constexpr int kWide = kLanes == 16 ? 4 : 2;     // vectors of d at once, times kRows accumulators

  int64_t live_rows(int64_t tile) const { return std::min<int64_t>(kTileRows, rows_ - tile % tiles_ * kTileRows); }

  static SPECDEC_INLINE F load_some(const T* in, int64_t n) {
    return n == kLanes ? load(in) : load_partial(in, n, 0.f);
  }

  // S[j + k][r + i] for kDotKeys keys and kRows rows.
  void dots(int64_t r, const KeyBlock& block, int j, float* s) const {
    const T* keys[kDotKeys];
    for (int k = 0; k < kDotKeys; ++k) keys[k] = j + k < block.count ? cache_rows_[j + k] : zeros_.get();
    const float* q = queries_.get() + r * ldq_;
    F sum[kDotKeys * kRows] = {};
    const auto step = [&](int64_t d, int64_t n) __attribute__((always_inline)) {
      F key[kDotKeys];
      for (int k = 0; k < kDotKeys; ++k) key[k] = load_some(keys[k] + d, n);
      for (int i = 0; i < kRows; ++i) {
        const F row = load(q + i * ldq_ + d);
        for (int k = 0; k < kDotKeys; ++k) sum[k * kRows + i] += key[k] * row;
      }
    };
    int64_t d = 0;
    for (; d + kLanes <= p_.d_qk; d += kLanes) step(d, kLanes);
    if (d < p_.d_qk) step(d, p_.d_qk - d);
    float dot[kDotKeys * kRows];
    for (int i = 0; i < kDotKeys * kRows; i += kLanes) store(dot + i, reduce_lanes(sum + i));
    for (int k = 0; k < kDotKeys && j + k < block.count; ++k)
      for (int i = 0; i < kRows; ++i) s[k * kTileRows + i] = dot[k * kRows + i] * block.scales[j + k];
  }

  // out[i][d...] <- alpha[i] * out[i][d...] + sum over keys of p[key][i] * V[key][d...]
  template <int kWidth>
  void weigh(const KeyBlock& block, const float* s, const float* alpha, int64_t d, int64_t n, float* out) {
    F sum[kRows][kWidth];
    for (int i = 0; i < kRows; ++i)
      for (int w = 0; w < kWidth; ++w) sum[i][w] = load(out + i * ldo_ + d + w * kLanes) * splat(alpha[i]);
    for (int j = 0; j < block.count; ++j) {
      if (j % 4 == 0) prefetcher_.step();
      const T* value = cache_rows_[block.count + j] + d;
      const float scale = block.scales[block.count + j];
      F in[kWidth];
      for (int w = 0; w < kWidth; ++w) in[w] = load_some(value + w * kLanes, n);
      for (int i = 0; i < kRows; ++i) {
        const F p = splat(s[j * kTileRows + i] * scale);
        for (int w = 0; w < kWidth; ++w) sum[i][w] += p * in[w];
      }
    }
    for (int i = 0; i < kRows; ++i)
      for (int w = 0; w < kWidth; ++w) store(out + i * ldo_ + d + w * kLanes, sum[i][w]);
  }

  const TreeAttentionParams& p_;
  const int64_t ldq_, ldo_;
  int64_t rows_ = 0, tiles_ = 0;     // of each head
  Buffer<float> queries_, outputs_;  // [row][d]
  Buffer<T> zeros_;
  const T* cache_rows_[2 * kKeys];
  Prefetcher prefetcher_;
};

}  // namespace

void tree_attention(const TreeAttentionParams& p) {
  constexpr int64_t kFewRows = 8;
  const auto run = [&](auto t) { attend<TileKernel<decltype(t)>, FewRowsKernel<decltype(t)>, kFewRows>(p); };
  if (p.cache_dtype == DType::kInt8)
    run(int8_t{});
  else
    with_float(p.cache_dtype, run);
}

void merge_attention(const MergeAttentionParams& p) {
  with_float(p.dtype, [&](auto t) {
    using T = decltype(t);
    at::parallel_for(0, p.rows, 64, [&](int64_t begin, int64_t end) {
      std::vector<float> a(p.dim), b(p.dim);
      for (int64_t r = begin; r < end; ++r) {
        const float top = std::max(p.lse_a[r], p.lse_b[r]);
        const float weight_a = p.lse_a[r] == -kInf ? 0.f : std::exp(p.lse_a[r] - top);
        const float weight_b = p.lse_b[r] == -kInf ? 0.f : std::exp(p.lse_b[r] - top);
        const float sum = weight_a + weight_b;
        p.lse[r] = sum == 0.f ? -kInf : top + std::log(sum);
        widen_row(static_cast<const T*>(p.out_a) + r * p.dim, sum == 0.f ? 0.f : weight_a / sum, p.dim, a.data());
        widen_row(static_cast<const T*>(p.out_b) + r * p.dim, sum == 0.f ? 0.f : weight_b / sum, p.dim, b.data());
        for (int64_t d = 0; d < p.dim; ++d) a[d] += b[d];
        narrow_row(a.data(), 1.f, p.dim, static_cast<T*>(p.out) + r * p.dim);
      }
    });
  });
}

}  // namespace specdec::cpu::SPECDEC_CAPABILITY
