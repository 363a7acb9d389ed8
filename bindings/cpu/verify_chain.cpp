#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "bindings/cpu/verify.h"

namespace specdec {

namespace {

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> verify_chain(
    const at::Tensor& target_logits, const at::Tensor& tokens, const at::Tensor& cu_nodes, const at::Tensor& uniforms,
    const OptionalTensor& draft_logits, const OptionalTensor& draft_temperature, const OptionalTensor& temperature,
    const OptionalTensor& top_k, const OptionalTensor& top_p, const OptionalTensor& min_p, c10::string_view rule,
    double posterior_threshold, double posterior_alpha, int64_t max_nodes) {
  const VerifyTensors tensors{
      target_logits, tokens, cu_nodes, uniforms, draft_logits, draft_temperature, {temperature, top_k, top_p, min_p}};
  cpu::VerifyChainParams params;
  params.rule = cpu::ChainRule(check_verify_chain(tensors, rule, max_nodes));
  params.posterior_threshold = posterior_threshold;
  params.posterior_alpha = posterior_alpha;
  set_inputs(&params, tensors, max_nodes);
  VerifyOutputs out = set_outputs(&params, target_logits.options());
  cpu::verify_chain(params);
  return {out.tokens, out.num_accepted, out.logprobs, out.status};
}

}  // namespace

TORCH_LIBRARY_IMPL(specdec, CPU, m) { m.impl("verify_chain", verify_chain); }

}  // namespace specdec
