// Who does what, in which order: requests, the tasks they are cut into, and the products of a task. Cube and vector
// cores walk the same schedule, each by itself, from lengths that only the device knows.
//
// A row is one head of one node: row = node * group + member of the group. A task is a block of rows of one KV head
// against a split of the keys. Where a request is cut depends on its own lengths and on host sizes alone, so that its
// results do not depend on the batch.
#pragma once

#include "kernels/ascendc/common/pipe.h"
#include "kernels/ascendc/tree_attention/tree_attention_tiling.h"

namespace specdec::ascendc {

template <typename T>
__aicore__ inline T Lesser(T a, T b) {
  return a < b ? a : b;
}
template <typename T>
__aicore__ inline T Greater(T a, T b) {
  return a < b ? b : a;
}

struct Request {
  uint32_t index;
  int64_t first, nodes;  // rows of q
  int64_t context;       // may pass the table's capacity: positions count from here all the same
  int64_t slots;         // context and nodes, as far as the table goes
};

class Requests {
 public:
  __aicore__ inline void Init(const TreeAttentionArguments& a, const TreeAttentionShape& shape) {
    shape_ = &shape;
    context_lens_.SetGlobalBuffer((__gm__ int32_t*)a.context_lens, shape.batch);
    cu_nodes_.SetGlobalBuffer((__gm__ int32_t*)a.cu_nodes, shape.batch + 1);
    end_ = Clamp(cu_nodes_.GetValue(0), 0);
    index_ = 0;
  }

  __aicore__ inline bool Next(Request& request) {
    if (index_ == shape_->batch) return false;
    request.index = index_;
    request.first = end_;
    end_ = Clamp(cu_nodes_.GetValue(index_ + 1), end_);
    request.nodes = Lesser<int64_t>(end_ - request.first, shape_->max_nodes);
    request.context = Greater<int64_t>(context_lens_.GetValue(index_), 0);
    request.slots = Lesser(request.context + request.nodes, int64_t(shape_->max_blocks) * shape_->block_size);
    ++index_;
    return true;
  }

 private:
  __aicore__ inline int64_t Clamp(int64_t x, int64_t low) const {
    return Greater(low, Lesser<int64_t>(x, shape_->num_nodes));
  }

  const TreeAttentionShape* shape_;
  AscendC::GlobalTensor<int32_t> context_lens_, cu_nodes_;
  int64_t end_;
  uint32_t index_;
};

// Parts that a request's keys are cut into, for each block of rows.
__aicore__ inline uint32_t SplitsOf(const Request& request, const TreeAttentionTiling& t) {
  int64_t keys = request.slots;
  if (t.shape.window > 0) keys = Lesser(keys, int64_t(t.shape.window) + request.nodes);
  return static_cast<uint32_t>(Greater<int64_t>(1, Lesser<int64_t>(keys / kMinSplitKeys, t.splits)));
}

// Depths of nodes: given, or counted from the mask, or those of a chain.
class Depths {
 public:
  __aicore__ inline void Init(const TreeAttentionArguments& a, const TreeAttentionShape& shape) {
    mask_words_ = shape.mask_words;
    has_mask_ = a.mask != nullptr;
    has_depth_ = a.depth != nullptr;
    if (has_mask_) mask_.SetGlobalBuffer((__gm__ uint64_t*)a.mask, shape.num_nodes * shape.mask_words);
    if (has_depth_) depth_.SetGlobalBuffer((__gm__ int32_t*)a.depth, shape.num_nodes);
  }
  // Whether a node's depth is its index.
  __aicore__ inline bool AreIndices() const { return !has_mask_ && !has_depth_; }
  __aicore__ inline bool HasMask() const { return has_mask_; }

  __aicore__ inline int64_t Of(const Request& request, int64_t node) const {
    if (has_depth_) return depth_.GetValue(request.first + node);
    if (!has_mask_) return node;
    int64_t bits = 0;
    for (int64_t i = 0; i < request.nodes; i += 64) {
      uint64_t word = Word(request, node, static_cast<uint32_t>(i / 64));
      const int64_t live = request.nodes - i;
      if (live < 64) word &= (uint64_t{1} << live) - 1;
      bits += AscendC::GetBitCount<1>(word);
    }
    return bits - 1;
  }
  // Bits of the nodes [64 * word, 64 * word + 64) that `node` sees.
  __aicore__ inline uint64_t Word(const Request& request, int64_t node, uint32_t word) const {
    if (has_mask_) {
      return word < mask_words_ ? mask_.GetValue((request.first + node) * mask_words_ + word) : 0;
    }
    const int64_t last = node - int64_t{64} * word;
    return last < 0 ? 0 : last >= 63 ? ~uint64_t{0} : (uint64_t{2} << last) - 1;
  }

