// What the CPU bindings of verify_chain and verify_tree have in common.
#pragma once

#include <ATen/ops/empty.h>

#include "bindings/cpu/logits.h"
#include "bindings/verify.h"
#include "kernels/cpu/verify.h"

namespace specdec {

inline void set_inputs(cpu::VerifyParams* params, const VerifyTensors& tensors, int64_t max_nodes) {
  params->target = logits_of(tensors.target_logits);
  if (tensors.draft_logits) params->draft = logits_of(*tensors.draft_logits);
  params->sampling = sampling_of(tensors.sampling);
  params->draft_temperature = optional_ptr<float>(tensors.draft_temperature);
  params->tokens = tensors.tokens.const_data_ptr<int64_t>();
  params->cu_nodes = tensors.cu_nodes.const_data_ptr<int32_t>();
  params->uniforms = tensors.uniforms.const_data_ptr<float>();
  params->batch = tensors.cu_nodes.size(0) - 1;
  params->num_nodes = tensors.tokens.size(0);
  params->max_nodes = max_nodes;
}

struct VerifyOutputs {
  at::Tensor tokens, num_accepted, logprobs, status;
};

inline VerifyOutputs set_outputs(cpu::VerifyParams* params, const at::TensorOptions& options) {
  const int64_t batch = params->batch, max_nodes = params->max_nodes;
  VerifyOutputs out{
      at::empty({batch, max_nodes}, options.dtype(at::kLong)), at::empty({batch}, options.dtype(at::kInt)),
      at::empty({batch, max_nodes}, options.dtype(at::kFloat)), at::empty({batch}, options.dtype(at::kInt))};
  params->out_tokens = out.tokens.data_ptr<int64_t>();
  params->num_accepted = out.num_accepted.data_ptr<int32_t>();
  params->logprobs = out.logprobs.data_ptr<float>();
  params->status = out.status.data_ptr<int32_t>();
  return out;
}

}  // namespace specdec
