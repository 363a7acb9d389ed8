// Candidate trees: ancestor bitmasks and the choice of the nodes worth verifying.
#pragma once

#include "kernels/ascendc/common/copy.h"
#include "kernels/ascendc/common/nodes.h"
#include "kernels/ascendc/tree/tree_tiling.h"

namespace specdec::ascendc {

// A row climbs from its node to the root: no row needs another, so that rows are split evenly whatever the requests.
class TreeMask {
 public:
  __aicore__ inline void Init(GM_ADDR parents, GM_ADDR cu_nodes, GM_ADDR mask, GM_ADDR depth,
                              const TreeMaskTiling& tiling) {
    tiling_ = tiling;
    parents_.SetGlobalBuffer((__gm__ int32_t*)parents, tiling.num_nodes);
    cu_nodes_.SetGlobalBuffer((__gm__ int32_t*)cu_nodes, tiling.batch + 1);
    mask_.SetGlobalBuffer((__gm__ int64_t*)mask, tiling.num_nodes * tiling.words);
    depth_.SetGlobalBuffer((__gm__ int32_t*)depth, tiling.num_nodes);
    words_ = AscendC::LocalTensor<int64_t>(AscendC::TPosition::VECCALC, 0, kWords);
    depths_ = AscendC::LocalTensor<int32_t>(AscendC::TPosition::VECCALC, kWords * sizeof(int64_t), kRows);
  }

  __aicore__ inline void Process() {
    const uint64_t first = AscendC::GetBlockIdx() * tiling_.share;
    const uint64_t last = first + tiling_.share < tiling_.num_nodes ? first + tiling_.share : tiling_.num_nodes;
    uint64_t rows = kWords / tiling_.words;  // a tile; where not even one row fits, a row goes in windows of words
    rows = rows == 0 ? 1 : (rows < kRows ? rows : kRows);
    begin_ = end_ = NodeBound(cu_nodes_, 0, 0, tiling_.num_nodes);
    for (uint64_t row = first; row < last; row += rows) Tile(row, last - row < rows ? last - row : rows);
  }

 private:
  static constexpr uint32_t kWords = 8192, kRows = 1024;

  __aicore__ inline void Tile(uint64_t row, uint64_t rows) {
    const int64_t begin = begin_, end = end_;
    const uint64_t request = request_;
    for (uint64_t word = 0; word < tiling_.words; word += kWords) {
      const uint64_t words = tiling_.words - word < kWords ? tiling_.words - word : kWords;
      begin_ = begin;  // every window goes through the same requests
      end_ = end;
      request_ = request;
      Order<AscendC::HardEvent::MTE3_V>();
      AscendC::Duplicate(words_.template ReinterpretCast<int32_t>(), 0, static_cast<int32_t>(2 * rows * words));
      Order<AscendC::HardEvent::V_S>();
      for (uint64_t i = 0; i < rows; ++i) Climb(row + i, static_cast<uint32_t>(i), word, words);
      Order<AscendC::HardEvent::S_MTE3>();
      Store(mask_[row * tiling_.words + word], words_, static_cast<uint32_t>(rows * words));
    }
    Store(depth_[row], depths_, static_cast<uint32_t>(rows));
    Order<AscendC::HardEvent::MTE3_S>();
  }

  // Bits of `row`, the i-th of the tile, in a window of words; and its depth.
  __aicore__ inline void Climb(uint64_t row, uint32_t i, uint64_t word, uint64_t words) {
    while (static_cast<int64_t>(row) >= end_ && request_ < tiling_.batch) {
      begin_ = end_;
      end_ = NodeBound(cu_nodes_, ++request_, begin_, tiling_.num_nodes);
    }
    int64_t node = static_cast<int64_t>(row) - begin_;
    if (static_cast<int64_t>(row) >= end_ || node >= static_cast<int64_t>(tiling_.max_nodes)) node = -1;
    int32_t depth = 0;
    while (node >= 0) {
      const uint64_t w = static_cast<uint64_t>(node) / 64;
      if (w >= word && w - word < words) {
        const uint32_t at = static_cast<uint32_t>(i * words + w - word);
        words_.SetValue(at, static_cast<int64_t>(static_cast<uint64_t>(words_.GetValue(at)) | (1ull << (node % 64))));
      }
      const int64_t parent = parents_.GetValue(begin_ + node);
      if (parent < 0 || parent >= node) break;
      node = parent;
      ++depth;
    }
    depths_.SetValue(i, depth);
  }

