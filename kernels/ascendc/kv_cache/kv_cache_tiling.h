// What host and device share of kv_cache: layouts in bytes, the split over cores, the launches.
#pragma once

#include <cstdint>

namespace specdec::ascendc {

// Two cores must not write one 32-byte line of memory, so the layout of a cache decides how its work may be split.
enum class Split : uint32_t {
  kRows,      // every row is whole lines: anyhow
  kRequests,  // every block is: by requests, which own their blocks
  kNot,       // lines may be shared by any two rows: one core
};

constexpr uint64_t kLineBytes = 32;

// `row_lines`: the bytes of a row, and what lies between its pieces, are whole lines. `span`: from the first byte of a
// block to its last.
inline Split split_of(const void* data, uint64_t block_stride, uint64_t offset_stride, bool row_lines, uint64_t span) {
  if (reinterpret_cast<uintptr_t>(data) % kLineBytes != 0 || block_stride % kLineBytes != 0) return Split::kNot;
  if (row_lines && offset_stride % kLineBytes == 0) return Split::kRows;
  return span <= block_stride ? Split::kRequests : Split::kNot;
}

struct PageTable {
  uint64_t batch, max_blocks;
  uint64_t num_blocks, block_size;  // of the caches
};

// Keys or values. Where a row is one piece, in the source and in the cache, it is one head.
struct AppendSide {
  uint64_t node_stride, head_stride;  // of the source
  uint64_t block_stride, offset_stride, cache_head_stride;
  uint64_t head_bytes, heads;
};

struct KvAppendTiling {
  AppendSide sides[2];
  PageTable table;
  uint64_t num_nodes;
  uint64_t share;  // nodes a core, where rows may be split
  Split split;
  uint32_t cores;
};

inline KvAppendTiling kv_append_tiling(const AppendSide& k, const AppendSide& v, const PageTable& table,
                                       uint64_t num_nodes, Split split, uint32_t vector_cores) {
  KvAppendTiling t{{k, v}, table, num_nodes, (num_nodes + vector_cores - 1) / vector_cores, split, 1};
  if (split == Split::kRows) t.cores = static_cast<uint32_t>((num_nodes + t.share - 1) / t.share);
  if (split == Split::kRequests)
    t.cores = static_cast<uint32_t>(table.batch < vector_cores ? table.batch : vector_cores);
  return t;
}

struct RollbackCache {
  uint64_t data;  // address
  uint64_t block_stride, offset_stride, row_bytes;
};

// Caches are passed by value, so that a captured launch keeps nothing on the host. Those whose rows may be split come
// first: their columns, one row of each cache end to end, are shared among the cores of a group, and the requests
// among the groups.
struct KvRollbackTiling {
  static constexpr uint32_t kMaxCaches = 64;
  RollbackCache caches[kMaxCaches];
  PageTable table;
  uint64_t path_len;  // 0: chains
  uint64_t share;     // bytes of the columns a core
  uint32_t num_caches, num_split;
  Split rest;  // of the other caches
  bool last;   // this launch moves context_lens
  uint32_t groups, cores;
};

// Fills in the split; `caches`, `num_caches`, `num_split` and `rest` are there.
inline void kv_rollback_split(KvRollbackTiling& t, uint32_t vector_cores) {
  // A core of a group reads the path of each of its requests: with many requests, that should not be all of them.
  constexpr uint64_t kRequestsOfGroup = 16, kGrain = 128;
  uint64_t columns = 0;
  for (uint32_t i = 0; i < t.num_split; ++i) columns += t.caches[i].row_bytes;
  uint64_t groups = t.table.batch / kRequestsOfGroup;
  if (groups > vector_cores) groups = vector_cores;
  if (groups == 0) groups = 1;
  const uint64_t members = vector_cores / groups;
  t.share = ((columns + members - 1) / members + kGrain - 1) / kGrain * kGrain;
  uint64_t cores = columns == 0 ? 1 : groups * ((columns + t.share - 1) / t.share);
  if (t.num_caches > t.num_split && t.rest == Split::kRequests) {
    const uint64_t requests = t.table.batch < vector_cores ? t.table.batch : vector_cores;
    if (requests > cores) cores = requests;
  }
  t.groups = static_cast<uint32_t>(groups);
  t.cores = static_cast<uint32_t>(cores);
}

struct BlocksTiling {
  uint64_t batch, max_blocks, capacity, block_size;
};

// k, v, k_cache, v_cache; int32 block_table [batch, max_blocks], context_lens [batch], cu_nodes [batch + 1]
void launch_kv_append(void* stream, const void* k, const void* v, void* k_cache, void* v_cache, const void* block_table,
                      const void* context_lens, const void* cu_nodes, const KvAppendTiling& tiling);
// int32 context_lens [batch] in and out, num_accepted [batch], path [batch, path_len]
void launch_kv_rollback(void* stream, const void* block_table, void* context_lens, const void* num_accepted,
                        const void* path, const KvRollbackTiling& tiling);
void launch_kv_truncate(void* stream, void* context_lens, const void* new_lens, uint64_t batch);
// int32 block_table [batch, max_blocks], free_list [capacity], num_free [1]; context_lens, num_new, status [batch]
void launch_blocks_reserve(void* stream, void* block_table, const void* free_list, void* num_free,
                           const void* context_lens, const void* num_new, void* status, const BlocksTiling& tiling);
void launch_blocks_release(void* stream, void* block_table, void* free_list, void* num_free, const void* context_lens,
                           const BlocksTiling& tiling);

}  // namespace specdec::ascendc
