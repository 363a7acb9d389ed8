// Attention of draft trees over a paged KV cache (see specdec_ops/ops/tree_attention.py for the semantics).
#pragma once

#include <cstdint>

#include "dispatch.h"
#include "dtype.h"

namespace specdec::cpu {

struct TreeAttentionParams {
  const void* q;                // [num_nodes, heads, d_qk] of q_dtype, unit last stride
  const void* k_cache;          // [num_blocks, block_size, kv_heads, d_qk] of cache_dtype, unit last stride
  const void* v_cache;          // [num_blocks, block_size, kv_heads, d_v]
  const int32_t* block_table;   // [batch, max_blocks]
  const int32_t* context_lens;  // [batch]
  const int32_t* cu_nodes;      // [batch + 1]
  const int64_t* mask;          // [num_nodes, mask_words], or null for chains
  const int32_t* depth;         // [num_nodes] or null
  const float* sinks;           // [heads] or null
  const float* k_scale;         // [kv_heads], or [num_blocks, block_size, kv_heads], or null
  const float* v_scale;
  void* out;   // [num_nodes, heads, d_v] of q_dtype
  float* lse;  // [num_nodes, heads]
  DType q_dtype, cache_dtype;
  int64_t q_strides[2];                // node, head
  int64_t k_strides[3], v_strides[3];  // block, slot, head
  int64_t num_nodes, heads, kv_heads, d_qk, d_v;
  int64_t batch, num_blocks, block_size, max_blocks, mask_words, max_nodes;
  int64_t window;  // 0: none
  float scale, softcap;
  bool scale_per_token;
};

struct MergeAttentionParams {
  const void *out_a, *out_b;   // [rows, dim] of dtype
  const float *lse_a, *lse_b;  // [rows]
  void* out;
  float* lse;
  DType dtype;
  int64_t rows, dim;
};

SPECDEC_CPU_KERNEL(tree_attention, TreeAttentionParams)
SPECDEC_CPU_KERNEL(merge_attention, MergeAttentionParams)

#if defined(__x86_64__)
// For a bfloat16 cache and query where has_amx_bf16() and d_v is a multiple of 8.
namespace amx {
void tree_attention(const TreeAttentionParams&);
}
// For a bfloat16 cache and query where has_avx512_bf16().
namespace avx512bf16 {
void tree_attention(const TreeAttentionParams&);
}
#endif

}  // namespace specdec::cpu
