#include "bindings/verify.h"

#include <ATen/ops/empty.h>

#include "bindings/npu/logits.h"
#include "kernels/ascendc/verify/verify_tiling.h"

namespace specdec::npu {

namespace {

struct Posterior {
  double threshold, alpha;
};

struct Outputs {
  at::Tensor tokens, num_accepted, path, logprobs, status;
};

// `parents` is absent for a chain.
Outputs verify(const char* name, const VerifyTensors& in, const OptionalTensor& parents, ascendc::VerifyRule rule,
               const Posterior& posterior, int64_t max_nodes) {
  const at::Tensor &target = in.target_logits, &tokens = in.tokens, &cu_nodes = in.cu_nodes, &uniforms = in.uniforms;
  const int64_t batch = cu_nodes.size(0) - 1;
  const auto options = target.options();
  Outputs out{at::empty({batch, max_nodes}, options.dtype(at::kLong)), at::empty({batch}, options.dtype(at::kInt)),
              at::empty({parents ? batch : 0, max_nodes}, options.dtype(at::kInt)),
              at::empty({batch, max_nodes}, options.dtype(at::kFloat)), at::empty({batch}, options.dtype(at::kInt))};
  const int64_t nodes = std::min(max_nodes, std::max<int64_t>(tokens.size(0), 1));
  ascendc::VerifyTiling tiling{};
  tiling.rows = rows_tiling("target_logits", target, batch, nodes, "max_nodes", max_nodes);
  if (batch == 0) return out;
  if (in.draft_logits) {
    tiling.rows.draft_stride = in.draft_logits->stride(0);
    tiling.rows.draft_type = logits_type(*in.draft_logits);
  }
  tiling.rows.entropy = tiling.rows.maxima = rule == ascendc::kTypical;
  tiling.num_nodes = tokens.size(0);
  tiling.rule = rule;
  tiling.threshold = static_cast<float>(posterior.threshold);
  tiling.alpha = static_cast<float>(posterior.alpha);
  ascendc::set_layout(&tiling.rows, 3, cores().vector);
  ascendc::set_ahead(&tiling, in.draft_logits.has_value());
  const at::Tensor workspace = workspace_of(tiling.rows, target);
  const OptionalTensor draft = in.draft_logits, draft_temperature = in.draft_temperature;
  const auto [temperature, top_k, top_p, min_p] = in.sampling;
  submit(name,
         touched({target, tokens, cu_nodes, uniforms, out.tokens, out.num_accepted, out.path, out.logprobs, out.status,
                  workspace},
                 {draft, parents, draft_temperature, temperature, top_k, top_p, min_p}),
         [=](void* stream) {
           ascendc::launch_verify(stream, target.const_data_ptr(), optional_ptr(draft), tokens.const_data_ptr(),
                                  optional_ptr(parents), cu_nodes.const_data_ptr(), uniforms.const_data_ptr(),
                                  optional_ptr(draft_temperature), optional_ptr(temperature), optional_ptr(top_k),
                                  optional_ptr(top_p), optional_ptr(min_p), out.tokens.data_ptr(),
                                  out.num_accepted.data_ptr(), parents ? out.path.data_ptr() : nullptr,
                                  out.logprobs.data_ptr(), out.status.data_ptr(), workspace.data_ptr(), tiling);
         });
  return out;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> verify_chain(
    const at::Tensor& target_logits, const at::Tensor& tokens, const at::Tensor& cu_nodes, const at::Tensor& uniforms,
    const OptionalTensor& draft_logits, const OptionalTensor& draft_temperature, const OptionalTensor& temperature,
    const OptionalTensor& top_k, const OptionalTensor& top_p, const OptionalTensor& min_p, c10::string_view rule,
    double posterior_threshold, double posterior_alpha, int64_t max_nodes) {
  const VerifyTensors tensors{
      target_logits, tokens, cu_nodes, uniforms, draft_logits, draft_temperature, {temperature, top_k, top_p, min_p}};
  const int64_t position = check_verify_chain(tensors, rule, max_nodes);
  constexpr ascendc::VerifyRule kRules[] = {ascendc::kRecursive, ascendc::kTraversal, ascendc::kTypical,
                                            ascendc::kStrict};
  Outputs out = verify("specdec::verify_chain", tensors, std::nullopt, kRules[position],
                       {posterior_threshold, posterior_alpha}, max_nodes);
  return {out.tokens, out.num_accepted, out.logprobs, out.status};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> verify_tree(
    const at::Tensor& target_logits, const at::Tensor& tokens, const at::Tensor& parents, const at::Tensor& cu_nodes,
    const at::Tensor& uniforms, const OptionalTensor& draft_logits, const OptionalTensor& draft_temperature,
    const OptionalTensor& temperature, const OptionalTensor& top_k, const OptionalTensor& top_p,
    const OptionalTensor& min_p, c10::string_view rule, double posterior_threshold, double posterior_alpha,
    int64_t max_nodes) {
  const VerifyTensors tensors{
      target_logits, tokens, cu_nodes, uniforms, draft_logits, draft_temperature, {temperature, top_k, top_p, min_p}};
  const int64_t position = check_verify_tree(tensors, parents, rule, max_nodes);
  constexpr ascendc::VerifyRule kRules[] = {ascendc::kTargetOnly, ascendc::kRecursive, ascendc::kTraversal,
                                            ascendc::kTypical};
  Outputs out = verify("specdec::verify_tree", tensors, parents, kRules[position],
                       {posterior_threshold, posterior_alpha}, max_nodes);
  return {out.tokens, out.num_accepted, out.path, out.logprobs, out.status};
}

}  // namespace

SPECDEC_NPU_IMPL(m) {
  m.impl("verify_chain", verify_chain);
  m.impl("verify_tree", verify_tree);
}

}  // namespace specdec::npu
