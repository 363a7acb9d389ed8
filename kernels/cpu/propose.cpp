#include "propose.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <vector>

namespace specdec::cpu::SPECDEC_CAPABILITY {

namespace {

// Tokens a thread should read to be worth waking.
constexpr int64_t kGrainTokens = 16384;

// Where the earliest occurrence of the longest repeated final n-gram ends, or `length` if none is repeated. Knuth,
// Morris and Pratt's search for the reversed final n-gram in the reversed history: one pass, whatever max_n is.
int64_t find_repeat(const int64_t* history, int64_t length, int64_t min_n, int64_t max_n,
                    std::vector<int64_t>& borders) {
  const auto reversed = [&](int64_t i) { return history[length - 1 - i]; };
  borders.assign(std::min(max_n, length), 0);  // of the first i + 1 reversed tokens
  int64_t best_n = 0, best_last = 0, n = 0;
  for (int64_t i = 1; i < length; ++i) {
    if (n == max_n) n = borders[n - 1];
    while (n > 0 && reversed(n) != reversed(i)) n = borders[n - 1];
    if (reversed(n) == reversed(i)) ++n;
    if (i < max_n) borders[i] = n;
    if (n > 0 && n >= best_n) best_n = n, best_last = i;  // the last in reverse is the earliest
  }
  return best_n >= min_n ? length - 1 - best_last + best_n : length;
}

}  // namespace

void ngram_propose(const NgramProposeParams& p) {
  const int64_t grain = std::max<int64_t>(1, kGrainTokens / std::max<int64_t>(1, p.capacity));
  at::parallel_for(0, p.batch, grain, [&](int64_t begin, int64_t end) {
    std::vector<int64_t> borders;
    for (int64_t b = begin; b < end; ++b) {
      const int64_t* history = p.history + b * p.capacity;
      const int64_t length = std::clamp<int64_t>(p.lengths[b], 0, p.capacity);
      const int64_t start = find_repeat(history, length, p.min_n, p.max_n, borders);
      const int64_t found = std::min(p.num_draft, length - start);
      int64_t* tokens = p.tokens + b * p.num_draft;
      std::fill(std::copy_n(history + start, found, tokens), tokens + p.num_draft, -1);
      p.num_found[b] = found;
    }
  });
}

}  // namespace specdec::cpu::SPECDEC_CAPABILITY