  TreeMaskTiling tiling_;
  AscendC::GlobalTensor<int32_t> parents_, cu_nodes_, depth_;
  AscendC::GlobalTensor<int64_t> mask_;
  AscendC::LocalTensor<int64_t> words_;
  AscendC::LocalTensor<int32_t> depths_;
  uint64_t request_ = 0;         // the next one
  int64_t begin_ = 0, end_ = 0;  // rows of the one before it
};

// One core chooses a request's nodes; then every core packs its share of the outputs.
class TreeSelect {
 public:
  __aicore__ inline void Init(GM_ADDR tokens, GM_ADDR scores, GM_ADDR parents, GM_ADDR workspace, GM_ADDR out_tokens,
                              GM_ADDR out_parents, GM_ADDR out_cu_nodes, const TreeSelectTiling& tiling) {
    tiling_ = tiling;
    const uint64_t candidates = tiling.batch * tiling.size;
    tokens_gm_.SetGlobalBuffer((__gm__ int64_t*)tokens, candidates);
    scores_gm_.SetGlobalBuffer((__gm__ float*)scores, candidates);
    parents_gm_.SetGlobalBuffer((__gm__ int32_t*)parents, candidates);
    counts_gm_.SetGlobalBuffer((__gm__ int32_t*)workspace, tiling.batch * kCount);
    kept_parents_ = workspace + tiling.batch * kCount * sizeof(int32_t);
    kept_tokens_ = kept_parents_ + tiling.batch * tiling.width * sizeof(int32_t);
    out_tokens_ = out_tokens;
    out_parents_ = out_parents;
    cu_nodes_gm_.SetGlobalBuffer((__gm__ int32_t*)out_cu_nodes, tiling.batch + 1);
  }

  __aicore__ inline void Process() {
    const uint64_t core = AscendC::GetBlockIdx();
    Allocate();
    for (uint64_t b = core; b < tiling_.batch; b += tiling_.cores) Choose(b);
    AscendC::PipeBarrier<PIPE_ALL>();
    AscendC::SyncAll();
    Pack(core * tiling_.share, core == 0);
  }

 private:
  static constexpr uint32_t kSize = kTreeSelectMaxSize, kLanes = 64;
  static constexpr uint32_t kCount = 8;       // int32 of a request's count: a line
  static constexpr uint32_t kRequests = 256;  // whose counts are in UB at once

  __aicore__ inline void Allocate() {
    AscendC::LocalMemAllocator<AscendC::Hardware::UB> ub;
    score_ = ub.Alloc<float>(kSize);
    place_ = ub.Alloc<int32_t>(kSize);
    token_ = ub.Alloc<int64_t>(kSize);
    parent_ = ub.Alloc<int32_t>(kSize);
    bits_ = ub.Alloc<uint64_t>(kSize / kLanes);
    count_ = ub.Alloc<int32_t>(kCount);
    AscendC::Duplicate(count_, 0, static_cast<int32_t>(kCount));
    AscendC::Duplicate(score_, Lowest(), static_cast<int32_t>(kSize));  // lanes past the end never count
    Order<AscendC::HardEvent::V_S>();
    Order<AscendC::HardEvent::V_MTE2>();
  }

  static __aicore__ inline float Lowest() { return Float(0xFF800000u); }  // -inf
  static __aicore__ inline float Float(uint32_t bits) {
    union {
      uint32_t u;
      float f;
    } value;
    value.u = bits;
    return value.f;
  }

