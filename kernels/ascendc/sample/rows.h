// The distribution of the token after a row of logits: temperature, top-k, top-p and min-p without a sort, the
// probability of single ids, and draws in id order. Probabilities are never stored.
//
// All filters amount to one cut: an id is kept iff its logit is not below the cut. A core looks after some requests
// at a time; it asks for passes and combines what they leave. The rules that do so are written as if a row were there
// at once: a step that lacks one returns false, and is done again after the passes.
#pragma once

#include "kernels/ascendc/sample/passes.h"
#include "kernels/status.h"

namespace specdec::ascendc {

// A row as it is once its passes are made, perhaps less some ids.
struct Row {
  uint32_t slot;  // of the records
  int32_t row;
  uint32_t of_draft;
  float scale;      // 1 / temperature
  float cut, max;   // max: the largest logit; of rows without filters any number near it may stand for it
  float total;      // of exp((logit - max) * scale) over what is kept; 0 where nothing is left
  float log_total;  // of rows that no id was taken out of
  int32_t status;   // with any bit set only row and of_draft mean something
};

struct Filters {
  float temperature;  // 0: greedy
  int32_t top_k;      // off where 0
  float top_p;        // off where >= 1
  float min_p;        // off where <= 0
};

union Bits {
  float f;
  int32_t i;
};
// Finite floats in order as integers, and back.
__aicore__ inline int64_t KeyOf(float value) {
  Bits bits;
  bits.f = value;
  return bits.i >= 0 ? int64_t{bits.i} : -(int64_t{1} << 31) - bits.i;
}
__aicore__ inline float FloatOf(int64_t key) {
  Bits bits;
  bits.i = static_cast<int32_t>(key >= 0 ? key : -(int64_t{1} << 31) - key);
  return bits.f;
}

enum RowStage : int32_t { kNew, kScanning, kSearchingTopK, kSearchingTopP, kScanningKept, kReady };

// How far a row has come.
struct RowState {
  RowStage stage;  // the pass that is wanted
  int32_t round;   // in which it was asked for
  float max, total, log_total, cut;
  int32_t status;
  // In a search. The threshold is at or above `low` and below `high`, as keys.
  int32_t low, high;
  float target;                           // what the ids at or above the threshold are to weigh, or how many there be
  float count_low, mass_low, count_high;  // of the ids not below low, or not below high
  float pivots[kPivots];
};
constexpr uint32_t kStateWords = 17, kRowWords = 7;  // kRowWords: without a search
union StateWords {
  RowState state;
  int32_t words[kStateWords];
};
static_assert(sizeof(StateWords) == kStateWords * 4);
constexpr uint32_t kTogether = 10;  // rows of few chunks whose records are combined at once: as many as UB holds

// What is kept of a request from step to step.
struct Emitted {
  bool begun_ = false;
  uint32_t request_;
  uint32_t num_emitted_ = 0;
  int32_t status_ = 0;
};

class Rows : public Passes, public Emitted {
 public:
  __aicore__ inline void Init(GM_ADDR target, GM_ADDR draft, GM_ADDR temperature, GM_ADDR top_k, GM_ADDR top_p,
                              GM_ADDR min_p, GM_ADDR workspace, const RowsTiling& tiling) {
    Passes::Init(target, draft, workspace, tiling);
    temperature_.SetGlobalBuffer((__gm__ float*)temperature, t_.batch);
    top_k_.SetGlobalBuffer((__gm__ int32_t*)top_k, t_.batch);
    top_p_.SetGlobalBuffer((__gm__ float*)top_p, t_.batch);
    min_p_.SetGlobalBuffer((__gm__ float*)min_p, t_.batch);
    has_temperature_ = temperature != nullptr;
    has_top_k_ = top_k != nullptr;
    has_top_p_ = top_p != nullptr;
    has_min_p_ = min_p != nullptr;
    next_ = core_;

    stats_ = kFloatLanes;
    while (stats_ < t_.chunks) stats_ *= 8;
    most_rows_ = stats_ == kFloatLanes ? kTogether : 1;
    maxima_ = ub_.Alloc<float>(most_rows_ * stats_);
    sums_ = ub_.Alloc<float>(most_rows_ * stats_);
    AscendC::Duplicate(maxima_, -kInf, Stats(most_rows_));  // past the last chunk there is nothing
    AscendC::Duplicate(sums_, 0.0f, Stats(most_rows_));
    AllocScratch(most_rows_);
    masses_ = ub_.Alloc<float>(most_rows_ * stats_);
    exponents_ = ub_.Alloc<float>(most_rows_ * stats_);
    totals_ = ub_.Alloc<float>(AlignUp(most_rows_, BlockOf<float>()));
    log_totals_ = ub_.Alloc<float>(AlignUp(most_rows_, BlockOf<float>()));
    Fence();
  }

