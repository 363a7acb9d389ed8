#include "philox.h"

#include <ATen/Parallel.h>

#include <algorithm>

namespace specdec::cpu::SPECDEC_CAPABILITY {

namespace {

struct Words {
  uint32_t w[4];
};

Words philox4x32_10(Words counter, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter.w[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * counter.w[2];
    counter = {
        {uint32_t(b >> 32) ^ counter.w[1] ^ key0, uint32_t(b), uint32_t(a >> 32) ^ counter.w[3] ^ key1, uint32_t(a)}};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return counter;
}

}  // namespace

void philox_uniform(const PhiloxUniformParams& p) {
  const int64_t quads = (p.n + 3) / 4;
  at::parallel_for(0, p.batch * quads, 1024, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = i / quads, quad = i % quads;
      const auto seed = uint64_t(p.seeds[b]), offset = uint64_t(p.offsets[b]);
      const Words words = philox4x32_10({{uint32_t(offset), uint32_t(offset >> 32), p.stream, uint32_t(quad)}},
                                        uint32_t(seed), uint32_t(seed >> 32));
      float* out = p.out + b * p.n + 4 * quad;
      for (int64_t lane = 0; lane < std::min<int64_t>(4, p.n - 4 * quad); ++lane)
        out[lane] = float(words.w[lane] >> 8) * 0x1p-24f;
    }
  });
}

}  // namespace specdec::cpu::SPECDEC_CAPABILITY
