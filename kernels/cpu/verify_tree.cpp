#include "verify_request.h"

namespace specdec::cpu::SPECDEC_CAPABILITY {

namespace {

// Fills max(a p - b q, 0).
auto excess(const Distribution& p, double a, const Remainder& q, double b) {
  return [&p, a, &q, b](int64_t begin, int64_t n, float* out) {
    probabilities(p, begin, n, out, a);
    q.subtract(begin, n, b, out);
  };
}

// p of a node and the q of its children, as rejected children leave them: p <- norm(max(weight p - q, 0)), q without
// the child. Both stay functions of the rows. However many children are rejected, p is max(a p0 - b q, 0) / total for
// two numbers a and b, and 0 at those that were rejected before: earlier q are multiples of this one elsewhere. It is
// the q of the last residual, not of the row, since what is left of a row may be too little for the row's weights.
// Without q it is p0 less the rejected children.
class Residual {
 public:
  Residual(Distribution p, const std::optional<Distribution>& q)
      : p_(std::move(p)), has_q_(q.has_value()), rest_(q ? *q : p_), subtracted_(rest_) {}

  const Distribution& original() const { return p_; }

  double target(int64_t x) const {
    if (!has_q_) return rest_.probability(x);
    if (subtracted_.removed(x)) return 0;
    return std::max(a_ * probability(p_, x) - b_ * subtracted_.probability(x), 0.) / total_;
  }
  double draft(int64_t x) const { return has_q_ ? rest_.probability(x) : 1; }

  // Returns the mass of max(weight p - q, 0). Where rounding leaves none p stays as it is.
  double reject(int64_t x, double weight) {
    const Remainder before = rest_;
    rest_.remove(x);
    if (!has_q_) return weight * rest_.share_of(before);
    const Remainder& q = before.empty() ? subtracted_ : before;
    const double a = weight * a_ / total_, earlier = weight * b_ / total_;
    const double b = before.empty() ? earlier : earlier * before.share_of(subtracted_) + 1;
    std::vector<double> mass = chunk_masses(p_.row.size, excess(p_, a, q, b));
    const double total = sum(mass);
    if (total > 0) {
      a_ = a, b_ = b, total_ = total;
      subtracted_ = q;
      mass_ = std::move(mass);
    }
    return total;
  }

  int64_t draw(double u) {
    int64_t id = -1;
    if (!has_q_)
      id = rest_.draw(u);
    else if (!mass_.empty())
      id = SPECDEC_CAPABILITY::draw(mass_, p_.row.size, u, excess(p_, a_, subtracted_, b_));
    return id < 0 ? SPECDEC_CAPABILITY::draw(p_, u) : id;
  }

 private:
  Distribution p_;
  bool has_q_;
  Remainder rest_;        // of q; of p where there is no q
  Remainder subtracted_;  // the rest of q at the last residual
  double a_ = 1, b_ = 0, total_ = 1;
  std::vector<double> mass_;  // of max(a p0 - b q, 0) by chunk, once a child is rejected
};

class Tree : VerifyRequest {
 public:
  Tree(const VerifyTreeParams& p, int64_t request)
      : VerifyRequest(p, request), p_(p), path_(p.path + request * p.max_nodes) {}

  void verify() {
    std::fill_n(path_, p_.max_nodes, -1);
    if (num_nodes_ > 0) {
      link();
      if (greedy())
        follow_argmax();
      else if (p_.rule == TreeRule::kTargetOnly)
        target_only();
      else if (p_.rule == TreeRule::kRecursive)
        recursive();
      else if (p_.rule == TreeRule::kTraversal)
        traversal();
      else
        typical();
    }
    finish();
  }

 private:
  // Children in order, dead nodes left out: those whose parent does not come before them or is dead, or whose token is
  // no token.
  void link() {
    first_child_.assign(num_nodes_, -1);
    next_sibling_.assign(num_nodes_, -1);
    std::vector<bool> alive(num_nodes_, true);
    if (parent(0) != -1) status_ |= kMalformedTree;
    for (int64_t node = 1; node < num_nodes_; ++node) {
      alive[node] = false;
      if (parent(node) < 0 || parent(node) >= node)
        status_ |= kMalformedTree;
      else if (!alive[parent(node)])
        continue;
      else if (is_token(token(node)))
        alive[node] = true;
      else if (token(node) != -1)
        status_ |= kTokenOutOfRange;
    }
    for (int64_t node = num_nodes_ - 1; node > 0; --node) {
      if (!alive[node]) continue;
      next_sibling_[node] = first_child_[parent(node)];
      first_child_[parent(node)] = node;
    }
  }

  int64_t parent(int64_t node) const { return p_.parents[first_ + node]; }
  void visit(int64_t node) { *path_++ = int32_t(node); }

  void follow_argmax() {
    for (int64_t node = 0; node >= 0;) {
      visit(node);
      const Argmax top = target_argmax(node);
      emit(top.id);
      if (top.status) return;
      node = first_child_[node];
      while (node >= 0 && token(node) != top.id) node = next_sibling_[node];
    }
  }

