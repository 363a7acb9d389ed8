#include "kernels/cpu/kv_cache.h"

#include <ATen/ops/empty.h>
#include <c10/util/SmallVector.h>
#include <torch/library.h>

#include "bindings/kv_cache.h"

namespace specdec {

namespace {

cpu::BlockTable block_table_of(const at::Tensor& block_table, int64_t num_blocks, int64_t block_size) {
  return {block_table.const_data_ptr<int32_t>(), block_table.size(0), block_table.size(1), num_blocks, block_size};
}

cpu::AppendSource append_source(const at::Tensor& x, const at::Tensor& cache) {
  const int64_t item = x.element_size();
  return {
      static_cast<const char*>(x.const_data_ptr()),
      x.stride(0) * item,
      x.stride(1) * item,
      x.size(2) * item,
      {static_cast<char*>(cache.data_ptr()), cache.stride(0) * item, cache.stride(1) * item, cache.stride(2) * item}};
}

void kv_append(const at::Tensor& k, const at::Tensor& v, const at::Tensor& k_cache, const at::Tensor& v_cache,
               const at::Tensor& block_table, const at::Tensor& context_lens, const at::Tensor& cu_nodes) {
  check_kv_append(k, v, k_cache, v_cache, block_table, context_lens, cu_nodes);
  cpu::kv_append({append_source(k, k_cache), append_source(v, v_cache),
                  block_table_of(block_table, k_cache.size(0), k_cache.size(1)), context_lens.const_data_ptr<int32_t>(),
                  cu_nodes.const_data_ptr<int32_t>(), k.size(0), k.size(1)});
}

void kv_rollback(at::TensorList caches, const at::Tensor& block_table, const at::Tensor& context_lens,
                 const at::Tensor& num_accepted, const OptionalTensor& path) {
  check_kv_rollback(caches, block_table, context_lens, num_accepted, path);
  c10::SmallVector<cpu::RollbackCache, 128> layouts;
  for (const at::Tensor& cache : caches) {
    const int64_t item = cache.element_size();
    layouts.push_back(
        {static_cast<char*>(cache.data_ptr()), cache.stride(0) * item, cache.stride(1) * item, row_bytes(cache)});
  }
  const int64_t num_blocks = caches.empty() ? 0 : caches[0].size(0);
  const int64_t block_size = caches.empty() ? 1 : caches[0].size(1);
  cpu::kv_rollback({layouts.data(), int64_t(layouts.size()), block_table_of(block_table, num_blocks, block_size),
                    context_lens.data_ptr<int32_t>(), num_accepted.const_data_ptr<int32_t>(),
                    optional_ptr<int32_t>(path), path ? path->size(1) : 0});
}

void kv_truncate(const at::Tensor& context_lens, const at::Tensor& new_lens) {
  check_kv_truncate(context_lens, new_lens);
  cpu::kv_truncate({context_lens.data_ptr<int32_t>(), new_lens.const_data_ptr<int32_t>(), context_lens.size(0)});
}

at::Tensor blocks_reserve(const at::Tensor& block_table, const at::Tensor& free_list, const at::Tensor& num_free,
                          const at::Tensor& context_lens, const at::Tensor& num_new, int64_t block_size) {
  check_blocks_reserve(block_table, free_list, num_free, context_lens, num_new, block_size);
  at::Tensor status = at::empty({block_table.size(0)}, block_table.options());
  cpu::blocks_reserve({block_table.data_ptr<int32_t>(), free_list.const_data_ptr<int32_t>(),
                       num_free.data_ptr<int32_t>(), context_lens.const_data_ptr<int32_t>(),
                       num_new.const_data_ptr<int32_t>(), status.data_ptr<int32_t>(), block_table.size(0),
                       block_table.size(1), free_list.size(0), block_size});
  return status;
}

void blocks_release(const at::Tensor& block_table, const at::Tensor& free_list, const at::Tensor& num_free,
                    const at::Tensor& context_lens, int64_t block_size) {
  check_blocks_release(block_table, free_list, num_free, context_lens, block_size);
  cpu::blocks_release({block_table.data_ptr<int32_t>(), free_list.data_ptr<int32_t>(), num_free.data_ptr<int32_t>(),
                       context_lens.const_data_ptr<int32_t>(), block_table.size(0), block_table.size(1),
                       free_list.size(0), block_size});
}

}  // namespace

TORCH_LIBRARY_IMPL(specdec, CPU, m) {
  m.impl("kv_append", kv_append);
  m.impl("kv_rollback", kv_rollback);
  m.impl("kv_truncate", kv_truncate);
  m.impl("blocks_reserve", blocks_reserve);
  m.impl("blocks_release", blocks_release);
}

}  // namespace specdec
