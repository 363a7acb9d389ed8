#include "verify_request.h"

namespace specdec::cpu::SPECDEC_CAPABILITY {

namespace {

// The chain of one request: node 0 is the root, nodes 1..num_drafts its drafts. Row i of the target decides node i + 1.
class Chain : VerifyRequest {
 public:
  Chain(const VerifyChainParams& p, int64_t request) : VerifyRequest(p, request), p_(p) {}

  void verify() {
    if (num_nodes_ > 0) {
      count_drafts();
      if (greedy())
        follow_argmax();
      else if (p_.rule == ChainRule::kBlock)
        block();
      else
        prefix();
    }
    finish();
  }

 private:
  void count_drafts() {
    while (num_drafts_ + 1 < num_nodes_ && is_token(token(num_drafts_ + 1))) ++num_drafts_;
    if (num_drafts_ + 1 < num_nodes_ && token(num_drafts_ + 1) != -1) status_ |= kTokenOutOfRange;
  }

  void follow_argmax() {
    for (int64_t node = 0;; ++node) {
      const Argmax top = target_argmax(node);
      emit(top.id);
      if (top.status || node == num_drafts_ || token(node + 1) != top.id) return;
    }
  }

  // The rules that decide node by node and stop at the first that fails.
  void prefix() {
    for (int64_t node = 0;; ++node) {
      const Distribution p = target(node);
      if (p.status || node == num_drafts_) return emit_bonus(p);
      const int64_t x = token(node + 1);
      const double u = uniforms_[node + 1];
      switch (p_.rule) {
        case ChainRule::kStrict: {
          const int64_t y = draw(p, u);
          emit(p, y);
          if (y != x) return;
          continue;
        }
        case ChainRule::kTypical:
          if (!TypicalTest(p, p_)(x)) return emit_bonus(p);
          break;
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
      const bool leaf = node == num_drafts_;
      if (leaf && node > 0 && !(uniforms_[node] < w)) break;  // its row is not read
      p.push_back(target(node));
      weight.push_back(w);
      ended = leaf || p[node].status;
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
    if (ended && accepted + 1 == int64_t(p.size())) return emit_bonus(next);
    emit(next, draw_residual(next, q[accepted], token(accepted + 1), weight[accepted], uniforms_[0]));
  }

  const VerifyChainParams& p_;
  int64_t num_drafts_ = 0;
};

}  // namespace

void verify_chain(const VerifyChainParams& p) {
  for_each_request(p.batch, p.target.vocab_size, [&](int64_t request) { Chain(p, request).verify(); });
}

}  // namespace specdec::cpu::SPECDEC_CAPABILITY
