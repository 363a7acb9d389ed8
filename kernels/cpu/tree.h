// Candidate trees: ancestor bitmasks and the choice of the nodes worth verifying.
#pragma once

#include <cstdint>

#include "dispatch.h"

namespace specdec::cpu {

struct TreeMaskParams {
  const int32_t* parents;   // [num_nodes]
  const int32_t* cu_nodes;  // [batch + 1]
  uint64_t* mask;           // [num_nodes, ceil(max_nodes / 64)]
  int32_t* depth;           // [num_nodes]
  int64_t batch, num_nodes, max_nodes;
};

struct TreeSelectParams {
  const int64_t* tokens;      // [batch, size]
  const float* scores;        // [batch, size], log-probabilities from the root on
  const int32_t* parents_in;  // [batch, size]
  int64_t* out_tokens;        // [batch * num_nodes]
  int32_t* out_parents;       // [batch * num_nodes]
  int32_t* out_cu_nodes;      // [batch + 1]
  int64_t batch, size, num_nodes;
};

SPECDEC_CPU_KERNEL(tree_mask, TreeMaskParams)
SPECDEC_CPU_KERNEL(tree_select, TreeSelectParams)

}  // namespace specdec::cpu
