// Paged KV cache: append candidates, compact accepted ones, move lengths, take and return pages.
#pragma once

#include "kernels/ascendc/common/copy.h"
#include "kernels/ascendc/common/nodes.h"
#include "kernels/ascendc/kv_cache/kv_cache_tiling.h"
#include "kernels/status.h"

namespace specdec::ascendc {

constexpr int64_t kMaxLength = 0x7FFFFFFF;

// Where the tokens of the requests live.
class Pages {
 public:
  __aicore__ inline void Init(GM_ADDR block_table, const PageTable& table) {
    ids_.SetGlobalBuffer((__gm__ int32_t*)block_table, table.batch * table.max_blocks);
    table_ = table;
  }
  // Block of token `s`, or -1 where it has no place: outside the table, or on a block outside the cache.
  __aicore__ inline int64_t Block(uint64_t b, int64_t s) const {
    if (s < 0 || s >= static_cast<int64_t>(table_.max_blocks * table_.block_size)) return -1;
    const int64_t block = ids_.GetValue(b * table_.max_blocks + s / table_.block_size);
    return block < static_cast<int64_t>(table_.num_blocks) ? block : -1;
  }
  __aicore__ inline uint64_t Offset(int64_t s) const { return s % table_.block_size; }

 private:
  AscendC::GlobalTensor<int32_t> ids_;
  PageTable table_;
};

class KvAppend {
 public:
  __aicore__ inline void Init(GM_ADDR k, GM_ADDR v, GM_ADDR k_cache, GM_ADDR v_cache, GM_ADDR block_table,
                              GM_ADDR context_lens, GM_ADDR cu_nodes, const KvAppendTiling& tiling) {
    tiling_ = tiling;
    source_[0] = k;
    source_[1] = v;
    cache_[0] = k_cache;
    cache_[1] = v_cache;
    pages_.Init(block_table, tiling.table);
    context_lens_.SetGlobalBuffer((__gm__ int32_t*)context_lens, tiling.table.batch);
    cu_nodes_.SetGlobalBuffer((__gm__ int32_t*)cu_nodes, tiling.table.batch + 1);
  }

  __aicore__ inline void Process() {
    // Of this core's first request, if all are alike.
    Preload(context_lens_[AscendC::GetBlockIdx() * tiling_.table.batch / tiling_.cores]);
    copy_.Begin(0);
    Append(0);
    // A latent cache holds the values in its keys: the same bytes are written twice.
    AscendC::PipeBarrier<PIPE_MTE3>();
    Append(1);
    copy_.End();
  }

 private:
  __aicore__ inline void Append(uint32_t side) {
    const uint64_t core = AscendC::GetBlockIdx();
    int64_t first = 0, last = static_cast<int64_t>(tiling_.num_nodes);
    if (tiling_.split == Split::kRows) {
      first = core * tiling_.share;
      if (first + static_cast<int64_t>(tiling_.share) < last) last = first + tiling_.share;
    }
    int64_t end = NodeBound(cu_nodes_, 0, 0, tiling_.num_nodes);
    for (uint64_t b = 0; b < tiling_.table.batch && end < last; ++b) {
      const int64_t begin = end;
      end = NodeBound(cu_nodes_, b + 1, begin, tiling_.num_nodes);
      const int64_t from = begin < first ? first : begin, to = end < last ? end : last;
      if (from >= to || (tiling_.split == Split::kRequests && b % tiling_.cores != core)) continue;
      AppendNodes(side, b, from, to, context_lens_.GetValue(b) - begin);
    }
  }

  // Node n goes to slot n + shift: those that share a block in one piece.
  __aicore__ inline void AppendNodes(uint32_t side, uint64_t b, int64_t begin, int64_t end, int64_t shift) {
    const int64_t block_size = static_cast<int64_t>(tiling_.table.block_size);
    if (begin + shift < 0) begin = -shift;
    for (int64_t n = begin; n < end;) {
      const int64_t left = block_size - static_cast<int64_t>(pages_.Offset(n + shift));
      const int64_t count = end - n < left ? end - n : left;
      const int64_t block = pages_.Block(b, n + shift);
      if (block >= 0) AppendToBlock(tiling_.sides[side], side, n, count, block, pages_.Offset(n + shift));
      n += count;
    }
  }

