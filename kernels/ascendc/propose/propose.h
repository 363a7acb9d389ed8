// Prompt lookup: what followed the earliest occurrence of the longest repeated final n-gram.
#pragma once

#include "kernels/ascendc/common/copy.h"
#include "kernels/ascendc/propose/propose_tiling.h"

namespace specdec::ascendc {

// The vector unit finds the places of the last token, 32 a word of bits; from each the scalar unit goes backwards as
// long as the tokens are those before the last. From the newest place to the oldest: the longest match wins and, among
// equals, the earliest, so that a place is left as soon as it cannot be as long as the best so far.
class NgramPropose {
 public:
  __aicore__ inline void Init(GM_ADDR history, GM_ADDR lengths, GM_ADDR workspace, GM_ADDR tokens, GM_ADDR num_found,
                              const NgramProposeTiling& tiling) {
    tiling_ = tiling;
    history_ = history;
    history_gm_.SetGlobalBuffer((__gm__ int64_t*)history, tiling.batch * tiling.capacity);
    lengths_.SetGlobalBuffer((__gm__ int32_t*)lengths, tiling.batch);
    matches_.SetGlobalBuffer((__gm__ int32_t*)workspace, tiling.batch * tiling.parts * kMatch);
    tokens_ = tokens;
    num_found_.SetGlobalBuffer((__gm__ int32_t*)num_found, tiling.batch);
    AscendC::LocalMemAllocator<AscendC::Hardware::UB> ub;
    tile_ = ub.Alloc<int64_t>(kTile);
    final_ = ub.Alloc<int64_t>(kFinal);
    pattern_ = ub.Alloc<int64_t>(BlockOf<int64_t>());
    bits_ = ub.Alloc<uint64_t>(kTile / kTokensOfWord);
    match_ = ub.Alloc<int32_t>(kMatch);
    found_ = ub.Alloc<int32_t>(kGroup);
    ub_end_ = ub.GetCurAddr();
  }

  __aicore__ inline void Process() {
    const uint64_t core = AscendC::GetBlockIdx(), tasks = tiling_.batch * tiling_.parts;
    // Lanes past the end of a tile are compared, though nobody looks at their bits.
    AscendC::Duplicate(tile_.template ReinterpretCast<int32_t>(), 0, static_cast<int32_t>(2 * kTile));
    AscendC::Duplicate(match_, 0, static_cast<int32_t>(kMatch));
    Order<AscendC::HardEvent::V_MTE2>();
    Order<AscendC::HardEvent::V_S>();
    for (uint64_t task = core; task < tasks; task += tiling_.cores) {
      Search(task / tiling_.parts, task % tiling_.parts);
      match_.SetValue(0, static_cast<int32_t>(best_));
      match_.SetValue(1, static_cast<int32_t>(best_end_));
      Order<AscendC::HardEvent::S_MTE3>();
      Store(matches_[task * kMatch], match_, kMatch);
      Order<AscendC::HardEvent::MTE3_S>();
    }
    AscendC::SyncAll();
    minus_ones_.Begin(ub_end_);
    copy_.Begin(AlignUp(ub_end_ + GmMinusOnes::kUbBytes, kBlockBytes));
    for (uint64_t b = core * kGroup; b < tiling_.batch; b += tiling_.cores * kGroup) Propose(b);
    copy_.End();
  }

 private:
  static constexpr uint32_t kTile = 2048;        // tokens in UB at once
  static constexpr uint32_t kFinal = 1024;       // of the last tokens those in UB
  static constexpr uint32_t kTokensOfWord = 32;  // each has two 32-bit halves to compare
  static constexpr uint32_t kMatch = 8;          // int32 of a record
  static constexpr uint32_t kGroup = 8;          // requests whose outputs are whole lines
  static constexpr uint64_t kLowHalves = 0x5555555555555555ull;

  __aicore__ inline int64_t Length(uint64_t b) const {
    const int64_t length = lengths_.GetValue(b), capacity = static_cast<int64_t>(tiling_.capacity);
    return length < 0 ? 0 : (length < capacity ? length : capacity);
  }

  // The best match that ends in a part of the history.
  __aicore__ inline void Search(uint64_t b, int64_t part) {
    best_ = 0;
    best_end_ = 0;
    row_ = b * tiling_.capacity;
    length_ = Length(b);
    const int64_t parts = tiling_.parts, begin = length_ * part / parts, end = length_ * (part + 1) / parts;
    const int64_t last = end < length_ ? end : length_ - 1;  // the final token does not match itself
    if (length_ <= tiling_.min_n || begin >= last) return;
    LoadFinal();
    for (int64_t to = last; to > begin; to -= kTile) SearchTile(to - begin > kTile ? to - kTile : begin, to);
  }

  __aicore__ inline void LoadFinal() {
    final_begin_ = length_ > kFinal ? length_ - kFinal : 0;
    Order<AscendC::HardEvent::S_MTE2>();
    Load(final_, history_gm_[row_ + final_begin_], static_cast<uint32_t>(length_ - final_begin_));
    Order<AscendC::HardEvent::MTE2_S>();
    Order<AscendC::HardEvent::V_S>();
    const int64_t token = final_.GetValue(static_cast<uint32_t>(length_ - 1 - final_begin_));
    for (uint32_t i = 0; i < BlockOf<int64_t>(); ++i) pattern_.SetValue(i, token);
    Order<AscendC::HardEvent::S_V>();
  }

