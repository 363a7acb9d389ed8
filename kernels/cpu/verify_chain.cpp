#include <optional>

#include "distribution.h"
#include "verify.h"

namespace specdec::cpu::SPECDEC_CAPABILITY {

namespace {

// The chain of one request: node 0 is the root, nodes 1..num_drafts its drafts. Row i of the target decides node i + 1.
class Chain {
 public:
  Chain(const VerifyChainParams& p, int64_t request)
      : p_(p),
        request_(request),
        filters_(filters_of(p.sampling, request)),
        uniforms_(p.uniforms + request * p.max_nodes) {
    if (p.draft_temperature) draft_filters_.temperature = temperature_of(p.draft_temperature[request]);
  }

  void verify() {
    std::fill_n(p_.out_tokens + request_ * p_.max_nodes, p_.max_nodes, -1);
    std::fill_n(p_.logprobs + request_ * p_.max_nodes, p_.max_nodes, 0.f);
    if (find_nodes()) {
      if (filters_.temperature == 0)
        greedy();
      else if (p_.rule == ChainRule::kBlock)
        block();
      else
        prefix();
    }
    p_.num_accepted[request_] = std::max(num_emitted_ - 1, 0);
    p_.status[request_] = status_;
  }

 private:
  // False if there is no node.
  bool find_nodes() {
    const int64_t begin = p_.cu_nodes[request_], end = p_.cu_nodes[request_ + 1];
    if (begin < 0 || end < begin || end > p_.num_nodes) {
      status_ |= kMalformedTree;
      return false;
    }
    first_ = begin;
    const int64_t num_nodes = std::min(end - begin, p_.max_nodes);
    for (int64_t i = 1; i < num_nodes; ++i) {
      if (token(i) < 0 || token(i) >= p_.target.vocab_size) {
        if (token(i) != -1) status_ |= kTokenOutOfRange;
        break;
      }
      num_drafts_ = i;
    }
    return num_nodes > 0;
  }

  int64_t token(int64_t node) const { return p_.tokens[first_ + node]; }
  Row target_row(int64_t node) const { return row_of(p_.target, first_ + node); }

  void emit(int64_t token, float logprob) {
    const int64_t at = request_ * p_.max_nodes + num_emitted_++;
    p_.out_tokens[at] = token;
    p_.logprobs[at] = logprob;
  }
  void emit(const Distribution& p, int64_t token) { emit(token, logprob(p, token)); }
  void emit_fallback(int64_t node, int32_t status) {
    status_ |= status;
    emit(finite_argmax(target_row(node)), 0);
  }

  void greedy() {
    for (int64_t node = 0;; ++node) {
      const Argmax top = argmax(target_row(node));
      status_ |= top.status;
      emit(top.id, 0);
      if (top.status || node == num_drafts_ || token(node + 1) != top.id) return;
    }
  }

  // The rules that decide node by node and stop at the first that fails.
  void prefix() {
    for (int64_t node = 0;; ++node) {
      const Distribution p = process(target_row(node), filters_);
      if (p.status) return emit_fallback(node, p.status);
      if (node == num_drafts_) return emit(p, draw(p, uniforms_[0]));
      const int64_t x = token(node + 1);
      const double u = uniforms_[node + 1];
      switch (p_.rule) {
        case ChainRule::kStrict: {
          const int64_t y = draw(p, u);
          emit(p, y);
          if (y != x) return;
          continue;
        }
        case ChainRule::kTypical: {
          const double least = std::min(p_.posterior_threshold, p_.posterior_alpha * std::exp(-entropy(p)));
          if (!(probability(p, x) > least)) return emit(p, draw(p, uniforms_[0]));
          break;
        }
        default: {
          const std::optional<Distribution> q = draft(node);
          if (!(u * draft_probability(q, x) < probability(p, x)))
            return emit(p, draw_residual(p, q, x, 1, uniforms_[0]));
        }
      }
      emit(p, x);
    }
  }

  // The longest prefix whose test passes wins, even past a failure: rows are read until the prefix's weight is zero.
  void block() {
    std::vector<Distribution> p;
    std::vector<std::optional<Distribution>> q;
    std::vector<double> weight;  // P_i of the paper
    int64_t accepted = 0;
    bool ended = false;
    double w = 1;
    for (int64_t node = 0; !ended && w > 0; ++node) {
      p.push_back(process(target_row(node), filters_));
      status_ |= p[node].status;
      weight.push_back(w);
      ended = node == num_drafts_ || p[node].status;
      q.push_back(ended ? std::nullopt : draft(node));
      const int64_t x = ended ? 0 : token(node + 1);
      double pass = w;
      if (!ended && w < 1) {
        const double excess = sum(chunk_masses(p[node].row.size, residual(p[node], q[node], x, w)));
        pass = excess / (excess + 1 - w);
      }
      if (node > 0 && uniforms_[node] < pass) accepted = node;
      if (ended) break;
      const double px = probability(p[node], x);
      w = px > 0 ? std::min(1., w * px / draft_probability(q[node], x)) : 0;
    }
    for (int64_t node = 0; node < accepted; ++node) emit(p[node], token(node + 1));
    const Distribution& next = p[accepted];
    if (next.status) return emit_fallback(accepted, next.status);
    const bool whole = ended && accepted + 1 == int64_t(p.size());
    emit(next, whole ? draw(next, uniforms_[0])
                     : draw_residual(next, q[accepted], token(accepted + 1), weight[accepted], uniforms_[0]));
  }

  // What node's child was drawn from; none where it was chosen deterministically.
  std::optional<Distribution> draft(int64_t node) {
    if (!p_.draft.data || draft_filters_.temperature == 0) return std::nullopt;
    Distribution q = process(row_of(p_.draft, first_ + node), draft_filters_);
    if (!q.status) return q;
    status_ |= q.status;
    return std::nullopt;
  }

  const VerifyChainParams& p_;
  const int64_t request_;
  const Filters filters_;
  Filters draft_filters_;
  const float* uniforms_;
  int64_t first_ = 0;
  int64_t num_drafts_ = 0;
  int32_t num_emitted_ = 0;
  int32_t status_ = 0;
};

}  // namespace

void verify_chain(const VerifyChainParams& p) {
  for_each_request(p.batch, p.target.vocab_size, [&](int64_t request) { Chain(p, request).verify(); });
}

}  // namespace specdec::cpu::SPECDEC_CAPABILITY