  __aicore__ inline void AppendToBlock(const AppendSide& layout, uint32_t side, uint64_t node, uint64_t count,
                                       uint64_t block, uint64_t offset) {
    GM_ADDR from = source_[side] + node * layout.node_stride;
    GM_ADDR to = cache_[side] + block * layout.block_stride + offset * layout.offset_stride;
    if (layout.heads == 1) {
      copy_.Rows(to, layout.offset_stride, from, layout.node_stride, layout.head_bytes, count);
      return;
    }
    for (uint64_t i = 0; i < count; ++i)
      copy_.Rows(to + i * layout.offset_stride, layout.cache_head_stride, from + i * layout.node_stride,
                 layout.head_stride, layout.head_bytes, layout.heads);
  }

  KvAppendTiling tiling_;
  GM_ADDR source_[2];
  GM_ADDR cache_[2];
  Pages pages_;
  AscendC::GlobalTensor<int32_t> context_lens_, cu_nodes_;
  GmCopy copy_;
};

class KvRollback {
 public:
  __aicore__ inline void Init(GM_ADDR block_table, GM_ADDR context_lens, GM_ADDR num_accepted, GM_ADDR path,
                              const KvRollbackTiling& tiling) {
    tiling_ = tiling;
    pages_.Init(block_table, tiling.table);
    context_lens_.SetGlobalBuffer((__gm__ int32_t*)context_lens, tiling.table.batch);
    num_accepted_.SetGlobalBuffer((__gm__ int32_t*)num_accepted, tiling.table.batch);
    path_.SetGlobalBuffer((__gm__ int32_t*)path, tiling.table.batch * tiling.path_len);
  }

  __aicore__ inline void Process() {
    if (tiling_.path_len > 0) {
      const uint64_t first = AscendC::GetBlockIdx() % tiling_.groups;
      Preload(num_accepted_[first]);
      Preload(path_[first * tiling_.path_len]);
    }
    copy_.Begin(0);
    MoveColumns();
    MoveRequests();
    copy_.End();
    if (!tiling_.last) return;
    AscendC::SyncAll();  // all cores have read the lengths
    if (AscendC::GetBlockIdx() == 0) Advance();
  }

 private:
  // This core's columns of the caches whose rows may be split, for the requests of its group.
  __aicore__ inline void MoveColumns() {
    const uint64_t core = AscendC::GetBlockIdx();
    const uint64_t begin = core / tiling_.groups * tiling_.share, end = begin + tiling_.share;
    for (uint64_t b = core % tiling_.groups; b < tiling_.table.batch; b += tiling_.groups) {
      uint64_t column = 0;  // of the cache's first byte
      for (uint32_t i = 0; i < tiling_.num_split && column < end; ++i) {
        const RollbackCache& cache = tiling_.caches[i];
        const uint64_t from = begin < column ? column : begin;
        const uint64_t to = end < column + cache.row_bytes ? end : column + cache.row_bytes;
        if (from < to) Move(b, cache, from - column, to - column);
        column += cache.row_bytes;
      }
    }
  }

  __aicore__ inline void MoveRequests() {
    const uint64_t core = AscendC::GetBlockIdx();
    const uint64_t step = tiling_.rest == Split::kRequests ? tiling_.cores : 1;
    if (core >= step) return;
    for (uint64_t b = core; b < tiling_.table.batch; b += step)
      for (uint32_t i = tiling_.num_split; i < tiling_.num_caches; ++i)
        Move(b, tiling_.caches[i], 0, tiling_.caches[i].row_bytes);
  }

  // Bytes [begin, end) of the accepted rows of a request. In ascending order no row is written before it is read: the
  // i-th node of a path is never before i.
  __aicore__ inline void Move(uint64_t b, const RollbackCache& cache, uint64_t begin, uint64_t end) {
    const int64_t context = context_lens_.GetValue(b), last = Last(num_accepted_.GetValue(b));
    for (int64_t i = 0; i <= last; ++i) {
      const int64_t node = path_.GetValue(b * tiling_.path_len + i);
      if (node <= i) continue;  // in place already, or no node
      const int64_t from = pages_.Block(b, context + node), to = pages_.Block(b, context + i);
      if (from < 0 || to < 0) continue;
      copy_.Bytes(Row(cache, to, context + i) + begin, Row(cache, from, context + node) + begin, end - begin);
    }
  }

  __aicore__ inline int64_t Last(int64_t num_accepted) const {
    const int64_t path_len = static_cast<int64_t>(tiling_.path_len);
    return path_len > 0 && num_accepted >= path_len ? path_len - 1 : num_accepted;
  }
  __aicore__ inline GM_ADDR Row(const RollbackCache& cache, uint64_t block, int64_t s) const {
    return (GM_ADDR)cache.data + block * cache.block_stride + pages_.Offset(s) * cache.offset_stride;
  }

