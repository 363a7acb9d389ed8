#include "kv_cache.h"

#include <c10/util/Exception.h>

#include <limits>
#include <string>

namespace specdec {

namespace {

constexpr int64_t kMaxBlockSize = std::numeric_limits<int32_t>::max();

// `x` [num_nodes, heads, size] goes to `cache` [blocks, block_size, heads, size].
void check_append(const char* name, const at::Tensor& x, const char* cache_name, const at::Tensor& cache,
                  const at::Tensor& k, const at::Tensor& k_cache) {
  check_shape(cache_name, cache, {k_cache.size(0), k_cache.size(1), k_cache.size(2), kAny});
  check_device(cache_name, cache, k_cache);
  check_unit_stride(cache_name, cache);
  check_shape(name, x, {k.size(0), k_cache.size(2), cache.size(3)});
  check_dtype(name, x, {cache.scalar_type()});
  check_device(name, x, k_cache);
  check_unit_stride(name, x);
}

bool has_dense_rows(const at::Tensor& cache) {
  int64_t expected = 1;
  for (int64_t d = cache.dim() - 1; d >= 2; --d) {
    if (cache.size(d) != 1 && cache.stride(d) != expected) return false;
    expected *= cache.size(d);
  }
  return true;
}

// The lists are long and the call is short: nothing is formatted unless a check has failed.
void check_cache_list(at::TensorList caches, const at::Tensor& reference) {
  for (size_t i = 0; i < caches.size(); ++i) {
    const at::Tensor& cache = caches[i];
    const auto name = [i] { return "caches[" + std::to_string(i) + ']'; };
    TORCH_CHECK_VALUE(cache.dim() >= 2, name(), ": expected shape [blocks, block_size, ...], got ", cache.sizes());
    TORCH_CHECK_VALUE(cache.size(0) == caches[0].size(0) && cache.size(1) == caches[0].size(1), name(),
                      ": expected the blocks and block_size of caches[0], ", caches[0].sizes().slice(0, 2), ", got ",
                      cache.sizes());
    TORCH_CHECK_VALUE(has_dense_rows(cache), name(), ": expected contiguous rows cache[block, offset], got shape ",
                      cache.sizes(), " with strides ", cache.strides());
    if (cache.device() != reference.device()) check_device(name().c_str(), cache, reference);
  }
}

void check_pool(const at::Tensor& block_table, const at::Tensor& free_list, const at::Tensor& num_free,
                const at::Tensor& context_lens, int64_t block_size) {
  check_dense("block_table", block_table, {kAny, kAny}, {at::kInt}, block_table);
  check_dense("free_list", free_list, {kAny}, {at::kInt}, block_table);
  check_dense("num_free", num_free, {1}, {at::kInt}, block_table);
  check_dense("context_lens", context_lens, {block_table.size(0)}, {at::kInt}, block_table);
  check_range("block_size", block_size, 1, kMaxBlockSize);
}

}  // namespace

void check_kv_append(const at::Tensor& k, const at::Tensor& v, const at::Tensor& k_cache, const at::Tensor& v_cache,
                     const at::Tensor& block_table, const at::Tensor& context_lens, const at::Tensor& cu_nodes) {
  check_shape("k", k, {kAny, kAny, kAny});
  check_shape("k_cache", k_cache, {kAny, kAny, kAny, kAny});
  check_append("k", k, "k_cache", k_cache, k, k_cache);
  check_append("v", v, "v_cache", v_cache, k, k_cache);
  check_dense("block_table", block_table, {kAny, kAny}, {at::kInt}, k_cache);
  check_dense("context_lens", context_lens, {block_table.size(0)}, {at::kInt}, k_cache);
  check_dense("cu_nodes", cu_nodes, {block_table.size(0) + 1}, {at::kInt}, k_cache);
}

void check_kv_rollback(at::TensorList caches, const at::Tensor& block_table, const at::Tensor& context_lens,
                       const at::Tensor& num_accepted, const OptionalTensor& path) {
  check_dense("block_table", block_table, {kAny, kAny}, {at::kInt}, block_table);
  check_dense("context_lens", context_lens, {block_table.size(0)}, {at::kInt}, block_table);
  check_dense("num_accepted", num_accepted, {block_table.size(0)}, {at::kInt}, block_table);
  if (path) {
    check_dense("path", *path, {block_table.size(0), kAny}, {at::kInt}, block_table);
    TORCH_CHECK_VALUE(path->size(1) >= 1, "path: expected shape [B, P] with P >= 1, got ", path->sizes());
  }
  check_cache_list(caches, block_table);
}

void check_kv_truncate(const at::Tensor& context_lens, const at::Tensor& new_lens) {
  check_dense("context_lens", context_lens, {kAny}, {at::kInt}, context_lens);
  check_dense("new_lens", new_lens, {context_lens.size(0)}, {at::kInt}, context_lens);
}

void check_blocks_reserve(const at::Tensor& block_table, const at::Tensor& free_list, const at::Tensor& num_free,
                          const at::Tensor& context_lens, const at::Tensor& num_new, int64_t block_size) {
  check_pool(block_table, free_list, num_free, context_lens, block_size);
  check_dense("num_new", num_new, {block_table.size(0)}, {at::kInt}, block_table);
}

void check_blocks_release(const at::Tensor& block_table, const at::Tensor& free_list, const at::Tensor& num_free,
                          const at::Tensor& context_lens, int64_t block_size) {
  check_pool(block_table, free_list, num_free, context_lens, block_size);
}

int64_t row_bytes(const at::Tensor& cache) {
  int64_t bytes = cache.element_size();
  for (int64_t d = 2; d < cache.dim(); ++d) bytes *= cache.size(d);
  return bytes;
}

}  // namespace specdec
