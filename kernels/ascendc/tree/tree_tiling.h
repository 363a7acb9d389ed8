// What host and device share of tree: the split over cores, the workspace, the launches.
#pragma once

#include <cstdint>

namespace specdec::ascendc {

struct TreeMaskTiling {
  uint64_t num_nodes, batch;
  uint64_t max_nodes, words;
  uint64_t share;  // rows a core: eight make whole 32-byte lines of every output
  uint32_t cores;
};

inline TreeMaskTiling tree_mask_tiling(uint64_t num_nodes, uint64_t batch, uint64_t max_nodes, uint32_t vector_cores) {
  constexpr uint64_t kRows = 8;
  TreeMaskTiling t{num_nodes, batch, max_nodes, (max_nodes + 63) / 64, 0, 0};
  t.share = ((num_nodes + kRows - 1) / kRows + vector_cores - 1) / vector_cores * kRows;
  t.cores = static_cast<uint32_t>((num_nodes + t.share - 1) / t.share);
  return t;
}

constexpr uint64_t kTreeSelectMaxSize = 4096;  // candidates of a request that fit in UB

// The workspace holds, for each request, 32 bytes with the count of the nodes kept; then for each request `width`
// parents; then `width` tokens.
struct TreeSelectTiling {
  uint64_t batch, size, num_nodes;
  uint64_t width;
  uint64_t share;  // of the batch * num_nodes outputs a core: whole lines
  uint32_t cores;
};

inline TreeSelectTiling tree_select_tiling(uint64_t batch, uint64_t size, uint64_t num_nodes, uint32_t vector_cores) {
  constexpr uint64_t kLine = 8;
  const uint64_t kept = num_nodes < size ? num_nodes : size, cores = batch < vector_cores ? batch : vector_cores;
  return {batch,
          size,
          num_nodes,
          (kept + kLine - 1) / kLine * kLine,
          ((batch * num_nodes + kLine - 1) / kLine + cores - 1) / cores * kLine,
          static_cast<uint32_t>(cores)};
}

inline uint64_t tree_select_workspace(const TreeSelectTiling& t) { return t.batch * (32 + t.width * (4 + 8)); }

// int32 parents [num_nodes], cu_nodes [batch + 1] -> int64 mask [num_nodes, words], int32 depth [num_nodes]
void launch_tree_mask(void* stream, const void* parents, const void* cu_nodes, void* mask, void* depth,
                      const TreeMaskTiling& tiling);
// int64 tokens, float scores, int32 parents [batch, size] -> int64 and int32 [batch * num_nodes], int32 [batch + 1]
void launch_tree_select(void* stream, const void* tokens, const void* scores, const void* parents, void* workspace,
                        void* out_tokens, void* out_parents, void* out_cu_nodes, const TreeSelectTiling& tiling);

}  // namespace specdec::ascendc
