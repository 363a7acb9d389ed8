// Drafts without a model.
#pragma once

#include <cstdint>

#include "dispatch.h"

namespace specdec::cpu {

struct NgramProposeParams {
  const int64_t* history;  // [batch, capacity]
  const int32_t* lengths;  // [batch]
  int64_t* tokens;         // [batch, num_draft]
  int32_t* num_found;      // [batch]
  int64_t batch, capacity, min_n, max_n, num_draft;
};

SPECDEC_CPU_KERNEL(ngram_propose, NgramProposeParams)

}  // namespace specdec::cpu
