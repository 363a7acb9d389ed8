// Paged KV cache: append candidates, compact accepted ones, move lengths, take and return pages.
#pragma once

#include <cstdint>

#include "dispatch.h"

namespace specdec::cpu {

// Where token `s` of a request lives: block `row[s / block_size]`, offset `s % block_size`.
struct BlockTable {
  const int32_t* ids;  // [batch, max_blocks]
  int64_t batch, max_blocks;
  int64_t num_blocks, block_size;  // of the caches
};

// One cache `[num_blocks, block_size, heads, ...]`; strides in bytes.
struct CacheLayout {
  char* data;
  int64_t block_stride, offset_stride, head_stride;
};

struct AppendSource {
  const char* data;  // [num_nodes, heads, ...]
  int64_t node_stride, head_stride, head_bytes;
  CacheLayout cache;
};

struct KvAppendParams {
  AppendSource k, v;
  BlockTable table;
  const int32_t* context_lens;  // [batch]
  const int32_t* cu_nodes;      // [batch + 1]
  int64_t num_nodes, heads;
};

struct RollbackCache {
  char* data;
  int64_t block_stride, offset_stride, row_bytes;
};

struct KvRollbackParams {
  const RollbackCache* caches;  // [num_caches]
  int64_t num_caches;
  BlockTable table;
  int32_t* context_lens;        // [batch]
  const int32_t* num_accepted;  // [batch]
  const int32_t* path;          // [batch, path_len] or null: a chain, already in place
  int64_t path_len;
};

struct KvTruncateParams {
  int32_t* context_lens;    // [batch]
  const int32_t* new_lens;  // [batch]
  int64_t batch;
};

struct BlocksReserveParams {
  int32_t* block_table;      // [batch, max_blocks], -1 where there is no page
  const int32_t* free_list;  // [capacity], a stack
  int32_t* num_free;         // [1]
  const int32_t* context_lens;
  const int32_t* num_new;
  int32_t* status;
  int64_t batch, max_blocks, capacity, block_size;
};

struct BlocksReleaseParams {
  int32_t* block_table;
  int32_t* free_list;
  int32_t* num_free;
  const int32_t* context_lens;
  int64_t batch, max_blocks, capacity, block_size;
};

SPECDEC_CPU_KERNEL(kv_append, KvAppendParams)
SPECDEC_CPU_KERNEL(kv_rollback, KvRollbackParams)
SPECDEC_CPU_KERNEL(kv_truncate, KvTruncateParams)
SPECDEC_CPU_KERNEL(blocks_reserve, BlocksReserveParams)
SPECDEC_CPU_KERNEL(blocks_release, BlocksReleaseParams)

}  // namespace specdec::cpu
