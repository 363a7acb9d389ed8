// The end of a decoding step: what was emitted joins the history, and the next draft length is chosen.
#pragma once

#include <cstdint>

#include "dispatch.h"

namespace specdec::cpu {

struct AdvanceParams {
  int64_t* history;             // [batch, capacity]
  int32_t* lengths;             // [batch]
  bool* finished;               // [batch]
  const int64_t* tokens;        // [batch, width]
  const int32_t* num_accepted;  // [batch]
  const int64_t* eos_ids;       // [num_eos]
  const int32_t* max_lens;      // [batch]
  int64_t* root;                // [batch]
  int64_t batch, capacity, width, num_eos;
};

struct AdaptDraftLengthParams {
  float* rate;              // [batch]
  const int32_t* drafted;   // [batch]
  const int32_t* accepted;  // [batch]
  int32_t* num_draft;       // [batch]
  int64_t batch;
  double decay;
  int32_t min_draft, max_draft;
  double draft_cost;
};

SPECDEC_CPU_KERNEL(advance, AdvanceParams)
SPECDEC_CPU_KERNEL(adapt_draft_length, AdaptDraftLengthParams)

}  // namespace specdec::cpu