  __aicore__ inline void Advance() {
    constexpr uint32_t kChunk = 2048;
    AscendC::LocalTensor<int32_t> lens(AscendC::TPosition::VECCALC, 0, kChunk);
    AscendC::LocalTensor<int32_t> accepted(AscendC::TPosition::VECCALC, kChunk * sizeof(int32_t), kChunk);
    for (uint64_t first = 0; first < tiling_.table.batch; first += kChunk) {
      const uint64_t rest = tiling_.table.batch - first;
      const uint32_t count = static_cast<uint32_t>(rest < kChunk ? rest : kChunk);
      Load(lens, context_lens_[first], count);
      Load(accepted, num_accepted_[first], count);
      Order<AscendC::HardEvent::MTE2_S>();
      for (uint32_t i = 0; i < count; ++i) {
        const int64_t last = Last(accepted.GetValue(i)), length = lens.GetValue(i) + last + 1;
        if (last >= 0) lens.SetValue(i, static_cast<int32_t>(length < kMaxLength ? length : kMaxLength));
      }
      Order<AscendC::HardEvent::S_MTE3>();
      Store(context_lens_[first], lens, count);
      Order<AscendC::HardEvent::MTE3_MTE2>();
    }
  }

  KvRollbackTiling tiling_;
  Pages pages_;
  AscendC::GlobalTensor<int32_t> context_lens_, num_accepted_, path_;
  GmCopy copy_;
};

class KvTruncate {
 public:
  __aicore__ inline void Process(GM_ADDR context_lens, GM_ADDR new_lens, uint64_t batch) {
    constexpr uint32_t kChunk = 8192;
    AscendC::GlobalTensor<int32_t> lens_gm, new_gm;
    lens_gm.SetGlobalBuffer((__gm__ int32_t*)context_lens, batch);
    new_gm.SetGlobalBuffer((__gm__ int32_t*)new_lens, batch);
    AscendC::LocalTensor<int32_t> lens(AscendC::TPosition::VECCALC, 0, kChunk);
    AscendC::LocalTensor<int32_t> limits(AscendC::TPosition::VECCALC, kChunk * sizeof(int32_t), kChunk);
    for (uint64_t first = 0; first < batch; first += kChunk) {
      const uint32_t count = static_cast<uint32_t>(batch - first < kChunk ? batch - first : kChunk);
      const int32_t lanes = static_cast<int32_t>(count);
      Load(lens, lens_gm[first], count);
      Load(limits, new_gm[first], count);
      Order<AscendC::HardEvent::MTE2_V>();
      AscendC::Min(lens, lens, limits, lanes);
      AscendC::PipeBarrier<PIPE_V>();
      AscendC::Maxs(lens, lens, 0, lanes);
      Order<AscendC::HardEvent::V_MTE3>();
      Store(lens_gm[first], lens, count);
      Order<AscendC::HardEvent::MTE3_MTE2>();
    }
  }
};

// Entries of the block table in UB, as many whole rows as fit or a part of one, with a bit for each: whether it is a
// page's absence (any negative id), or that it is exactly -1.
template <bool any_negative>
class TableWindow {
 public:
  static constexpr uint32_t kEntries = 8192, kLanes = 64;  // a 64-bit word of bits a repeat of entries
  static constexpr uint32_t kUbBytes = kEntries * (any_negative ? 8 : 4) + kEntries / 8;

  __aicore__ inline void Init(GM_ADDR block_table, const BlocksTiling& tiling, uint32_t ub) {
    batch_ = tiling.batch;
    max_blocks_ = tiling.max_blocks;
    table_.SetGlobalBuffer((__gm__ int32_t*)block_table, batch_ * max_blocks_);
    entries_ = AscendC::LocalTensor<int32_t>(AscendC::TPosition::VECCALC, ub, kEntries);
    bits_ = AscendC::LocalTensor<uint64_t>(AscendC::TPosition::VECCALC, ub + kEntries * 4, kEntries / kLanes);
    floats_ = AscendC::LocalTensor<float>(AscendC::TPosition::VECCALC, ub + kEntries * 4 + kEntries / 8,
                                          any_negative ? kEntries : 0);
    stride_ = max_blocks_ < kEntries ? AlignUp(static_cast<uint32_t>(max_blocks_), kLanes) : kEntries;
    // Lanes past the end of a row are compared, though nobody looks at their bits.
    AscendC::Duplicate(entries_, -1, static_cast<int32_t>(kEntries));
  }

