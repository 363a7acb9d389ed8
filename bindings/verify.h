#pragma once

#include "sample.h"

namespace specdec {

struct VerifyTensors {
  const at::Tensor& target_logits;
  const at::Tensor& tokens;
  const at::Tensor& cu_nodes;
  const at::Tensor& uniforms;
  const OptionalTensor& draft_logits;
  const OptionalTensor& draft_temperature;
  SamplingTensors sampling;
};

// What verify_chain and verify_tree have in common.
void check_verify(const VerifyTensors& tensors, int64_t max_nodes);

// The position of `rule` among `allowed`.
int64_t check_rule(c10::string_view rule, std::initializer_list<c10::string_view> allowed);

}  // namespace specdec