 private:
  AscendC::GlobalTensor<uint64_t> mask_;
  AscendC::GlobalTensor<int32_t> depth_;
  uint32_t mask_words_;
  bool has_mask_, has_depth_;
};

constexpr uint32_t kColumns = 64;  // scores are computed in whole words of the mask

// One product each way: a tile of keys against a step of rows. Tiles do not mix committed slots with nodes, so that a
// tile of nodes starts at a word of the mask.
struct Item {
  Request request;
  uint32_t head, split;                               // KV head
  int64_t row;                                        // of the request, first of the task
  uint32_t rows;                                      // of the task
  int64_t begin, context_end, end;                    // slots that some row of the task sees
  int64_t deepest;                                    // depth among the rows, where there is a window
  uint32_t context_tiles;                             // of all splits
  uint32_t first_tile, last_tile;                     // of this split: [first, last), none if equal
  uint32_t tile, step;                                // of this item
  uint32_t tiles_before, items_before, tasks_before;  // on this core

  __aicore__ inline bool Empty() const { return first_tile == last_tile; }
  __aicore__ inline bool OfNodes() const { return tile >= context_tiles; }
  __aicore__ inline int64_t Slot(uint32_t size) const {
    return OfNodes() ? request.context + int64_t(tile - context_tiles) * size : begin + int64_t(tile) * size;
  }
  __aicore__ inline uint32_t Keys(uint32_t size) const {
    return static_cast<uint32_t>(Lesser<int64_t>((OfNodes() ? end : context_end) - Slot(size), size));
  }
  // Of the scores: the keys and more, so that a row can be folded in the middle down to kColumns.
  __aicore__ inline uint32_t Columns(uint32_t size) const {
    uint32_t columns = kColumns;
    while (columns < Keys(size)) columns *= 2;
    return columns;
  }
};

// Rows that lie evenly: `members` of the group, from `member` on, of each of `nodes` nodes.
struct RowPiece {
  int64_t node;
  uint32_t member, nodes, members;
  __aicore__ inline uint32_t Rows() const { return nodes * members; }
};
// The first piece of `count` rows from `row` on: the rest of a node, or whole nodes, or the start of a node.
__aicore__ inline RowPiece PieceOf(int64_t row, uint32_t count, uint32_t group) {
  const uint32_t member = static_cast<uint32_t>(row % group);
  if (member == 0 && count >= group) return RowPiece{row / group, 0, count / group, group};
  return RowPiece{row / group, member, 1, Lesser(count, group - member)};
}

// A run of slots in one block of the cache.
struct SlotRun {
  int64_t block;  // -1 if the table does not name one of the cache
  uint32_t offset, count;
};
class BlockTable {
 public:
  __aicore__ inline void Init(const TreeAttentionArguments& a, const TreeAttentionShape& shape) {
    shape_ = &shape;
    table_.SetGlobalBuffer((__gm__ int32_t*)a.block_table, uint64_t{shape.batch} * shape.max_blocks);
  }
  // The run from `slot` on, at most `count` slots.
  __aicore__ inline SlotRun Find(const Request& request, int64_t slot, uint32_t count) const {
    const int64_t page = slot / shape_->block_size;
    const uint32_t offset = static_cast<uint32_t>(slot % shape_->block_size);
    const int64_t id = table_.GetValue(uint64_t{request.index} * shape_->max_blocks + page);
    return SlotRun{id >= 0 && id < shape_->num_blocks ? id : -1, offset, Lesser(count, shape_->block_size - offset)};
  }

