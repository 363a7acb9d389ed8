// Passes over rows of logits, shared out over all cores by chunks, and how a core asks for one.
//
// A row is always worked on in the same chunks. What a pass finds in a chunk is a record of its own, and the records
// are combined by one core in fixed order, so that the number of cores changes no bit of the result.
#pragma once

#include "kernels/ascendc/common/reduce.h"
#include "kernels/ascendc/sample/sample_tiling.h"

namespace specdec::ascendc {

constexpr float kInf = __builtin_inff();
constexpr float kLowest = -3.402823466e38f;
constexpr uint32_t kPivots = 4;
constexpr float kNoWeight = -200.0f;  // its exponential is 0

// What a pass leaves of a chunk. With `weight` = exp((logit - max) * scale) where the logit is not below `cut`, else 0:
enum PassKind : int32_t {
  kScan,     // the largest logit, the sum of weights, and of weights times exponents; max is the chunk's own
  kMeasure,  // of the logits not below each pivot: how many there are, and the sum of their weights
  kExcess,   // (in the place of the sum) the sum of max(a * weight - b * weight in the draft's row, 0)
};
enum RecordLane : uint32_t { kMaxLane = 0, kSumLane = 1, kMomentLane = 2, kCountLane = 0, kMassLane = kPivots };

struct Pass {
  PassKind kind;
  uint32_t slot;  // where the records go
  int32_t row;
  uint32_t of_draft;
  float scale, max, cut;
  float draft_scale, draft_max, a, b;  // kExcess
  float pivots[kPivots];               // kMeasure
  uint32_t unused;
};

union PassWords {
  Pass pass;
  uint32_t words[kPassWords];
};
static_assert(sizeof(PassWords) == kPassWords * 4);

// All that was given to any pipe before is done before what comes after. For the one core that decides, step by step.
__aicore__ inline void Fence() { AscendC::PipeBarrier<PIPE_ALL>(); }

class Passes {
 public:
  __aicore__ inline void Init(GM_ADDR target, GM_ADDR draft, GM_ADDR workspace, const RowsTiling& tiling) {
    t_ = tiling;
    core_ = static_cast<uint32_t>(AscendC::GetBlockIdx());
    target_ = target;
    draft_ = draft;
    workspace_ = workspace;
    const uint64_t slots = uint64_t{t_.cores} * t_.slots;
    records_gm_.SetGlobalBuffer((__gm__ float*)(workspace + t_.records_at), slots * t_.chunks * kRecord);
    counts_gm_.SetGlobalBuffer((__gm__ uint32_t*)workspace, t_.cores * kRecord);
    passes_gm_.SetGlobalBuffer((__gm__ uint32_t*)(workspace + t_.passes_at), t_.cores * kMaxPasses * kPassWords);

    ones_ = ub_.Alloc<float>(t_.chunk);
    AscendC::Duplicate(ones_, 1.0f, static_cast<int32_t>(t_.chunk));
  }

  // What lives for one step only: after all that lives longer.
  __aicore__ inline void AllocScratch() {
    scratch_at_ = ub_.GetCurAddr();
    for (uint32_t i = 0; i < kBuffers; ++i) {
      raw_[i] = ub_.Alloc<float>(t_.chunk);
      raw_draft_[i] = ub_.Alloc<float>(t_.chunk);
    }
    x_ = ub_.Alloc<float>(t_.chunk);
    y_ = ub_.Alloc<float>(t_.chunk);
    weights_ = ub_.Alloc<float>(t_.chunk);
    bits_ = ub_.Alloc<uint8_t>(AlignUp(t_.chunk / 8, kBlockBytes));
    scratch_ = ub_.Alloc<float>(kReduceScratch);
    one_ = ub_.Alloc<float>(BlockOf<float>());
    records_ = ub_.Alloc<float>(AlignUp(t_.chunks, 8) * kRecord);
    counts_ = ub_.Alloc<uint32_t>(t_.cores * kRecord);
    asked_ = ub_.Alloc<uint32_t>(kMaxPasses * kPassWords);
    pass_ = ub_.Alloc<uint32_t>(kPassWords);
  }

 protected:
  // --- Asking. Between two rounds of passes every core may ask for some.

  // False where there is no room left: to be asked for again in the next round.
  __aicore__ inline bool Ask(const Pass& pass) {
    if (num_asked_ == kMaxPasses) return false;
    PassWords w;
    w.pass = pass;
    for (uint32_t i = 0; i < kPassWords; ++i) asked_.SetValue(num_asked_ * kPassWords + i, w.words[i]);
    ++num_asked_;
    return true;
  }

