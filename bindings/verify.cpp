#include "verify.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace specdec {

namespace {

// What verify_chain and verify_tree have in common.
void check_verify(const VerifyTensors& tensors, int64_t max_nodes) {
  const at::Tensor& target = tensors.target_logits;
  check_logits("target_logits", target, kAny, kAny, target);
  const int64_t num_nodes = target.size(0);
  check_dense("tokens", tensors.tokens, {num_nodes}, {at::kLong}, target);
  const int64_t batch = check_cu_nodes(tensors.cu_nodes, target);
  check_range("max_nodes", max_nodes, 1, std::numeric_limits<int32_t>::max());
  check_dense("uniforms", tensors.uniforms, {batch, max_nodes}, {at::kFloat}, target);
  if (tensors.draft_logits) check_logits("draft_logits", *tensors.draft_logits, num_nodes, target.size(1), target);
  if (tensors.draft_temperature)
    check_dense("draft_temperature", *tensors.draft_temperature, {batch}, {at::kFloat}, target);
  check_sampling(tensors.sampling, batch, target);
}

// The position of `rule` among `allowed`.
int64_t check_rule(c10::string_view rule, std::initializer_list<c10::string_view> allowed) {
  const auto found = std::find(allowed.begin(), allowed.end(), rule);
  if (found == allowed.end()) {
    std::string names;
    for (c10::string_view name : allowed) names += (names.empty() ? "" : ", ") + std::string(name);
    TORCH_CHECK_VALUE(false, "rule: expected one of ", names, ", got ", rule);
  }
  return found - allowed.begin();
}

}  // namespace

int64_t check_verify_chain(const VerifyTensors& tensors, c10::string_view rule, int64_t max_nodes) {
  check_verify(tensors, max_nodes);
  return check_rule(rule, {"rejection", "block", "typical", "strict"});
}

int64_t check_verify_tree(const VerifyTensors& tensors, const at::Tensor& parents, c10::string_view rule,
                          int64_t max_nodes) {
  check_verify(tensors, max_nodes);
  check_dense("parents", parents, {tensors.target_logits.size(0)}, {at::kInt}, tensors.target_logits);
  return check_rule(rule, {"target_only", "recursive", "traversal", "typical"});
}

}  // namespace specdec
