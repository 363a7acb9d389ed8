// Every schema in one place; the docstrings in specdec_ops/ops/ say what the arguments are.
#include "schemas.h"

#include <string>

namespace specdec {

void define_schemas(torch::Library& library, bool returns) {
  const auto def = [&](std::string schema) {
    if (!returns) schema.replace(schema.find(" -> "), std::string::npos, " -> ()");
    library.def(schema.c_str());
  };

  // tree
  def("tree_mask(Tensor parents, Tensor cu_nodes, int max_nodes) -> (Tensor mask, Tensor depth)");
  def("tree_select(Tensor tokens, Tensor scores, Tensor parents_in, int num_nodes) "
      "-> (Tensor tokens, Tensor parents, Tensor cu_nodes)");

  // kv_cache
  def("kv_append(Tensor k, Tensor v, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor block_table, Tensor context_lens, "
      "Tensor cu_nodes) -> ()");
  def("kv_rollback(Tensor(a!)[] caches, Tensor block_table, Tensor(b!) context_lens, Tensor num_accepted, "
      "Tensor? path=None) -> ()");
  def("kv_truncate(Tensor(a!) context_lens, Tensor new_lens) -> ()");
  def("blocks_reserve(Tensor(a!) block_table, Tensor free_list, Tensor(b!) num_free, Tensor context_lens, "
      "Tensor num_new, int block_size) -> Tensor status");
  def("blocks_release(Tensor(a!) block_table, Tensor(b!) free_list, Tensor(c!) num_free, Tensor context_lens, "
      "int block_size) -> ()");

  // tree_attention
  def("tree_attention(Tensor q, Tensor k_cache, Tensor v_cache, Tensor block_table, Tensor context_lens, "
      "Tensor cu_nodes, Tensor? mask=None, *, float scale, float softcap=0.0, int window=0, Tensor? depth=None, "
      "Tensor? sinks=None, Tensor? k_scale=None, Tensor? v_scale=None, int max_nodes) -> (Tensor out, Tensor lse)");
  def("merge_attention(Tensor out_a, Tensor lse_a, Tensor out_b, Tensor lse_b) -> (Tensor out, Tensor lse)");

  // sample
  def("philox_uniform(Tensor seeds, Tensor offsets, int n, int stream) -> Tensor");
  def("sample(Tensor logits, Tensor uniforms, *, Tensor? temperature=None, Tensor? top_k=None, Tensor? top_p=None, "
      "Tensor? min_p=None) -> (Tensor token, Tensor logprob, Tensor status)");
  def("sample_topk(Tensor logits, Tensor? uniforms, int k, *, Tensor? temperature=None, Tensor? top_k=None, "
      "Tensor? top_p=None, Tensor? min_p=None) -> (Tensor tokens, Tensor logprobs)");

  // verify
  def("verify_chain(Tensor target_logits, Tensor tokens, Tensor cu_nodes, Tensor uniforms, *, "
      "Tensor? draft_logits=None, Tensor? draft_temperature=None, Tensor? temperature=None, Tensor? top_k=None, "
      "Tensor? top_p=None, Tensor? min_p=None, str rule='rejection', float posterior_threshold=0.09, "
      "float posterior_alpha=0.3, int max_nodes) "
      "-> (Tensor tokens, Tensor num_accepted, Tensor logprobs, Tensor status)");
  def("verify_tree(Tensor target_logits, Tensor tokens, Tensor parents, Tensor cu_nodes, Tensor uniforms, *, "
      "Tensor? draft_logits=None, Tensor? draft_temperature=None, Tensor? temperature=None, Tensor? top_k=None, "
      "Tensor? top_p=None, Tensor? min_p=None, str rule='target_only', float posterior_threshold=0.09, "
      "float posterior_alpha=0.3, int max_nodes) "
      "-> (Tensor tokens, Tensor num_accepted, Tensor path, Tensor logprobs, Tensor status)");

  // propose
  def("ngram_propose(Tensor history, Tensor lengths, *, int min_n, int max_n, int num_draft) "
      "-> (Tensor tokens, Tensor num_found)");

  // step
  def("advance(Tensor(a!) history, Tensor(b!) lengths, Tensor(c!) finished, Tensor tokens, Tensor num_accepted, "
      "Tensor eos_ids, Tensor max_lens) -> Tensor root");
  def("adapt_draft_length(Tensor(a!) rate, Tensor drafted, Tensor accepted, *, float decay=0.9, int min_draft=1, "
      "int max_draft=8, float draft_cost=0.1) -> Tensor num_draft");
}

}  // namespace specdec
