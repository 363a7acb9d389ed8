#include "bindings/tree.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "bindings/npu/device.h"
#include "kernels/ascendc/tree/tree_tiling.h"

namespace specdec::npu {

namespace {

std::tuple<at::Tensor, at::Tensor> tree_mask(const at::Tensor& parents, const at::Tensor& cu_nodes, int64_t max_nodes) {
  check_tree_mask(parents, cu_nodes, max_nodes);
  const int64_t nodes = parents.size(0);
  at::Tensor mask = at::empty({nodes, (max_nodes + 63) / 64}, parents.options().dtype(at::kLong));
  at::Tensor depth = at::empty({nodes}, parents.options());
  if (nodes == 0) return {mask, depth};
  const auto tiling = ascendc::tree_mask_tiling(nodes, cu_nodes.size(0) - 1, max_nodes, cores().vector);
  submit("specdec::tree_mask", {parents, cu_nodes, mask, depth}, [=](void* stream) {
    ascendc::launch_tree_mask(stream, parents.const_data_ptr(), cu_nodes.const_data_ptr(), mask.data_ptr(),
                              depth.data_ptr(), tiling);
  });
  return {mask, depth};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> tree_select(const at::Tensor& tokens, const at::Tensor& scores,
                                                           const at::Tensor& parents_in, int64_t num_nodes) {
  check_tree_select(tokens, scores, parents_in, num_nodes);
  const int64_t batch = tokens.size(0);
  check_range("nodes a request in tokens", tokens.size(1), 1, ascendc::kTreeSelectMaxSize);
  if (batch == 0)
    return {at::empty({0}, tokens.options()), at::empty({0}, parents_in.options()),
            at::zeros({1}, parents_in.options())};
  at::Tensor out_tokens = at::empty({batch * num_nodes}, tokens.options());
  at::Tensor out_parents = at::empty({batch * num_nodes}, parents_in.options());
  at::Tensor out_cu_nodes = at::empty({batch + 1}, parents_in.options());
  const auto tiling = ascendc::tree_select_tiling(batch, tokens.size(1), num_nodes, cores().vector);
  const at::Tensor workspace =
      at::empty({static_cast<int64_t>(ascendc::tree_select_workspace(tiling))}, tokens.options().dtype(at::kByte));
  submit("specdec::tree_select", {tokens, scores, parents_in, workspace, out_tokens, out_parents, out_cu_nodes},
         [=](void* stream) {
           ascendc::launch_tree_select(stream, tokens.const_data_ptr(), scores.const_data_ptr(),
                                       parents_in.const_data_ptr(), workspace.data_ptr(), out_tokens.data_ptr(),
                                       out_parents.data_ptr(), out_cu_nodes.data_ptr(), tiling);
         });
  return {out_tokens, out_parents, out_cu_nodes};
}

}  // namespace

SPECDEC_NPU_IMPL(m) {
  m.impl("tree_mask", tree_mask);
  m.impl("tree_select", tree_select);
}

}  // namespace specdec::npu