 protected:
  __aicore__ inline void PreloadFilters(uint32_t request) const {
    if (has_temperature_) Preload(temperature_[request]);
    if (has_top_k_) Preload(top_k_[request]);
    if (has_top_p_) Preload(top_p_[request]);
    if (has_min_p_) Preload(min_p_[request]);
  }
  __aicore__ inline Filters FiltersOf(uint32_t request) const {
    Filters f{1.0f, 0, 1.0f, 0.0f};
    if (has_temperature_) f.temperature = Temperature(temperature_.GetValue(request));
    if (has_top_k_) f.top_k = top_k_.GetValue(request);
    if (f.top_k < 0 || f.top_k >= static_cast<int32_t>(t_.vocab)) f.top_k = 0;
    if (has_top_p_) f.top_p = top_p_.GetValue(request);
    if (has_min_p_) f.min_p = min_p_.GetValue(request);
    return f;
  }
  // A negative temperature or a NaN is greedy too.
  __aicore__ inline float Temperature(float value) const { return value > 0.0f ? value : 0.0f; }
  // Whether a row needs no cut.
  __aicore__ inline bool IsPlain(const Filters& filters, uint32_t of_draft) const {
    return filters.temperature == 0.0f || of_draft != 0 ||
           (filters.top_k == 0 && !(filters.top_p < 1.0f) && !(filters.min_p > 0.0f));
  }

  // --- A row of a node

  __aicore__ inline uint32_t SlotOf(uint32_t node, uint32_t which) const {
    return (core_ * t_.lanes + lane_) * t_.slots + which * t_.nodes + node;
  }

  // Before the first step with a request of `nodes` nodes.
  __aicore__ inline void ForgetRows(uint32_t nodes) {
    for (uint32_t node = 0; node < nodes; ++node) {
      for (uint32_t of_draft = 0; of_draft < 2; ++of_draft)
        table_.SetValue(node * kNodeWords + of_draft * kStateWords, kNew);
    }
  }

  // Whether all passes over the row of a node are made. Asks for the next one where they are not.
  __aicore__ inline bool Ready(uint32_t node, uint32_t of_draft, int32_t row, const Filters& filters, Row* out) {
    const uint64_t at = StateAt(node, of_draft);
    StateWords w{};
    RowState& s = w.state;
    w.words[0] = table_.GetValue(at);
    for (uint32_t i = 1; i < WordsOf(s.stage); ++i) w.words[i] = table_.GetValue(at + i);
    if (s.stage <= kScanning) s.cut = -kInf;
    const bool plain = IsPlain(filters, of_draft);
    *out = Row{SlotOf(node, of_draft), row, of_draft, ScaleOf(filters), s.cut, s.max, s.total, s.log_total, s.status};
    if (s.stage == kReady) return true;

    if (s.stage == kNew) {
      s.stage = kScanning;
      s.round = kNotAsked;
    } else if (s.round != kNotAsked && s.round != round_) {
      TakePass(s, *out, filters, plain);
    }
    if (s.stage != kReady && s.round == kNotAsked && Ask(PassFor(s, *out, plain && filters.temperature > 0.0f)))
      s.round = round_;
    for (uint32_t i = 0; i < WordsOf(s.stage); ++i) table_.SetValue(at + i, w.words[i]);
    out->cut = s.cut;
    out->max = s.max;
    out->total = s.total;
    out->log_total = s.log_total;
    out->status = s.status;
    return s.stage == kReady;
  }

  // What Ready asks for first, of the request_ that its core has alone.
  __aicore__ inline Pass FirstPassOver(uint32_t node, uint32_t of_draft, int32_t row, const Filters& filters) const {
    RowState s{};
    s.stage = kScanning;
    s.cut = -kInf;
    const uint32_t slot = request_ * t_.slots + of_draft * t_.nodes + node;
    const Row unknown{slot, row, of_draft, ScaleOf(filters), 0.0f, 0.0f, 0.0f, 0.0f, 0};
    return PassFor(s, unknown, IsPlain(filters, of_draft) && filters.temperature > 0.0f);
  }

  // Combines the scans of the rows of some nodes, and of the drafts of some of them, as many at once as fit, where that
  // makes them ready. Ready is to be asked as before.
  __aicore__ inline void TakeScans(uint32_t first, uint32_t targets, uint32_t drafts, const Filters& filters,
                                   const Filters& draft_filters) {
    if (!IsPlain(filters, 0)) targets = 0;
    uint32_t first_draft = first;
    while (targets + drafts > 0) {
      const uint32_t of_target = targets < most_rows_ ? targets : most_rows_, room = most_rows_ - of_target;
      const uint32_t of_draft = drafts < room ? drafts : room;
      if (!AreScanned(first, of_target, 0) || !AreScanned(first_draft, of_draft, 1)) return;
      read_ = kNoSlot;
      Fence();
      LoadRecords(SlotOf(first, 0), of_target, 0);
      LoadRecords(SlotOf(first_draft, 1), of_draft, of_target);
      Fence();
      PickScans(of_target + of_draft);
      Combine(ScaleOf(filters), of_target, ScaleOf(draft_filters), of_draft);
      for (uint32_t i = 0; i < of_target + of_draft; ++i) {
        StateWords w{};
        TakeScan(w.state, i);
        w.state.stage = kReady;
        w.state.cut = -kInf;
        const uint64_t at = i < of_target ? StateAt(first + i, 0) : StateAt(first_draft + i - of_target, 1);
        for (uint32_t word = 0; word < kRowWords; ++word) table_.SetValue(at + word, w.words[word]);
      }
      first += of_target;
      targets -= of_target;
      first_draft += of_draft;
      drafts -= of_draft;
    }
  }

