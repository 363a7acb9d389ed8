// The vector cores' half of tree attention: scores to probabilities, and the outputs' running sums. The two vector
// cores of a block take half of each step's rows.
#pragma once

#include "kernels/ascendc/tree_attention/convert.h"
#include "kernels/ascendc/tree_attention/rows.h"
#include "kernels/ascendc/tree_attention/schedule.h"

namespace specdec::ascendc {

template <typename T, bool kQuantized>
class TreeAttentionSoftmax {
 public:
  __aicore__ inline void Init(const TreeAttentionArguments& a, const TreeAttentionTiling& tiling) {
    tiling_ = &tiling;
    const TreeAttentionShape& shape = tiling.shape;
    const uint32_t block = static_cast<uint32_t>(AscendC::GetBlockIdx() / AscendC::GetTaskRation());
    second_ = AscendC::GetSubBlockIdx() != 0;
    schedule_.Init(a, tiling, block);
    depths_.Init(a, shape);
    table_.Init(a, shape);
    group_ = shape.heads / shape.kv_heads;
    width_ = AlignUp(shape.d_v, 16);
    half_ = tiling.step_rows / 2;

    __gm__ uint8_t* workspace = (__gm__ uint8_t*)a.workspace;
    const uint64_t step = uint64_t{tiling.step_rows} * tiling.tile;
    scores_gm_.SetGlobalBuffer((__gm__ float*)(workspace + tiling.workspace.scores) + block * kInFlight * step);
    products_gm_.SetGlobalBuffer((__gm__ float*)(workspace + tiling.workspace.products) +
                                 uint64_t{block} * kInFlight * tiling.step_rows * width_);
    outputs_gm_.SetGlobalBuffer((__gm__ float*)(workspace + tiling.workspace.outputs));
    lse_gm_.SetGlobalBuffer((__gm__ float*)(workspace + tiling.workspace.lse));

    const uint32_t rows = tiling.rows / 2, chunk = tiling.chunk_rows;
    for (uint32_t i = 0; i < 2; ++i) {
      const uint32_t bytes = chunk * tiling.tile * static_cast<uint32_t>(sizeof(float));
      scores_[i] = Ub<float>(tiling.ub.scores + i * bytes, chunk * tiling.tile);
    }
    probabilities_ = Ub<T>(tiling.ub.probabilities, chunk * tiling.tile);
    halves_ = probabilities_.template ReinterpretCast<float>();
    by_row_ = Ub<float>(tiling.ub.by_row, chunk * kRowBlock);
    column_ = Ub<float>(tiling.ub.column, chunk);
    alpha_ = Ub<float>(tiling.ub.alpha, kInFlight * half_ * kRowBlock);
    maximum_ = Ub<float>(tiling.ub.maximum, kInFlight * rows);
    sums_ = Ub<float>(tiling.ub.sums, kInFlight * rows * kRowBlock);
    bits_ = Ub<uint64_t>(tiling.ub.bits, chunk * tiling.tile / 64);
    products_ = Ub<float>(tiling.ub.products, chunk * width_);
    outputs_ = Ub<float>(tiling.ub.outputs, rows * width_);
    if constexpr (kQuantized) converter_.Init(a, tiling, block, second_);
  }

  __aicore__ inline void Process() {
    for (int32_t i = 0; i <= kProducts; ++i) AscendC::SetFlag<AscendC::HardEvent::V_MTE2>(i);
    AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(kScores);
    if constexpr (kQuantized) ConvertUntil(kInFlight - 1);
    FetchScores();
    for (uint32_t i = 0; Has(i + 1) || i < found_ + kInFlight; ++i) {
      const Item &current = items_[i % kItems], &previous = items_[(i - kInFlight) % kItems];
      const uint32_t chunks = i < found_ ? Chunks(current) : 0;
      const uint32_t previous_chunks = i < kInFlight ? 0 : Chunks(previous);
      if constexpr (kQuantized) ConvertUntil(i + kInFlight);
      const uint32_t all_chunks = Greater(chunks, previous_chunks);
      for (uint32_t chunk = 0; chunk < all_chunks; ++chunk) {
        if (chunk < previous_chunks) Accumulate(previous, chunk);
        if (chunk < chunks) Softmax(current, chunk);
        if (chunk + 1 == all_chunks && i < found_) {
          Order<AscendC::HardEvent::MTE2_MTE3>();  // the flag says too that earlier products were read
          AscendC::CrossCoreSetFlag<2, PIPE_MTE3>(kFlagProbabilities);
        }
        if (chunk + 1 < previous_chunks) LoadProducts(previous, chunk + 1);
        if (chunk < chunks) FetchScores();
      }
      Has(i + kInFlight);  // StoreNothing needs the place of the products
      if (i + 1 >= kInFlight && i + 1 < found_ + kInFlight) LoadProducts(items_[(i + 1 - kInFlight) % kItems], 0);
    }
    for (int32_t i = 0; i <= kProducts; ++i) AscendC::WaitFlag<AscendC::HardEvent::V_MTE2>(i);
    AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(kScores);
  }

