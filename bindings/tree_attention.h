#pragma once

#include "checks.h"

namespace specdec {

void check_tree_attention(const at::Tensor& q, const at::Tensor& k_cache, const at::Tensor& v_cache,
                          const at::Tensor& block_table, const at::Tensor& context_lens, const at::Tensor& cu_nodes,
                          const OptionalTensor& mask, int64_t window, const OptionalTensor& depth,
                          const OptionalTensor& sinks, const OptionalTensor& k_scale, const OptionalTensor& v_scale,
                          int64_t max_nodes);
void check_merge_attention(const at::Tensor& out_a, const at::Tensor& lse_a, const at::Tensor& out_b,
                           const at::Tensor& lse_b);

}  // namespace specdec