  // --- What a ready row says

  __aicore__ inline float LogitOf(const Row& r, uint64_t id) const { return Logit(r.of_draft, r.row, id); }

  // The logarithm of the weight of an id, -inf where it is cut off.
  __aicore__ inline float Exponent(const Row& r, uint64_t id) const {
    const float x = LogitOf(r, id);
    return x >= r.cut ? (x - r.max) * r.scale : -kInf;
  }
  __aicore__ inline float Probability(const Row& r, uint64_t id) { return Exp(Exponent(r, id)) / r.total; }
  __aicore__ inline float Logprob(const Row& r, uint64_t id) const { return Exponent(r, id) - r.log_total; }

  // -sum p ln p
  __aicore__ inline float Entropy(const Row& r) {
    ReadScans(r.slot);
    Combine(r.scale);
    // Of a chunk: factor * (moment + sum * exponent of its largest), with the factor that masses_ holds times sums_.
    AscendC::Maxs(exponents_, exponents_, kNoWeight, Stats());
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Mul(masses_, masses_, exponents_, Stats());
    AscendC::Exp(exponents_, exponents_, Stats());
    AscendC::PipeBarrier<PIPE_V>();
    Reduce<Reduction::kSum>(one_, masses_, scratch_, stats_);
    AscendC::Duplicate(masses_, 0.0f, Stats());
    AscendC::PipeBarrier<PIPE_V>();
    PickLanes(masses_, kLane << kMomentLane);
    AscendC::Mul(masses_, masses_, exponents_, Stats());
    AscendC::PipeBarrier<PIPE_V>();
    Reduce<Reduction::kSum>(one_[1], masses_, scratch_, stats_);
    const float moment = ToScalar(one_, 0) + ToScalar(one_, 1);
    return r.log_total - moment / r.total;
  }

  // --- Ids taken out of a row, for draws without replacement

  __aicore__ inline void ClearRemoved() { num_removed_ = 0; }
  __aicore__ inline void AddRemoved(uint64_t id) { removed_.SetValue(num_removed_++, static_cast<int32_t>(id)); }
  __aicore__ inline bool IsRemoved(uint64_t id) const {
    for (uint32_t i = 0; i < num_removed_; ++i)
      if (removed_.GetValue(i) == static_cast<int32_t>(id)) return true;
    return false;
  }

  // Takes out of the row, whose records are in the slot `from`, the last of the removed ids; the others are out
  // already. The chunk is summed again: subtracting would leave rounding where nothing is left.
  __aicore__ inline void Remove(Row* r, uint64_t id, uint32_t from) {
    ReadScans(from);
    const uint32_t chunk = static_cast<uint32_t>(id / t_.chunk);
    ReadKept(*r, chunk);
    const AscendC::LocalTensor<float> record = records_[chunk * kRecord];
    ScanChunks(record, r->scale);
    Fence();
    Store(records_gm_[uint64_t{r->slot} * t_.chunks * kRecord], records_, t_.chunks * kRecord);
    read_ = r->slot;
    Fence();
    PickScans(1);
    Combine(r->scale);
    r->max = ToScalar(one_, 0);
    r->total = ToScalar(totals_, 0);
  }

  // --- Draws. Removed ids are never drawn.

  // The first id whose cumulative weight exceeds u * total; where rounding runs past the end the last one with any.
  // -1 if there is none.
  __aicore__ inline int64_t Draw(const Row& r, float u) {
    ReadScans(r.slot);
    AscendC::Adds(exponents_, maxima_, -Finite(r.max), Stats());
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Muls(exponents_, exponents_, r.scale, Stats());
    WeighStats(1);
    Fence();
    float target = u * r.total;
    const int32_t chunk = Pick(masses_, t_.chunks, kLeastMass, &target);
    if (chunk < 0) return -1;
    ReadKept(r, static_cast<uint32_t>(chunk));
    Weigh(x_, x_, r.max, r.scale);
    return IdOf(chunk, PickInside(target));
  }

  // The lowest id among the largest logits that are left.
  __aicore__ inline int64_t Argmax(const Row& r) {
    ReadScans(r.slot);
    Fence();
    uint32_t chunk = 0;
    while (chunk + 1 < t_.chunks && maxima_.GetValue(chunk) != r.max) ++chunk;
    ReadKept(r, chunk);
    return IdOf(static_cast<int32_t>(chunk), FirstEqual(r.max));
  }

  // The lowest id among the largest finite logits, 0 if there is none: what a flagged row yields.
  __aicore__ inline int64_t FiniteArgmax(const Row& r) {
    int64_t best = 0;
    float max = -kInf;
    for (uint32_t chunk = 0; chunk < t_.chunks; ++chunk) {
      ReadChunk(PassOver(r), chunk);
      Choose(x_, x_, x_, -kLowest, AscendC::CMPMODE::LE, -kInf);
      Reduce<Reduction::kMax>(one_, x_, scratch_, t_.chunk);
      const float found = ToScalar(one_, 0);
      if (!(found > max)) continue;
      max = found;
      best = IdOf(static_cast<int32_t>(chunk), FirstEqual(found));
    }
    return best;
  }

