// Tree attention for requests with many query rows a KV head: rows in the lanes, keys and values broadcast.
#pragma once

#include "tree_attention.h"
#include "tree_attention_impl.h"

namespace specdec::cpu::SPECDEC_CAPABILITY {

namespace {

// What a lane multiplies at a time: one element, or several that follow each other along the inner dimension.
struct Float32Products {
  using Element = float;
  using Unit = float;
  static constexpr int kKeys = 48;  // a block
  static SPECDEC_INLINE F splat_unit(Unit x) { return splat(x); }
  static SPECDEC_INLINE F add(F sum, F x, F y) { return sum + x * y; }
};

// A kernel brings the keys to keys_, d_qk elements each, and the values to values_: a unit holds the same d of as many
// keys as it has elements. Its probabilities lie likewise.
template <class Products>
class Tiles {
 public:
  static constexpr int kTileRows = kLanes == 16 ? 64 : 2 * kLanes;
  static constexpr int kKeys = Products::kKeys;
  static constexpr int stride(int vecs) { return vecs * kLanes; }

  ReadAhead ahead;

  // With several tiles a head there is little to gain, and the loops below are better left alone.
  int64_t tile_work(int64_t tiles, int64_t vecs) const {
    return tiles > 1 ? 0 : kKeys * (p_.d_qk + p_.d_v) / kElements / std::min<int64_t>(kAccumulators / vecs, kMaxUnroll);
  }

  template <int kVecs>
  void scores(int64_t tile, const KeyBlock&, int count, float* s) {
    for_each_unroll<kVecs>(count, [&](int64_t j, auto unroll) {
      const float* q = queries_.get() + tile * kTileRows * ldq_;
      if (one_tile_)
        dots<kVecs, unroll.value, true>(keys_ + j, q, s + j * stride(kVecs));
      else
        dots<kVecs, unroll.value, false>(keys_ + j, q, s + j * stride(kVecs));
    });
  }

  template <int kVecs>
  void accumulate(int64_t tile, const KeyBlock&, int count, const float* s, const F* alpha) {
    float* out = outputs_.get() + tile * kTileRows * ldo_;
    const int units = (count + kElements - 1) / kElements;
    for_each_unroll<kVecs>(p_.d_v, [&](int64_t d, auto unroll) {
      if (one_tile_)
        weigh<kVecs, unroll.value, true>(units, d, s, alpha, out + d * stride(kVecs));
      else
        weigh<kVecs, unroll.value, false>(units, d, s, alpha, out + d * stride(kVecs));
    });
  }

  void output(int64_t tile, float* rows) const {
    const float* out = outputs_.get() + tile * kTileRows * ldo_;
    for (int v = 0; v < vecs_of(tile); ++v)
      transpose_columns(out + v * kLanes, stride(vecs_of(tile)), ldo_, rows + v * kLanes * ldo_, ldo_);
  }

 protected:
  using Unit = typename Products::Unit;
  using Element = typename Products::Element;
  static constexpr int kElements = sizeof(Unit) / sizeof(Element);
  static constexpr int kRowWork = 2;  // of a row's copy

  Tiles(const TreeAttentionParams& p, int64_t max_rows)
      : ahead(p),
        p_(p),
        ldq_(round_up(p.d_qk, kLanes * kElements) / kElements),
        ldo_(round_up(p.d_v, kLanes)),
        queries_(max_rows * ldq_),
        outputs_(max_rows * ldo_),
        query_rows_(kLanes * ldq_ * kElements),
        zeros_(std::max(p.d_qk, p.d_v)) {
    zeros_.clear();
  }

