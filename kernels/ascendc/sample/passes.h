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
constexpr float kNoWeight = -200.0f;                   // its exponential is 0
constexpr float kLeastSum = 1e-10f, kMostSum = 1e17f;  // of weights, where a max of 0 does

// What a pass leaves of a chunk. With `weight` = exp((logit - max) * scale) where the logit is not below `cut`, else 0:
enum PassKind : int32_t {
  kScan,     // the largest logit, the sum of weights, and of weights times exponents; max is the chunk's own
  kSum,      // the sum of weights, and the max in them: 0 where that does, else the chunk's largest logit
  kCount,    // how many logits are not below each pivot
  kMeasure,  // that, and the sum of their weights
  kExcess,   // of each of its eighths the sum of max(weight - ratio * weight in the draft's row, 0)
};
enum RecordLane : uint32_t { kMaxLane = 0, kSumLane = 1, kMomentLane = 2, kCountLane = 0, kMassLane = kPivots };
constexpr uint32_t kParts = kRecord;  // of a chunk

struct Pass {
  PassKind kind;
  uint32_t slot;  // where the records go
  int32_t row;
  uint32_t of_draft;
  float scale, max, cut;                // those that follow are of heavy passes only
  float draft_scale, draft_max, ratio;  // kExcess
  float pivots[kPivots];                // kCount, kMeasure
  uint32_t unused[2];
};

