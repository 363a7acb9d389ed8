// Verification of draft tokens straight from logits.
#pragma once

#include "dispatch.h"
#include "logits.h"

namespace specdec::cpu {

struct VerifyParams {
  Logits target;  // [num_nodes, V]
  Logits draft;   // [num_nodes, V]; data is nullptr where the drafts were chosen deterministically
  SamplingParams sampling;
  const float* draft_temperature;  // [batch] or nullptr
  const int64_t* tokens;           // [num_nodes]
  const int32_t* cu_nodes;         // [batch + 1]
  const float* uniforms;           // [batch, max_nodes]
  int64_t batch;
  int64_t num_nodes;
  int64_t max_nodes;
  double posterior_threshold;
  double posterior_alpha;
  int64_t* out_tokens;    // [batch, max_nodes]
  int32_t* num_accepted;  // [batch]
  float* logprobs;        // [batch, max_nodes]
  int32_t* status;        // [batch]
};

enum class ChainRule { kRejection, kBlock, kTypical, kStrict };

struct VerifyChainParams : VerifyParams {
  ChainRule rule;
};

enum class TreeRule { kTargetOnly, kRecursive, kTraversal, kTypical };

struct VerifyTreeParams : VerifyParams {
  const int32_t* parents;  // [num_nodes]
  TreeRule rule;
  int32_t* path;  // [batch, max_nodes]
};

SPECDEC_CPU_KERNEL(verify_chain, VerifyChainParams)
SPECDEC_CPU_KERNEL(verify_tree, VerifyTreeParams)

}  // namespace specdec::cpu