 private:
  static constexpr uint32_t kMaxWords = kMaxTile / kColumns;
  static constexpr float kHidden = -3e38f;              // score of a key that a row does not see
  static constexpr int32_t kScores = 0, kProducts = 2;  // flags of the buffers: two of scores

  template <typename U>
  __aicore__ inline AscendC::LocalTensor<U> Ub(uint32_t address, uint32_t size) const {
    return AscendC::LocalTensor<U>(AscendC::TPosition::VECCALC, address, size);
  }

  // This core's rows of an item's step, a chunk of them: of the step [begin, begin + count), and count up to a multiple
  // of eight.
  struct Share {
    uint32_t begin, count, padded;
  };
  __aicore__ inline Share ShareOf(const Item& item) const {
    const uint32_t rows = Lesser(item.rows - item.step * tiling_->step_rows, tiling_->step_rows);
    const uint32_t first = AlignUp(CeilDiv(rows, 2), 8);
    Share share;
    share.begin = second_ ? first : 0;
    share.count = second_ ? (rows > first ? rows - first : 0) : Lesser(rows, first);
    share.padded = AlignUp(share.count, 8);
    return share;
  }
  __aicore__ inline Share ShareOf(const Item& item, uint32_t chunk) const {
    Share share = ShareOf(item);
    const uint32_t before = chunk * tiling_->chunk_rows;
    share.begin += before;
    share.count = Lesser(share.count - before, tiling_->chunk_rows);
    share.padded = Lesser(share.padded - before, tiling_->chunk_rows);
    return share;
  }
  // At least one, which may be without rows.
  __aicore__ inline uint32_t Chunks(const Item& item) const {
    return Greater<uint32_t>(CeilDiv(ShareOf(item).count, tiling_->chunk_rows), 1);
  }
  // Where the state of a chunk's rows lies: `rows` a task or item.
  __aicore__ inline uint32_t StateOf(const Item& item, uint32_t chunk) const {
    return item.tasks_before % kInFlight * (tiling_->rows / 2) + item.step * half_ + chunk * tiling_->chunk_rows;
  }
  __aicore__ inline AscendC::LocalTensor<float> MaximumOf(const Item& item, uint32_t chunk) const {
    return maximum_[StateOf(item, chunk)];
  }
  __aicore__ inline AscendC::LocalTensor<float> SumsOf(const Item& item, uint32_t chunk) const {
    return sums_[StateOf(item, chunk) * kRowBlock];
  }
  // Where its scores lie, and later its probabilities, in the workspace.
  __aicore__ inline uint64_t PlaceOf(const Item& item, const Share& share, uint32_t columns) const {
    return uint64_t{item.items_before % kInFlight} * tiling_->step_rows * tiling_->tile + share.begin * columns;
  }
  __aicore__ inline AscendC::LocalTensor<float> AlphaOf(const Item& item, uint32_t chunk) const {
    return alpha_[(item.items_before % kInFlight * half_ + chunk * tiling_->chunk_rows) * kRowBlock];
  }

  __aicore__ inline bool Has(uint32_t item) {
    while (found_ <= item && Advance(items_[found_ % kItems])) ++found_;
    return item < found_;
  }
  __aicore__ inline bool Advance(Item& item) {
    while (schedule_.Next(item)) {
      if (!item.Empty()) return true;
      StoreNothing(item);
    }
    return false;
  }

  __aicore__ inline void ConvertUntil(uint32_t item) {
    for (; converted_ < item && Has(converted_); ++converted_) {
      if (items_[converted_ % kItems].step == 0) converter_.Convert(items_[converted_ % kItems]);
    }
  }