  __aicore__ inline void Choose(uint64_t b) {
    const uint32_t size = static_cast<uint32_t>(tiling_.size);
    Load(score_, scores_gm_[b * size], size, Lowest());
    Load(place_, parents_gm_[b * size], size);
    Load(token_, tokens_gm_[b * size], size);
    Order<AscendC::HardEvent::MTE2_S>();
    uint64_t room = tiling_.num_nodes - 1;  // besides the root
    const uint64_t candidates = Rank(size);
    uint64_t equals = candidates;  // how many of those that are as good as the threshold have room
    float threshold = Lowest();
    if (candidates > room) {
      threshold = Threshold(size, room);
      equals = room - Count(threshold, AscendC::CMPMODE::GT, size);
    }
    const uint32_t count = Keep(size, threshold, equals);
    Order<AscendC::HardEvent::S_MTE3>();
    Store(counts_gm_[b * kCount], count_, kCount);
    AscendC::GlobalTensor<int32_t> parents;
    parents.SetGlobalBuffer((__gm__ int32_t*)kept_parents_ + b * tiling_.width, tiling_.width);
    Store(parents, parent_, count);
    AscendC::GlobalTensor<int64_t> tokens;
    tokens.SetGlobalBuffer((__gm__ int64_t*)kept_tokens_ + b * tiling_.width, tiling_.width);
    Store(tokens, token_, count);
    Order<AscendC::HardEvent::MTE3_S>();
    Order<AscendC::HardEvent::MTE3_MTE2>();
    Order<AscendC::HardEvent::S_MTE2>();
  }

  // Scores become no more than the parent's; -inf where a node is no candidate. A child is then never better than its
  // parent, and comes after it: the best nodes always form a tree. The root ranks apart. Counts the candidates.
  __aicore__ inline uint64_t Rank(uint32_t size) {
    uint64_t candidates = 0;
    for (uint32_t i = 1; i < size; ++i) {
      const int32_t parent = place_.GetValue(i);
      float score = score_.GetValue(i);
      if (parent < 0 || parent >= static_cast<int32_t>(i) || token_.GetValue(i) < 0 || !(score > Lowest())) {
        score = Lowest();
      } else if (parent > 0 && score_.GetValue(parent) < score) {
        score = score_.GetValue(parent);
      }
      score_.SetValue(i, score);
      candidates += score > Lowest();
    }
    score_.SetValue(0, Lowest());
    Order<AscendC::HardEvent::S_V>();
    return candidates;
  }

  // The largest score that `room` or more candidates reach, by bisection over the floats in their order.
  __aicore__ inline float Threshold(uint32_t size, uint64_t room) {
    int64_t low = Key(0xFF800000u), high = Key(0x7F800000u) + 1;  // reached by enough; by too few
    if (room == 0) return Float(Bits(high - 1));
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2;
      (Count(Float(Bits(middle)), AscendC::CMPMODE::GE, size) >= room ? low : high) = middle;
    }
    return Float(Bits(low));
  }
  static __aicore__ inline int64_t Key(uint32_t bits) {
    return static_cast<int32_t>(bits & 0x80000000u ? bits ^ 0x7FFFFFFFu : bits);
  }
  static __aicore__ inline uint32_t Bits(int64_t key) {
    const uint32_t bits = static_cast<uint32_t>(key);
    return key < 0 ? bits ^ 0x7FFFFFFFu : bits;
  }

  __aicore__ inline uint64_t Count(float threshold, AscendC::CMPMODE mode, uint32_t size) {
    const uint32_t lanes = AlignUp(size, kLanes);
    AscendC::CompareScalar(bits_.template ReinterpretCast<uint8_t>(), score_, threshold, mode, lanes);
    Order<AscendC::HardEvent::V_S>();
    uint64_t count = 0;
    for (uint32_t w = 0; w < lanes / kLanes; ++w) count += AscendC::ScalarGetCountOfValue<1>(bits_.GetValue(w));
    Order<AscendC::HardEvent::S_V>();
    return count;
  }

  // Packs what is kept to the front of token_ and parent_; a node's place replaces its parent.
  __aicore__ inline uint32_t Keep(uint32_t size, float threshold, uint64_t equals) {
    uint32_t count = 1;
    parent_.SetValue(0, -1);
    place_.SetValue(0, 0);
    for (uint32_t i = 1; i < size; ++i) {
      const float score = score_.GetValue(i);
      if (!(score > Lowest()) || score < threshold) continue;
      if (score == threshold) {
        if (equals == 0) continue;
        --equals;
      }
      parent_.SetValue(count, place_.GetValue(place_.GetValue(i)));
      token_.SetValue(count, token_.GetValue(i));
      place_.SetValue(i, static_cast<int32_t>(count));
      ++count;
    }
    count_.SetValue(0, static_cast<int32_t>(count));
    return count;
  }

