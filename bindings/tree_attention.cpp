#include "tree_attention.h"

#include <c10/util/Exception.h>

#include <limits>

namespace specdec {

namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

void check_scale(const char* name, const OptionalTensor& scale, const at::Tensor& k_cache) {
  const bool quantized = k_cache.scalar_type() == at::kChar;
  TORCH_CHECK_VALUE(scale.has_value() == quantized, name,
                    quantized ? ": an int8 cache needs it" : ": only for an int8 cache", ", and the cache is ",
                    describe(k_cache));
  if (!quantized) return;
  if (scale->dim() == 1)
    check_dense(name, *scale, {k_cache.size(2)}, {at::kFloat}, k_cache);
  else
    check_dense(name, *scale, {k_cache.size(0), k_cache.size(1), k_cache.size(2)}, {at::kFloat}, k_cache);
}

}  // namespace

void check_tree_attention(const at::Tensor& q, const at::Tensor& k_cache, const at::Tensor& v_cache,
                          const at::Tensor& block_table, const at::Tensor& context_lens, const at::Tensor& cu_nodes,
                          const OptionalTensor& mask, int64_t window, const OptionalTensor& depth,
                          const OptionalTensor& sinks, const OptionalTensor& k_scale, const OptionalTensor& v_scale,
                          int64_t max_nodes) {
  check_dtype("q", q, {at::kFloat, at::kBFloat16, at::kHalf});
  check_shape("q", q, {kAny, kAny, kAny});
  check_unit_stride("q", q);
  check_dtype("k_cache", k_cache, {q.scalar_type(), at::kChar});
  check_shape("k_cache", k_cache, {kAny, kAny, kAny, q.size(2)});
  check_device("k_cache", k_cache, q);
  check_unit_stride("k_cache", k_cache);
  check_dtype("v_cache", v_cache, {k_cache.scalar_type()});
  check_shape("v_cache", v_cache, {k_cache.size(0), k_cache.size(1), k_cache.size(2), kAny});
  check_device("v_cache", v_cache, q);
  check_unit_stride("v_cache", v_cache);
  check_range("block_size", k_cache.size(1), 1, kMaxInt32);
  check_range("head size of k_cache", k_cache.size(3), 1, kMaxInt32);
  check_range("head size of v_cache", v_cache.size(3), 1, kMaxInt32);
  TORCH_CHECK_VALUE(k_cache.size(2) > 0 && q.size(1) % k_cache.size(2) == 0,
                    "q: expected a number of heads divisible by the cache's ", k_cache.size(2), ", got ", q.size(1));

  const int64_t batch = context_lens.numel();
  check_dense("context_lens", context_lens, {batch}, {at::kInt}, q);
  check_dense("block_table", block_table, {batch, kAny}, {at::kInt}, q);
  check_dense("cu_nodes", cu_nodes, {batch + 1}, {at::kInt}, q);
  check_range("max_nodes", max_nodes, 0, kMaxInt32);
  check_range("window", window, 0, kMaxInt32);
  if (mask) {
    check_dense("mask", *mask, {q.size(0), kAny}, {at::kLong}, q);
    const int64_t words = (max_nodes + 63) / 64;
    TORCH_CHECK_VALUE(mask->size(1) >= words, "mask: expected at least ", words, " words a row for max_nodes ",
                      max_nodes, ", got ", mask->size(1));
  }
  if (depth) check_dense("depth", *depth, {q.size(0)}, {at::kInt}, q);
  if (sinks) check_dense("sinks", *sinks, {q.size(1)}, {at::kFloat}, q);
  check_scale("k_scale", k_scale, k_cache);
  check_scale("v_scale", v_scale, k_cache);
  TORCH_CHECK_VALUE(!k_scale || k_scale->dim() == v_scale->dim(),
                    "v_scale: expected per head or per token as k_scale, got ", describe(*v_scale));
}

void check_merge_attention(const at::Tensor& out_a, const at::Tensor& lse_a, const at::Tensor& out_b,
                           const at::Tensor& lse_b) {
  check_shape("out_a", out_a, {kAny, kAny, kAny});
  check_dtype("out_a", out_a, {at::kFloat, at::kBFloat16, at::kHalf});
  check_contiguous("out_a", out_a);
  check_dense("out_b", out_b, {out_a.size(0), out_a.size(1), out_a.size(2)}, {out_a.scalar_type()}, out_a);
  check_dense("lse_a", lse_a, {out_a.size(0), out_a.size(1)}, {at::kFloat}, out_a);
  check_dense("lse_b", lse_b, {out_a.size(0), out_a.size(1)}, {at::kFloat}, out_a);
}

}  // namespace specdec