  // Brings entry j of row b, which must exist, into the window.
  __aicore__ inline void Seek(uint64_t b, uint64_t j) {
    const uint64_t first = j / kEntries * kEntries;
    if (b - row_ < rows_ && first == first_) return;
    row_ = b;
    first_ = first;
    const uint32_t columns = static_cast<uint32_t>(max_blocks_ - first < kEntries ? max_blocks_ - first : kEntries);
    const uint64_t fit = columns == max_blocks_ ? kEntries / stride_ : 1;
    rows_ = static_cast<uint32_t>(batch_ - b < fit ? batch_ - b : fit);
    const uint32_t padded = AlignUp(columns, BlockOf<int32_t>());
    const AscendC::DataCopyExtParams copy{static_cast<uint16_t>(rows_), columns * 4, 0,
                                          (stride_ - padded) / BlockOf<int32_t>(), 0};
    const AscendC::DataCopyPadExtParams<int32_t> pad{true, 0, static_cast<uint8_t>(padded - columns), -1};
    Order<AscendC::HardEvent::MTE3_MTE2>();
    Order<AscendC::HardEvent::V_MTE2>();
    Order<AscendC::HardEvent::S_MTE2>();
    AscendC::DataCopyPad(entries_, table_[b * max_blocks_ + first], copy, pad);
    Order<AscendC::HardEvent::MTE2_V>();
    Order<AscendC::HardEvent::S_V>();
    const AscendC::LocalTensor<uint8_t> bits = bits_.template ReinterpretCast<uint8_t>();
    if constexpr (any_negative) {
      AscendC::Cast(floats_, entries_, AscendC::RoundMode::CAST_NONE, rows_ * stride_);
      AscendC::PipeBarrier<PIPE_V>();
      AscendC::CompareScalar(bits, floats_, 0.0f, AscendC::CMPMODE::LT, rows_ * stride_);
    } else {
      AscendC::CompareScalar(bits, entries_, -1, AscendC::CMPMODE::EQ, rows_ * stride_);
    }
    Order<AscendC::HardEvent::V_S>();
  }

  // The bits of entries 64 w to 64 w + 63 of the row sought last.
  __aicore__ inline uint64_t Word(uint64_t b, uint64_t w) const { return bits_.GetValue(At(b, w * kLanes) / kLanes); }
  __aicore__ inline int32_t Get(uint64_t b, uint64_t j) const { return entries_.GetValue(At(b, j)); }
  __aicore__ inline void Set(uint64_t b, uint64_t j, int32_t page) const { entries_.SetValue(At(b, j), page); }

  // Entries [begin, end) of the row, which lie in the window, go to memory.
  __aicore__ inline void Write(uint64_t b, uint64_t begin, uint64_t end) const {
    begin = begin / BlockOf<int32_t>() * BlockOf<int32_t>();
    Order<AscendC::HardEvent::S_MTE3>();
    Store(table_[b * max_blocks_ + begin], entries_[At(b, begin)], static_cast<uint32_t>(end - begin));
  }

 private:
  __aicore__ inline uint32_t At(uint64_t b, uint64_t j) const {
    return static_cast<uint32_t>((b - row_) * stride_ + j - first_);
  }

  AscendC::GlobalTensor<int32_t> table_;
  AscendC::LocalTensor<int32_t> entries_;
  AscendC::LocalTensor<float> floats_;
  AscendC::LocalTensor<uint64_t> bits_;
  uint64_t batch_ = 0, max_blocks_ = 0, row_ = 0, first_ = 0;
  uint32_t stride_ = 0, rows_ = 0;
};

// The pool: its stack of free pages and what both operators need of it. One core serves all requests, in order, since
// each takes what the ones before it left.
class Pool {
 public:
  __aicore__ inline void Init(GM_ADDR free_list, GM_ADDR num_free, GM_ADDR context_lens, const BlocksTiling& tiling) {
    tiling_ = tiling;
    free_list_.SetGlobalBuffer((__gm__ int32_t*)free_list, tiling.capacity);
    num_free_.SetGlobalBuffer((__gm__ int32_t*)num_free, 1);
    context_lens_.SetGlobalBuffer((__gm__ int32_t*)context_lens, tiling.batch);
    const int64_t free = num_free_.GetValue(0), capacity = static_cast<int64_t>(tiling.capacity);
    free_ = free < 0 ? 0 : (free < capacity ? free : capacity);
  }
  __aicore__ inline uint64_t PagesFor(int64_t length) const {
    return length <= 0 ? 0 : (length + tiling_.block_size - 1) / tiling_.block_size;
  }
  __aicore__ inline void Finish() {
    num_free_.SetValue(0, static_cast<int32_t>(free_));
    AscendC::DataCacheCleanAndInvalid<int32_t, AscendC::CacheLine::ENTIRE_DATA_CACHE, AscendC::DcciDst::CACHELINE_OUT>(
        num_free_);
  }

