#include "step.h"

#include <algorithm>

namespace specdec::cpu::SPECDEC_CAPABILITY {

void advance(const AdvanceParams& p) {
  for (int64_t b = 0; b < p.batch; ++b) {
    int64_t* history = p.history + b * p.capacity;
    const int64_t* tokens = p.tokens + b * p.width;
    int64_t length = std::clamp<int64_t>(p.lengths[b], 0, p.capacity);
    if (!p.finished[b]) {
      const int64_t limit = std::min<int64_t>(p.max_lens[b], p.capacity);
      const int64_t count = std::min<int64_t>(int64_t{p.num_accepted[b]} + 1, p.width);
      bool eos = false;
      for (int64_t i = 0; i < count && tokens[i] >= 0 && length < limit && !eos; ++i) {
        history[length++] = tokens[i];
        eos = std::find(p.eos_ids, p.eos_ids + p.num_eos, tokens[i]) != p.eos_ids + p.num_eos;
      }
      p.lengths[b] = length;
      p.finished[b] = eos || length >= limit;
    }
    p.root[b] = length > 0 ? history[length - 1] : 0;
  }
}

void adapt_draft_length(const AdaptDraftLengthParams& p) {
  const auto probability = [](float rate) { return rate > 0 ? std::min<double>(rate, 1) : 0; };  // of a NaN: 0
  for (int64_t b = 0; b < p.batch; ++b) {
    if (p.drafted[b] > 0) {
      // Each draft up to the first rejection was a trial. A step weighs as many trials as it had: the mean of the
      // steps' own shares of successes would be too low, since steps that end early count as much as long ones.
      const double accepted = std::clamp(p.accepted[b], 0, p.drafted[b]);
      const double trials = std::min<double>(accepted + 1, p.drafted[b]);
      const double rate = probability(p.rate[b]);
      p.rate[b] = rate + (1 - p.decay) * (accepted - rate * trials) / p.drafted[b];
    }
    // With k drafts a step yields 1 + a + ... + a^k tokens. Their ratio to its cost has one peak, as that of any
    // concave to a linear function: climb from min_draft as long as it rises.
    const double a = probability(p.rate[b]);
    double power = 1, tokens = 1, best_speed = 0;
    int32_t best = p.min_draft;
    for (int64_t k = 0; k <= p.max_draft; ++k) {
      const double speed = tokens / (1 + p.draft_cost * k);
      if (k > p.min_draft && speed <= best_speed) break;
      if (k >= p.min_draft) best = k, best_speed = speed;
      power *= a;
      tokens += power;
    }
    p.num_draft[b] = best;
  }
}

}  // namespace specdec::cpu::SPECDEC_CAPABILITY