  // Outputs [begin, begin + share), without gaps between the requests; -1 behind the last.
  __aicore__ inline void Pack(uint64_t begin, bool writes_cu_nodes) {
    const uint64_t all = tiling_.batch * tiling_.num_nodes;
    const uint64_t end = begin + tiling_.share < all ? begin + tiling_.share : all;
    constexpr uint32_t kMinusOnesAt = GmCopy::kUbBytes, kCountsAt = kMinusOnesAt + GmMinusOnes::kUbBytes;
    AscendC::LocalTensor<int32_t> counts(AscendC::TPosition::VECCALC, kCountsAt, kRequests * kCount);
    AscendC::LocalTensor<int32_t> cu_nodes(AscendC::TPosition::VECCALC, kCountsAt + kRequests * kCount * 4, kRequests);
    minus_ones_.Begin(kMinusOnesAt);
    copy_.Begin(0);
    uint64_t total = 0;
    for (uint64_t first = 0; first < tiling_.batch; first += kRequests) {
      const uint32_t requests =
          static_cast<uint32_t>(tiling_.batch - first < kRequests ? tiling_.batch - first : kRequests);
      Order<AscendC::HardEvent::S_MTE2>();
      Load(counts, counts_gm_[first * kCount], requests * kCount);
      Order<AscendC::HardEvent::MTE2_S>();
      Order<AscendC::HardEvent::MTE3_S>();
      for (uint32_t i = 0; i < requests; ++i) {
        const uint64_t count = counts.GetValue(i * kCount);
        cu_nodes.SetValue(i, static_cast<int32_t>(total));
        const uint64_t from = begin < total ? total : begin, to = end < total + count ? end : total + count;
        if (from < to) Copy(first + i, from, to, from - total);
        total += count;
      }
      if (!writes_cu_nodes) continue;
      Order<AscendC::HardEvent::S_MTE3>();
      Store(cu_nodes_gm_[first], cu_nodes, requests);
    }
    if (writes_cu_nodes) {
      Order<AscendC::HardEvent::MTE3_S>();
      cu_nodes.SetValue(0, static_cast<int32_t>(total));
      Order<AscendC::HardEvent::S_MTE3>();
      Store(cu_nodes_gm_[tiling_.batch], cu_nodes, 1);
    }
    copy_.End();
    const uint64_t from = begin < total ? total : begin;
    if (from >= end) return;
    minus_ones_.Bytes(out_tokens_ + from * sizeof(int64_t), (end - from) * sizeof(int64_t));
    minus_ones_.Bytes(out_parents_ + from * sizeof(int32_t), (end - from) * sizeof(int32_t));
  }

  // Outputs [from, to) are nodes of request b from `node` on.
  __aicore__ inline void Copy(uint64_t b, uint64_t from, uint64_t to, uint64_t node) {
    const uint64_t at = b * tiling_.width + node, count = to - from;
    copy_.Bytes(out_tokens_ + from * sizeof(int64_t), kept_tokens_ + at * sizeof(int64_t), count * sizeof(int64_t));
    copy_.Bytes(out_parents_ + from * sizeof(int32_t), kept_parents_ + at * sizeof(int32_t), count * sizeof(int32_t));
  }

  TreeSelectTiling tiling_;
  AscendC::GlobalTensor<int64_t> tokens_gm_;
  AscendC::GlobalTensor<float> scores_gm_;
  AscendC::GlobalTensor<int32_t> parents_gm_, counts_gm_, cu_nodes_gm_;
  GM_ADDR kept_parents_;
  GM_ADDR kept_tokens_;
  GM_ADDR out_tokens_;
  GM_ADDR out_parents_;
  AscendC::LocalTensor<float> score_;
  AscendC::LocalTensor<int32_t> place_;  // of each node among those kept; before that its parent
  AscendC::LocalTensor<int64_t> token_;
  AscendC::LocalTensor<int32_t> parent_;  // of those kept
  AscendC::LocalTensor<uint64_t> bits_;
  AscendC::LocalTensor<int32_t> count_;
  GmCopy copy_;
  GmMinusOnes minus_ones_;
};

}  // namespace specdec::ascendc