  void target_only() {
    for (int64_t node = 0;;) {
      visit(node);
      Distribution p = target(node);
      const int64_t first = first_child_[node];
      if (p.status || first < 0) return emit_bonus(p);
      double reached = 0;
      int64_t child = first;
      for (; child >= 0; child = next_sibling_[child]) {
        reached += probability(p, token(child));
        if (uniforms_[first] < reached) break;
      }
      if (child < 0) {
        Residual rest(std::move(p), std::nullopt);
        for (child = first; child >= 0; child = next_sibling_[child]) rest.reject(token(child), 1);
        return emit(rest.original(), rest.draw(uniforms_[0]));
      }
      emit(p, token(child));
      node = child;
    }
  }

  void recursive() {
    for (int64_t node = 0;;) {
      visit(node);
      Distribution p = target(node);
      int64_t child = first_child_[node];
      if (p.status || child < 0) return emit_bonus(p);
      Residual rest(std::move(p), draft(node));
      for (; child >= 0; child = next_sibling_[child]) {
        const int64_t x = token(child);
        if (uniforms_[child] * rest.draft(x) < rest.target(x)) break;
        rest.reject(x, 1);
      }
      if (child < 0) return emit(rest.original(), rest.draw(uniforms_[0]));
      emit(rest.original(), token(child));
      node = child;
    }
  }

  // A node on the path from the root to the leaf that is judged next.
  struct Step {
    int64_t node;
    int64_t child;  // the next one to go to, -1 if none is left
    double weight;
    std::optional<Residual> rest;  // for a node with children
  };

  Step step_to(int64_t node, double weight) {
    Step step{node, first_child_[node], weight, std::nullopt};
    if (step.child < 0) return step;
    Distribution p = target(node);
    if (p.status)
      step.child = -1;
    else
      step.rest.emplace(std::move(p), draft(node));
    return step;
  }

  // The child is gone, with all below it.
  void remove_child(Step* step) {
    const double mass = step->rest->reject(token(step->child), step->weight);
    step->weight = mass > 0 ? mass / (mass + (1 - step->weight)) : 0;
    step->child = mass > 0 ? next_sibling_[step->child] : -1;  // below weight 0 nothing is accepted
  }

  void traversal() {
    std::vector<Step> path;
    path.push_back(step_to(0, 1));
    for (;;) {
      Step& step = path.back();
      if (step.child >= 0) {
        const int64_t x = token(step.child);
        const double p = step.rest->target(x);
        const double weight = p > 0 ? std::min(1., step.weight * p / step.rest->draft(x)) : 0;
        if (weight > 0)
          path.push_back(step_to(step.child, weight));
        else
          remove_child(&step);
      } else if (path.size() == 1 || uniforms_[step.node] < step.weight) {
        break;
      } else {
        path.pop_back();
        remove_child(&path.back());
      }
    }
    for (size_t i = 0; i < path.size(); ++i) {
      visit(path[i].node);
      if (i + 1 < path.size()) emit(path[i].rest->original(), token(path[i + 1].node));
    }
    Step& last = path.back();
    if (last.rest)
      emit(last.rest->original(), last.rest->draw(uniforms_[0]));
    else
      emit_bonus(target(last.node));
  }

  void typical() {
    struct Reached {
      int64_t depth = -1;  // -1: not reached
      float logprob = 0;
      std::optional<Distribution> p;
    };
    std::vector<Reached> nodes(num_nodes_);
    nodes[0].depth = 0;
    int64_t best = 0;
    for (int64_t node = 0; node < num_nodes_; ++node) {
      if (nodes[node].depth < 0) continue;
      if (nodes[node].depth > nodes[best].depth) best = node;
      if (first_child_[node] < 0) continue;
      const Distribution& p = nodes[node].p.emplace(target(node));
      if (p.status) continue;
      TypicalTest is_typical(p, p_);
      for (int64_t child = first_child_[node]; child >= 0; child = next_sibling_[child]) {
        const int64_t x = token(child);
        if (is_typical(x)) {
          nodes[child].depth = nodes[node].depth + 1;
          nodes[child].logprob = logprob(p, x);
        }
      }
    }
    std::vector<int64_t> path;
    for (int64_t node = best; node > 0; node = parent(node)) path.push_back(node);
    visit(0);
    for (size_t i = path.size(); i-- > 0;) {
      visit(path[i]);
      emit(token(path[i]), nodes[path[i]].logprob);
    }
    emit_bonus(nodes[best].p ? *nodes[best].p : target(best));
  }

  const VerifyTreeParams& p_;
  int32_t* path_;  // the end of what is written
  std::vector<int64_t> first_child_;
  std::vector<int64_t> next_sibling_;
};

}  // namespace

void verify_tree(const VerifyTreeParams& p) {
  for_each_request(p.batch, p.target.vocab_size, [&](int64_t request) { Tree(p, request).verify(); });
}

}  // namespace specdec::cpu::SPECDEC_CAPABILITY
