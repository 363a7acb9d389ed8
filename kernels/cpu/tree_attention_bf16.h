// What the kernels whose products are of bfloat16 share; AVX-512 only.
#pragma once

#include <cmath>

#include "tree_attention.h"
#include "tree_attention_impl.h"

namespace specdec::cpu::SPECDEC_CAPABILITY {

namespace {

// Both rounded to bfloat16, halves away from zero: `even` in the lower half of each lane, `odd` in the upper one.
SPECDEC_INLINE F pair_of(F even, F odd) {
  return (F)((((U)even + 0x8000u) >> 16) | (((U)odd + 0x8000u) & 0xffff0000u));
}

class BFloat16Softmax {
 public:
  explicit BFloat16Softmax(const TreeAttentionParams& p) : factor_(p.scale == 0.f ? 1.f : std::fabs(p.scale)) {}

  // The sign of the scale goes into the queries: a negative factor would turn the -inf of an unseen key around.
  float score_factor() const { return factor_; }

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

 private:
  const float factor_;
};

// A `take` for for_each_query_vector(): the queries as they are, times the sign of the scale.
inline auto signed_queries(const TreeAttentionParams& p) {
  const uint16_t flip = p.scale < 0.f ? 0x8000 : 0;
  return [&p, flip](int64_t at, BFloat16* query) {
    const auto* in = static_cast<const BFloat16*>(p.q) + at;
    for (int64_t d = 0; d < p.d_qk; ++d) {
      const uint16_t nothing = (in[d].bits & 0x7f80) == 0x7f80 ? 0x7fc0 : 0;  // 0 times infinity is no number
      query[d].bits = p.scale == 0.f ? nothing : in[d].bits ^ flip;
    }
  };
}

}  // namespace

}  // namespace specdec::cpu::SPECDEC_CAPABILITY
