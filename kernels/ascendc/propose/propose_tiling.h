// What host and device share of propose: the split over cores, the workspace, the launch.
#pragma once

#include <cstdint>

namespace specdec::ascendc {

// A request's history is searched in `parts` by as many cores, each leaving 32 bytes in the workspace: length of its
// best match and where that ends. Then a core writes the outputs of eight requests, which are whole lines.
struct NgramProposeTiling {
  uint64_t batch, capacity;
  uint64_t num_draft;
  int64_t min_n, max_n;
  uint32_t parts, cores;
};

inline NgramProposeTiling ngram_propose_tiling(uint64_t batch, uint64_t capacity, int64_t min_n, int64_t max_n,
                                               uint64_t num_draft, uint32_t vector_cores) {
  constexpr uint64_t kWorthACore = 2048;  // tokens
  uint64_t parts = (capacity + kWorthACore - 1) / kWorthACore;
  const uint64_t idle = vector_cores / batch;
  if (parts > idle) parts = idle;
  if (parts == 0) parts = 1;
  const uint64_t tasks = batch * parts;
  return {batch,
          capacity,
          num_draft,
          min_n,
          max_n,
          static_cast<uint32_t>(parts),
          static_cast<uint32_t>(tasks < vector_cores ? tasks : vector_cores)};
}

inline uint64_t ngram_propose_workspace(const NgramProposeTiling& t) { return t.batch * t.parts * 32; }

// int64 history [batch, capacity], int32 lengths [batch] -> int64 tokens [batch, num_draft], int32 num_found [batch]
void launch_ngram_propose(void* stream, const void* history, const void* lengths, void* workspace, void* tokens,
                          void* num_found, const NgramProposeTiling& tiling);

}  // namespace specdec::ascendc
