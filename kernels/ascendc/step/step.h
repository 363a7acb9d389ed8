// The end of a decoding step: what was emitted joins the history, and the next draft length is chosen.
#pragma once

#include "kernels/ascendc/common/pipe.h"
#include "kernels/ascendc/step/step_tiling.h"

namespace specdec::ascendc {

// A group of requests at a time: their states in UB, of their tokens only those accepted, each row in one piece to the
// history. Tokens beyond the width of a row in UB come in further rounds.
class Advance {
 public:
  __aicore__ inline void Init(GM_ADDR history, GM_ADDR lengths, GM_ADDR finished, GM_ADDR tokens, GM_ADDR num_accepted,
                              GM_ADDR eos_ids, GM_ADDR max_lens, GM_ADDR root, const AdvanceTiling& tiling) {
    tiling_ = tiling;
    const uint64_t batch = tiling.batch;
    history_.SetGlobalBuffer((__gm__ int64_t*)history, batch * tiling.capacity);
    lengths_.SetGlobalBuffer((__gm__ int32_t*)lengths, batch);
    finished_.SetGlobalBuffer(finished, batch);
    tokens_.SetGlobalBuffer((__gm__ int64_t*)tokens, batch * tiling.width);
    num_accepted_.SetGlobalBuffer((__gm__ int32_t*)num_accepted, batch);
    eos_ids_.SetGlobalBuffer((__gm__ int64_t*)eos_ids);
    max_lens_.SetGlobalBuffer((__gm__ int32_t*)max_lens, batch);
    root_.SetGlobalBuffer((__gm__ int64_t*)root, batch);
    AscendC::LocalMemAllocator<AscendC::Hardware::UB> ub;
    rows_ = ub.Alloc<int64_t>(kGroup * kWidth);
    roots_ = ub.Alloc<int64_t>(kGroup);
    lens_ = ub.Alloc<int32_t>(kGroup);
    accepted_ = ub.Alloc<int32_t>(kGroup);
    limits_ = ub.Alloc<int32_t>(kGroup);
    done_ = ub.Alloc<uint8_t>(kGroup);
  }

  __aicore__ inline void Process() {
    const uint64_t step = tiling_.cores * static_cast<uint64_t>(kGroup);
    for (uint64_t first = AscendC::GetBlockIdx() * kGroup; first < tiling_.batch; first += step)
      Group(first, static_cast<uint32_t>(tiling_.batch - first < kGroup ? tiling_.batch - first : kGroup));
  }

 private:
  static constexpr uint32_t kGroup = kAdvanceGroup, kWidth = 64;  // tokens of a row in UB

  __aicore__ inline void Group(uint64_t first, uint32_t requests) {
    Load(lens_, lengths_[first], requests);
    Load(accepted_, num_accepted_[first], requests);
    Load(limits_, max_lens_[first], requests);
    Load(done_, finished_[first], requests);
    Order<AscendC::HardEvent::MTE2_S>();
    bool again = false;
    for (uint32_t i = 0; i < requests; ++i) again |= Start(first + i, i);
    for (uint64_t from = 0; again; from += kWidth) again = Round(first, requests, from);
    for (uint32_t i = 0; i < requests; ++i) Finish(first + i, i);
    Order<AscendC::HardEvent::S_MTE3>();
    Store(lengths_[first], lens_, requests);
    Store(finished_[first], done_, requests);
    Store(root_[first], roots_, requests);
    Order<AscendC::HardEvent::MTE3_MTE2>();
  }

  // Before the rounds: how many tokens request b may append at most. `limits_` becomes the length it may reach, or its
  // length where there is nothing to append.
  __aicore__ inline bool Start(uint64_t b, uint32_t i) {
    const int64_t capacity = static_cast<int64_t>(tiling_.capacity);
    roots_.SetValue(i, int64_t{-1});
    if (done_.GetValue(i) != 0) {
      accepted_.SetValue(i, 0);
      return false;
    }
    const int64_t length = Clamp(lens_.GetValue(i), capacity), limit = Clamp(limits_.GetValue(i), capacity);
    int64_t count = static_cast<int64_t>(accepted_.GetValue(i)) + 1;
    if (count > static_cast<int64_t>(tiling_.width)) count = tiling_.width;
    if (count > limit - length) count = limit - length;
    accepted_.SetValue(i, static_cast<int32_t>(count < 0 ? 0 : count));
    lens_.SetValue(i, static_cast<int32_t>(length));
    done_.SetValue(i, static_cast<uint8_t>(length >= limit));
    limits_.SetValue(i, static_cast<int32_t>(limit));
    return count > 0;
  }