  // --- The excess max(a p - b q, 0) of a target's row over a draft's, by a pass that leaves it, over a / p.total, in
  // `slot`.

  __aicore__ inline Pass ExcessPass(const Row& p, const Row& q, float a, float b, uint32_t slot) const {
    Pass pass = PassOver(p);
    pass.kind = kExcess;
    pass.slot = slot;
    pass.draft_scale = q.scale;
    pass.draft_max = q.max;
    const float ratio = b / a * (p.total / q.total);
    pass.ratio = !(ratio > kSmallest) ? kSmallest : ratio < -kLowest ? ratio : -kLowest;  // 0 * inf would be a NaN
    return pass;
  }
  __aicore__ inline float TotalExcess(uint32_t slot) {
    if (ReadRecords(slot)) PickLanes(sums_, kAllLanes);
    Reduce<Reduction::kSum>(one_, sums_, scratch_, stats_);
    return ToScalar(one_, 0);
  }
  __aicore__ inline int64_t DrawExcess(const Pass& pass, float u) {
    float target = u * TotalExcess(pass.slot);
    const int32_t chunk = Pick(sums_, t_.chunks, kLeastMass, &target);
    if (chunk < 0) return -1;
    const uint32_t first = static_cast<uint32_t>(chunk) * kParts;
    const uint32_t part = first + static_cast<uint32_t>(Pick(records_[first], kParts, 0.0f, &target));
    ReadExcess(pass, part);
    const int32_t inside = PickInside(target);
    return inside < 0 ? -1 : int64_t{part} * (t_.chunk / kParts) + inside;
  }

  // --- Functions that the scalar unit lacks

  __aicore__ inline float Exp(float value) {
    Exp(&value, 1);
    return value;
  }
  // Of up to a block of numbers at once, each in its place.
  __aicore__ inline void Exp(float* values, int32_t count) {
    for (int32_t i = 0; i < count; ++i) one_.SetValue(static_cast<uint32_t>(i), values[i]);
    Order<AscendC::HardEvent::S_V>();
    AscendC::Exp(one_, one_, count);
    Order<AscendC::HardEvent::V_S>();
    for (int32_t i = 0; i < count; ++i) values[i] = one_.GetValue(static_cast<uint32_t>(i));
    Order<AscendC::HardEvent::S_V>();
  }
  __aicore__ inline float Ln(float value) {
    one_.SetValue(0, value);
    Order<AscendC::HardEvent::S_V>();
    AscendC::Ln(one_, one_, 1);
    return ToScalar(one_, 0);
  }

  // --- What a request yields

  __aicore__ inline void ClearResults(int32_t status) {
    for (uint32_t i = 0; i < t_.width; ++i) {
      tokens_out_.SetValue(i, int64_t{-1});
      logprobs_out_.SetValue(i, 0.0f);
      path_out_.SetValue(i, -1);
    }
    num_emitted_ = 0;
    status_ = status;
  }
  __aicore__ inline void Emit(int64_t token, float logprob) {
    tokens_out_.SetValue(num_emitted_, token);
    logprobs_out_.SetValue(num_emitted_++, logprob);
  }
  __aicore__ inline void Emit(const Row& p, int64_t token) { Emit(token, Logprob(p, static_cast<uint64_t>(token))); }

  // Steps `op` through all requests, one a lane at a time. Op has
  //   a base Request: what it keeps of a request from step to step, though other lanes have steps in between,
  //   void PreloadRequest(): asks for the lines with the parameters of request_ and of those after it,
  //   void Find(): reads those of request_,
  //   uint32_t CountFirst(), Pass First(uint32_t i): what the first step with the request just found will ask for,
  //   void Begin(): takes up request_,
  //   bool Step(): whether it is done; if not it has asked for passes, or for a round,
  //   void Write(): the results, by Rows::Write.
  template <class Op>
  __aicore__ inline void Run(Op* op) {
    Emitted emitted[kMostLanes];
    typename Op::Request requests[kMostLanes];
    if (t_.lanes == 1) Foresee(op);
    do {
      ++round_;
      read_ = kNoSlot;
      bool is_at_work = false;
      for (lane_ = 0; lane_ < t_.lanes; ++lane_) {
        static_cast<Emitted&>(*this) = emitted[lane_];
        static_cast<typename Op::Request&>(*op) = requests[lane_];
        StepLane(op);
        emitted[lane_] = *this;
        requests[lane_] = *op;
        is_at_work = is_at_work || begun_;
      }
      TellPasses();
      // Once and not after every request: it takes from the cache what others need.
      if (has_results_ && !is_at_work) {
        AscendC::DataCacheCleanAndInvalid<int32_t, AscendC::CacheLine::ENTIRE_DATA_CACHE,
                                          AscendC::DcciDst::CACHELINE_OUT>(result_);
        has_results_ = false;
      }
    } while (MakePasses());
    Fence();  // the results pass through the place of all that lives for one step
    op->Write();
  }

