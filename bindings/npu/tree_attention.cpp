#include "bindings/tree_attention.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <tuple>

#include "bindings/npu/device.h"
#include "kernels/ascendc/tree_attention/tree_attention_tiling.h"

namespace specdec::npu {

namespace {

using ascendc::TreeAttentionType;

TreeAttentionType type_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kHalf:
      return TreeAttentionType::kHalf;
    case at::kBFloat16:
      return TreeAttentionType::kBfloat16;
    default:
      return TreeAttentionType::kFloat;
  }
}

std::tuple<at::Tensor, at::Tensor> tree_attention(const at::Tensor& q, const at::Tensor& k_cache,
                                                  const at::Tensor& v_cache, const at::Tensor& block_table,
                                                  const at::Tensor& context_lens, const at::Tensor& cu_nodes,
                                                  const OptionalTensor& mask, double scale, double softcap,
                                                  int64_t window, const OptionalTensor& depth,
                                                  const OptionalTensor& sinks, const OptionalTensor& k_scale,
                                                  const OptionalTensor& v_scale, int64_t max_nodes) {
  check_tree_attention(q, k_cache, v_cache, block_table, context_lens, cu_nodes, mask, window, depth, sinks, k_scale,
                       v_scale, max_nodes);
  check_range("head size of v_cache", v_cache.size(3), 1, ascendc::kMaxValueSize);
  const bool quantized = k_cache.scalar_type() == at::kChar;
  at::Tensor out = at::empty({q.size(0), q.size(1), v_cache.size(3)}, q.options());
  at::Tensor lse = at::empty({q.size(0), q.size(1)}, q.options().dtype(at::kFloat));
  if (lse.numel() == 0) return {out, lse};

  ascendc::TreeAttentionShape shape{};
  shape.q_node = q.stride(0), shape.q_head = q.stride(1);
  shape.k_block = k_cache.stride(0), shape.k_slot = k_cache.stride(1), shape.k_head = k_cache.stride(2);
  shape.v_block = v_cache.stride(0), shape.v_slot = v_cache.stride(1), shape.v_head = v_cache.stride(2);
  shape.num_nodes = q.size(0);
  shape.heads = q.size(1);
  shape.kv_heads = k_cache.size(2);
  shape.d_qk = q.size(2);
  shape.d_v = v_cache.size(3);
  shape.batch = context_lens.size(0);
  shape.num_blocks = k_cache.size(0);
  shape.block_size = k_cache.size(1);
  shape.max_blocks = block_table.size(1);
  shape.mask_words = mask ? mask->size(1) : 0;
  shape.max_nodes = max_nodes;
  shape.window = window;
  shape.scale = static_cast<float>(scale);
  shape.softcap = static_cast<float>(softcap);
  shape.scale_per_token = k_scale && k_scale->dim() == 3;
  // Float values are transposed another way than keys, and lie another way.
  shape.values_in_keys = k_cache.const_data_ptr() == v_cache.const_data_ptr() &&
                         k_cache.strides() == v_cache.strides() && shape.d_v <= shape.d_qk &&
                         k_cache.element_size() == 2;

  ascendc::TreeAttentionTiling tiling;
  TORCH_CHECK_VALUE(ascendc::tree_attention_tiling(shape, type_of(q), quantized, cores().cube, &tiling),
                    "q: expected a head size of which keys and values fit an AI core's memories, got ", describe(q),
                    " with values of ", shape.d_v);
  const at::Tensor workspace = at::empty({static_cast<int64_t>(tiling.workspace_bytes)}, q.options().dtype(at::kByte));
  const ascendc::TreeAttentionArguments arguments{q.const_data_ptr(),
                                                  k_cache.const_data_ptr(),
                                                  v_cache.const_data_ptr(),
                                                  block_table.const_data_ptr(),
                                                  context_lens.const_data_ptr(),
                                                  cu_nodes.const_data_ptr(),
                                                  optional_ptr(mask),
                                                  optional_ptr(depth),
                                                  optional_ptr(sinks),
                                                  optional_ptr(k_scale),
                                                  optional_ptr(v_scale),
                                                  out.data_ptr(),
                                                  lse.data_ptr(),
                                                  workspace.data_ptr()};
  const TreeAttentionType type = type_of(q);
  submit("specdec::tree_attention",
         touched({q, k_cache, v_cache, block_table, context_lens, cu_nodes, out, lse, workspace},
                 {mask, depth, sinks, k_scale, v_scale}),
         [=](void* stream) { ascendc::launch_tree_attention(stream, arguments, type, quantized, tiling); });
  return {out, lse};
}

std::tuple<at::Tensor, at::Tensor> merge_attention(const at::Tensor& out_a, const at::Tensor& lse_a,
                                                   const at::Tensor& out_b, const at::Tensor& lse_b) {
  check_merge_attention(out_a, lse_a, out_b, lse_b);
  at::Tensor out = at::empty_like(out_a);
  at::Tensor lse = at::empty_like(lse_a);
  if (lse.numel() == 0) return {out, lse};
  const auto tiling = ascendc::merge_attention_tiling(lse.numel(), out.size(2), cores().vector);
  const TreeAttentionType type = type_of(out_a);
  submit("specdec::merge_attention", {out_a, lse_a, out_b, lse_b, out, lse}, [=](void* stream) {
    ascendc::launch_merge_attention(stream, out_a.const_data_ptr(), lse_a.const_data_ptr(), out_b.const_data_ptr(),
                                    lse_b.const_data_ptr(), out.data_ptr(), lse.data_ptr(), type, tiling);
  });
  return {out, lse};
}

}  // namespace

SPECDEC_NPU_IMPL(m) {
  m.impl("tree_attention", tree_attention);
  m.impl("merge_attention", merge_attention);
}

}  // namespace specdec::npu