  // Tokens [from, from + kWidth) of the requests that still take some. Says whether there are more.
  __aicore__ inline bool Round(uint64_t first, uint32_t requests, uint64_t from) {
    Order<AscendC::HardEvent::MTE3_MTE2>();
    Order<AscendC::HardEvent::S_MTE2>();
    for (uint32_t i = 0; i < requests; ++i)
      if (Left(i, from) > 0) Load(rows_[i * kWidth], tokens_[(first + i) * tiling_.width + from], Left(i, from));
    Order<AscendC::HardEvent::MTE2_S>();
    bool more = false;
    for (uint32_t i = 0; i < requests; ++i) {
      const uint32_t left = Left(i, from);
      if (left == 0) continue;
      const int32_t length = lens_.GetValue(i);
      const uint32_t taken = Take(first + i, i, left);
      const bool ended = taken < left || done_.GetValue(i) != 0;
      if (ended) accepted_.SetValue(i, 0);
      more |= !ended && accepted_.GetValue(i) > static_cast<int64_t>(from + kWidth);
      if (taken == 0) continue;
      Order<AscendC::HardEvent::S_MTE3>();
      Store(history_[(first + i) * tiling_.capacity + length], rows_[i * kWidth], taken);
    }
    return more;
  }
  __aicore__ inline uint32_t Left(uint32_t i, uint64_t from) const {
    const int64_t left = accepted_.GetValue(i) - static_cast<int64_t>(from);
    return static_cast<uint32_t>(left < 0 ? 0 : (left < kWidth ? left : kWidth));
  }

  // How many of the first `count` tokens in row i are taken: up to the first that is none, and up to an end token.
  __aicore__ inline uint32_t Take(uint64_t b, uint32_t i, uint32_t count) {
    uint32_t taken = 0;
    bool eos = false;
    while (taken < count && !eos) {
      const int64_t token = rows_.GetValue(i * kWidth + taken);
      if (token < 0) break;
      for (uint64_t e = 0; e < tiling_.num_eos && !eos; ++e)
        eos = eos_ids_.GetValue(b * tiling_.eos_stride + e) == token;
      roots_.SetValue(i, token);
      ++taken;
    }
    const int32_t length = lens_.GetValue(i) + static_cast<int32_t>(taken);
    lens_.SetValue(i, length);
    done_.SetValue(i, static_cast<uint8_t>(eos || length >= limits_.GetValue(i)));
    return taken;
  }

  // The root of a request that took nothing is the last token it had.
  __aicore__ inline void Finish(uint64_t b, uint32_t i) {
    if (roots_.GetValue(i) >= 0) return;
    const int64_t length = Clamp(lens_.GetValue(i), tiling_.capacity);
    roots_.SetValue(i, length > 0 ? history_.GetValue(b * tiling_.capacity + length - 1) : int64_t{0});
  }

  static __aicore__ inline int64_t Clamp(int64_t length, int64_t capacity) {
    return length < 0 ? 0 : (length < capacity ? length : capacity);
  }