  // The next chunk of scores, of the items one after the other.
  __aicore__ inline void FetchScores() {
    if (!Has(fetched_)) return;
    const Item& item = items_[fetched_ % kItems];
    if (fetched_chunks_ == 0) AscendC::CrossCoreWaitFlag(kFlagScores);
    const Share share = ShareOf(item, fetched_chunks_);
    if (share.count > 0) {
      const uint32_t columns = item.Columns(tiling_->tile);
      AscendC::WaitFlag<AscendC::HardEvent::V_MTE2>(kScores + fetch_place_);
      AscendC::DataCopy(scores_[fetch_place_], scores_gm_[PlaceOf(item, share, columns)], share.padded * columns);
      AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(kScores + fetch_place_);
      fetch_place_ ^= 1;
    }
    if (++fetched_chunks_ < Chunks(item)) return;
    fetched_chunks_ = 0;
    ++fetched_;
  }

  __aicore__ inline void Softmax(const Item& item, uint32_t chunk) {
    const Share share = ShareOf(item, chunk);
    if (share.count == 0) return;
    const uint32_t columns = item.Columns(tiling_->tile);
    const uint32_t count = share.padded * columns, row = columns * static_cast<uint32_t>(sizeof(T)) / kBlockBytes;
    const uint32_t score_row = columns / BlockOf<float>();
    const AscendC::LocalTensor<float> scores = scores_[place_];
    AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(kScores + place_);
    ScaleAndHide(item, share, scores, columns);
    AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(kScores);
    Exponentials(item, chunk, share.padded, scores, columns);
    const bool by_token = kQuantized && tiling_->shape.scale_per_token;
    if (by_token) {
      AddSums(item, chunk, share.padded, scores, columns, halves_);
      ByColumn(scores, converter_.ValueScales(item), share.padded, columns);
    }
    Narrow(probabilities_, scores, count);
    Order<AscendC::HardEvent::V_MTE3>(kScores);
    AscendC::GlobalTensor<T> to;
    to.SetGlobalBuffer((__gm__ T*)scores_gm_[PlaceOf(item, share, columns)].GetPhyAddr());
    AscendC::DataCopy(to, probabilities_,
                      AscendC::DataCopyParams(static_cast<uint16_t>(share.padded), static_cast<uint16_t>(row), 0,
                                              static_cast<uint16_t>(score_row - row)));
    AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(kScores);
    if (!by_token) AddSums(item, chunk, share.padded, scores, columns, scores);  // while the probabilities leave
    AscendC::SetFlag<AscendC::HardEvent::V_MTE2>(kScores + place_);
    place_ ^= 1;
  }

  __aicore__ inline void ScaleAndHide(const Item& item, const Share& share, const AscendC::LocalTensor<float>& scores,
                                      uint32_t columns) {
    const int32_t count = static_cast<int32_t>(share.padded * columns);
    float scale = tiling_->shape.scale;
    if constexpr (kQuantized) {
      if (tiling_->shape.scale_per_token) {
        ByColumn(scores, converter_.KeyScales(item), share.padded, columns);
      } else {
        scale *= converter_.KeyScale(item);
      }
    }
    AscendC::Muls(scores, scores, scale, count);
    Barrier();
    if (tiling_->shape.softcap > 0) SoftCap(scores, count);
    uint64_t in_cache[kMaxWords];
    FindInCache(item, in_cache);
    if (!NeedsMask(item, columns, in_cache)) return;
    WriteBits(item, share, columns / kColumns, in_cache);
    AscendC::Select(scores, bits_.template ReinterpretCast<uint8_t>(), scores, kHidden,
                    AscendC::SELMODE::VSEL_TENSOR_SCALAR_MODE, static_cast<uint32_t>(count));
    Barrier();
  }

  // scores <- scores factors, where `factors` [columns] are the keys'.
  __aicore__ inline void ByColumn(const AscendC::LocalTensor<float>& scores, const AscendC::LocalTensor<float>& factors,
                                  uint32_t rows, uint32_t columns) {
    const uint8_t stride = static_cast<uint8_t>(columns / BlockOf<float>());
    for (uint32_t at = 0; at < columns; at += kLanes) {
      AscendC::Mul(scores[at], scores[at], factors[at], static_cast<uint64_t>(kLanes), static_cast<uint8_t>(rows),
                   AscendC::BinaryRepeatParams(1, 1, 1, stride, stride, 0));
    }
    Barrier();
  }

