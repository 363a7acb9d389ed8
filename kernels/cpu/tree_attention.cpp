#include "tree_attention.h"

#include "tree_attention_few_rows.h"
#include "tree_attention_impl.h"
#include "tree_attention_tiles.h"

namespace specdec::cpu::SPECDEC_CAPABILITY {

namespace {

// Keys and values of any other type become float32, once a block.
template <typename T>
class TileKernel : public Float32Softmax, public Tiles<Float32Products> {
  using Base = Tiles<Float32Products>;

 public:
  TileKernel(const TreeAttentionParams& p, int64_t max_rows) : Base(p, max_rows), block_(kKeys * (p.d_qk + p.d_v)) {}

  int64_t fetch_work(int64_t tiles) const { return tiles == 1 ? 0 : 2 * kKeys * kRowWork; }

  void start(const Task& task) { Base::start(task, widened_queries(p_)); }

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
  static SPECDEC_INLINE void store_probabilities(float* s, int j, const F* even, const F* odd) {
    for (int v = 0; v < kVecs; ++v) {
      store(s + j * stride(kVecs) + v * kLanes, even[v]);
      store(s + (j + 1) * stride(kVecs) + v * kLanes, odd[v]);
    }
  }

 private:
  Buffer<float> block_;
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