  // One column of the results to `out [batch, words]`, at byte `at` of them. Each column has one core as its writer,
  // since two must not write one line.
  __aicore__ inline void Write(uint32_t column, GM_ADDR out, uint64_t at, uint32_t words) {
    if (out == nullptr || core_ != column % t_.cores) return;
    const uint32_t bytes = words * 4, padded = AlignUp(bytes, kBlockBytes);
    const uint32_t fit = kMaxWidth * 8 / padded;
    AscendC::LocalTensor<int32_t> buffer(AscendC::TPosition::VECCALC, scratch_at_, kMaxWidth * 2);
    for (uint32_t i = 0; i < t_.batch; i += fit) {
      const uint32_t rows = t_.batch - i < fit ? t_.batch - i : fit;
      AscendC::GlobalTensor<int32_t> from, to;
      from.SetGlobalBuffer((__gm__ int32_t*)(workspace_ + t_.results_at + i * t_.result_bytes + at));
      to.SetGlobalBuffer((__gm__ int32_t*)out + uint64_t{i} * words, uint64_t{rows} * words);
      const uint16_t blocks = static_cast<uint16_t>(rows);
      const AscendC::DataCopyExtParams in{blocks, bytes, static_cast<uint32_t>(t_.result_bytes) - bytes, 0, 0};
      AscendC::DataCopyPad(buffer, from, in, AscendC::DataCopyPadExtParams<int32_t>{false, 0, 0, 0});
      Order<AscendC::HardEvent::MTE2_MTE3>();
      AscendC::DataCopyPad(to, buffer, AscendC::DataCopyExtParams{blocks, bytes, 0, 0, 0});
      Order<AscendC::HardEvent::MTE3_MTE2>();
    }
  }
  __aicore__ inline void WriteTokens(uint32_t column, GM_ADDR out) { Write(column, out, kLine, 2 * t_.width); }
  __aicore__ inline void WriteLogprobs(uint32_t column, GM_ADDR out) { Write(column, out, t_.logprobs_at, t_.width); }
  __aicore__ inline void WriteNumAccepted(uint32_t column, GM_ADDR out) { Write(column, out, 0, 1); }
  __aicore__ inline void WriteStatus(uint32_t column, GM_ADDR out) { Write(column, out, 4, 1); }

  // Whether there is a request that no lane has taken up.
  __aicore__ inline bool HasNext() const { return next_ < t_.batch; }

  AscendC::GlobalTensor<int32_t> table_;  // kNodeWords a node, the first 2 * kStateWords its rows; this lane's alone
  AscendC::GlobalTensor<int32_t> path_out_;
  int32_t round_ = 0;

 private:
  static constexpr int32_t kNotAsked = -1;
  static constexpr uint32_t kNoSlot = ~0u;
  static constexpr uint32_t kEight = 8;
  static constexpr float kNotWeighed = -1.0f;  // what top-k keeps, until the first pass for top-p has
  static constexpr float kSmallest = 1.175494351e-38f;
  static constexpr float kLeastMass = 1e-33f;  // of a chunk: above 4096 * kSmallest, and nothing next to kLeastSum

  // As far as the lane comes, with the next requests too.
  template <class Op>
  __aicore__ inline void StepLane(Op* op) {
    const uint64_t lane = uint64_t{core_} * t_.lanes + lane_;
    table_.SetGlobalBuffer((__gm__ int32_t*)(workspace_ + t_.table_at + lane * t_.table_bytes), t_.table_bytes / 4);
    removed_ = table_[uint64_t{t_.nodes} * kNodeWords];
    for (;; begun_ = false) {
      const bool begins = !begun_;
      if (begins) {
        if (!HasNext()) return;
        request_ = next_;
        next_ += t_.cores;
        begun_ = true;
      }
      PlaceResults();
      if (begins) op->Begin();
      if (!op->Step()) return;
      result_.SetValue(0, num_emitted_ > 0 ? static_cast<int32_t>(num_emitted_) - 1 : 0);
      result_.SetValue(1, status_);
      has_results_ = true;
    }
  }

  __aicore__ inline void PlaceResults() {
    GM_ADDR results = workspace_ + t_.results_at + request_ * t_.result_bytes;
    result_.SetGlobalBuffer((__gm__ int32_t*)results, kLine / 4);
    tokens_out_.SetGlobalBuffer((__gm__ int64_t*)(results + kLine), t_.width);
    logprobs_out_.SetGlobalBuffer((__gm__ float*)(results + t_.logprobs_at), t_.width);
    path_out_.SetGlobalBuffer((__gm__ int32_t*)(results + t_.path_at), t_.width);
  }
  __aicore__ inline int32_t Stats(uint32_t rows = 1) const { return static_cast<int32_t>(rows * stats_); }
  __aicore__ inline uint64_t StateAt(uint32_t node, uint32_t of_draft) const {
    return uint64_t{node} * kNodeWords + of_draft * kStateWords;
  }
  __aicore__ inline uint32_t WordsOf(RowStage stage) const {
    return stage == kNew ? 1 : stage == kScanning ? 2 : stage == kReady ? kRowWords : kStateWords;
  }
  __aicore__ inline float ScaleOf(const Filters& filters) const {
    const float scale = filters.temperature > 0.0f ? 1.0f / filters.temperature : 1.0f;
    // So that -inf times scale is -inf, and 0 times scale 0.
    return !(scale > kSmallest) ? kSmallest : scale > -kLowest ? -kLowest : scale;
  }
  __aicore__ inline int64_t IdOf(int32_t chunk, int32_t inside) const {
    return inside < 0 ? -1 : int64_t{chunk} * t_.chunk + inside;
  }