  // cap tanh(s / cap) = cap - 2 cap / (e^(2 s / cap) + 1), where s / cap beyond 20 makes no difference.
  __aicore__ inline void SoftCap(const AscendC::LocalTensor<float>& scores, int32_t count) {
    const float cap = tiling_->shape.softcap;
    AscendC::Muls(scores, scores, 2.0f / cap, count);
    AscendC::Duplicate(by_row_, -2.0f * cap, static_cast<int32_t>(kLanes));
    Barrier();
    AscendC::Mins(scores, scores, 40.0f, count);
    Barrier();
    AscendC::Maxs(scores, scores, -40.0f, count);
    Barrier();
    AscendC::Exp(scores, scores, count);
    Barrier();
    AscendC::Adds(scores, scores, 1.0f, count);
    Barrier();
    AscendC::Div(scores, by_row_, scores, static_cast<uint64_t>(kLanes), static_cast<uint8_t>(count / kLanes),
                 AscendC::BinaryRepeatParams(1, 1, 1, 8, 0, 8));
    Barrier();
    AscendC::Adds(scores, scores, cap, count);
    Barrier();
  }

  // Bit j: slot j of the tile is in the cache.
  __aicore__ inline void FindInCache(const Item& item, uint64_t (&bits)[kMaxWords]) const {
    for (uint32_t word = 0; word < kMaxWords; ++word) bits[word] = 0;
    const int64_t slot = item.Slot(tiling_->tile);
    const uint32_t keys = item.Keys(tiling_->tile);
    for (uint32_t at = 0; at < keys;) {
      const SlotRun run = table_.Find(item.request, slot + at, keys - at);
      for (uint32_t word = 0; run.block >= 0 && word < kMaxWords; ++word) {
        const int64_t base = int64_t{64} * word;
        bits[word] |= From(at - base) & ~From(at + run.count - base);
      }
      at += run.count;
    }
  }
  // The bits from `first` on of a word; it may lie outside.
  __aicore__ inline uint64_t From(int64_t first) const {
    return first <= 0 ? ~uint64_t{0} : first >= 64 ? 0 : ~uint64_t{0} << first;
  }

  __aicore__ inline bool NeedsMask(const Item& item, uint32_t columns, const uint64_t (&in_cache)[kMaxWords]) const {
    if (item.OfNodes()) return true;
    for (uint32_t word = 0; word < columns / kColumns; ++word) {
      if (~in_cache[word] != 0) return true;
    }
    const int64_t window = tiling_->shape.window;
    return window > 0 && item.request.context + item.deepest - window + 1 > item.Slot(tiling_->tile);
  }

  // A bit a score: the row sees the key.
  __aicore__ inline void WriteBits(const Item& item, const Share& share, uint32_t words,
                                   const uint64_t (&in_cache)[kMaxWords]) {
    Order<AscendC::HardEvent::V_S>();
    const int64_t row = item.row + item.step * tiling_->step_rows + share.begin;
    int64_t node = -1;
    uint64_t seen[kMaxWords] = {};
    for (uint32_t i = 0; i < share.padded; ++i) {
      const int64_t node_of_row = (row + i) / group_;
      if (i < share.count && node_of_row != node) {
        node = node_of_row;
        for (uint32_t word = 0; word < words; ++word) seen[word] = in_cache[word] & Seen(item, node, word);
      }
      for (uint32_t word = 0; word < words; ++word) bits_.SetValue(i * words + word, seen[word]);
    }
    Order<AscendC::HardEvent::S_V>();
  }

  // Which of 64 keys of the tile the node sees, but for those not in the cache.
  __aicore__ inline uint64_t Seen(const Item& item, int64_t node, uint32_t word) const {
    const Request& request = item.request;
    const int64_t window = tiling_->shape.window, slot = item.Slot(tiling_->tile) + int64_t{64} * word;
    if (!item.OfNodes()) {
      return window == 0 ? ~uint64_t{0} : From(request.context + depths_.Of(request, node) - window + 1 - slot);
    }
    const int64_t first = slot - request.context;
    uint64_t seen = depths_.Word(request, node, static_cast<uint32_t>(first / 64));
    if (window == 0) return seen;
    const int64_t depth = depths_.Of(request, node);
    if (depths_.AreIndices()) return seen & From(depth - window + 1 - first);
    const int64_t live = request.nodes - first;
    uint64_t candidates = live < 64 ? seen & ~From(live) : seen;
    for (; candidates != 0; candidates &= candidates - 1) {
      const int64_t key = AscendC::GetSFFValue<1>(candidates);
      if (depth - depths_.Of(request, first + key) >= window) seen &= ~(uint64_t{1} << key);
    }
    return seen;
  }