  __aicore__ inline void SearchTile(int64_t from, int64_t to) {
    const uint32_t count = static_cast<uint32_t>(to - from), words = CeilDiv(count, kTokensOfWord);
    tile_begin_ = from;
    Order<AscendC::HardEvent::S_MTE2>();
    Order<AscendC::HardEvent::V_MTE2>();
    Load(tile_, history_gm_[row_ + from], count);
    Order<AscendC::HardEvent::MTE2_V>();
    Order<AscendC::HardEvent::S_V>();
    const AscendC::BinaryRepeatParams against_one_block{1, 1, 0, 8, 8, 0};
    AscendC::Compare(bits_.template ReinterpretCast<uint8_t>(), tile_.template ReinterpretCast<int32_t>(),
                     pattern_.template ReinterpretCast<int32_t>(), AscendC::CMPMODE::EQ,
                     static_cast<uint64_t>(2 * kTokensOfWord), static_cast<int32_t>(words), against_one_block);
    Order<AscendC::HardEvent::V_S>();
    for (uint32_t w = words; w-- > 0;) {
      const uint64_t halves = bits_.GetValue(w);
      uint64_t places = halves & (halves >> 1) & kLowHalves;
      if (count - w * kTokensOfWord < kTokensOfWord) places &= (1ull << (2 * (count - w * kTokensOfWord))) - 1;
      while (places != 0) {
        const uint32_t bit = static_cast<uint32_t>(63 - AscendC::ScalarCountLeadingZero(places));
        places &= ~(1ull << bit);
        Extend(from + w * kTokensOfWord + bit / 2);
      }
    }
  }

  // A match that ends with the token at `place`.
  __aicore__ inline void Extend(int64_t place) {
    const int64_t needed = best_ > tiling_.min_n ? best_ : tiling_.min_n;
    const int64_t longest = place + 1 < tiling_.max_n ? place + 1 : tiling_.max_n;
    if (longest < needed || !Matches(place, needed - 1)) return;
    int64_t n = 1;
    while (n < longest && Matches(place, n)) ++n;
    if (n < needed) return;
    best_ = n;
    best_end_ = place + 1;
  }
  __aicore__ inline bool Matches(int64_t place, int64_t back) const {
    return Token(place - back) == Token(length_ - 1 - back);
  }
  __aicore__ inline int64_t Token(int64_t i) const {
    if (i >= final_begin_) return final_.GetValue(static_cast<uint32_t>(i - final_begin_));
    if (i >= tile_begin_ && i < tile_begin_ + kTile) return tile_.GetValue(static_cast<uint32_t>(i - tile_begin_));
    return history_gm_.GetValue(row_ + i);
  }

  // The outputs of `kGroup` requests.
  __aicore__ inline void Propose(uint64_t first) {
    const uint32_t requests = static_cast<uint32_t>(tiling_.batch - first < kGroup ? tiling_.batch - first : kGroup);
    Order<AscendC::HardEvent::MTE3_S>();
    for (uint32_t i = 0; i < requests; ++i) found_.SetValue(i, ProposeOne(first + i));
    Order<AscendC::HardEvent::S_MTE3>();
    Store(num_found_[first], found_, requests);
  }

  __aicore__ inline int32_t ProposeOne(uint64_t b) {
    int64_t best = 0, end = 0;
    for (uint64_t part = 0; part < tiling_.parts; ++part) {  // of equals the earliest
      const uint64_t record = (b * tiling_.parts + part) * kMatch;
      const int64_t n = matches_.GetValue(record);
      if (n <= best) continue;
      best = n;
      end = matches_.GetValue(record + 1);
    }
    const uint64_t left = best > 0 ? Length(b) - end : 0;
    const uint64_t found = left < tiling_.num_draft ? left : tiling_.num_draft;
    GM_ADDR out = tokens_ + b * tiling_.num_draft * sizeof(int64_t);
    copy_.Bytes(out, history_ + (b * tiling_.capacity + end) * sizeof(int64_t), found * sizeof(int64_t));
    minus_ones_.Bytes(out + found * sizeof(int64_t), (tiling_.num_draft - found) * sizeof(int64_t));
    return static_cast<int32_t>(found);
  }

  NgramProposeTiling tiling_;
  GM_ADDR history_;
  GM_ADDR tokens_;
  AscendC::GlobalTensor<int64_t> history_gm_;
  AscendC::GlobalTensor<int32_t> lengths_, matches_, num_found_;
  AscendC::LocalTensor<int64_t> tile_, final_, pattern_;
  AscendC::LocalTensor<uint64_t> bits_;
  AscendC::LocalTensor<int32_t> match_, found_;
  uint32_t ub_end_ = 0;
  uint64_t row_ = 0;  // of the history, its first token
  int64_t length_ = 0, final_begin_ = 0, tile_begin_ = 0;
  int64_t best_ = 0, best_end_ = 0;  // length of the best match, tokens up to its end
  GmCopy copy_;
  GmMinusOnes minus_ones_;
};

}  // namespace specdec::ascendc