  __aicore__ inline Pass PassOver(const Row& r) const {
    return Pass{kScan, r.slot, r.row, r.of_draft, r.scale, r.max, r.cut, 0.0f, 0.0f, 0.0f, {}, {}};
  }
  __aicore__ inline Pass PassFor(const RowState& s, Row r, bool weights_alone) const {
    r.cut = s.cut;
    r.max = s.max;
    Pass pass = PassOver(r);
    if (weights_alone && !t_.maxima) pass.kind = kSum;
    if (s.stage == kSearchingTopK || s.stage == kSearchingTopP) {
      pass.kind = s.stage == kSearchingTopK ? kCount : kMeasure;
      for (uint32_t i = 0; i < kPivots; ++i) pass.pivots[i] = s.pivots[i];
    }
    return pass;
  }

  // --- What passes have left

  // Of eight records, those of a repeat.
  static constexpr uint64_t kLane = 0x0101010101010101ull, kAllLanes = ~uint64_t{0};

  // One lane, or the sum of all, of every record of the rows in records_.
  __aicore__ inline void PickLanes(const AscendC::LocalTensor<float>& out, uint64_t lanes, uint32_t rows = 1) {
    const uint32_t whole = t_.chunks / kRecord, rest = t_.chunks % kRecord;
    uint64_t mask[2] = {lanes, 0};
    if (rows == 1) {
      if (whole > 0) AscendC::BlockReduceSum(out, records_, static_cast<int32_t>(whole), mask, 1, 1, 8);
    } else {
      for (uint32_t i = 0; i < whole; ++i) PickOfRows(out, i, mask, rows);
    }
    mask[0] &= (uint64_t{1} << rest * kRecord) - 1;
    if (rest > 0) PickOfRows(out, whole, mask, rows);
    AscendC::PipeBarrier<PIPE_V>();
  }
  // From the same eight records of every row.
  __aicore__ inline void PickOfRows(const AscendC::LocalTensor<float>& out, uint32_t eight, uint64_t (&mask)[2],
                                    uint32_t rows) {
    // Rows of more chunks than these steps may be are alone.
    const uint32_t to_step = rows > 1 ? stats_ / kRecord : 1, from_step = rows > 1 ? t_.chunks : 1;
    AscendC::BlockReduceSum(out[eight * kRecord], records_[eight * kFloatLanes], static_cast<int32_t>(rows), mask,
                            static_cast<int32_t>(to_step), 1, static_cast<int32_t>(from_step));
  }
  __aicore__ inline void PickScans(uint32_t rows) {
    PickLanes(maxima_, kLane << kMaxLane, rows);
    PickLanes(sums_, kLane << kSumLane, rows);
  }
  // Of `rows` slots from this one on.
  __aicore__ inline void LoadRecords(uint32_t slot, uint32_t rows, uint32_t at) {
    const uint32_t words = t_.chunks * kRecord;
    if (rows > 0) Load(records_[at * words], records_gm_[uint64_t{slot} * words], rows * words);
  }
  // False where they are at hand.
  __aicore__ inline bool ReadRecords(uint32_t slot) {
    Fence();
    if (slot == read_) return false;
    read_ = slot;
    LoadRecords(slot, 1, 0);
    Fence();
    return true;
  }
  __aicore__ inline void ReadScans(uint32_t slot) {
    if (ReadRecords(slot)) PickScans(1);
  }

  // one_, totals_ and log_totals_ <- max and total of every row, those of the drafts last; masses_ <- the weight of
  // every chunk, exponents_ <- those of their largest logits.
  __aicore__ inline void Combine(float scale, uint32_t targets = 1, float draft_scale = 1.0f, uint32_t drafts = 0) {
    const uint32_t rows = targets + drafts;
    Reduce<Reduction::kMax>(one_, maxima_, scratch_, stats_, rows);
    Order<AscendC::HardEvent::V_S>();
    for (uint32_t row = 0; row < rows; ++row)
      AscendC::Adds(exponents_[row * stats_], maxima_[row * stats_], -Finite(one_.GetValue(row)), Stats());
    Order<AscendC::HardEvent::S_V>();
    AscendC::PipeBarrier<PIPE_V>();
    if (targets > 0) AscendC::Muls(exponents_, exponents_, scale, Stats(targets));
    const AscendC::LocalTensor<float> of_drafts = exponents_[targets * stats_];
    if (drafts > 0) AscendC::Muls(of_drafts, of_drafts, draft_scale, Stats(drafts));
    WeighStats(rows);
    Reduce<Reduction::kSum>(totals_, masses_, scratch_, stats_, rows);
    AscendC::Ln(log_totals_, totals_, static_cast<int32_t>(rows));
    Order<AscendC::HardEvent::V_S>();
  }
  __aicore__ inline void WeighStats(uint32_t rows) {
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Exp(masses_, exponents_, Stats(rows));
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Mul(masses_, masses_, sums_, Stats(rows));
    AscendC::PipeBarrier<PIPE_V>();
  }

