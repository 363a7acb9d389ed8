#include "bindings/tree_attention.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <tuple>

#include "kernels/cpu/tree_attention.h"

namespace specdec {

namespace {

DType dtype_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kBFloat16:
      return DType::kBFloat16;
    case at::kHalf:
      return DType::kFloat16;
    case at::kChar:
      return DType::kInt8;
    default:
      return DType::kFloat32;
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
  at::Tensor out = at::empty({q.size(0), q.size(1), v_cache.size(3)}, q.options());
  at::Tensor lse = at::empty({q.size(0), q.size(1)}, q.options().dtype(at::kFloat));
  cpu::TreeAttentionParams p{};
  p.q = q.const_data_ptr();
  p.k_cache = k_cache.const_data_ptr();
  p.v_cache = v_cache.const_data_ptr();
  p.block_table = block_table.const_data_ptr<int32_t>();
  p.context_lens = context_lens.const_data_ptr<int32_t>();
  p.cu_nodes = cu_nodes.const_data_ptr<int32_t>();
  p.mask = optional_ptr<int64_t>(mask);
  p.depth = optional_ptr<int32_t>(depth);
  p.sinks = optional_ptr<float>(sinks);
  p.k_scale = optional_ptr<float>(k_scale);
  p.v_scale = optional_ptr<float>(v_scale);
  p.out = out.data_ptr();
  p.lse = lse.data_ptr<float>();
  p.q_dtype = dtype_of(q);
  p.cache_dtype = dtype_of(k_cache);
  for (int i = 0; i < 2; ++i) p.q_strides[i] = q.stride(i);
  for (int i = 0; i < 3; ++i) p.k_strides[i] = k_cache.stride(i), p.v_strides[i] = v_cache.stride(i);
  p.num_nodes = q.size(0);
  p.heads = q.size(1);
  p.kv_heads = k_cache.size(2);
  p.d_qk = q.size(2);
  p.d_v = v_cache.size(3);
  p.batch = context_lens.size(0);
  p.num_blocks = k_cache.size(0);
  p.block_size = k_cache.size(1);
  p.max_blocks = block_table.size(1);
  p.mask_words = mask ? mask->size(1) : 0;
  p.max_nodes = max_nodes;
  p.window = window;
  p.scale = static_cast<float>(scale);
  p.softcap = static_cast<float>(softcap);
  p.scale_per_token = k_scale && k_scale->dim() == 3;
#if defined(__x86_64__)
  if (p.cache_dtype == DType::kBFloat16 && p.d_v % 8 == 0 && cpu::has_amx_bf16())
    cpu::amx::tree_attention(p);
  else if (p.cache_dtype == DType::kBFloat16 && cpu::has_avx512_bf16())
    cpu::avx512bf16::tree_attention(p);
  else
#endif
    cpu::tree_attention(p);
  return {out, lse};
}

std::tuple<at::Tensor, at::Tensor> merge_attention(const at::Tensor& out_a, const at::Tensor& lse_a,
                                                   const at::Tensor& out_b, const at::Tensor& lse_b) {
  check_merge_attention(out_a, lse_a, out_b, lse_b);
  at::Tensor out = at::empty_like(out_a);
  at::Tensor lse = at::empty_like(lse_a);
  cpu::merge_attention({out_a.const_data_ptr(), out_b.const_data_ptr(), lse_a.const_data_ptr<float>(),
                        lse_b.const_data_ptr<float>(), out.data_ptr(), lse.data_ptr<float>(), dtype_of(out_a),
                        out_a.size(0) * out_a.size(1), out_a.size(2)});
  return {out, lse};
}

}  // namespace

TORCH_LIBRARY_IMPL(specdec, CPU, m) {
  m.impl("tree_attention", tree_attention);
  m.impl("merge_attention", merge_attention);
}

}  // namespace specdec