  // Makes the passes that all cores have asked for. False if there were none.
  __aicore__ inline bool MakePasses() {
    for (uint32_t i = 0; i < kRecord; ++i) counts_.SetValue(i, num_asked_);
    Order<AscendC::HardEvent::S_MTE3>();
    Store(counts_gm_[core_ * kRecord], counts_, kRecord);
    if (num_asked_ > 0) Store(passes_gm_[core_ * kMaxPasses * kPassWords], asked_, num_asked_ * kPassWords);
    num_asked_ = 0;
    AscendC::SyncAll();
    Load(counts_, counts_gm_, t_.cores * kRecord);
    Order<AscendC::HardEvent::MTE2_S>();
    uint64_t total = 0;
    for (uint32_t i = 0; i < t_.cores; ++i) total += counts_.GetValue(i * kRecord);
    if (total == 0) return false;
    Share(total * t_.chunks);
    AscendC::SyncAll();
    return true;
  }

  // --- One chunk, for passes and for the core that decides.

  __aicore__ inline uint32_t ChunkSize(uint32_t chunk) const {
    const uint32_t rest = t_.vocab - chunk * t_.chunk;
    return rest < t_.chunk ? rest : t_.chunk;
  }

  // A chunk of logits into x_; past the end of the row they are -inf.
  __aicore__ inline void ReadChunk(const Pass& pass, uint32_t chunk) {
    Fence();
    LoadRaw(raw_[0], pass.of_draft, pass.row, chunk);
    Fence();
    Widen(x_, raw_[0], pass.of_draft, chunk);
  }

  __aicore__ inline void Cut(float cut) {
    if (cut > -kInf) Choose(x_, x_, x_, cut, AscendC::CMPMODE::GE, -kInf);
  }

  // x <- exp((x - max) * scale)
  __aicore__ inline void Weigh(const AscendC::LocalTensor<float>& out, const AscendC::LocalTensor<float>& x, float max,
                               float scale) {
    Exponents(x, max, scale);
    AscendC::Exp(out, x, Lanes());
    AscendC::PipeBarrier<PIPE_V>();
  }

  // The record of the chunk in x_, which is spent.
  __aicore__ inline void ScanChunk(const AscendC::LocalTensor<float>& record, float scale) {
    Reduce<Reduction::kMax>(record[kMaxLane], x_, scratch_, t_.chunk);
    Weigh(weights_, x_, Finite(ToScalar(record, kMaxLane)), scale);
    Reduce<Reduction::kSum>(record[kSumLane], weights_, scratch_, t_.chunk);
    if (!t_.entropy) return;
    AscendC::Maxs(x_, x_, kNoWeight, Lanes());  // 0 * -inf would not be 0
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Mul(weights_, weights_, x_, Lanes());
    AscendC::PipeBarrier<PIPE_V>();
    Reduce<Reduction::kSum>(record[kMomentLane], weights_, scratch_, t_.chunk);
  }

  // x_ <- the excess of the target's chunk in x_ over the draft's in y_.
  __aicore__ inline void Subtract(const Pass& pass) {
    Cut(pass.cut);
    Weigh(x_, x_, pass.max, pass.scale);
    AscendC::Muls(x_, x_, pass.a, Lanes());
    Weigh(y_, y_, pass.draft_max, pass.draft_scale);
    AscendC::Muls(y_, y_, pass.b, Lanes());
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Sub(x_, x_, y_, Lanes());
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Maxs(x_, x_, 0.0f, Lanes());
    AscendC::PipeBarrier<PIPE_V>();
  }
  __aicore__ inline void ReadExcess(const Pass& pass, uint32_t chunk) {
    Fence();
    LoadRaw(raw_[0], 0, pass.row, chunk);
    LoadRaw(raw_draft_[0], 1, pass.row, chunk);
    Fence();
    Widen(x_, raw_[0], 0, chunk);
    Widen(y_, raw_draft_[0], 1, chunk);
    Subtract(pass);
  }

  // What the vector unit has just made.
  __aicore__ inline float ToScalar(const AscendC::LocalTensor<float>& from, uint32_t i) const {
    Order<AscendC::HardEvent::V_S>();
    const float value = from.GetValue(i);
    Order<AscendC::HardEvent::S_V>();
    return value;
  }

  // Where a row has nothing but -inf, weights are still to be 0 and not NaN.
  __aicore__ inline float Finite(float max) const { return max < kLowest ? kLowest : max; }

  // A logit for the scalar unit.
  __aicore__ inline float Logit(uint32_t of_draft, int32_t row, uint64_t id) const {
    switch (Type(of_draft)) {
      case kBFloat16:
        return AscendC::ToFloat(RowOf<bfloat16_t>(of_draft, row, id, 1).GetValue(0));
      case kFloat16:
        return static_cast<float>(RowOf<half>(of_draft, row, id, 1).GetValue(0));
      default:
        return RowOf<float>(of_draft, row, id, 1).GetValue(0);
    }
  }

