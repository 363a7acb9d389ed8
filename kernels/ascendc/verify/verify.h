// Verification of drafts straight from logits, of chains and trees.
//
// A core walks through a request. Its rows are read as they are needed, by all cores together; a chain asks for some
// of the rows that come next too. After every round of passes the walk goes on from the node it had come to, and what
// it found before is remembered by node.
#pragma once

#include "kernels/ascendc/sample/rows.h"
#include "kernels/ascendc/verify/verify_tiling.h"

namespace specdec::ascendc {

// What is kept of a request from step to step.
struct VerifyRequest {
  Filters filters_, draft_filters_;
  bool fits_;      // cu_nodes says which nodes are the request's
  int64_t first_;  // row of the root
  int32_t num_nodes_;
  uint32_t rows_asked_, rows_taken_;  // nodes of a chain whose rows were asked for, and combined
  uint32_t rows_came_;                // at once, the last time
  int32_t top_;                       // where the walk stands
  bool entered_, removing_;           // of a traversal
  bool postponed_;                    // the draw
};

class Verify : public Rows, public VerifyRequest {
 public:
  using Request = VerifyRequest;

  __aicore__ inline void Init(GM_ADDR target, GM_ADDR draft, GM_ADDR tokens, GM_ADDR parents, GM_ADDR cu_nodes,
                              GM_ADDR uniforms, GM_ADDR draft_temperature, GM_ADDR temperature, GM_ADDR top_k,
                              GM_ADDR top_p, GM_ADDR min_p, GM_ADDR out_tokens, GM_ADDR num_accepted, GM_ADDR path,
                              GM_ADDR logprobs, GM_ADDR status, GM_ADDR workspace, const VerifyTiling& tiling) {
    Rows::Init(target, draft, temperature, top_k, top_p, min_p, workspace, tiling.rows);
    v_ = tiling;
    tokens_.SetGlobalBuffer((__gm__ int64_t*)tokens, static_cast<uint64_t>(v_.num_nodes));
    parents_.SetGlobalBuffer((__gm__ int32_t*)parents, static_cast<uint64_t>(v_.num_nodes));
    cu_nodes_.SetGlobalBuffer((__gm__ int32_t*)cu_nodes, t_.batch + 1);
    uniforms_.SetGlobalBuffer((__gm__ float*)uniforms, uint64_t{t_.batch} * t_.width);
    draft_temperature_.SetGlobalBuffer((__gm__ float*)draft_temperature, t_.batch);
    is_chain_ = parents == nullptr;
    has_draft_ = draft != nullptr;
    has_draft_temperature_ = draft_temperature != nullptr;
    out_tokens_ = out_tokens;
    num_accepted_ = num_accepted;
    path_ = path;
    logprobs_ = logprobs;
    status_out_ = status;
  }

  __aicore__ inline void Process() {
    if (is_chain_ && t_.lanes == 1) PreloadTokens(0, v_.num_nodes);  // for Foresee
    Run(this);
  }

  __aicore__ inline void PreloadRequest() const {
    Preload(cu_nodes_[request_]);
    PreloadFilters(request_);
    if (has_draft_temperature_) Preload(draft_temperature_[request_]);
  }
  __aicore__ inline void Find() {
    filters_ = FiltersOf(request_);
    draft_filters_ = Filters{1.0f, 0, 1.0f, 0.0f};
    if (has_draft_temperature_) draft_filters_.temperature = Temperature(draft_temperature_.GetValue(request_));
    const int64_t begin = cu_nodes_.GetValue(request_), end = cu_nodes_.GetValue(request_ + 1);
    fits_ = 0 <= begin && begin <= end && end <= v_.num_nodes;
    first_ = fits_ ? begin : 0;
    const int64_t size = fits_ ? end - begin : 0;
    num_nodes_ = static_cast<int32_t>(size < t_.nodes ? size : t_.nodes);
  }
  // The root's row, or those that AskAhead finds first: of every node, and then of its child's draft.
  __aicore__ inline uint32_t CountFirst() const {
    if (num_nodes_ == 0) return 0;
    if (!is_chain_) return 1;
    const int32_t most = static_cast<int32_t>(v_.ahead);
    int32_t alive = 1;
    while (alive <= most && alive < num_nodes_ && IsId(Token(alive))) ++alive;
    const int32_t rows = alive < most ? alive : most, drafts = rows < alive ? rows : rows - 1;
    return static_cast<uint32_t>(HasDraftRows() ? rows + drafts : rows);
  }
  __aicore__ inline Pass First(uint32_t i) const {
    const uint32_t kinds = HasDraftRows() ? 2 : 1, node = i / kinds, of_draft = i % kinds;
    return FirstPassOver(node, of_draft, static_cast<int32_t>(first_ + node), of_draft ? draft_filters_ : filters_);
  }