  AdvanceTiling tiling_;
  AscendC::GlobalTensor<int64_t> history_, tokens_, eos_ids_, root_;
  AscendC::GlobalTensor<int32_t> lengths_, num_accepted_, max_lens_;
  AscendC::GlobalTensor<uint8_t> finished_;
  AscendC::LocalTensor<int64_t> rows_, roots_;              // roots_: -1 where nothing was taken
  AscendC::LocalTensor<int32_t> lens_, accepted_, limits_;  // accepted_: tokens that may be taken
  AscendC::LocalTensor<uint8_t> done_;
};

// A few operations a request on the scalar unit of one core; in float32.
class AdaptDraftLength {
 public:
  __aicore__ inline void Process(GM_ADDR rate, GM_ADDR drafted, GM_ADDR accepted, GM_ADDR num_draft,
                                 const AdaptDraftLengthTiling& tiling) {
    AscendC::GlobalTensor<float> rate_gm;
    AscendC::GlobalTensor<int32_t> drafted_gm, accepted_gm, num_draft_gm;
    rate_gm.SetGlobalBuffer((__gm__ float*)rate, tiling.batch);
    drafted_gm.SetGlobalBuffer((__gm__ int32_t*)drafted, tiling.batch);
    accepted_gm.SetGlobalBuffer((__gm__ int32_t*)accepted, tiling.batch);
    num_draft_gm.SetGlobalBuffer((__gm__ int32_t*)num_draft, tiling.batch);
    AscendC::LocalMemAllocator<AscendC::Hardware::UB> ub;
    AscendC::LocalTensor<float> rates = ub.Alloc<float>(kChunk);
    AscendC::LocalTensor<int32_t> drafts = ub.Alloc<int32_t>(kChunk), successes = ub.Alloc<int32_t>(kChunk);
    for (uint64_t first = 0; first < tiling.batch; first += kChunk) {
      const uint32_t count = static_cast<uint32_t>(tiling.batch - first < kChunk ? tiling.batch - first : kChunk);
      Load(rates, rate_gm[first], count);
      Load(drafts, drafted_gm[first], count);
      Load(successes, accepted_gm[first], count);
      Order<AscendC::HardEvent::MTE2_S>();
      for (uint32_t i = 0; i < count; ++i) {
        const float moved = Moved(rates.GetValue(i), drafts.GetValue(i), successes.GetValue(i), tiling.gain);
        rates.SetValue(i, moved);
        drafts.SetValue(i, Best(Probability(moved), tiling));
      }
      Order<AscendC::HardEvent::S_MTE3>();
      Store(rate_gm[first], rates, count);
      Store(num_draft_gm[first], drafts, count);
      Order<AscendC::HardEvent::MTE3_MTE2>();
    }
  }

 private:
  static constexpr uint32_t kChunk = 2048;

  static __aicore__ inline float Probability(float rate) {  // of a NaN: 0
    return rate > 0.0f ? (rate < 1.0f ? rate : 1.0f) : 0.0f;
  }

  // Each draft up to the first rejection was a trial. A step weighs as many trials as it had: the mean of the steps'
  // own shares of successes would be too low, since steps that end early count as much as long ones.
  static __aicore__ inline float Moved(float rate, int32_t drafted, int32_t accepted, float gain) {
    if (drafted <= 0) return rate;
    const int32_t successes = accepted < 0 ? 0 : (accepted < drafted ? accepted : drafted);
    const int32_t trials = successes < drafted ? successes + 1 : drafted;
    const float p = Probability(rate);
    return p + gain * (static_cast<float>(successes) - p * static_cast<float>(trials)) / static_cast<float>(drafted);
  }

  // With k drafts a step yields 1 + a + ... + a^k tokens. Their ratio to its cost has one peak, as that of any concave
  // to a linear function: climb from min_draft as long as it rises.
  static __aicore__ inline int32_t Best(float a, const AdaptDraftLengthTiling& tiling) {
    float power = 1.0f, tokens = 1.0f, best_speed = 0.0f;
    int32_t best = tiling.min_draft;
    for (int64_t k = 0; k <= tiling.max_draft; ++k) {
      const float speed = tokens / (1.0f + tiling.draft_cost * static_cast<float>(static_cast<int32_t>(k)));
      if (k > tiling.min_draft && speed <= best_speed) break;
      if (k >= tiling.min_draft) {
        best = static_cast<int32_t>(k);
        best_speed = speed;
      }
      power *= a;
      tokens += power;
    }
    return best;
  }
};

}  // namespace specdec::ascendc
