#include "kv_cache.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/status.h"
#include "vec.h"

namespace specdec::cpu::SPECDEC_CAPABILITY {

namespace {

// Bytes a thread should copy to be worth waking.
constexpr int64_t kGrainBytes = 512 << 10;
// Moves whose rows are asked for ahead: they lie pages apart, and an address takes long to translate.
constexpr int64_t kAhead = 4;
// Moves of so many bytes in all, which fill a usual L3 with as many read, are written past the caches: a store there
// does not read the line first.
constexpr int64_t kStreamBytes = 16 << 20;

struct Slot {
  int64_t block, offset;
  explicit operator bool() const { return block >= 0; }
};

// A slot outside the table, or on a block outside the cache, is none.
Slot find_slot(const BlockTable& table, int64_t b, int64_t s) {
  if (s < 0 || s >= table.max_blocks * table.block_size) return {-1, 0};
  const int64_t block = table.ids[b * table.max_blocks + s / table.block_size];
  return {block < table.num_blocks ? block : -1, s % table.block_size};
}

int64_t pages_for(int64_t length, int64_t block_size) {
  return (std::max<int64_t>(length, 0) + block_size - 1) / block_size;
}

struct Append {
  int64_t node;
  Slot slot;
};

void append_row(const AppendSource& source, int64_t heads, const Append& append) {
  const CacheLayout& cache = source.cache;
  const char* from = source.data + append.node * source.node_stride;
  char* to = cache.data + append.slot.block * cache.block_stride + append.slot.offset * cache.offset_stride;
  if (source.head_stride == source.head_bytes && cache.head_stride == source.head_bytes) {
    std::memcpy(to, from, heads * source.head_bytes);
    return;
  }
  for (int64_t h = 0; h < heads; ++h)
    std::memcpy(to + h * cache.head_stride, from + h * source.head_stride, source.head_bytes);
}

struct Move {
  Slot from, to;
};

// Only whole aligned vectors can go past the caches.
void move_row(char* to, const char* from, int64_t bytes, bool past_caches) {
  if (!past_caches || bytes % sizeof(F) || reinterpret_cast<uintptr_t>(to) % sizeof(F)) {
    std::memmove(to, from, bytes);
    return;
  }
  for (int64_t i = 0; i < bytes; i += sizeof(F))
    stream(reinterpret_cast<float*>(to + i), load(reinterpret_cast<const float*>(from + i)));
}

}  // namespace

void kv_append(const KvAppendParams& p) {
  std::vector<Append> appends;
  appends.reserve(p.num_nodes);
  int64_t end = std::clamp<int64_t>(p.cu_nodes[0], 0, p.num_nodes);
  for (int64_t b = 0; b < p.table.batch; ++b) {
    const int64_t begin = end;
    end = std::clamp<int64_t>(p.cu_nodes[b + 1], begin, p.num_nodes);
    for (int64_t node = begin; node < end; ++node)
      if (const Slot slot = find_slot(p.table, b, int64_t{p.context_lens[b]} + node - begin))
        appends.push_back({node, slot});
  }
  const int64_t row_bytes = p.heads * (p.k.head_bytes + p.v.head_bytes);
  const int64_t grain = std::max<int64_t>(1, kGrainBytes / std::max<int64_t>(1, row_bytes));
  at::parallel_for(0, appends.size(), grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      append_row(p.k, p.heads, appends[i]);
      append_row(p.v, p.heads, appends[i]);
    }
  });
}