  __aicore__ inline void Begin() {
    // At once rather than one after the other.
    PreloadRequest();
    Preload(uniforms_[uint64_t{request_} * t_.width]);
    Preload(uniforms_[uint64_t{request_} * t_.width + t_.width - 1]);
    Find();
    PreloadTokens(first_, num_nodes_);
    ClearResults(fits_ ? 0 : kMalformedTree);
    ForgetRows(static_cast<uint32_t>(num_nodes_));
    Link();
    rows_asked_ = 0;
    rows_taken_ = 0;
    rows_came_ = 0;
    top_ = 0;
    entered_ = false;
    removing_ = false;
    postponed_ = false;
  }

  __aicore__ inline bool Step() {
    ClearRemoved();
    if (num_nodes_ == 0) return true;
    if (is_chain_) TakeAhead();
    if (Decide()) return true;
    if (is_chain_ && !postponed_) AskAhead();
    return false;
  }

  __aicore__ inline void Write() {
    WriteTokens(0, out_tokens_);
    WriteLogprobs(1, logprobs_);
    WriteNumAccepted(2, num_accepted_);
    WriteStatus(3, status_out_);
    Rows::Write(4, path_, t_.path_at, t_.width);
  }

 private:
  __aicore__ inline bool Decide() {
    if (filters_.temperature == 0.0f) return Greedy();
    switch (v_.rule) {
      case kTargetOnly:
        return TargetOnly();
      case kRecursive:
        return Recursive();
      case kTraversal:
        return Traversal();
      case kTypical:
        return Typical();
      default:
        return Strict();
    }
  }

  // --- What is remembered of a node, in its part of the table after its rows

  enum Field : uint32_t {
    // Of a node that was rejected: the mass of the residual without it, and how the distribution it came from, less it
    // and its elder siblings, goes on; with a draft's row, which multiples of p and q the residual is made of.
    kRejected = 2 * kStateWords,
    kRejectedRound,
    kMass,
    kRestMax,
    kRestTotal,
    kScaleP,
    kScaleQ,
    // Of the tree.
    kFirstChild,
    kNextSibling,
    kAlive,
    // Of a node on the way that a traversal is going.
    kNextChild,
    kWeight,
    // Of a node that a typical path has reached.
    kDepth,
    kFields
  };
  static_assert(kFields <= kNodeWords);
  enum RejectedStage : int32_t { kNotRejected, kRemoved, kMassAsked, kDone };

  __aicore__ inline int32_t Get(int32_t node, uint32_t field) const {
    return table_.GetValue(static_cast<uint64_t>(node) * kNodeWords + field);
  }
  __aicore__ inline void Set(int32_t node, uint32_t field, int32_t value) {
    table_.SetValue(static_cast<uint64_t>(node) * kNodeWords + field, value);
  }
  __aicore__ inline float GetFloat(int32_t node, uint32_t field) const {
    Bits bits;
    bits.i = Get(node, field);
    return bits.f;
  }
  __aicore__ inline void SetFloat(int32_t node, uint32_t field, float value) {
    Bits bits;
    bits.f = value;
    Set(node, field, bits.i);
  }

  // --- The request

  __aicore__ inline void PreloadTokens(int64_t first, int64_t count) const {
    constexpr int32_t kTokensOfLine = kLine / sizeof(int64_t);
    for (int64_t i = 0; i < count; i += kTokensOfLine) Preload(tokens_[first + i]);
    if (count > 0) Preload(tokens_[first + count - 1]);
  }
  __aicore__ inline int64_t Token(int32_t node) const { return tokens_.GetValue(first_ + node); }
  __aicore__ inline bool IsId(int64_t token) const { return 0 <= token && token < t_.vocab; }
  __aicore__ inline int32_t Parent(int32_t node) const {
    return is_chain_ ? node - 1 : parents_.GetValue(first_ + node);
  }
  __aicore__ inline float Uniform(int32_t node) const {
    return uniforms_.GetValue(uint64_t{request_} * t_.width + node);
  }
  __aicore__ inline int32_t FirstChild(int32_t node) const { return Get(node, kFirstChild); }
  __aicore__ inline int32_t NextSibling(int32_t node) const { return Get(node, kNextSibling); }

