#include "bindings/kv_cache.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "bindings/npu/device.h"
#include "kernels/ascendc/kv_cache/kv_cache_tiling.h"

namespace specdec::npu {

namespace {

using ascendc::Split;

// In bytes; a dimension of size 1 has no stride.
uint64_t step(const at::Tensor& tensor, int64_t dim) {
  return tensor.size(dim) > 1 ? tensor.stride(dim) * tensor.element_size() : 0;
}

bool is_lines(uint64_t bytes) { return bytes % ascendc::kLineBytes == 0; }

ascendc::PageTable page_table(const at::Tensor& block_table, int64_t num_blocks, int64_t block_size) {
  return {static_cast<uint64_t>(block_table.size(0)), static_cast<uint64_t>(block_table.size(1)),
          static_cast<uint64_t>(num_blocks), static_cast<uint64_t>(block_size)};
}

ascendc::AppendSide append_side(const at::Tensor& x, const at::Tensor& cache) {
  const uint64_t head_bytes = x.size(2) * x.element_size(), heads = x.size(1);
  ascendc::AppendSide side{step(x, 0), step(x, 1), step(cache, 0), step(cache, 1), step(cache, 2), head_bytes, heads};
  if (side.head_stride == head_bytes && side.cache_head_stride == head_bytes) {
    side.head_bytes *= heads;
    side.heads = 1;
  }
  return side;
}

Split split_of(const ascendc::AppendSide& side, const at::Tensor& cache) {
  const bool row_lines = is_lines(side.head_bytes) && (side.heads == 1 || is_lines(side.cache_head_stride));
  const uint64_t span =
      (cache.size(1) - 1) * side.offset_stride + (side.heads - 1) * side.cache_head_stride + side.head_bytes;
  return ascendc::split_of(cache.const_data_ptr(), side.block_stride, side.offset_stride, row_lines, span);
}

void kv_append(const at::Tensor& k, const at::Tensor& v, const at::Tensor& k_cache, const at::Tensor& v_cache,
               const at::Tensor& block_table, const at::Tensor& context_lens, const at::Tensor& cu_nodes) {
  check_kv_append(k, v, k_cache, v_cache, block_table, context_lens, cu_nodes);
  if (k.size(0) == 0 || k.size(1) == 0 || block_table.numel() == 0 || k_cache.size(0) * k_cache.size(1) == 0) return;
  const auto k_side = append_side(k, k_cache), v_side = append_side(v, v_cache);
  const Split split = std::max(split_of(k_side, k_cache), split_of(v_side, v_cache));
  const auto tiling = ascendc::kv_append_tiling(
      k_side, v_side, page_table(block_table, k_cache.size(0), k_cache.size(1)), k.size(0), split, cores().vector);
  submit("specdec::kv_append", {k, v, k_cache, v_cache, block_table, context_lens, cu_nodes}, [=](void* stream) {
    ascendc::launch_kv_append(stream, k.const_data_ptr(), v.const_data_ptr(), k_cache.data_ptr(), v_cache.data_ptr(),
                              block_table.const_data_ptr(), context_lens.const_data_ptr(), cu_nodes.const_data_ptr(),
                              tiling);
  });
}

struct Layout {
  ascendc::RollbackCache cache;
  Split split;
};

Layout layout_of(const at::Tensor& cache) {
  const ascendc::RollbackCache c{reinterpret_cast<uint64_t>(cache.data_ptr()), step(cache, 0), step(cache, 1),
                                 static_cast<uint64_t>(row_bytes(cache))};
  const uint64_t span = (cache.size(1) - 1) * c.offset_stride + c.row_bytes;
  return {c, ascendc::split_of(cache.data_ptr(), c.block_stride, c.offset_stride, is_lines(c.row_bytes), span)};
}

// One launch for `kMaxCaches` caches; the last one moves the lengths, after all have read them.
std::vector<ascendc::KvRollbackTiling> rollback_launches(at::TensorList caches, const at::Tensor& block_table,
                                                         const OptionalTensor& path) {
  std::vector<Layout> layouts;
  if (path && block_table.size(1) > 0)
    for (const at::Tensor& cache : caches)
      if (cache.numel() > 0) layouts.push_back(layout_of(cache));
  const auto others = std::stable_partition(layouts.begin(), layouts.end(),
                                            [](const Layout& layout) { return layout.split == Split::kRows; });
  // Caches whose rows share lines may share them with each other: a request has one core for all of them.
  Split rest = Split::kRequests;
  for (auto layout = others; layout != layouts.end(); ++layout) rest = std::max(rest, layout->split);
  const size_t num_split = others - layouts.begin();

  std::vector<ascendc::KvRollbackTiling> launches;
  size_t done = 0;
  do {
    ascendc::KvRollbackTiling t{};
    t.table =
        layouts.empty() ? page_table(block_table, 0, 1) : page_table(block_table, caches[0].size(0), caches[0].size(1));
    t.path_len = path ? path->size(1) : 0;
    t.rest = rest;
    for (; t.num_caches < t.kMaxCaches && done < layouts.size(); ++done) {
      t.num_split += done < num_split;
      t.caches[t.num_caches++] = layouts[done].cache;
    }
    t.last = done == layouts.size();
    kv_rollback_split(t, cores().vector);
    launches.push_back(t);
  } while (done < layouts.size());
  return launches;
}

void kv_rollback(at::TensorList caches, const at::Tensor& block_table, const at::Tensor& context_lens,
                 const at::Tensor& num_accepted, const OptionalTensor& path) {
  check_kv_rollback(caches, block_table, context_lens, num_accepted, path);
  if (block_table.size(0) == 0) return;
  const auto launches = rollback_launches(caches, block_table, path);
  std::vector<at::Tensor> tensors{block_table, context_lens, num_accepted};
  if (path) tensors.push_back(*path);
  tensors.insert(tensors.end(), caches.begin(), caches.end());
  submit("specdec::kv_rollback", tensors, [=](void* stream) {
    for (const auto& tiling : launches)
      ascendc::launch_kv_rollback(stream, block_table.const_data_ptr(), context_lens.data_ptr(),
                                  num_accepted.const_data_ptr(), optional_ptr(path), tiling);
  });
}

void kv_truncate(const at::Tensor& context_lens, const at::Tensor& new_lens) {
  check_kv_truncate(context_lens, new_lens);
  if (context_lens.numel() == 0) return;
  submit("specdec::kv_truncate", {context_lens, new_lens}, [=](void* stream) {
    ascendc::launch_kv_truncate(stream, context_lens.data_ptr(), new_lens.const_data_ptr(), context_lens.size(0));
  });
}

ascendc::BlocksTiling blocks_tiling(const at::Tensor& block_table, const at::Tensor& free_list, int64_t block_size) {
  return {static_cast<uint64_t>(block_table.size(0)), static_cast<uint64_t>(block_table.size(1)),
          static_cast<uint64_t>(free_list.size(0)), static_cast<uint64_t>(block_size)};
}

at::Tensor blocks_reserve(const at::Tensor& block_table, const at::Tensor& free_list, const at::Tensor& num_free,
                          const at::Tensor& context_lens, const at::Tensor& num_new, int64_t block_size) {
  check_blocks_reserve(block_table, free_list, num_free, context_lens, num_new, block_size);
  at::Tensor status = at::empty({block_table.size(0)}, block_table.options());
  const auto tiling = blocks_tiling(block_table, free_list, block_size);
  submit("specdec::blocks_reserve", {block_table, free_list, num_free, context_lens, num_new, status},
         [=](void* stream) {
           ascendc::launch_blocks_reserve(stream, block_table.data_ptr(), free_list.const_data_ptr(),
                                          num_free.data_ptr(), context_lens.const_data_ptr(), num_new.const_data_ptr(),
                                          status.data_ptr(), tiling);
         });
  return status;
}

void blocks_release(const at::Tensor& block_table, const at::Tensor& free_list, const at::Tensor& num_free,
                    const at::Tensor& context_lens, int64_t block_size) {
  check_blocks_release(block_table, free_list, num_free, context_lens, block_size);
  const auto tiling = blocks_tiling(block_table, free_list, block_size);
  submit("specdec::blocks_release", {block_table, free_list, num_free, context_lens}, [=](void* stream) {
    ascendc::launch_blocks_release(stream, block_table.data_ptr(), free_list.data_ptr(), num_free.data_ptr(),
                                   context_lens.const_data_ptr(), tiling);
  });
}

}  // namespace

SPECDEC_NPU_IMPL(m) {
  m.impl("kv_append", kv_append);
  m.impl("kv_rollback", kv_rollback);
  m.impl("kv_truncate", kv_truncate);
  m.impl("blocks_reserve", blocks_reserve);
  m.impl("blocks_release", blocks_release);
}

}  // namespace specdec::npu