 private:
  const TreeAttentionShape* shape_;
  AscendC::GlobalTensor<int32_t> table_;
};

// Between the cube core and the vector cores of a block.
constexpr uint16_t kFlagScores = 0, kFlagProbabilities = 1, kFlagProducts = 2, kFlagConverted = 3;

constexpr uint32_t kItems = 8;  // kept by number, of which kInFlight behind, and those ahead, are in use

class Schedule {
 public:
  __aicore__ inline void Init(const TreeAttentionArguments& a, const TreeAttentionTiling& tiling, uint32_t block) {
    tiling_ = &tiling;
    group_ = tiling.shape.heads / tiling.shape.kv_heads;
    step_ = 2 * block + 1;
    task_ = uint64_t{block} - step_;  // one step before the first
    requests_.Init(a, tiling.shape);
    depths_.Init(a, tiling.shape);
    item_.request.nodes = 0;
    item_.row = item_.rows = 0;
    item_.tile = item_.step = item_.first_tile = item_.last_tile = 0;
    item_.tiles_before = item_.items_before = item_.tasks_before = 0;
  }

  // The next product of this core, or a task without any (item.Empty()).
  __aicore__ inline bool Next(Item& item) {
    if (!NextInTask() && !NextTask()) return false;
    item = item_;
    return true;
  }

  __aicore__ inline uint32_t Steps(const Item& item) const { return CeilDiv(item.rows, tiling_->step_rows); }

 private:
  __aicore__ inline bool NextInTask() {
    if (item_.tile == item_.last_tile) return false;  // also at the start, and after a task without products
    ++item_.items_before;
    if (++item_.step < Steps(item_)) return true;
    item_.step = 0;
    ++item_.tiles_before;
    return ++item_.tile < item_.last_tile;
  }

  __aicore__ inline bool NextTask() {
    task_ += step_;
    step_ = 2 * tiling_->cores - step_;
    while (task_ >= tasks_end_) {
      if (!NextRows()) return false;
    }
    const uint32_t ordinal = static_cast<uint32_t>(task_ - tasks_begin_);
    item_.head = ordinal / splits_;
    item_.split = ordinal % splits_;
    item_.first_tile = item_.tile = static_cast<uint32_t>(uint64_t{tiles_} * item_.split / splits_);
    item_.last_tile = static_cast<uint32_t>(uint64_t{tiles_} * (item_.split + 1) / splits_);
    item_.step = 0;
    ++item_.tasks_before;
    return true;
  }

  // The tasks of the next block of rows are numbers [tasks_begin_, tasks_end_); the cores take them in order, then in
  // reverse, and so on: what makes tasks longer than others repeats from request to request.
  __aicore__ inline bool NextRows() {
    item_.row += item_.rows;
    while (item_.row >= item_.request.nodes * group_) {
      if (!requests_.Next(item_.request)) return false;
      item_.row = 0;
      splits_ = SplitsOf(item_.request, *tiling_);
    }
    item_.rows = static_cast<uint32_t>(Lesser<int64_t>(item_.request.nodes * group_ - item_.row, tiling_->rows));
    FindKeys();
    tasks_begin_ = tasks_end_;
    tasks_end_ += uint64_t{tiling_->shape.kv_heads} * splits_;
    return true;
  }

  __aicore__ inline void FindKeys() {
    const Request& request = item_.request;
    const int64_t first = item_.row / group_, last = (item_.row + item_.rows - 1) / group_;
    item_.begin = 0;
    item_.end = request.slots;
    if (!depths_.HasMask()) item_.end = Lesser(item_.end, request.context + last + 1);
    item_.context_end = Lesser(item_.end, request.context);
    if (tiling_->shape.window > 0) {
      int64_t lowest = first;
      item_.deepest = last;
      if (!depths_.AreIndices()) {
        lowest = item_.deepest = depths_.Of(request, first);
        for (int64_t node = first + 1; node <= last; ++node) {
          const int64_t depth = depths_.Of(request, node);
          lowest = Lesser(lowest, depth);
          item_.deepest = Greater(item_.deepest, depth);
        }
      }
      item_.begin = Greater<int64_t>(request.context + lowest - tiling_->shape.window + 1, 0);
      item_.begin = Lesser(item_.begin, item_.context_end);
    }
    const int64_t tile = tiling_->tile;
    item_.context_tiles = static_cast<uint32_t>((item_.context_end - item_.begin + tile - 1) / tile);
    tiles_ = item_.context_tiles;
    if (item_.end > request.context) {
      tiles_ += static_cast<uint32_t>((item_.end - request.context + tile - 1) / tile);
    }
  }

  const TreeAttentionTiling* tiling_;
  Requests requests_;
  Depths depths_;
  Item item_;
  uint32_t group_, step_, splits_ = 1, tiles_ = 0;
  uint64_t task_, tasks_begin_ = 0, tasks_end_ = 0;
};

}  // namespace specdec::ascendc