  // out[i] = x[i] <mode> bound ? yes[i] : no
  __aicore__ inline void Choose(const AscendC::LocalTensor<float>& out, const AscendC::LocalTensor<float>& x,
                                const AscendC::LocalTensor<float>& yes, float bound, AscendC::CMPMODE mode, float no) {
    AscendC::Compares(bits_, x, bound, mode, t_.chunk);
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Select(out, bits_, yes, no, AscendC::SELMODE::VSEL_TENSOR_SCALAR_MODE, t_.chunk);
    AscendC::PipeBarrier<PIPE_V>();
  }

  __aicore__ inline int32_t Lanes() const { return static_cast<int32_t>(t_.chunk); }

  RowsTiling t_;
  uint32_t core_;
  GM_ADDR workspace_;
  AscendC::LocalMemAllocator<AscendC::Hardware::UB> ub_;
  uint32_t scratch_at_;
  AscendC::GlobalTensor<float> records_gm_;
  AscendC::LocalTensor<float> x_, y_, weights_, scratch_, one_, records_;
  AscendC::LocalTensor<uint8_t> bits_;

 private:
  static constexpr uint32_t kBuffers = 2;

  __aicore__ inline uint32_t Type(uint32_t of_draft) const { return of_draft ? t_.draft_type : t_.target_type; }

  template <typename T>
  __aicore__ inline AscendC::GlobalTensor<T> RowOf(uint32_t of_draft, int32_t row, uint64_t first,
                                                   uint32_t count) const {
    AscendC::GlobalTensor<T> part;
    part.SetGlobalBuffer(
        (__gm__ T*)(of_draft ? draft_ : target_) + row * (of_draft ? t_.draft_stride : t_.target_stride) + first,
        count);
    return part;
  }

  template <typename T>
  __aicore__ inline void LoadAs(const AscendC::LocalTensor<float>& raw, uint32_t of_draft, int32_t row, uint32_t chunk,
                                T fill) {
    const uint32_t size = ChunkSize(chunk);
    Load(raw.ReinterpretCast<T>(), RowOf<T>(of_draft, row, uint64_t{chunk} * t_.chunk, size), size, fill);
  }
  __aicore__ inline void LoadRaw(const AscendC::LocalTensor<float>& raw, uint32_t of_draft, int32_t row,
                                 uint32_t chunk) {
    switch (Type(of_draft)) {
      case kBFloat16:
        return LoadAs<bfloat16_t>(raw, of_draft, row, chunk, AscendC::ToBfloat16(-kInf));
      case kFloat16:
        return LoadAs<half>(raw, of_draft, row, chunk, static_cast<half>(-kInf));
      default:
        return LoadAs<float>(raw, of_draft, row, chunk, -kInf);
    }
  }

  template <typename T>
  __aicore__ inline uint32_t WidenAs(const AscendC::LocalTensor<float>& out, const AscendC::LocalTensor<float>& raw,
                                     uint32_t chunk) {
    const uint32_t size = AlignUp(ChunkSize(chunk), BlockOf<T>());
    AscendC::Cast(out, raw.ReinterpretCast<T>(), AscendC::RoundMode::CAST_NONE, size);
    return size;
  }
  __aicore__ inline void Widen(const AscendC::LocalTensor<float>& out, const AscendC::LocalTensor<float>& raw,
                               uint32_t of_draft, uint32_t chunk) {
    uint32_t size;
    switch (Type(of_draft)) {
      case kBFloat16:
        size = WidenAs<bfloat16_t>(out, raw, chunk);
        break;
      case kFloat16:
        size = WidenAs<half>(out, raw, chunk);
        break;
      default:
        size = AlignUp(ChunkSize(chunk), BlockOf<float>());
        AscendC::Adds(out, raw, 0.0f, static_cast<int32_t>(size));
    }
    if (size < t_.chunk) AscendC::Duplicate(out[size], -kInf, static_cast<int32_t>(t_.chunk - size));
    AscendC::PipeBarrier<PIPE_V>();
  }

  __aicore__ inline void Exponents(const AscendC::LocalTensor<float>& x, float max, float scale) {
    AscendC::Adds(x, x, -max, Lanes());
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Muls(x, x, scale, Lanes());
    AscendC::PipeBarrier<PIPE_V>();
  }

