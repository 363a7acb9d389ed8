#pragma once

#include "checks.h"

namespace specdec {

void check_kv_append(const at::Tensor& k, const at::Tensor& v, const at::Tensor& k_cache, const at::Tensor& v_cache,
                     const at::Tensor& block_table, const at::Tensor& context_lens, const at::Tensor& cu_nodes);
void check_kv_rollback(at::TensorList caches, const at::Tensor& block_table, const at::Tensor& context_lens,
                       const at::Tensor& num_accepted, const OptionalTensor& path);
void check_kv_truncate(const at::Tensor& context_lens, const at::Tensor& new_lens);
void check_blocks_reserve(const at::Tensor& block_table, const at::Tensor& free_list, const at::Tensor& num_free,
                          const at::Tensor& context_lens, const at::Tensor& num_new, int64_t block_size);
void check_blocks_release(const at::Tensor& block_table, const at::Tensor& free_list, const at::Tensor& num_free,
                          const at::Tensor& context_lens, int64_t block_size);

// Bytes of a row `cache[block, offset]`.
int64_t row_bytes(const at::Tensor& cache);

}  // namespace specdec
