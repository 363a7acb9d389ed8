#include "tree_attention.h"

#include "tree_attention_few_rows.h"
#include "tree_attention_impl.h"

namespace specdec::cpu::SPECDEC_CAPABILITY {

namespace {

// Many rows: rows in the lanes, keys and values broadcast from a block converted to float32 once.
template <typename T>
class TileKernel : public Float32Softmax {
 public:
  static constexpr int kTileRows = kLanes == 16 ? 64 : 2 * kLanes;
  static constexpr int kAccumulators = kLanes == 16 ? 24 : 12;  // what the register file holds
  static constexpr int kKeys = 48;
  static constexpr int stride(int vecs) { return vecs * kLanes; }

  TileKernel(const TreeAttentionParams& p, int64_t max_rows)
      : ahead(p),
        p_(p),
        ldq_(round_up(p.d_qk, kLanes)),
        ldo_(round_up(p.d_v, kLanes)),
        queries_(max_rows * ldq_),
        outputs_(max_rows * ldo_),
        query_rows_(kLanes * ldq_),
        block_(kKeys * (p.d_qk + p.d_v)),
        zeros_(std::max(p.d_qk, p.d_v)) {
    zeros_.clear();
  }

  ReadAhead ahead;

  // With several tiles a head there is little to gain, and the loops below are better left alone.
  int64_t fetch_work(int64_t tiles) const { return tiles == 1 ? 0 : 2 * kKeys * kRowWork; }
  int64_t tile_work(int64_t tiles, int64_t vecs) const {
    return tiles > 1 ? 0 : kKeys * (p_.d_qk + p_.d_v) / std::min<int64_t>(kAccumulators / vecs, kMaxUnroll);
  }

  void start(const Task& task) {
    rows_ = task.row_end - task.row_begin;
    tiles_ = (rows_ + kTileRows - 1) / kTileRows;
    const float* q = query_rows_.get();
    for_each_query_vector(p_, task, kTileRows, ldq_, query_rows_.get(), widened_queries(p_), [&](int64_t r) {
      const int64_t tile = r / kTileRows;
      transpose_rows(q, ldq_, ldq_, queries_.get() + tile * kTileRows * ldq_ + r % kTileRows, stride(vecs_of(tile)));
    });
    std::fill_n(outputs_.get(), (task.head_end - task.head_begin) * tiles_ * kTileRows * ldo_, 0.f);
  }