  __aicore__ inline void MeasureChunk(const AscendC::LocalTensor<float>& record, const Pass& pass) {
    AscendC::Adds(y_, x_, 0.0f, Lanes());
    AscendC::PipeBarrier<PIPE_V>();
    Weigh(weights_, y_, pass.max, pass.scale);
    for (uint32_t i = 0; i < kPivots; ++i) {
      Choose(y_, x_, ones_, pass.pivots[i], AscendC::CMPMODE::GE, 0.0f);
      Reduce<Reduction::kSum>(record[kCountLane + i], y_, scratch_, t_.chunk);
      Choose(y_, x_, weights_, pass.pivots[i], AscendC::CMPMODE::GE, 0.0f);
      Reduce<Reduction::kSum>(record[kMassLane + i], y_, scratch_, t_.chunk);
    }
  }

  // --- This core's share of all chunks of all passes: whole runs of chunks of a row.
  __aicore__ inline void Share(uint64_t units) {
    const uint64_t share = (units + t_.cores - 1) / t_.cores;
    uint64_t at = core_ * share;
    const uint64_t end = at + share < units ? at + share : units;
    uint32_t owner = 0;
    uint64_t before = 0;  // passes of the cores before the owner
    while (at < end) {
      const uint64_t index = at / t_.chunks;
      while (index >= before + counts_.GetValue(owner * kRecord)) before += counts_.GetValue(owner++ * kRecord);
      const uint32_t first = static_cast<uint32_t>(at % t_.chunks);
      const uint32_t count = t_.chunks - first < end - at ? t_.chunks - first : static_cast<uint32_t>(end - at);
      MakePass(owner * kMaxPasses + static_cast<uint32_t>(index - before), first, first + count);
      at += count;
    }
  }

  __aicore__ inline void MakePass(uint32_t index, uint32_t first, uint32_t end) {
    Load(pass_, passes_gm_[index * kPassWords], kPassWords);
    Order<AscendC::HardEvent::MTE2_S>();
    PassWords w;
    for (uint32_t i = 0; i < kPassWords; ++i) w.words[i] = pass_.GetValue(i);
    Order<AscendC::HardEvent::S_MTE2>();
    const Pass& pass = w.pass;

    const uint32_t count = (end - first) * kRecord;
    AscendC::Duplicate(records_, 0.0f, static_cast<int32_t>(count));
    AscendC::PipeBarrier<PIPE_V>();
    for (uint32_t i = 0; i < kBuffers; ++i) AscendC::SetFlag<AscendC::HardEvent::V_MTE2>(Event(i));
    Fetch(pass, first);
    for (uint32_t chunk = first; chunk < end; ++chunk) {
      if (chunk + 1 < end) Fetch(pass, chunk + 1);
      const uint32_t buffer = chunk % kBuffers;
      AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(Event(buffer));
      Widen(x_, raw_[buffer], pass.of_draft, chunk);
      if (pass.kind == kExcess) Widen(y_, raw_draft_[buffer], 1, chunk);
      AscendC::SetFlag<AscendC::HardEvent::V_MTE2>(Event(buffer));
      const AscendC::LocalTensor<float> record = records_[(chunk - first) * kRecord];
      if (pass.kind == kScan) {
        Cut(pass.cut);
        ScanChunk(record, pass.scale);
      } else if (pass.kind == kMeasure) {
        MeasureChunk(record, pass);
      } else {
        Subtract(pass);
        Reduce<Reduction::kSum>(record[kSumLane], x_, scratch_, t_.chunk);
      }
    }
    for (uint32_t i = 0; i < kBuffers; ++i) AscendC::WaitFlag<AscendC::HardEvent::V_MTE2>(Event(i));
    Order<AscendC::HardEvent::V_MTE3>();
    Store(records_gm_[(uint64_t{pass.slot} * t_.chunks + first) * kRecord], records_, count);
    Order<AscendC::HardEvent::MTE3_V>();
  }

  // Buffers have the events after the one that Order uses.
  __aicore__ inline int32_t Event(uint32_t buffer) const { return EVENT_ID1 + static_cast<int32_t>(buffer); }

  __aicore__ inline void Fetch(const Pass& pass, uint32_t chunk) {
    const uint32_t buffer = chunk % kBuffers;
    AscendC::WaitFlag<AscendC::HardEvent::V_MTE2>(Event(buffer));
    LoadRaw(raw_[buffer], pass.of_draft, pass.row, chunk);
    if (pass.kind == kExcess) LoadRaw(raw_draft_[buffer], 1, pass.row, chunk);
    AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(Event(buffer));
  }

  GM_ADDR target_;
  GM_ADDR draft_;
  AscendC::GlobalTensor<uint32_t> counts_gm_, passes_gm_;
  AscendC::LocalTensor<float> raw_[kBuffers], raw_draft_[kBuffers], ones_;
  AscendC::LocalTensor<uint32_t> counts_, asked_, pass_;
  uint32_t num_asked_ = 0;
};

}  // namespace specdec::ascendc
