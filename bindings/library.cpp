#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>

#include "kv_cache.h"
#include "philox.h"
#include "propose.h"
#include "sample.h"
#include "schemas.h"
#include "step.h"
#include "tree.h"
#include "tree_attention.h"
#include "verify.h"

namespace specdec {

namespace {

// Where a check takes the arguments in a struct, or not all of them.

void check_tree_attention_call(const at::Tensor& q, const at::Tensor& k_cache, const at::Tensor& v_cache,
                               const at::Tensor& block_table, const at::Tensor& context_lens,
                               const at::Tensor& cu_nodes, const OptionalTensor& mask, double, double, int64_t window,
                               const OptionalTensor& depth, const OptionalTensor& sinks, const OptionalTensor& k_scale,
                               const OptionalTensor& v_scale, int64_t max_nodes) {
  check_tree_attention(q, k_cache, v_cache, block_table, context_lens, cu_nodes, mask, window, depth, sinks, k_scale,
                       v_scale, max_nodes);
}

void check_sample_call(const at::Tensor& logits, const at::Tensor& uniforms, const OptionalTensor& temperature,
                       const OptionalTensor& top_k, const OptionalTensor& top_p, const OptionalTensor& min_p) {
  check_sample(logits, uniforms, {temperature, top_k, top_p, min_p});
}

void check_sample_topk_call(const at::Tensor& logits, const OptionalTensor& uniforms, int64_t k,
                            const OptionalTensor& temperature, const OptionalTensor& top_k, const OptionalTensor& top_p,
                            const OptionalTensor& min_p) {
  check_sample_topk(logits, uniforms, k, {temperature, top_k, top_p, min_p});
}

void check_verify_chain_call(const at::Tensor& target_logits, const at::Tensor& tokens, const at::Tensor& cu_nodes,
                             const at::Tensor& uniforms, const OptionalTensor& draft_logits,
                             const OptionalTensor& draft_temperature, const OptionalTensor& temperature,
                             const OptionalTensor& top_k, const OptionalTensor& top_p, const OptionalTensor& min_p,
                             c10::string_view rule, double, double, int64_t max_nodes) {
  check_verify_chain(
      {target_logits, tokens, cu_nodes, uniforms, draft_logits, draft_temperature, {temperature, top_k, top_p, min_p}},
      rule, max_nodes);
}

void check_verify_tree_call(const at::Tensor& target_logits, const at::Tensor& tokens, const at::Tensor& parents,
                            const at::Tensor& cu_nodes, const at::Tensor& uniforms, const OptionalTensor& draft_logits,
                            const OptionalTensor& draft_temperature, const OptionalTensor& temperature,
                            const OptionalTensor& top_k, const OptionalTensor& top_p, const OptionalTensor& min_p,
                            c10::string_view rule, double, double, int64_t max_nodes) {
  check_verify_tree(
      {target_logits, tokens, cu_nodes, uniforms, draft_logits, draft_temperature, {temperature, top_k, top_p, min_p}},
      parents, rule, max_nodes);
}

}  // namespace

}  // namespace specdec

TORCH_LIBRARY(specdec, m) { specdec::define_schemas(m); }

// The operators that make floats of floats have no gradient: backward() raises where torch would only warn.
TORCH_LIBRARY_IMPL(specdec, Autograd, m) {
  for (const char* name : {"tree_attention", "merge_attention", "sample", "sample_topk", "verify_chain", "verify_tree"})
    m.impl(name, torch::autograd::autogradNotImplementedFallback());
}

// The host checks alone, for kernels in Python: they take an operator's arguments, on any device, and return nothing.
TORCH_LIBRARY(specdec_check, m) {
  using namespace specdec;
  define_schemas(m, /*returns=*/false);
  m.impl("tree_mask", check_tree_mask);
  m.impl("tree_select", check_tree_select);
  m.impl("kv_append", check_kv_append);
  m.impl("kv_rollback", check_kv_rollback);
  m.impl("kv_truncate", check_kv_truncate);
  m.impl("blocks_reserve", check_blocks_reserve);
  m.impl("blocks_release", check_blocks_release);
  m.impl("tree_attention", check_tree_attention_call);
  m.impl("merge_attention", check_merge_attention);
  m.impl("philox_uniform", check_philox_uniform);
  m.impl("sample", check_sample_call);
  m.impl("sample_topk", check_sample_topk_call);
  m.impl("verify_chain", check_verify_chain_call);
  m.impl("verify_tree", check_verify_tree_call);
  m.impl("ngram_propose", check_ngram_propose);
  m.impl("advance", check_advance);
  m.impl("adapt_draft_length", check_adapt_draft_length);
}