  void fetch(const KeyBlock& block, int64_t tiles) {
    float* copy = block_.get();
    one_tile_ = tiles == 1;
    const auto place = [&](int j, int64_t n) -> const float* {
      if (tiles > 1) ahead.step(kRowWork);
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
  }

  template <int kVecs>
  void scores(int64_t tile, const KeyBlock& block, float* s) {
    for_each_unroll<kVecs>(block.count, [&](int64_t j, auto unroll) {
      const float* q = queries_.get() + tile * kTileRows * ldq_;
      if (one_tile_)
        dots<kVecs, unroll.value, true>(keys_ + j, q, s + j * stride(kVecs));
      else
        dots<kVecs, unroll.value, false>(keys_ + j, q, s + j * stride(kVecs));
    });
  }

  template <int kVecs>
  void accumulate(int64_t tile, const KeyBlock& block, const float* s, const F* alpha) {
    float* out = outputs_.get() + tile * kTileRows * ldo_;
    for_each_unroll<kVecs>(p_.d_v, [&](int64_t d, auto unroll) {
      if (one_tile_)
        weigh<kVecs, unroll.value, true>(block.count, d, s, alpha, out + d * stride(kVecs));
      else
        weigh<kVecs, unroll.value, false>(block.count, d, s, alpha, out + d * stride(kVecs));
    });
  }

  template <int kVecs>
  static SPECDEC_INLINE void store_probabilities(float* s, int j, const F* even, const F* odd) {
    for (int v = 0; v < kVecs; ++v) {
      store(s + j * stride(kVecs) + v * kLanes, even[v]);
      store(s + (j + 1) * stride(kVecs) + v * kLanes, odd[v]);
    }
  }

  void output(int64_t tile, float* rows) const {
    const float* out = outputs_.get() + tile * kTileRows * ldo_;
    for (int v = 0; v < vecs_of(tile); ++v)
      transpose_columns(out + v * kLanes, stride(vecs_of(tile)), ldo_, rows + v * kLanes * ldo_, ldo_);
  }

 private:
  static constexpr int kStepD = 8, kStepKeys = 8;  // between two steps of reading ahead, and their work
  static constexpr int kRowWork = 2;               // of a row's copy
  static constexpr int kMaxUnroll = 12;

  // That hold a tile's rows: they lie so close.
  int vecs_of(int64_t tile) const {
    return int(std::min<int64_t>((rows_ - tile % tiles_ * kTileRows + kLanes - 1) / kLanes, kTileRows / kLanes));
  }

  // Covers [0, n) by as many at a time as there are accumulators for, and the rest in smaller steps.
  template <int kVecs, typename Function>
  static SPECDEC_INLINE void for_each_unroll(int64_t n, Function function) {
    constexpr int kUnroll = std::min(kAccumulators / kVecs, kMaxUnroll);
    int64_t i = 0;
    for (; i + kUnroll <= n; i += kUnroll) function(i, std::integral_constant<int, kUnroll>{});
    for (; i + kUnroll / 3 <= n; i += kUnroll / 3) function(i, std::integral_constant<int, kUnroll / 3>{});
    for (; i < n; ++i) function(i, std::integral_constant<int, 1>{});
  }

  // s[t][row] = keys[t] . Q^T[.][row]
  template <int kVecs, int kUnrolled, bool kAsk>
  void __attribute__((noinline)) dots(const float* const* keys, const float* queries, float* s) {
    const float* key[kUnrolled];
    F sum[kUnrolled][kVecs] = {};
    for (int t = 0; t < kUnrolled; ++t) key[t] = keys[t];
    for (int64_t d = 0; d < p_.d_qk;) {
      if constexpr (kAsk) ahead.step(kStepD);
      for (const int64_t end = kAsk ? std::min<int64_t>(d + kStepD, p_.d_qk) : p_.d_qk; d < end;
           ++d, queries += stride(kVecs)) {
        F row[kVecs];
        for (int v = 0; v < kVecs; ++v) row[v] = load(queries + v * kLanes);
        for (int t = 0; t < kUnrolled; ++t) {
          const F x = splat(key[t][d]);
          for (int v = 0; v < kVecs; ++v) sum[t][v] += x * row[v];
        }
      }
    }
    for (int t = 0; t < kUnrolled; ++t)
      for (int v = 0; v < kVecs; ++v) store(s + t * stride(kVecs) + v * kLanes, sum[t][v]);
  }

  // out[t][row] <- alpha[row] * out[t][row] + sum over keys of V[key][d + t] * p[key][row]
  template <int kVecs, int kUnrolled, bool kAsk>
  void __attribute__((noinline)) weigh(int count, int64_t d, const float* p, const F* alpha, float* out) {
    F sum[kUnrolled][kVecs];
    for (int t = 0; t < kUnrolled; ++t)
      for (int v = 0; v < kVecs; ++v) sum[t][v] = load(out + t * stride(kVecs) + v * kLanes) * alpha[v];
    for (int j = 0; j < count;) {
      if constexpr (kAsk) ahead.step(kStepKeys);
      for (const int end = kAsk ? std::min(j + kStepKeys, count) : count; j < end; ++j, p += stride(kVecs)) {
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
      for (int v = 0; v < kVecs; ++v) store(out + t * stride(kVecs) + v * kLanes, sum[t][v]);
  }

  const TreeAttentionParams& p_;
  const int64_t ldq_, ldo_;          // padded head sizes
  int64_t rows_ = 0, tiles_ = 0;     // of each head
  Buffer<float> queries_, outputs_;  // [tile][d][row]
  Buffer<float> query_rows_, block_, zeros_;
  bool one_tile_ = false;  // a head
  const float *keys_[kKeys], *values_[kKeys];
};

}  // namespace

void tree_attention(const TreeAttentionParams& p) {
  const auto run = [&](auto t) { attend<TileKernel<decltype(t)>, FewRowsKernel<decltype(t)>>(p); };
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
        const auto weigh = [&](const void* part, float weight, float* to) {
          if (weight == 0.f)  // then the part may be anything
            std::fill_n(to, p.dim, 0.f);
          else
            widen_row(static_cast<const T*>(part) + r * p.dim, weight / sum, p.dim, to);
        };
        weigh(p.out_a, weight_a, a.data());
        weigh(p.out_b, weight_b, b.data());
        for (int64_t d = 0; d < p.dim; ++d) a[d] += b[d];
        narrow_row(a.data(), 1.f, p.dim, static_cast<T*>(p.out) + r * p.dim);
      }
    });
  });
}

}  // namespace specdec::cpu::SPECDEC_CAPABILITY