  // scores <- e^(s - maximum); maximum, and the factor of the sums and outputs so far.
  __aicore__ inline void Exponentials(const Item& item, uint32_t chunk, uint32_t padded,
                                      const AscendC::LocalTensor<float>& scores, uint32_t columns) {
    const int32_t rows = static_cast<int32_t>(padded);
    const int32_t blocks = rows * static_cast<int32_t>(kRowBlock);
    const AscendC::LocalTensor<float> maximum = MaximumOf(item, chunk), sums = SumsOf(item, chunk);
    const AscendC::LocalTensor<float> alpha = AlphaOf(item, chunk);
    if (item.tile == item.first_tile) {
      AscendC::Duplicate(maximum, kNothing, rows);
      AscendC::Duplicate(sums, 0.0f, blocks);
      Barrier();
    }
    FoldRows<true>(scores, padded, columns, halves_);
    Fold<true>(column_, by_row_, padded / 8);
    Barrier();
    AscendC::Max(column_, column_, maximum, rows);
    Barrier();
    AscendC::Sub(maximum, maximum, column_, rows);
    Spread(by_row_, column_, padded);
    Barrier();
    AscendC::Exp(maximum, maximum, rows);
    ByRow<RowOp::kSub>(scores, by_row_, padded, columns);
    Barrier();
    Spread(alpha, maximum, padded);
    AscendC::Exp(scores, scores, rows * static_cast<int32_t>(columns));
    Barrier();
    AscendC::DataCopy(maximum, column_, padded);
    AscendC::Mul(sums, sums, alpha, blocks);
  }

  __aicore__ inline void AddSums(const Item& item, uint32_t chunk, uint32_t rows,
                                 const AscendC::LocalTensor<float>& scores, uint32_t columns,
                                 const AscendC::LocalTensor<float>& scratch) {
    FoldRows<false>(scores, rows, columns, scratch);
    const AscendC::LocalTensor<float> sums = SumsOf(item, chunk);
    AscendC::Add(sums, sums, by_row_, static_cast<int32_t>(rows * kRowBlock));
  }

  // by_row_ [rows, 8] <- eight maxima or sums of each row. `scratch` may be the scores, which are lost then.
  template <bool kMax>
  __aicore__ inline void FoldRows(const AscendC::LocalTensor<float>& scores, uint32_t rows, uint32_t columns,
                                  const AscendC::LocalTensor<float>& scratch) {
    AscendC::LocalTensor<float> from = scores;
    for (; columns > kLanes; columns /= 2) {
      const uint8_t repeats = static_cast<uint8_t>(rows * columns / (2 * kLanes));
      const AscendC::BinaryRepeatParams repeat(1, 1, 1, 8, 16, 16);
      if constexpr (kMax) {
        AscendC::Max(scratch, from, from[kLanes], static_cast<uint64_t>(kLanes), repeats, repeat);
      } else {
        AscendC::Add(scratch, from, from[kLanes], static_cast<uint64_t>(kLanes), repeats, repeat);
      }
      Barrier();
      from = scratch;
    }
    Fold<kMax>(by_row_, from, rows);
    Barrier();
  }

  __aicore__ inline void LoadProducts(const Item& item, uint32_t chunk) {
    const Share share = ShareOf(item, chunk);
    if (chunk == 0) AscendC::CrossCoreWaitFlag(kFlagProducts);
    if (share.count == 0) return;
    const uint64_t from = (uint64_t{item.items_before % kInFlight} * tiling_->step_rows + share.begin) * width_;
    AscendC::WaitFlag<AscendC::HardEvent::V_MTE2>(kProducts);
    AscendC::DataCopy(products_, products_gm_[from], share.padded * width_);
    AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(kProducts);
  }

  __aicore__ inline void Accumulate(const Item& item, uint32_t chunk) {
    const Share share = ShareOf(item, chunk);
    if (share.count == 0) return;
    const uint32_t at = (item.step * half_ + chunk * tiling_->chunk_rows) * width_, count = share.padded * width_;
    const AscendC::LocalTensor<float> outputs = outputs_[at];
    if (item.tile == item.first_tile) {
      Order<AscendC::HardEvent::MTE3_V>(kProducts);  // the outputs of the task before have left
      AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(kProducts);
      AscendC::DataCopy(outputs, products_, count);
    } else {
      AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(kProducts);
      MulAddByRow(outputs, AlphaOf(item, chunk), products_, share.padded, width_);
    }
    AscendC::SetFlag<AscendC::HardEvent::V_MTE2>(kProducts);
    if (item.tile + 1 == item.last_tile) Finish(item, chunk, share, outputs);
  }

