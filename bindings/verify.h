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

// Both return the position of `rule` among those of the operator, in the order of its docstring.
int64_t check_verify_chain(const VerifyTensors& tensors, c10::string_view rule, int64_t max_nodes);
int64_t check_verify_tree(const VerifyTensors& tensors, const at::Tensor& parents, c10::string_view rule,
                          int64_t max_nodes);

}  // namespace specdec