  // Children in order, dead nodes left out: those whose parent does not come before them or is dead, or whose token is
  // no token.
  __aicore__ inline void Link() {
    if (num_nodes_ > 0 && Parent(0) != -1) status_ |= kMalformedTree;
    for (int32_t node = 0; node < num_nodes_; ++node) {
      Set(node, kFirstChild, -1);
      Set(node, kNextSibling, -1);
      Set(node, kRejected, kNotRejected);
      Set(node, kDepth, node == 0 ? 0 : -1);
      bool alive = node == 0;
      if (!alive) {
        const int32_t parent = Parent(node);
        const int64_t token = Token(node);
        if (parent < 0 || parent >= node)
          status_ |= kMalformedTree;
        else if (Get(parent, kAlive) == 0)
          alive = false;
        else if (IsId(token))
          alive = true;
        else if (token != -1)
          status_ |= kTokenOutOfRange;
      }
      Set(node, kAlive, alive ? 1 : 0);
    }
    for (int32_t node = num_nodes_ - 1; node > 0; --node) {
      if (Get(node, kAlive) == 0) continue;
      const int32_t parent = Parent(node);
      Set(node, kNextSibling, FirstChild(parent));
      Set(parent, kFirstChild, node);
    }
  }

  // --- Rows

  __aicore__ inline bool Target(int32_t node, Row* p) {
    if (!AskTarget(node, p)) return false;
    status_ |= p->status;
    return true;
  }
  // So too for a row that the walk may never come to.
  __aicore__ inline bool AskTarget(int32_t node, Row* p) {
    const bool ready = Ready(static_cast<uint32_t>(node), 0, static_cast<int32_t>(first_) + node, filters_, p);
    if (!ready) PreloadChild(node, 0);
    return ready;
  }

  // What the first child of a node was drawn from; `has_q` is false where drafts were chosen deterministically.
  __aicore__ inline bool Draft(int32_t node, Row* q, bool* has_q) {
    *has_q = false;
    if (!HasDraft()) return true;
    if (!Ready(static_cast<uint32_t>(node), 1, static_cast<int32_t>(first_) + node, draft_filters_, q)) {
      PreloadChild(node, 1);
      return false;
    }
    status_ |= q->status;
    *has_q = q->status == 0;
    return true;
  }
  // The logit that is looked at first once the row is there.
  __aicore__ inline void PreloadChild(int32_t node, uint32_t of_draft) const {
    const int32_t child = FirstChild(node);
    if (child >= 0) PreloadLogit(of_draft, static_cast<int32_t>(first_) + node, static_cast<uint64_t>(Token(child)));
  }
  __aicore__ inline bool HasDraft() const { return has_draft_ && draft_filters_.temperature > 0.0f; }

  // Where the walk along a chain has come to a row that was not asked for before: asks for those after it too, as many
  // as are to be read together. Rows with filters take more passes, which fewer go through together.
  __aicore__ inline void AskAhead() {
    Row row;
    bool unused;
    int32_t node = static_cast<int32_t>(rows_asked_);
    uint32_t searches = IsPlain(filters_, 0) ? 0 : v_.searches;
    for (int32_t before = 0; before < node && searches > 0; ++before) {
      if (!AskTarget(before, &row)) --searches;
    }
    if (node >= num_nodes_ || Get(node, 0) == kNew) return;
    for (uint32_t i = 0; i < v_.ahead && node >= 0 && Room() >= 2; ++i, ++rows_asked_, node = FirstChild(node)) {
      AskTarget(node, &row);
      if (HasDraftRow(node)) Draft(node, &row, &unused);
    }
  }
  __aicore__ inline void TakeAhead() {
    if (rows_taken_ == rows_asked_) return;
    const uint32_t rows = rows_asked_ - rows_taken_;
    uint32_t drafts = 0;
    if (HasDraftRow(static_cast<int32_t>(rows_taken_)))
      drafts = HasDraftRow(static_cast<int32_t>(rows_asked_) - 1) ? rows : rows - 1;
    TakeScans(rows_taken_, rows, drafts, filters_, draft_filters_);
    rows_taken_ = rows_asked_;
    rows_came_ = rows;
  }
  __aicore__ inline bool HasDraftRow(int32_t node) const { return HasDraftRows() && FirstChild(node) >= 0; }
  __aicore__ inline bool HasDraftRows() const {
    return HasDraft() && filters_.temperature > 0.0f && (v_.rule == kRecursive || v_.rule == kTraversal);
  }