  __aicore__ inline void Finish(const Item& item, uint32_t chunk, const Share& share,
                                const AscendC::LocalTensor<float>& outputs) {
    const int32_t rows = static_cast<int32_t>(share.padded);
    const AscendC::LocalTensor<float> sum = SumsOf(item, chunk), maximum = MaximumOf(item, chunk), lse = halves_;
    Barrier();
    Fold<false>(sum, sum, share.padded / 8);
    Barrier();
    AscendC::Maxs(column_, sum, kTiny, rows);
    AscendC::Ln(sum, sum, rows);
    Barrier();
    Spread(by_row_, column_, share.padded);
    AscendC::Add(sum, sum, maximum, rows);
    Barrier();
    ByRow<RowOp::kDiv>(outputs, by_row_, share.padded, width_);
    AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(kScores);
    Spread(lse, sum, share.padded);
    if constexpr (kQuantized) {
      if (!tiling_->shape.scale_per_token) {
        Barrier();
        AscendC::Muls(outputs, outputs, converter_.ValueScale(item), static_cast<int32_t>(share.padded * width_));
      }
    }
    Order<AscendC::HardEvent::V_MTE3>(kProducts);
    const int64_t first = item.row + item.step * tiling_->step_rows + share.begin;
    StoreRows(item, first, share.count, lse_gm_, lse, kRowBlock);
    AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(kScores);
    StoreRows(item, first, share.count, outputs_gm_, outputs, width_);
  }

  // A part of the request's keys that these rows do not see.
  __aicore__ inline void StoreNothing(const Item& item) {
    AscendC::PipeBarrier<PIPE_ALL>();
    AscendC::Duplicate(products_, 0.0f, static_cast<int32_t>(8 * width_));
    FillMinusInfinity(by_row_, 8 * kRowBlock);
    Order<AscendC::HardEvent::V_MTE3>();
    const uint32_t middle = Lesser(item.rows, AlignUp(CeilDiv(item.rows, 2), 8));
    const uint32_t end = second_ ? item.rows : middle;
    for (uint32_t at = second_ ? middle : 0; at < end; at += 8) {
      const uint32_t count = Lesser<uint32_t>(end - at, 8);
      StoreRows(item, item.row + at, count, outputs_gm_, products_, width_);
      StoreRows(item, item.row + at, count, lse_gm_, by_row_, kRowBlock);
    }
    AscendC::PipeBarrier<PIPE_ALL>();
  }

  // `count` rows of the request, from `row` on, to the item's split.
  __aicore__ inline void StoreRows(const Item& item, int64_t row, uint32_t count,
                                   const AscendC::GlobalTensor<float>& to, const AscendC::LocalTensor<float>& from,
                                   uint32_t width) {
    const TreeAttentionShape& shape = tiling_->shape;
    const uint32_t bytes = width * static_cast<uint32_t>(sizeof(float));
    for (uint32_t at = 0; at < count;) {
      const RowPiece piece = PieceOf(row + at, count - at, group_);
      const uint64_t to_row = (item.split * shape.num_nodes + item.request.first + piece.node) * shape.heads +
                              uint64_t{item.head} * group_ + piece.member;
      AscendC::DataCopyPad(to[to_row * width], from[at * width],
                           AscendC::DataCopyExtParams(static_cast<uint16_t>(piece.nodes), piece.members * bytes, 0,
                                                      (shape.heads - piece.members) * bytes, 0));
      at += piece.Rows();
    }
  }

  const TreeAttentionTiling* tiling_;
  Schedule schedule_;
  Depths depths_;
  BlockTable table_;
  Int8Converter<T> converter_;  // for an int8 cache
  AscendC::GlobalTensor<float> scores_gm_, products_gm_, outputs_gm_, lse_gm_;
  AscendC::LocalTensor<float> scores_[2], by_row_, column_, products_, outputs_;
  AscendC::LocalTensor<float> maximum_, sums_, alpha_;  // of a row: one, eight parts, one eight times
  AscendC::LocalTensor<float> halves_;                  // where the probabilities come later
  AscendC::LocalTensor<T> probabilities_;
  AscendC::LocalTensor<uint64_t> bits_;
  Item items_[kItems];
  uint32_t found_ = 0, converted_ = 0;         // items
  uint32_t fetched_ = 0, fetched_chunks_ = 0;  // items, and chunks of the next one
  int32_t fetch_place_ = 0, place_ = 0;        // of scores: to load, in use
  uint32_t group_, width_, half_;
  bool second_;
};

}  // namespace specdec::ascendc