 protected:
  BlocksTiling tiling_;
  AscendC::GlobalTensor<int32_t> free_list_, num_free_, context_lens_;
  uint64_t free_;
};

class BlocksReserve : public Pool {
 public:
  __aicore__ inline void Init(GM_ADDR block_table, GM_ADDR free_list, GM_ADDR num_free, GM_ADDR context_lens,
                              GM_ADDR num_new, GM_ADDR status, const BlocksTiling& tiling) {
    Pool::Init(free_list, num_free, context_lens, tiling);
    num_new_.SetGlobalBuffer((__gm__ int32_t*)num_new, tiling.batch);
    status_.SetGlobalBuffer((__gm__ int32_t*)status, tiling.batch);
    window_.Init(block_table, tiling, 0);
  }

  __aicore__ inline void Process() {
    for (uint64_t b = 0; b < tiling_.batch; ++b) {
      const int64_t length = static_cast<int64_t>(context_lens_.GetValue(b)) + num_new_.GetValue(b);
      const uint64_t needed = PagesFor(length);
      const bool available = needed <= tiling_.max_blocks && IsOnStack(CountAbsent(b, needed));
      status_.SetValue(b, available ? 0 : kCacheExhausted);
      if (available) Take(b, needed);
    }
    Finish();
  }

 private:
  __aicore__ inline uint64_t Absent(uint64_t b, uint64_t j, uint64_t end) const {
    const uint64_t word = window_.Word(b, j / 64);
    return end - j < 64 ? word & ((1ull << (end - j)) - 1) : word;
  }

  __aicore__ inline uint64_t CountAbsent(uint64_t b, uint64_t needed) {
    uint64_t count = 0;
    for (uint64_t j = 0; j < needed; j += 64) {
      window_.Seek(b, j);
      count += AscendC::ScalarGetCountOfValue<1>(Absent(b, j, needed));
    }
    return count;
  }

  // An entry that is no page can only be on the stack by corruption: it is not handed out.
  __aicore__ inline bool IsOnStack(uint64_t count) const {
    if (count > free_) return false;
    for (uint64_t i = free_ - count; i < free_; ++i)
      if (free_list_.GetValue(i) < 0) return false;
    return true;
  }

  __aicore__ inline void Take(uint64_t b, uint64_t needed) {
    for (uint64_t j = 0; j < needed; j += 64) {
      window_.Seek(b, j);
      const uint64_t absent = Absent(b, j, needed);
      if (absent == 0) continue;
      for (uint64_t left = absent; left != 0; left &= left - 1)
        window_.Set(b, j + AscendC::ScalarGetSFFValue<1>(left), free_list_.GetValue(--free_));
      window_.Write(b, j, j + 64 < needed ? j + 64 : needed);
    }
  }

  AscendC::GlobalTensor<int32_t> num_new_, status_;
  TableWindow<true> window_;
};

class BlocksRelease : public Pool {
 public:
  __aicore__ inline void Init(GM_ADDR block_table, GM_ADDR free_list, GM_ADDR num_free, GM_ADDR context_lens,
                              const BlocksTiling& tiling) {
    Pool::Init(free_list, num_free, context_lens, tiling);
    window_.Init(block_table, tiling, 0);
  }

  __aicore__ inline void Process() {
    for (uint64_t b = 0; b < tiling_.batch; ++b) {
      const uint64_t kept = PagesFor(context_lens_.GetValue(b));
      // Last page first: reserving again gives the pages back in the order they had.
      for (uint64_t end = tiling_.max_blocks; end > kept;) {
        const uint64_t j = (end - 1) / 64 * 64;
        window_.Seek(b, j);
        Release(b, j, j < kept ? kept : j, end);
        end = j;
      }
    }
    Finish();
  }

 private:
  // Entries [begin, end) of the 64 from j on.
  __aicore__ inline void Release(uint64_t b, uint64_t j, uint64_t begin, uint64_t end) {
    uint64_t left = ~window_.Word(b, j / 64) & (~0ull << (begin - j));
    if (end - j < 64) left &= (1ull << (end - j)) - 1;
    if (left == 0) return;
    while (left != 0) {
      const uint64_t i = 63 - AscendC::ScalarCountLeadingZero(left);
      left &= ~(1ull << i);
      const int32_t page = window_.Get(b, j + i);
      if (page >= 0 && free_ < tiling_.capacity) free_list_.SetValue(free_++, page);
      window_.Set(b, j + i, -1);
    }
    window_.Write(b, begin, end);
  }

  TableWindow<false> window_;
};

}  // namespace specdec::ascendc
