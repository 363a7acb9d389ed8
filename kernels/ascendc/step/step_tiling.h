// What host and device share of step: the split over cores, the launches.
#pragma once

#include <cstdint>

namespace specdec::ascendc {

constexpr uint64_t kAdvanceGroup = 32;  // requests whose flags of one byte are a 32-byte line

struct AdvanceTiling {
  uint64_t batch, capacity, width;
  uint64_t num_eos, eos_stride;  // eos_stride: ids to the next request's, 0 if all have the same
  uint32_t cores;
};

// Groups of requests on several cores, if rows of the history and all the states begin on lines of their own.
inline AdvanceTiling advance_tiling(uint64_t batch, uint64_t capacity, uint64_t width, uint64_t num_eos,
                                    uint64_t eos_stride, bool lines, uint32_t vector_cores) {
  const uint64_t groups = (batch + kAdvanceGroup - 1) / kAdvanceGroup;
  return {batch,   capacity,   width,
          num_eos, eos_stride, !lines ? 1 : static_cast<uint32_t>(groups < vector_cores ? groups : vector_cores)};
}

struct AdaptDraftLengthTiling {
  uint64_t batch;
  float gain;  // 1 - decay
  float draft_cost;
  int32_t min_draft, max_draft;
};

// int64 history [batch, capacity], int32 lengths, bool finished [batch], int64 tokens [batch, width], int32
// num_accepted, int64 eos_ids, int32 max_lens [batch] -> int64 root [batch]
void launch_advance(void* stream, void* history, void* lengths, void* finished, const void* tokens,
                    const void* num_accepted, const void* eos_ids, const void* max_lens, void* root,
                    const AdvanceTiling& tiling);
// float rate, int32 drafted, accepted, num_draft [batch]
void launch_adapt_draft_length(void* stream, void* rate, const void* drafted, const void* accepted, void* num_draft,
                               const AdaptDraftLengthTiling& tiling);

}  // namespace specdec::ascendc