  // --- What comes out

  __aicore__ inline void Visit(int32_t node) { path_out_.SetValue(num_emitted_, node); }
  // A bonus is drawn a round later, while other requests draw from their residuals, and not while they wait to ask for
  // those. Where its row came alone they have.
  __aicore__ inline bool Postpone() {
    if (postponed_ || t_.batch == 1 || HasNext() || (rows_came_ == 1 && num_nodes_ > 1)) return false;
    AskForRound();
    return postponed_ = true;
  }
  __aicore__ inline bool EmitBonus(const Row& p) {
    if (p.status)
      Emit(FiniteArgmax(p), 0.0f);
    else
      Emit(p, Draw(p, Uniform(0)));
    return true;
  }

  // --- p of a node and the q of its children, as rejected children leave them: p <- norm(max(weight p - q, 0)), q
  // without the child. However many children are rejected, p is max(a p0 - b q, 0) / total for two numbers a and b,
  // with the q of the last residual, of which earlier ones are multiples: what is left of a row may be too little for
  // the row's own weights. q is looked up as if nothing were removed from it: at a rejected child it is too large
  // rather than 0, so that p stays at zero there. Without q it is p0 less the rejected children.
  struct Residual {
    Row p, q;
    bool has_q;
    Row rest;        // of q; of p where there is no q
    Row subtracted;  // the rest of q at the last residual
    int32_t last;    // rejected child, -1 if none
    float a, b, total;
    int32_t with_mass;  // the rejected child whose pass left max(a p0 - b q, 0), -1 if none
  };

  __aicore__ inline bool Start(int32_t node, bool with_draft, Residual* r) {
    *r = Residual{};
    if (!Target(node, &r->p)) return false;
    if (r->p.status == 0 && with_draft && FirstChild(node) >= 0 && !Draft(node, &r->q, &r->has_q)) return false;
    r->rest = r->has_q ? r->q : r->p;
    r->subtracted = r->q;
    r->last = -1;
    r->a = 1.0f;
    r->total = 1.0f;
    r->with_mass = -1;
    return true;
  }

  struct Chances {
    float p, q;
  };
  // What p and q are now at a child; q is 1 where there is none.
  __aicore__ inline Chances ChancesOf(const Residual& r, int32_t child) {
    const uint64_t x = static_cast<uint64_t>(Token(child));
    const bool is_left = r.rest.total > 0.0f && !IsRemoved(x);
    if (!r.has_q) return Chances{is_left ? Probability(r.rest, x) : 0.0f, 1.0f};
    float weights[] = {Exponent(r.p, x), Exponent(r.subtracted, x), is_left ? Exponent(r.rest, x) : -kInf};
    Exp(weights, 3);
    const float excess = r.a * (weights[0] / r.p.total) - r.b * (weights[1] / r.subtracted.total);
    return Chances{excess > 0.0f ? excess / r.total : 0.0f, is_left ? weights[2] / r.rest.total : 0.0f};
  }
  // What is left of the distribution of `whole`.
  __aicore__ inline float ShareOf(const Row& rest, const Row& whole) {
    return rest.total > 0.0f ? Exp((rest.max - whole.max) * rest.scale) * rest.total / whole.total : 0.0f;
  }