  // `take` is for_each_query_vector()'s.
  template <class Take>
  void start(const Task& task, Take take) {
    rows_ = task.row_end - task.row_begin;
    tiles_ = (rows_ + kTileRows - 1) / kTileRows;
    const auto* q = reinterpret_cast<const float*>(query_rows_.get());
    for_each_query_vector(p_, task, kTileRows, ldq_ * kElements, query_rows_.get(), take, [&](int64_t r) {
      const int64_t tile = r / kTileRows;
      transpose_rows(q, ldq_, ldq_, queries_.get() + tile * kTileRows * ldq_ + r % kTileRows, stride(vecs_of(tile)));
    });
    std::fill_n(outputs_.get(), (task.head_end - task.head_begin) * tiles_ * kTileRows * ldo_, 0.f);
  }

  const TreeAttentionParams& p_;
  bool one_tile_ = false;  // a head
  const Unit *keys_[kKeys], *values_[kKeys / kElements];

 private:
  static constexpr int kAccumulators = kLanes == 16 ? 24 : 12;  // what the register file holds
  static constexpr int kStepD = 8, kStepKeys = 8;               // between two steps of reading ahead, and their work
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
  void __attribute__((noinline)) dots(const Unit* const* keys, const float* queries, float* s) {
    const Unit* key[kUnrolled];
    F sum[kUnrolled][kVecs] = {};
    for (int t = 0; t < kUnrolled; ++t) key[t] = keys[t];
    const int64_t units = (p_.d_qk + kElements - 1) / kElements;
    for (int64_t d = 0; d < units;) {
      if constexpr (kAsk) ahead.step(kStepD);
      for (const int64_t end = kAsk ? std::min<int64_t>(d + kStepD, units) : units; d < end;
           ++d, queries += stride(kVecs)) {
        F row[kVecs];
        for (int v = 0; v < kVecs; ++v) row[v] = load(queries + v * kLanes);
        for (int t = 0; t < kUnrolled; ++t) {
          const F x = Products::splat_unit(key[t][d]);
          for (int v = 0; v < kVecs; ++v) sum[t][v] = Products::add(sum[t][v], x, row[v]);
        }
      }
    }
    for (int t = 0; t < kUnrolled; ++t)
      for (int v = 0; v < kVecs; ++v) store(s + t * stride(kVecs) + v * kLanes, sum[t][v]);
  }

  // out[t][row] <- alpha[row] * out[t][row] + sum over `count` units of keys of V[key][d + t] * p[key][row]
  template <int kVecs, int kUnrolled, bool kAsk>
  void __attribute__((noinline)) weigh(int count, int64_t d, const float* p, const F* alpha, float* out) {
    F sum[kUnrolled][kVecs];
    for (int t = 0; t < kUnrolled; ++t)
      for (int v = 0; v < kVecs; ++v) sum[t][v] = load(out + t * stride(kVecs) + v * kLanes) * alpha[v];
    for (int j = 0; j < count;) {
      if constexpr (kAsk) ahead.step(kStepKeys);
      for (const int end = kAsk ? std::min(j + kStepKeys, count) : count; j < end; ++j, p += stride(kVecs)) {
        const Unit* value = values_[j] + d;
        F row[kVecs];
        for (int v = 0; v < kVecs; ++v) row[v] = load(p + v * kLanes);
        for (int t = 0; t < kUnrolled; ++t) {
          const F x = Products::splat_unit(value[t]);
          for (int v = 0; v < kVecs; ++v) sum[t][v] = Products::add(sum[t][v], x, row[v]);
        }
      }
    }
    for (int t = 0; t < kUnrolled; ++t)
      for (int v = 0; v < kVecs; ++v) store(out + t * stride(kVecs) + v * kLanes, sum[t][v]);
  }

  const int64_t ldq_, ldo_;          // padded head sizes, the first in units
  int64_t rows_ = 0, tiles_ = 0;     // of each head
  Buffer<float> queries_, outputs_;  // [tile][d][row], of the first units
  Buffer<Element> query_rows_;

 protected:
  Buffer<Unit> zeros_;
};

}  // namespace

}  // namespace specdec::cpu::SPECDEC_CAPABILITY