  // --- The passes of a row, one after the other

  // Those of a chain are asked for in order.
  __aicore__ inline bool AreScanned(uint32_t first, uint32_t count, uint32_t of_draft) const {
    return count == 0 || (IsScanned(first, of_draft) && IsScanned(first + count - 1, of_draft));
  }
  __aicore__ inline bool IsScanned(uint32_t node, uint32_t of_draft) const {
    const uint64_t at = StateAt(node, of_draft);
    const int32_t round = table_.GetValue(at + 1);
    return table_.GetValue(at) == kScanning && round != kNotAsked && round != round_;
  }
  // By what Combine has left of a row.
  __aicore__ inline void TakeScan(RowState& s, uint32_t row) const {
    s.max = one_.GetValue(row);
    s.total = totals_.GetValue(row);
    s.log_total = log_totals_.GetValue(row);
    if (!(s.total > 0.0f)) s.status = s.total == 0.0f ? kNoFiniteLogit : kNotFinite;
  }

  __aicore__ inline void TakePass(RowState& s, Row r, const Filters& filters, bool plain) {
    s.round = kNotAsked;
    if (s.stage == kSearchingTopK || s.stage == kSearchingTopP) {
      Narrow(s, r.slot);
      if (!Found(s)) return Spread(s);
    } else {
      ReadScans(r.slot);
      Combine(r.scale);
      TakeScan(s, 0);
      if (s.status || plain || s.stage == kScanningKept) {
        s.stage = kReady;
        return;
      }
      s.low = static_cast<int32_t>(KeyOf(kLowest) & -Grain());
      s.count_low = static_cast<float>(static_cast<int32_t>(t_.vocab));
      s.mass_low = s.total;
    }
    if (s.stage == kScanning && filters.top_k > 0) {
      s.stage = kSearchingTopK;
      return StartSearch(s, static_cast<float>(filters.top_k), filters.temperature);
    }
    if (s.stage < kSearchingTopP && filters.top_p < 1.0f) {
      s.stage = kSearchingTopP;
      const bool weighed = s.mass_low >= 0.0f;
      StartSearch(s, weighed ? filters.top_p * s.mass_low : filters.top_p, filters.temperature);
      if (!weighed) s.pivots[kPivots - 1] = FloatOf(s.low);
      return;
    }
    if (s.low > (KeyOf(kLowest) & -Grain())) s.cut = FloatOf(s.low);
    if (filters.min_p > 0.0f) {
      const float cut = s.max + Ln(filters.min_p < 1.0f ? filters.min_p : 1.0f) * filters.temperature;
      if (cut > s.cut) s.cut = cut;
    }
    // A search has written over what the scan left, also where it found that all ids are kept.
    s.stage = s.stage != kScanning || s.cut > -kInf ? kScanningKept : kReady;
  }

  // Keys of logits are multiples of this.
  __aicore__ inline int64_t Grain() const {
    return t_.target_type == kFloat32 ? 1 : t_.target_type == kBFloat16 ? 1 << 16 : 1 << 13;
  }

  // The largest key with `target` at or above it, among those from s.low on.
  __aicore__ inline void StartSearch(RowState& s, float target, float temperature) {
    s.target = target;
    s.high = static_cast<int32_t>(KeyOf(s.max) + Grain());
    s.count_high = 0.0f;
    constexpr float kSteps[kPivots] = {0.0f, 1.5f, 5.0f, 16.0f};
    for (uint32_t i = 0; i < kPivots; ++i) SetPivot(s, i, KeyOf(i ? s.max - kSteps[i] * temperature : s.max));
  }
  __aicore__ inline void SetPivot(RowState& s, uint32_t i, int64_t key) {
    key &= -Grain();
    if (key < s.low + Grain()) key = s.low + Grain();
    if (key > s.high - Grain()) key = s.high - Grain();
    s.pivots[i] = FloatOf(key);
  }
  __aicore__ inline void Spread(RowState& s) {
    const int64_t width = int64_t{s.high} - s.low;
    for (uint32_t i = 0; i < kPivots; ++i) SetPivot(s, i, s.low + width * (i + 1) / (kPivots + 1));
  }
  __aicore__ inline void Narrow(RowState& s, uint32_t slot) {
    ReadRecords(slot);
    const bool weighed = s.stage == kSearchingTopP;
    const uint32_t lanes = weighed ? 2 * kPivots : kPivots, together = lanes < most_rows_ ? lanes : most_rows_;
    for (uint32_t lane = 0; lane < lanes; lane += together) {
      AscendC::Duplicate(masses_, 0.0f, Stats(together));
      AscendC::PipeBarrier<PIPE_V>();
      for (uint32_t i = 0; i < together; ++i) PickLanes(masses_[i * stats_], kLane << (lane + i));
      Reduce<Reduction::kSum>(one_[lane], masses_, scratch_, stats_, together);
    }
    Fence();
    if (weighed && s.mass_low < 0.0f) {
      s.mass_low = one_.GetValue(kMassLane + kPivots - 1);
      s.target *= s.mass_low;
    }
    for (uint32_t i = 0; i < kPivots; ++i) {
      const int32_t key = static_cast<int32_t>(KeyOf(s.pivots[i]));
      const float count = one_.GetValue(kCountLane + i);
      const float mass = weighed ? one_.GetValue(kMassLane + i) : kNotWeighed;
      if ((weighed ? mass : count) >= s.target) {
        if (key <= s.low) continue;
        s.low = key;
        s.count_low = count;
        s.mass_low = mass;
      } else if (key < s.high) {
        s.high = key;
        s.count_high = count;
      }
    }
  }
  __aicore__ inline bool Found(const RowState& s) const {
    return int64_t{s.high} - s.low <= Grain() || s.count_low - s.count_high <= 1.0f ||
           (s.stage == kSearchingTopK && s.count_low == s.target);
  }

