#include "kernels/cpu/tree.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "bindings/tree.h"

namespace specdec {

namespace {

std::tuple<at::Tensor, at::Tensor> tree_mask(const at::Tensor& parents, const at::Tensor& cu_nodes, int64_t max_nodes) {
  check_tree_mask(parents, cu_nodes, max_nodes);
  const int64_t nodes = parents.size(0);
  at::Tensor mask = at::empty({nodes, (max_nodes + 63) / 64}, parents.options().dtype(at::kLong));
  at::Tensor depth = at::empty({nodes}, parents.options());
  cpu::tree_mask({parents.const_data_ptr<int32_t>(), cu_nodes.const_data_ptr<int32_t>(),
                  static_cast<uint64_t*>(mask.data_ptr()), depth.data_ptr<int32_t>(), cu_nodes.size(0) - 1, nodes,
                  max_nodes});
  return {mask, depth};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> tree_select(const at::Tensor& tokens, const at::Tensor& scores,
                                                           const at::Tensor& parents_in, int64_t num_nodes) {
  check_tree_select(tokens, scores, parents_in, num_nodes);
  const int64_t batch = tokens.size(0);
  at::Tensor out_tokens = at::empty({batch * num_nodes}, tokens.options());
  at::Tensor out_parents = at::empty({batch * num_nodes}, parents_in.options());
  at::Tensor out_cu_nodes = at::empty({batch + 1}, parents_in.options());
  cpu::tree_select({tokens.const_data_ptr<int64_t>(), scores.const_data_ptr<float>(),
                    parents_in.const_data_ptr<int32_t>(), out_tokens.data_ptr<int64_t>(),
                    out_parents.data_ptr<int32_t>(), out_cu_nodes.data_ptr<int32_t>(), batch, tokens.size(1),
                    num_nodes});
  return {out_tokens, out_parents, out_cu_nodes};
}

}  // namespace

TORCH_LIBRARY_IMPL(specdec, CPU, m) {
  m.impl("tree_mask", tree_mask);
  m.impl("tree_select", tree_select);
}

}  // namespace specdec