constexpr uint32_t kLightWords = 7;

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
    const uint64_t slots = uint64_t{t_.cores} * t_.lanes * t_.slots;
    records_gm_.SetGlobalBuffer((__gm__ float*)(workspace + t_.records_at), slots * t_.chunks * kRecord);
    passes_gm_.SetGlobalBuffer((__gm__ uint32_t*)workspace, t_.cores * kPassLines * kPassWords);
  }

  // What lives for one step only, after all that lives longer; with the records of `rows` rows.
  __aicore__ inline void AllocScratch(uint32_t rows) {
    scratch_at_ = ub_.GetCurAddr();
    for (uint32_t i = 0; i < kBuffers; ++i) {
      raw_[i] = ub_.Alloc<float>(kPiece / 2 * t_.chunk);
      raw_draft_[i] = raw_[i][kPiece / 4 * t_.chunk];
    }
    x_ = ub_.Alloc<float>(kPiece * t_.chunk);
    y_ = x_[kPiece / 2 * t_.chunk];
    bits_ = ub_.Alloc<uint8_t>(AlignUp(kPiece * t_.chunk / 8, kBlockBytes));
    scratch_ = ub_.Alloc<float>(kPiece * kReduceScratch);
    for (uint32_t i = 0; i < kBuffers; ++i) record_[i] = ub_.Alloc<float>(kPiece * kRecord);
    one_ = ub_.Alloc<float>(AlignUp(rows, BlockOf<float>()));
    records_ = ub_.Alloc<float>(rows * AlignUp(t_.chunks, 8) * kRecord);
    counts_ = ub_.Alloc<uint32_t>(t_.cores * kRecord);
    asked_ = ub_.Alloc<uint32_t>(kPassLines * kPassWords);
    AscendC::Duplicate(asked_, 0u, static_cast<int32_t>(kPassLines * kPassWords));
  }

 protected:
  // --- Asking. Between two rounds of passes every core may ask for some.

  // How many more passes this core may ask for in this round.
  __aicore__ inline uint32_t Room() const { return kMaxPasses - num_asked_[kLight] - num_asked_[kHeavy]; }

  // False where there is no room left: to be asked for again in the next round.
  __aicore__ inline bool Ask(const Pass& pass) {
    if (foreseen_) return true;
    if (Room() == 0) return false;
    const List list = pass.kind == kScan || pass.kind == kSum ? kLight : kHeavy;
    ++num_asked_[list];
    PutPass(list == kLight ? kMaxPasses + num_asked_[list] : Place(list, num_asked_[list]), pass, list);
    return true;
  }

  // Lets this core work on after a round in which it needs no pass.
  __aicore__ inline void AskForRound() { waits_ = 1; }

  // What this core has asked for goes to the others.
  __aicore__ inline void TellPasses() {
    if (foreseen_ || core_ >= Owners()) return;
    const uint32_t light = num_asked_[kLight], heavy = num_asked_[kHeavy], first = Place(kHeavy, heavy);
    asked_.SetValue(kMaxPasses * kPassWords, light | heavy << kCountBits | waits_ << 2 * kCountBits);
    waits_ = 0;
    Order<AscendC::HardEvent::S_MTE3>();
    Store(passes_gm_[(core_ * kPassLines + first) * kPassWords], asked_[first * kPassWords],
          (heavy + 1 + light) * kPassWords);
    num_asked_[kLight] = num_asked_[kHeavy] = 0;
  }

  // Where every core has one request at most, each finds by itself what all of them will ask for first, and has begun
  // to read its share when it looks after its own request. Op is as for Rows::Run.
  template <class Op>
  __aicore__ inline void Foresee(Op* op) {
    const uint32_t owners = Owners();
    for (op->request_ = 0; op->request_ < owners; op->request_ += kLine / 4) op->PreloadRequest();
    uint32_t all = 0;
    for (op->request_ = 0; op->request_ < owners; ++op->request_) {
      op->Find();
      const uint32_t count = op->CountFirst();
      counts_.SetValue(op->request_ * kRecord, count);
      all += count;
    }
    passes_[kLight] = all;
    passes_[kHeavy] = 0;
    StartList(kLight);
    const uint32_t end = EndPass();
    uint32_t pass = BeginPass(), before = 0, found = 0;
    for (op->request_ = 0; pass < end; ++op->request_) {
      const uint32_t count = counts_.GetValue(op->request_ * kRecord);
      if (pass < before + count) op->Find();
      for (; pass < before + count && pass < end; ++pass) PutPass(found++, op->First(pass - before), kLight);
      before += count;
    }
    foreseen_ = true;
    StartShare();
  }

  // Makes the passes that all cores ask for. False if there are none.
  __aicore__ inline bool MakePasses() {
    if (!foreseen_ && !LoadAsked()) return false;
    foreseen_ = false;
    Share();
    AscendC::SyncAll();
    return true;
  }

  // --- One chunk, for passes and for the core that decides.

  // A chunk of logits into x_; past the end of the row they are -inf.
  __aicore__ inline void ReadChunk(const Pass& pass, uint32_t chunk) {
    Fence();
    lanes_ = t_.chunk;
    const uint32_t first = chunk * t_.chunk;
    LoadRaw(raw_[0], pass.of_draft, pass.row, first);
    Keep(pass.of_draft, pass.row, first);
    Fence();
    Widen(x_, raw_[0], pass.of_draft, first);
  }

  __aicore__ inline void Cut(float cut) {
    if (cut > -kInf) Choose(x_, x_, x_, cut, AscendC::CMPMODE::GE, -kInf);
  }

  // out <- exp((x - max) * scale)
  __aicore__ inline void Weigh(const AscendC::LocalTensor<float>& out, const AscendC::LocalTensor<float>& x, float max,
                               float scale) {
    const bool shifted = max != 0.0f, scaled = scale != 1.0f;
    if (shifted) AscendC::Adds(out, x, -max, Lanes());
    AscendC::PipeBarrier<PIPE_V>();
    if (scaled) AscendC::Muls(out, shifted ? out : x, scale, Lanes());
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Exp(out, shifted || scaled ? out : x, Lanes());
    AscendC::PipeBarrier<PIPE_V>();
  }

  // The records of the chunks in x_, which are spent.
  __aicore__ inline void ScanChunks(const AscendC::LocalTensor<float>& records, float scale) {
    ReduceChunks<Reduction::kMax>(records[kMaxLane], x_);
    Order<AscendC::HardEvent::V_S>();
    for (uint32_t i = 0; i < Chunks(); ++i) {
      const AscendC::LocalTensor<float> x = x_[i * t_.chunk];
      AscendC::Adds(x, x, -Finite(records.GetValue(i * kRecord + kMaxLane)), static_cast<int32_t>(t_.chunk));
    }
    Order<AscendC::HardEvent::S_V>();
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Muls(x_, x_, scale, Lanes());
    AscendC::PipeBarrier<PIPE_V>();
    const AscendC::LocalTensor<float> weights = t_.entropy ? y_ : x_;
    AscendC::Exp(weights, x_, Lanes());
    AscendC::PipeBarrier<PIPE_V>();
    ReduceChunks<Reduction::kSum>(records[kSumLane], weights);
    if (!t_.entropy) return;
    AscendC::Maxs(x_, x_, kNoWeight, Lanes());  // 0 * -inf would not be 0
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Mul(weights, weights, x_, Lanes());
    AscendC::PipeBarrier<PIPE_V>();
    ReduceChunks<Reduction::kSum>(records[kMomentLane], weights);
  }

  // x_ <- the excess of the target's chunk in x_ over the draft's in y_.
  __aicore__ inline void Subtract(const Pass& pass) {
    Cut(pass.cut);
    // As Weigh does it, but with both between two barriers.
    if (pass.max != 0.0f) AscendC::Adds(x_, x_, -pass.max, Lanes());
    if (pass.draft_max != 0.0f) AscendC::Adds(y_, y_, -pass.draft_max, Lanes());
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Muls(x_, x_, pass.scale, Lanes());
    AscendC::Muls(y_, y_, pass.draft_scale, Lanes());
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Exp(x_, x_, Lanes());
    AscendC::Exp(y_, y_, Lanes());
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Axpy(x_, y_, -pass.ratio, Lanes());
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Maxs(x_, x_, 0.0f, Lanes());
    AscendC::PipeBarrier<PIPE_V>();
  }
  // Of a part of a chunk into x_.
  __aicore__ inline void ReadExcess(const Pass& pass, uint32_t part) {
    Fence();
    lanes_ = t_.chunk / kParts;
    const uint32_t first = part * lanes_;
    LoadRaw(raw_[0], 0, pass.row, first);
    LoadRaw(raw_draft_[0], 1, pass.row, first);
    Keep(0, pass.row, first);
    Fence();
    Widen(x_, raw_[0], 0, first);
    Widen(y_, raw_draft_[0], 1, first);
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
        return AscendC::ToFloat(LogitAs<bfloat16_t>(of_draft, row, id));
      case kFloat16:
        return static_cast<float>(LogitAs<half>(of_draft, row, id));
      default:
        return LogitAs<float>(of_draft, row, id);
    }
  }

  // So that Logit need not wait.
  __aicore__ inline void PreloadLogit(uint32_t of_draft, int32_t row, uint64_t id) const {
    if (Type(of_draft) == kFloat32)
      Preload(RowOf<float>(of_draft, row, id, 1));
    else
      Preload(RowOf<half>(of_draft, row, id, 1));
  }

  // out[i] = x[i] <mode> bound ? yes[i] : no
  __aicore__ inline void Choose(const AscendC::LocalTensor<float>& out, const AscendC::LocalTensor<float>& x,
                                const AscendC::LocalTensor<float>& yes, float bound, AscendC::CMPMODE mode, float no) {
    AscendC::Compares(bits_, x, bound, mode, lanes_);
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Select(out, bits_, yes, no, AscendC::SELMODE::VSEL_TENSOR_SCALAR_MODE, lanes_);
    AscendC::PipeBarrier<PIPE_V>();
  }

  __aicore__ inline int32_t Lanes() const { return static_cast<int32_t>(lanes_); }
  __aicore__ inline uint32_t Chunks() const { return lanes_ / t_.chunk; }

  RowsTiling t_;
  uint32_t core_;
  GM_ADDR workspace_;
  AscendC::LocalMemAllocator<AscendC::Hardware::UB> ub_;
  uint32_t scratch_at_;
  AscendC::GlobalTensor<float> records_gm_;
  AscendC::LocalTensor<float> x_, y_, scratch_, one_, records_;
  AscendC::LocalTensor<uint8_t> bits_;
  uint32_t lanes_;  // in use of x_: some chunks, or a part of one

 private:
  static constexpr uint32_t kBuffers = 2;
  static constexpr uint32_t kCountBits = 13;  // of the passes that all cores ask for
  static constexpr uint32_t kPiece = 4;       // chunks of two bytes an element that are worked on together

  // Passes are shared out by chunks, and apart from those that take much longer over one.
  enum List : uint32_t { kLight, kHeavy, kLists };

  // Some chunks of a pass.
  struct Piece {
    Pass pass;
    uint32_t first, count;
  };

  // How many of lanes_ logits from this one on there are.
  __aicore__ inline uint32_t Size(uint32_t first) const {
    const uint32_t rest = t_.vocab - first;
    return rest < lanes_ ? rest : lanes_;
  }

  // Cores with requests.
  __aicore__ inline uint32_t Owners() const { return t_.batch < t_.cores ? t_.batch : t_.cores; }

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

  __aicore__ inline void Keep(uint32_t of_draft, int32_t row, uint32_t first) {
    kept_of_draft_ = of_draft;
    kept_row_ = row;
    kept_first_ = first;
    kept_ = lanes_;
  }
  template <typename T>
  __aicore__ inline T LogitAs(uint32_t of_draft, int32_t row, uint64_t id) const {
    const bool kept = row == kept_row_ && of_draft == kept_of_draft_ && kept_first_ <= id && id - kept_first_ < kept_;
    return kept ? raw_[0].ReinterpretCast<T>().GetValue(static_cast<uint32_t>(id - kept_first_))
                : RowOf<T>(of_draft, row, id, 1).GetValue(0);
  }

  template <typename T>
  __aicore__ inline void LoadAs(const AscendC::LocalTensor<float>& raw, uint32_t of_draft, int32_t row, uint32_t first,
                                T fill) {
    const uint32_t size = Size(first);
    Load(raw.ReinterpretCast<T>(), RowOf<T>(of_draft, row, first, size), size, fill);
  }
  // lanes_ logits from this one on.
  __aicore__ inline void LoadRaw(const AscendC::LocalTensor<float>& raw, uint32_t of_draft, int32_t row,
                                 uint32_t first) {
    switch (Type(of_draft)) {
      case kBFloat16:
        return LoadAs<bfloat16_t>(raw, of_draft, row, first, AscendC::ToBfloat16(-kInf));
      case kFloat16:
        return LoadAs<half>(raw, of_draft, row, first, static_cast<half>(-kInf));
      default:
        return LoadAs<float>(raw, of_draft, row, first, -kInf);
    }
  }

  template <typename T>
  __aicore__ inline uint32_t WidenAs(const AscendC::LocalTensor<float>& out, const AscendC::LocalTensor<float>& raw,
                                     uint32_t size) {
    size = AlignUp(size, BlockOf<T>());
    AscendC::Cast(out, raw.ReinterpretCast<T>(), AscendC::RoundMode::CAST_NONE, size);
    return size;
  }
  __aicore__ inline void Widen(const AscendC::LocalTensor<float>& out, const AscendC::LocalTensor<float>& raw,
                               uint32_t of_draft, uint32_t first) {
    uint32_t size = Size(first);
    switch (Type(of_draft)) {
      case kBFloat16:
        size = WidenAs<bfloat16_t>(out, raw, size);
        break;
      case kFloat16:
        size = WidenAs<half>(out, raw, size);
        break;
      default:
        size = AlignUp(size, BlockOf<float>());
        AscendC::Adds(out, raw, 0.0f, static_cast<int32_t>(size));
    }
    if (size < lanes_) AscendC::Duplicate(out[size], -kInf, static_cast<int32_t>(lanes_ - size));
    AscendC::PipeBarrier<PIPE_V>();
  }

  template <Reduction kind>
  __aicore__ inline void ReduceChunks(const AscendC::LocalTensor<float>& lane, const AscendC::LocalTensor<float>& x) {
    Reduce<kind>(lane, x, scratch_, t_.chunk, Chunks(), kRecord);
  }

  // --- What a pass leaves of the chunks in x_

  __aicore__ inline void SumChunks(const AscendC::LocalTensor<float>& records, const Piece& piece) {
    const Pass& pass = piece.pass;
    Weigh(x_, x_, 0.0f, pass.scale);
    ReduceChunks<Reduction::kSum>(records[kSumLane], x_);
    Order<AscendC::HardEvent::V_S>();
    bool fits[kPiece];
    for (uint32_t i = 0; i < piece.count; ++i) {
      const float sum = records.GetValue(i * kRecord + kSumLane);
      fits[i] = kLeastSum < sum && sum < kMostSum;
    }
    Order<AscendC::HardEvent::S_V>();
    lanes_ = t_.chunk;
    for (uint32_t i = 0; i < piece.count; ++i) {
      if (fits[i]) continue;
      const uint32_t first = (piece.first + i) * t_.chunk;
      // It is seldom read again: the next piece may have its place already.
      Order<AscendC::HardEvent::V_MTE2>();
      LoadRaw(y_, pass.of_draft, pass.row, first);
      Order<AscendC::HardEvent::MTE2_V>();
      Widen(x_, y_, pass.of_draft, first);
      ScanChunks(records[i * kRecord], pass.scale);
    }
  }

  __aicore__ inline void MeasureChunk(const AscendC::LocalTensor<float>& record, const Pass& pass) {
    // parts: sums of eight, of every lane of the record; by then x_ is compared.
    const AscendC::LocalTensor<float> weights = x_[t_.chunk], ones = x_[3 * t_.chunk], parts = x_;
    AscendC::Duplicate(ones, 1.0f, Lanes());
    if (pass.kind == kMeasure) Weigh(weights, x_, pass.max, pass.scale);
    const uint32_t part = t_.chunk / 8, lanes = pass.kind == kMeasure ? 2 * kPivots : kPivots;
    for (uint32_t i = 0; i < kPivots; ++i)
      AscendC::Compares(bits_[i * part], x_, pass.pivots[i], AscendC::CMPMODE::GE, t_.chunk);
    AscendC::PipeBarrier<PIPE_V>();
    for (uint32_t i = 0; i < lanes; ++i) {
      AscendC::Select(y_, bits_[i % kPivots * part], i < kMassLane ? ones : weights, 0.0f,
                      AscendC::SELMODE::VSEL_TENSOR_SCALAR_MODE, t_.chunk);
      AscendC::PipeBarrier<PIPE_V>();
      AscendC::BlockReduceSum(parts[i * part], y_, static_cast<int32_t>(t_.chunk / kFloatLanes),
                              static_cast<int32_t>(kFloatLanes), 1, 1, 8);
    }
    AscendC::PipeBarrier<PIPE_V>();
    Reduce<Reduction::kSum>(record, parts, scratch_, part, lanes);
  }

  // --- A core's lines: its heavy passes, in the middle how many it asks for, then the light ones

  // Where `count` passes begin.
  __aicore__ inline uint32_t Place(List list, uint32_t count) const {
    return list == kLight ? kMaxPasses + 1 : kMaxPasses - count;
  }
  __aicore__ inline uint32_t CountOf(uint32_t both, List list) const {
    return both >> (list == kLight ? 0 : kCountBits) & ((1u << kCountBits) - 1);
  }
  __aicore__ inline uint32_t WordsOf(List list) const { return list == kLight ? kLightWords : kPassWords; }

  __aicore__ inline void PutPass(uint32_t line, const Pass& pass, List list) {
    PassWords w;
    w.pass = pass;
    for (uint32_t i = 0; i < WordsOf(list); ++i) asked_.SetValue(line * kPassWords + i, w.words[i]);
  }

  // --- This core's share of all chunks of all passes, piece by piece

  // The last cores come first where passes are heavy: what is left over is to meet those with less to do.
  __aicore__ inline void StartList(List list) {
    const uint64_t units = uint64_t{passes_[list]} * t_.chunks, share = (units + t_.cores - 1) / t_.cores;
    begin_ = next_ = (list == kLight ? core_ : t_.cores - 1 - core_) * share;
    end_ = next_ + share < units ? next_ + share : units;
    list_ = list;
  }

  // The passes that the share has chunks of.
  __aicore__ inline uint32_t BeginPass() const { return static_cast<uint32_t>(begin_ / t_.chunks); }
  __aicore__ inline uint32_t EndPass() const { return static_cast<uint32_t>((end_ + t_.chunks - 1) / t_.chunks); }

  // False if no core has told of any.
  __aicore__ inline bool LoadAsked() {
    const uint32_t owners = Owners();
    AscendC::SyncAll();
    const AscendC::DataCopyExtParams counts{static_cast<uint16_t>(owners), kBlockBytes,
                                            kPassLines * kPassWords * 4 - kBlockBytes, 0, 0};
    AscendC::DataCopyPad(counts_, passes_gm_[kMaxPasses * kPassWords], counts,
                         AscendC::DataCopyPadExtParams<uint32_t>{false, 0, 0, 0});
    Order<AscendC::HardEvent::MTE2_S>();
    uint32_t both = 0;
    for (uint32_t owner = 0; owner < owners; ++owner) both += counts_.GetValue(owner * kRecord);
    if (both == 0) return false;
    passes_[kLight] = CountOf(both, kLight);
    passes_[kHeavy] = CountOf(both, kHeavy);
    LoadPasses(kHeavy, LoadPasses(kLight, 0));
    Order<AscendC::HardEvent::MTE2_S>();
    StartShare();
    return true;
  }
  // The passes of the share come to asked_, after `loaded` others.
  __aicore__ inline uint32_t LoadPasses(List list, uint32_t loaded) {
    StartList(list);
    uint32_t pass = BeginPass(), before = 0;
    const uint32_t end = EndPass();
    for (uint32_t owner = 0; pass < end; ++owner) {
      const uint32_t count = CountOf(counts_.GetValue(owner * kRecord), list);
      if (pass < before + count) {
        const uint32_t some = (end < before + count ? end : before + count) - pass;
        Load(asked_[loaded * kPassWords],
             passes_gm_[(owner * kPassLines + Place(list, count) + pass - before) * kPassWords], some * kPassWords);
        loaded += some;
        pass += some;
      }
      before += count;
    }
    return loaded;
  }

  __aicore__ inline void StartShare() {
    pass_at_ = 0;
    kept_row_ = -1;
    StartList(kLight);
    for (uint32_t i = 0; i < kBuffers; ++i) {
      AscendC::SetFlag<AscendC::HardEvent::V_MTE2>(Event(i));
      AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(Event(i));
    }
    for (uint32_t i = 0; i < kBuffers; ++i) Fetch(&pieces_[i], i);
  }
  __aicore__ inline void Share() {
    for (uint32_t i = 0; pieces_[i].count > 0; i = (i + 1) % kBuffers) {
      const Piece piece = pieces_[i];
      TakeIn(piece, i);
      Fetch(&pieces_[i], i);
      Work(piece, i);
    }
    for (uint32_t i = 0; i < kBuffers; ++i) {
      AscendC::WaitFlag<AscendC::HardEvent::V_MTE2>(Event(i));
      AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(Event(i));
    }
  }

  // Reads the next piece; one of no chunks where there is none.
  __aicore__ inline void Fetch(Piece* piece, uint32_t buffer) {
    piece->count = 0;
    if (next_ >= end_ && list_ == kLight) StartList(kHeavy);
    if (next_ >= end_) return;
    piece->first = static_cast<uint32_t>(next_ % t_.chunks);
    if (piece->first == 0 || next_ == begin_) {
      for (uint32_t i = 0; i < WordsOf(list_); ++i) words_.words[i] = asked_.GetValue(pass_at_ * kPassWords + i);
      ++pass_at_;
    }
    const Pass& pass = words_.pass;
    piece->pass = pass;
    uint64_t count = MostChunks(pass);
    if (count > t_.chunks - piece->first) count = t_.chunks - piece->first;
    if (count > end_ - next_) count = end_ - next_;
    piece->count = static_cast<uint32_t>(count);
    next_ += count;
    AscendC::WaitFlag<AscendC::HardEvent::V_MTE2>(Event(buffer));
    lanes_ = piece->count * t_.chunk;
    LoadRaw(raw_[buffer], pass.of_draft, pass.row, piece->first * t_.chunk);
    if (pass.kind == kExcess) LoadRaw(raw_draft_[buffer], 1, pass.row, piece->first * t_.chunk);
    AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(Event(buffer));
  }
  // By what raw_ and x_ hold.
  __aicore__ inline uint32_t MostChunks(const Pass& pass) const {
    if (pass.kind == kCount || pass.kind == kMeasure) return 1;
    const bool wide = Type(pass.of_draft) == kFloat32 || (pass.kind == kExcess && Type(1) == kFloat32);
    return (pass.kind == kExcess || t_.entropy ? kPiece / 2 : kPiece) / (wide ? 2 : 1);
  }

  // Chunks into x_, of a draft's row into y_: their buffer is free for another piece.
  __aicore__ inline void TakeIn(const Piece& piece, uint32_t buffer) {
    AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(Event(buffer));
    AscendC::Duplicate(record_[buffer], 0.0f, static_cast<int32_t>(piece.count * kRecord));
    AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(Event(buffer));
    lanes_ = piece.count * t_.chunk;
    Widen(x_, raw_[buffer], piece.pass.of_draft, piece.first * t_.chunk);
    if (piece.pass.kind == kExcess) Widen(y_, raw_draft_[buffer], 1, piece.first * t_.chunk);
    AscendC::SetFlag<AscendC::HardEvent::V_MTE2>(Event(buffer));
  }

  __aicore__ inline void Work(const Piece& piece, uint32_t buffer) {
    const Pass& pass = piece.pass;
    const AscendC::LocalTensor<float> records = record_[buffer];
    lanes_ = piece.count * t_.chunk;
    switch (pass.kind) {
      case kScan:
        Cut(pass.cut);
        ScanChunks(records, pass.scale);
        break;
      case kSum:
        SumChunks(records, piece);
        break;
      case kCount:
      case kMeasure:
        MeasureChunk(records, pass);
        break;
      default:
        Subtract(pass);
        ReduceEights<Reduction::kSum>(records, ReduceTo64<Reduction::kSum>(x_, scratch_, t_.chunk, piece.count),
                                      piece.count * kFloatLanes);
    }
    Order<AscendC::HardEvent::V_MTE3>();
    Store(records_gm_[(uint64_t{pass.slot} * t_.chunks + piece.first) * kRecord], records, piece.count * kRecord);
    AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(Event(buffer));
  }

  // Buffers have the events after the one that Order uses.
  __aicore__ inline int32_t Event(uint32_t buffer) const { return EVENT_ID1 + static_cast<int32_t>(buffer); }

  GM_ADDR target_;
  GM_ADDR draft_;
  AscendC::GlobalTensor<uint32_t> passes_gm_;
  AscendC::LocalTensor<float> raw_[kBuffers], raw_draft_[kBuffers], record_[kBuffers];
  AscendC::LocalTensor<uint32_t> counts_;
  AscendC::LocalTensor<uint32_t> asked_;              // this core's lines; while passes are made, those of its share
  uint32_t num_asked_[kLists] = {}, passes_[kLists];  // of this core, of all
  uint32_t waits_ = 0;                                // whether this core asks for a round
  bool foreseen_ = false;                             // what all cores ask for in this round
  // This core's share of a list: the chunks from begin_ to end_, counted over all passes. next_ is of the pass in
  // words_; the one after it is at pass_at_.
  uint64_t begin_, next_, end_;
  uint32_t pass_at_;
  List list_;
  PassWords words_;
  Piece pieces_[kBuffers];  // that come next
  // The logits in raw_[0] that were read last for the core that decides; no row where passes came after it.
  int32_t kept_row_ = -1;
  uint32_t kept_of_draft_, kept_first_, kept_;
};

}  // namespace specdec::ascendc
