// What verify_chain and verify_tree do alike for a request: find its rows, emit tokens, report what was wrong.
#pragma once

#include <optional>

#include "distribution.h"
#include "verify.h"

namespace specdec::cpu::SPECDEC_CAPABILITY {

// Whether p(x) > min(threshold, alpha * exp(-entropy of p)). The entropy costs a pass over the row, made only where it
// decides.
class TypicalTest {
 public:
  TypicalTest(const Distribution& p, const VerifyParams& params) : p_(p), params_(params) {}

  bool operator()(int64_t x) {
    const double px = probability(p_, x);
    if (px > params_.posterior_threshold) return true;
    if (!bound_) bound_ = params_.posterior_alpha * std::exp(-entropy(p_));
    return px > *bound_;
  }

 private:
  const Distribution& p_;
  const VerifyParams& params_;
  std::optional<double> bound_;
};

class VerifyRequest {
 protected:
  VerifyRequest(const VerifyParams& p, int64_t request)
      : filters_(filters_of(p.sampling, request)),
        uniforms_(p.uniforms + request * p.max_nodes),
        p_(p),
        request_(request) {
    if (p.draft_temperature) draft_filters_.temperature = temperature_of(p.draft_temperature[request]);
    const int64_t begin = p.cu_nodes[request], end = p.cu_nodes[request + 1];
    if (0 <= begin && begin <= end && end <= p.num_nodes) {
      first_ = begin;
      num_nodes_ = std::min(end - begin, p.max_nodes);
    } else {
      status_ = kMalformedTree;
    }
    std::fill_n(p.out_tokens + request * p.max_nodes, p.max_nodes, -1);
    std::fill_n(p.logprobs + request * p.max_nodes, p.max_nodes, 0.f);
  }

  bool greedy() const { return filters_.temperature == 0; }
  int64_t token(int64_t node) const { return p_.tokens[first_ + node]; }
  bool is_token(int64_t id) const { return 0 <= id && id < p_.target.vocab_size; }

  Argmax target_argmax(int64_t node) {
    const Argmax top = argmax(row_of(p_.target, first_ + node));
    status_ |= top.status;
    return top;
  }

  Distribution target(int64_t node) {
    Distribution d = process(row_of(p_.target, first_ + node), filters_);
    status_ |= d.status;
    return d;
  }

  // What the first child of the node was drawn from; none where drafts were chosen deterministically.
  std::optional<Distribution> draft(int64_t node) {
    if (!p_.draft.data || draft_filters_.temperature == 0) return std::nullopt;
    Distribution q = process(row_of(p_.draft, first_ + node), draft_filters_);
    if (!q.status) return q;
    status_ |= q.status;
    return std::nullopt;
  }

  void emit(int64_t token, float logprob = 0) {
    const int64_t at = request_ * p_.max_nodes + num_emitted_++;
    p_.out_tokens[at] = token;
    p_.logprobs[at] = logprob;
  }
  void emit(const Distribution& p, int64_t token) { emit(token, logprob(p, token)); }
  // The token after the last draft.
  void emit_bonus(const Distribution& p) {
    if (p.status)
      emit(finite_argmax(p.row));
    else
      emit(p, draw(p, uniforms_[0]));
  }

  void finish() {
    p_.num_accepted[request_] = std::max(num_emitted_ - 1, 0);
    p_.status[request_] = status_;
  }

  const Filters filters_;
  const float* uniforms_;
  int64_t first_ = 0;      // row of the root
  int64_t num_nodes_ = 0;  // 0 where cu_nodes is malformed
  int32_t status_ = 0;

 private:
  const VerifyParams& p_;
  const int64_t request_;
  Filters draft_filters_;
  int32_t num_emitted_ = 0;
};

}  // namespace specdec::cpu::SPECDEC_CAPABILITY