  // The child of `node` is gone, with all below it. `mass` is that of max(weight p - q, 0); where rounding leaves none
  // p stays as it is. False if a pass is lacking.
  __aicore__ inline bool Reject(int32_t node, int32_t child, float weight, Residual* r, float* mass) {
    const uint64_t x = static_cast<uint64_t>(Token(child));
    AddRemoved(x);
    const Row before = r->rest, q = before.total > 0.0f ? before : r->subtracted;
    int32_t stage = Get(child, kRejected);
    if (stage == kNotRejected) {
      float scale_q = weight * r->b / r->total;
      if (before.total > 0.0f) scale_q = (r->b > 0.0f ? scale_q * ShareOf(before, r->subtracted) : 0.0f) + 1.0f;
      const uint32_t from = r->has_q || r->last >= 0 ? SlotOf(static_cast<uint32_t>(node), 1) : r->p.slot;
      Row rest = before;
      rest.slot = SlotOf(static_cast<uint32_t>(node), 1);
      if (!r->has_q || NextSibling(child) >= 0) Remove(&rest, x, from);  // else nothing is drawn from it any more
      SetFloat(child, kRestMax, rest.max);
      SetFloat(child, kRestTotal, rest.total);
      SetFloat(child, kScaleP, weight * r->a / r->total);
      SetFloat(child, kScaleQ, scale_q);
      if (!r->has_q) SetFloat(child, kMass, before.total > 0.0f ? weight * ShareOf(rest, before) : 0.0f);
      stage = r->has_q ? kRemoved : kDone;
    }
    const uint32_t slot = SlotOf(static_cast<uint32_t>(child), 2);
    if (stage == kRemoved && Ask(ExcessPass(r->p, q, GetFloat(child, kScaleP), GetFloat(child, kScaleQ), slot))) {
      stage = kMassAsked;
      Set(child, kRejectedRound, round_);
    } else if (stage == kMassAsked && Get(child, kRejectedRound) != round_) {
      SetFloat(child, kMass, TotalExcess(slot) * (GetFloat(child, kScaleP) / r->p.total));
      stage = kDone;
    }
    Set(child, kRejected, stage);
    if (stage != kDone) return false;

    r->rest.slot = SlotOf(static_cast<uint32_t>(node), 1);
    r->rest.max = GetFloat(child, kRestMax);
    r->rest.total = GetFloat(child, kRestTotal);
    r->last = child;
    *mass = GetFloat(child, kMass);
    if (r->has_q && *mass > 0.0f) {
      r->a = GetFloat(child, kScaleP);
      r->b = GetFloat(child, kScaleQ);
      r->total = *mass;
      r->subtracted = q;
      r->with_mass = child;
    }
    return true;
  }

  // Draws from what is left of p, and emits it.
  __aicore__ inline bool EmitRest(const Residual& r) {
    if (r.p.status) return EmitBonus(r.p);
    int64_t id = -1;
    if (!r.has_q) {
      if (r.rest.total > 0.0f) id = Draw(r.rest, Uniform(0));
    } else if (r.with_mass >= 0) {
      id = DrawExcess(ExcessPass(r.p, r.subtracted, r.a, r.b, SlotOf(static_cast<uint32_t>(r.with_mass), 2)),
                      Uniform(0));
    }
    ClearRemoved();
    if (id < 0) return EmitBonus(r.p);
    Emit(r.p, id);
    return true;
  }

  // --- The rules

  __aicore__ inline bool Greedy() {
    for (int32_t& node = top_; node >= 0;) {
      Row p;
      if (!Target(node, &p)) return false;
      Visit(node);
      if (p.status) return EmitBonus(p);
      const int64_t best = Argmax(p);
      Emit(best, 0.0f);
      node = FirstChild(node);
      while (node >= 0 && Token(node) != best) node = NextSibling(node);
    }
    return true;
  }

  // Draws the target's own tokens and goes on while they match the drafts.
  __aicore__ inline bool Strict() {
    for (int32_t& node = top_;;) {
      Row p;
      if (!Target(node, &p)) return false;
      const int32_t child = FirstChild(node);
      if (p.status || child < 0) return EmitBonus(p);
      const int64_t y = Draw(p, Uniform(child));
      Emit(p, y);
      if (y != Token(child)) return true;
      node = child;
    }
  }

  __aicore__ inline bool TargetOnly() {
    for (int32_t& node = top_;;) {
      Residual r;
      if (!Start(node, false, &r)) return false;
      Visit(node);
      const int32_t first = FirstChild(node);
      if (r.p.status || first < 0) return EmitBonus(r.p);
      float reached = 0.0f;
      int32_t child = first;
      for (; child >= 0; child = NextSibling(child)) {
        reached += Probability(r.p, static_cast<uint64_t>(Token(child)));
        if (Uniform(first) < reached) break;
      }
      if (child < 0) {
        float unused;
        for (child = first; child >= 0; child = NextSibling(child)) Reject(node, child, 1.0f, &r, &unused);
        return EmitRest(r);
      }
      Emit(r.p, Token(child));
      node = child;
    }
  }

  __aicore__ inline bool Recursive() {
    for (int32_t& node = top_;;) {
      Residual r;
      if (!Start(node, true, &r)) return false;
      Visit(node);
      int32_t child = FirstChild(node);
      if (r.p.status || child < 0) return !Postpone() && EmitBonus(r.p);
      for (; child >= 0; child = NextSibling(child)) {
        float unused;
        const Chances now = ChancesOf(r, child);
        if (Uniform(child) * now.q < now.p) break;
        if (!Reject(node, child, 1.0f, &r, &unused)) return false;
      }
      if (child < 0) return EmitRest(r);
      ClearRemoved();
      Emit(r.p, Token(child));
      node = child;
    }
  }