  // --- Inside a chunk

  // x_ <- the logits of the chunk that are kept and not removed, the others -inf.
  __aicore__ inline void ReadKept(const Row& r, uint32_t chunk) {
    ReadChunk(PassOver(r), chunk);
    Cut(r.cut);
    Fence();
    const uint32_t begin = chunk * t_.chunk;
    for (uint32_t i = 0; i < num_removed_; ++i) {
      const uint32_t id = static_cast<uint32_t>(removed_.GetValue(i));
      if (id >= begin && id - begin < t_.chunk) x_.SetValue(id - begin, -kInf);
    }
    Fence();
  }

  // Of masses in order the first that brings their sum above the target, which is made less by those before it. Where
  // rounding runs past the end the last one that counts, -1 if none does. A chunk with less than kLeastMass does not:
  // all its weights may be flushed to 0.
  __aicore__ inline int32_t Pick(const AscendC::LocalTensor<float>& masses, uint32_t count, float least,
                                 float* target) const {
    int32_t chosen = -1;
    float before = 0.0f, cumulative = 0.0f;
    for (uint32_t i = 0; i < count; ++i) {
      const float mass = masses.GetValue(i);
      if (!(mass > least)) continue;
      chosen = static_cast<int32_t>(i);
      before = cumulative;
      cumulative += mass;
      if (cumulative > *target) break;
    }
    *target -= before;
    return chosen;
  }

  // By the weights in x_: among the sums of eight numbers, each of which is one of eight in turn.
  __aicore__ inline int32_t PickInside(float target) {
    constexpr uint32_t kMostLevels = 4;
    AscendC::LocalTensor<float> levels[kMostLevels];
    levels[0] = x_;
    uint32_t level = 0, at = 0;
    for (uint32_t count = lanes_; count > kEight; count /= kEight) {
      levels[level + 1] = scratch_[at];
      ReduceEights<Reduction::kSum>(levels[level + 1], levels[level], count);
      at += count / kEight;
      ++level;
    }
    Fence();
    uint32_t inside = 0;
    for (uint32_t left = level + 1; left > 0; --left) {
      inside *= kEight;
      const int32_t one = Pick(levels[left - 1][inside], kEight, 0.0f, &target);
      if (one < 0) return -1;
      inside += static_cast<uint32_t>(one);
    }
    return static_cast<int32_t>(inside);
  }

  __aicore__ inline int32_t FirstEqual(float value) {
    AscendC::Compares(bits_, x_, value, AscendC::CMPMODE::EQ, t_.chunk);
    Fence();
    const AscendC::LocalTensor<uint64_t> words = bits_.ReinterpretCast<uint64_t>();
    for (uint32_t i = 0; i < t_.chunk / 64; ++i) {
      const uint64_t word = words.GetValue(i);
      if (word != 0) return static_cast<int32_t>(i * 64) + static_cast<int32_t>(AscendC::GetSFFValue<1>(word));
    }
    return -1;
  }

  AscendC::GlobalTensor<float> temperature_, top_p_, min_p_, logprobs_out_;
  AscendC::GlobalTensor<int32_t> top_k_, result_, removed_;
  AscendC::GlobalTensor<int64_t> tokens_out_;
  AscendC::LocalTensor<float> maxima_, sums_, masses_, exponents_;  // of the chunks of a row, or of some rows
  AscendC::LocalTensor<float> totals_, log_totals_;                 // of rows
  bool has_temperature_, has_top_k_, has_top_p_, has_min_p_;
  uint32_t stats_;      // chunks, rounded up to what Reduce takes
  uint32_t most_rows_;  // whose records fit
  uint32_t read_;       // the first slot whose records are in records_
  uint32_t num_removed_ = 0;
  uint32_t lane_;
  bool has_results_ = false;  // in the cache alone
  uint32_t next_;             // request that this core has not taken up
};

}  // namespace specdec::ascendc
