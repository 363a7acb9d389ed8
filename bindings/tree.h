#pragma once

#include <algorithm>
#include <limits>

#include "checks.h"

namespace specdec {

inline void check_tree_mask(const at::Tensor& parents, const at::Tensor& cu_nodes, int64_t max_nodes) {
  check_dense("parents", parents, {kAny}, {at::kInt}, parents);
  check_cu_nodes(cu_nodes, parents);
  check_range("max_nodes", max_nodes, 1, std::numeric_limits<int32_t>::max());
}

inline void check_tree_select(const at::Tensor& tokens, const at::Tensor& scores, const at::Tensor& parents_in,
                              int64_t num_nodes) {
  check_dense("tokens", tokens, {kAny, kAny}, {at::kLong}, tokens);
  check_dense("scores", scores, {tokens.size(0), tokens.size(1)}, {at::kFloat}, tokens);
  check_dense("parents_in", parents_in, {tokens.size(0), tokens.size(1)}, {at::kInt}, tokens);
  check_range("nodes a request in tokens", tokens.size(1), 1, std::numeric_limits<int32_t>::max());
  // Rows of the packed outputs are counted in int32.
  check_range("num_nodes", num_nodes, 1, std::numeric_limits<int32_t>::max() / std::max<int64_t>(1, tokens.size(0)));
}

}  // namespace specdec
