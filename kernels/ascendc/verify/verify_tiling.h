// What host and device share of the verification of drafts.
#pragma once

#include "kernels/ascendc/sample/sample_tiling.h"

namespace specdec::ascendc {

// A chain is a tree: rejection sampling is `kRecursive` on it, block verification `kTraversal`.
enum VerifyRule : uint32_t { kTargetOnly, kRecursive, kTraversal, kTypical, kStrict };

struct VerifyTiling {
  RowsTiling rows;
  int64_t num_nodes;
  VerifyRule rule;
  float threshold, alpha;
};

// As the operators have them. parents and path are nullptr for a chain; what is optional may be.
void launch_verify(void* stream, const void* target, const void* draft, const void* tokens, const void* parents,
                   const void* cu_nodes, const void* uniforms, const void* draft_temperature, const void* temperature,
                   const void* top_k, const void* top_p, const void* min_p, void* out_tokens, void* num_accepted,
                   void* path, void* logprobs, void* status, void* workspace, const VerifyTiling& tiling);

}  // namespace specdec::ascendc
