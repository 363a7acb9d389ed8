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
  uint32_t ahead;     // rows that a chain reads together: a core has room to ask for them, with drafts
  uint32_t searches;  // and searches together for the thresholds of filters
};

// What a round costs is what reading this much does: fewer rows at once are not worth those that they may spare.
constexpr uint64_t kRoundBytes = 12 * 1024 * 1024;
constexpr uint32_t kRowsOfSearch = 4;  // that can be read in the time that one is searched for a threshold

// The rest of `t` is filled in, its rows are laid out.
inline void set_ahead(VerifyTiling* t, bool has_draft) {
  const RowsTiling& rows = t->rows;
  constexpr uint32_t kMost = kMaxPasses / 2;
  if (t->rule == kTraversal) {  // it needs all
    t->ahead = kMost;
    t->searches = rows.nodes;
    return;
  }
  const auto bytes = [&](uint32_t type) { return uint64_t{rows.vocab} * (type == kFloat32 ? 4 : 2); };
  const uint64_t row = bytes(rows.target_type) + (has_draft ? bytes(rows.draft_type) : 0);
  const uint64_t lanes = uint64_t{rows.cores} * rows.lanes, requests = rows.batch < lanes ? rows.batch : lanes;
  t->ahead = static_cast<uint32_t>((kRoundBytes + requests * row - 1) / (requests * row));
  t->searches = t->ahead / kRowsOfSearch;
  if (t->ahead > kMost) t->ahead = kMost;
}

// As the operators have them. parents and path are nullptr for a chain; what is optional may be.
void launch_verify(void* stream, const void* target, const void* draft, const void* tokens, const void* parents,
                   const void* cu_nodes, const void* uniforms, const void* draft_temperature, const void* temperature,
                   const void* top_k, const void* top_p, const void* min_p, void* out_tokens, void* num_accepted,
                   void* path, void* logprobs, void* status, void* workspace, const VerifyTiling& tiling);

}  // namespace specdec::ascendc