void kv_rollback(const KvRollbackParams& p) {
  // The moves are the same in every cache: find them once. Those of one request stay together and in order.
  std::vector<Move> moves;
  std::vector<int64_t> first_move;
  for (int64_t b = 0; b < p.table.batch; ++b) {
    int64_t last = p.num_accepted[b];
    if (last < 0) continue;
    const int64_t context = p.context_lens[b];
    if (p.path) {
      last = std::min(last, p.path_len - 1);
      const size_t moves_before = moves.size();
      for (int64_t i = 0; i <= last; ++i) {
        const int64_t node = p.path[b * p.path_len + i];
        if (node <= i) continue;  // in place already, or no node: the i-th node of a path is never before i
        const Move move = {find_slot(p.table, b, context + node), find_slot(p.table, b, context + i)};
        if (move.from && move.to) moves.push_back(move);
      }
      if (moves.size() > moves_before) first_move.push_back(moves_before);
    }
    p.context_lens[b] = std::min<int64_t>(context + last + 1, std::numeric_limits<int32_t>::max());
  }
  if (moves.empty()) return;
  const int64_t requests = first_move.size();
  first_move.push_back(moves.size());

  int64_t bytes = 0;
  for (int64_t c = 0; c < p.num_caches; ++c) bytes += p.caches[c].row_bytes * moves.size();
  const int64_t tasks = p.num_caches * requests;
  const int64_t grain = bytes > kGrainBytes ? std::max<int64_t>(1, kGrainBytes * tasks / bytes) : tasks;
  const bool past_caches = bytes >= kStreamBytes;
  at::parallel_for(0, tasks, grain, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const RollbackCache& cache = p.caches[task / requests];
      const int64_t request = task % requests;
      const auto row = [&](Slot slot) {
        return cache.data + slot.block * cache.block_stride + slot.offset * cache.offset_stride;
      };
      for (int64_t i = first_move[request]; i < first_move[request + 1]; ++i) {
        if (i + kAhead < int64_t(moves.size())) {
          const char* from = row(moves[i + kAhead].from);
          for (int64_t line = 0; line < (past_caches ? cache.row_bytes : 1); line += 64)
            __builtin_prefetch(from + line, 0, 2);
          if (!past_caches) __builtin_prefetch(row(moves[i + kAhead].to), 1);
        }
        move_row(row(moves[i].to), row(moves[i].from), cache.row_bytes, past_caches);
      }
    }
    if (past_caches) stream_fence();
  });
}

void kv_truncate(const KvTruncateParams& p) {
  for (int64_t b = 0; b < p.batch; ++b) p.context_lens[b] = std::max(0, std::min(p.context_lens[b], p.new_lens[b]));
}

void blocks_reserve(const BlocksReserveParams& p) {
  int64_t free = std::clamp<int64_t>(*p.num_free, 0, p.capacity);
  for (int64_t b = 0; b < p.batch; ++b) {
    int32_t* row = p.block_table + b * p.max_blocks;
    const int64_t needed = pages_for(int64_t{p.context_lens[b]} + p.num_new[b], p.block_size);
    const auto absent = [](int32_t id) { return id < 0; };
    const int64_t missing = needed > p.max_blocks ? p.capacity + 1 : std::count_if(row, row + needed, absent);
    // An entry that is no page can only be on the stack by corruption: it is not handed out.
    const bool available = missing <= free && std::none_of(p.free_list + free - missing, p.free_list + free, absent);
    p.status[b] = available ? 0 : kCacheExhausted;
    if (!available) continue;
    for (int64_t j = 0; j < needed; ++j)
      if (row[j] < 0) row[j] = p.free_list[--free];
  }
  *p.num_free = free;
}

void blocks_release(const BlocksReleaseParams& p) {
  int64_t free = std::clamp<int64_t>(*p.num_free, 0, p.capacity);
  for (int64_t b = 0; b < p.batch; ++b) {
    int32_t* row = p.block_table + b * p.max_blocks;
    // Last page first: reserving again gives the pages back in the order they had.
    for (int64_t j = p.max_blocks; j-- > pages_for(p.context_lens[b], p.block_size);) {
      if (row[j] >= 0 && free < p.capacity) p.free_list[free++] = row[j];
      row[j] = -1;
    }
  }
  *p.num_free = free;
}

}  // namespace specdec::cpu::SPECDEC_CAPABILITY