  __aicore__ inline bool Traversal() {
    for (;;) {
      Residual r{};
      const bool later = FirstChild(top_) < 0;  // the row of a leaf counts once the leaf is accepted
      if (!later && !StartAt(top_, &r)) return false;
      if (!entered_) {
        Set(top_, kNextChild, r.p.status ? -1 : FirstChild(top_));
        if (top_ == 0) SetFloat(top_, kWeight, 1.0f);
        entered_ = true;
      }
      const int32_t child = Get(top_, kNextChild);
      const float weight = GetFloat(top_, kWeight);
      if (child >= 0 && !removing_) {
        const Chances now = ChancesOf(r, child);
        float below = now.p > 0.0f ? weight * now.p / now.q : 0.0f;
        if (below > 1.0f) below = 1.0f;
        if (below > 0.0f) {
          SetFloat(child, kWeight, below);
          top_ = child;
          entered_ = false;
          continue;
        }
        removing_ = true;
      }
      if (removing_) {
        float mass;
        if (!Reject(top_, child, weight, &r, &mass)) return false;
        removing_ = false;
        SetFloat(top_, kWeight, mass > 0.0f ? mass / (mass + (1.0f - weight)) : 0.0f);
        Set(top_, kNextChild, mass > 0.0f ? NextSibling(child) : -1);  // below weight 0 nothing is accepted
      } else if (top_ == 0 || Uniform(top_) < weight) {
        return (!later || StartAt(top_, &r)) && EmitPathTo(top_, r);
      } else {
        top_ = Parent(top_);
        removing_ = true;
      }
    }
  }

  // The residual of a node as the children that are gone left it.
  __aicore__ inline bool StartAt(int32_t node, Residual* r) {
    ClearRemoved();
    if (!Start(node, true, r)) return false;
    float unused;
    for (int32_t child = FirstChild(node); child >= 0 && Get(child, kRejected) == kDone; child = NextSibling(child))
      Reject(node, child, 0.0f, r, &unused);
    return true;
  }

  __aicore__ inline bool EmitPathTo(int32_t node, const Residual& r) {
    for (int32_t below = node; below > 0; below = Parent(below)) Set(Parent(below), kNextChild, below);
    for (int32_t at = 0; at != node; at = Get(at, kNextChild)) {
      Row p;
      Target(at, &p);
      Visit(at);
      Emit(p, Token(Get(at, kNextChild)));
    }
    Visit(node);
    return EmitRest(r);
  }

  // The deepest node on a path of likely enough tokens.
  __aicore__ inline bool Typical() {
    bool ready = true;
    int32_t best = 0;
    for (int32_t node = 0; node < num_nodes_; ++node) {
      const int32_t depth = Get(node, kDepth);
      if (depth < 0) continue;
      if (depth > Get(best, kDepth)) best = node;
      if (FirstChild(node) < 0) continue;
      Row p;
      if (!Target(node, &p)) {
        ready = false;
        continue;
      }
      if (p.status) continue;
      float bound = -1.0f;
      for (int32_t child = FirstChild(node); child >= 0; child = NextSibling(child)) {
        const float px = Probability(p, static_cast<uint64_t>(Token(child)));
        bool likely = px > v_.threshold;
        if (!likely) {
          if (bound < 0.0f) bound = v_.alpha * Exp(-Entropy(p));
          likely = px > bound;
        }
        if (likely) Set(child, kDepth, depth + 1);
      }
    }
    Residual r;
    if (!ready || !Start(best, false, &r)) return false;
    return EmitPathTo(best, r);
  }

  VerifyTiling v_;
  AscendC::GlobalTensor<int64_t> tokens_;
  AscendC::GlobalTensor<int32_t> parents_, cu_nodes_;
  AscendC::GlobalTensor<float> uniforms_, draft_temperature_;
  GM_ADDR out_tokens_;
  GM_ADDR num_accepted_;
  GM_ADDR path_;
  GM_ADDR logprobs_;
  GM_ADDR status_out_;
  bool is_chain_, has_draft_, has_draft_temperature_;
};

}  // namespace specdec::ascendc
