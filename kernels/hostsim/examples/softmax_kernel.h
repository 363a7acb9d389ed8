// Softmax of one row spread over all vector cores.
//
// Each core keeps its share of the row in UB, finds its maximum and sum of exponentials and publishes both; after a
// barrier every core combines them and scales its share. The row is read once and written once.
#include "kernel_operator.h"

class Softmax {
 public:
  static constexpr uint32_t kLanes = 64;               // fp32 of a repeat
  static constexpr uint32_t kMaxShare = 255 * kLanes;  // one instruction covers it
  static constexpr uint32_t kMaxCores = 64;
  static constexpr uint32_t kSlot = 8;  // floats a core publishes: a whole 32-byte block

  __aicore__ inline void Init(GM_ADDR row, GM_ADDR out, GM_ADDR workspace, uint32_t length, uint32_t share) {
    cores_ = static_cast<uint32_t>(AscendC::GetBlockNum());
    index_ = static_cast<uint32_t>(AscendC::GetBlockIdx());
    uint32_t start = index_ * share;
    count_ = start >= length ? 0 : (length - start < share ? length - start : share);
    repeats_ = (count_ + kLanes - 1) / kLanes;
    row_.SetGlobalBuffer((__gm__ float*)row, length);
    out_.SetGlobalBuffer((__gm__ float*)out, length);
    workspace_.SetGlobalBuffer((__gm__ float*)workspace, cores_ * kSlot);
    row_ = row_[start];
    out_ = out_[start];
    AscendC::LocalMemAllocator<AscendC::Hardware::UB> ub;
    x_ = ub.Alloc<float>(kMaxShare);
    pairs_ = ub.Alloc<float>(2 * 256);
    partial_ = ub.Alloc<float>(256);
    result_ = ub.Alloc<float>(kLanes);
    slot_ = ub.Alloc<float>(kSlot);
    slots_ = ub.Alloc<float>(kMaxCores * kSlot);
    maxima_ = ub.Alloc<float>(kMaxCores);
    sums_ = ub.Alloc<float>(kMaxCores);
    pattern_ = ub.Alloc<uint32_t>(kMaxCores * kSlot / 32);
  }

  __aicore__ inline void Process() {
    float maximum = kLowest, sum = 0.0f;
    if (count_ > 0) {
      Load();
      maximum = Max();
      sum = ExpAndSum(maximum);
    }
    Publish(maximum, sum);
    AscendC::SyncAll();
    float scale = Combine();
    if (count_ > 0) Store(scale);
    AscendC::PipeBarrier<PIPE_ALL>();
  }

 private:
  static constexpr float kLowest = -3.0e38f;

  // The share, with the last repeat filled up by values whose exponential is 0.
  __aicore__ inline void Load() {
    AscendC::Duplicate(x_[(repeats_ - 1) * kLanes], kLowest, static_cast<int32_t>(kLanes));
    AscendC::SetFlag<AscendC::HardEvent::V_MTE2>(EVENT_ID0);
    AscendC::WaitFlag<AscendC::HardEvent::V_MTE2>(EVENT_ID0);
    // Padding goes up to a 32-byte block and would overwrite what Duplicate wrote with junk: give it a value.
    uint8_t right = static_cast<uint8_t>((8 - count_ % 8) % 8);
    AscendC::DataCopyExtParams copy{1, count_ * static_cast<uint32_t>(sizeof(float)), 0, 0, 0};
    AscendC::DataCopyPadExtParams<float> pad{true, 0, right, kLowest};
    AscendC::DataCopyPad(x_, row_, copy, pad);
    AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(EVENT_ID0);
    AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(EVENT_ID0);
  }

  __aicore__ inline float ToScalar(const AscendC::LocalTensor<float>& t, uint32_t i) {
    AscendC::SetFlag<AscendC::HardEvent::V_S>(EVENT_ID0);
    AscendC::WaitFlag<AscendC::HardEvent::V_S>(EVENT_ID0);
    float value = t.GetValue(i);
    AscendC::SetFlag<AscendC::HardEvent::S_V>(EVENT_ID0);
    AscendC::WaitFlag<AscendC::HardEvent::S_V>(EVENT_ID0);
    return value;
  }

  // WholeReduceMax gives (value, index) pairs; GatherMask keeps the even elements, the values.
  __aicore__ inline float Max() {
    uint64_t kept = 0;
    int32_t repeats = static_cast<int32_t>(repeats_);
    AscendC::Duplicate(partial_, kLowest, 256);
    AscendC::WholeReduceMax(pairs_, x_, static_cast<int32_t>(kLanes), repeats, 1, 1, 8);
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::GatherMask(partial_, pairs_, static_cast<uint8_t>(1), true, 2 * repeats_, {1, 1, 8, 0}, kept);
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::WholeReduceMax(result_, partial_, static_cast<int32_t>(kLanes), 4, 1, 1, 8,
                            AscendC::ReduceOrder::ORDER_ONLY_VALUE);
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::WholeReduceMax(partial_, result_, 4, 1, 1, 1, 8, AscendC::ReduceOrder::ORDER_ONLY_VALUE);
    return ToScalar(partial_, 0);
  }

  __aicore__ inline float ExpAndSum(float maximum) {
    int32_t padded = static_cast<int32_t>(repeats_ * kLanes);
    AscendC::Adds(x_, x_, -maximum, padded);
    AscendC::Duplicate(partial_, 0.0f, 256);
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Exp(x_, x_, padded);
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::WholeReduceSum(partial_, x_, static_cast<int32_t>(kLanes), static_cast<int32_t>(repeats_), 1, 1, 8);
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::WholeReduceSum(result_, partial_, static_cast<int32_t>(kLanes), 4, 1, 1, 8);
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::WholeReduceSum(partial_, result_, 4, 1, 1, 1, 8);
    return ToScalar(partial_, 0);
  }

  __aicore__ inline void Publish(float maximum, float sum) {
    for (uint32_t i = 0; i < kSlot; ++i) slot_.SetValue(i, i == 0 ? maximum : sum);
    AscendC::SetFlag<AscendC::HardEvent::S_MTE3>(EVENT_ID0);
    AscendC::WaitFlag<AscendC::HardEvent::S_MTE3>(EVENT_ID0);
    AscendC::DataCopy(workspace_[index_ * kSlot], slot_, kSlot);
  }

  // The factor of this core's share: exp(own maximum - maximum) / total.
  __aicore__ inline float Combine() {
    AscendC::DataCopy(slots_, workspace_, cores_ * kSlot);
    AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(EVENT_ID0);
    AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(EVENT_ID0);
    Pick(maxima_, 0x01010101u);
    Pick(sums_, 0x02020202u);
    int32_t n = static_cast<int32_t>(cores_);
    AscendC::WholeReduceMax(result_, maxima_, n, 1, 1, 1, 8, AscendC::ReduceOrder::ORDER_ONLY_VALUE);
    float maximum = ToScalar(result_, 0);
    AscendC::Adds(maxima_, maxima_, -maximum, n);
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Exp(maxima_, maxima_, n);
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Mul(sums_, sums_, maxima_, n);
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::WholeReduceSum(result_, sums_, n, 1, 1, 1, 8);
    float total = ToScalar(result_, 0);
    return ToScalar(maxima_, index_) / total;
  }

  // Element 0 or 1 of every core's slot of 8.
  __aicore__ inline void Pick(const AscendC::LocalTensor<float>& dst, uint32_t bits) {
    uint64_t kept = 0;
    AscendC::Duplicate(pattern_, bits, static_cast<int32_t>(kMaxCores * kSlot / 32));
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::GatherMask(dst, slots_, pattern_, true, cores_ * kSlot, {1, 1, 8, 0}, kept);
    AscendC::PipeBarrier<PIPE_V>();
  }

  __aicore__ inline void Store(float scale) {
    AscendC::Muls(x_, x_, scale, static_cast<int32_t>(count_));
    AscendC::SetFlag<AscendC::HardEvent::V_MTE3>(EVENT_ID0);
    AscendC::WaitFlag<AscendC::HardEvent::V_MTE3>(EVENT_ID0);
    AscendC::DataCopyExtParams copy{1, count_ * static_cast<uint32_t>(sizeof(float)), 0, 0, 0};
    AscendC::DataCopyPad(out_, x_, copy);
  }

  AscendC::GlobalTensor<float> row_, out_, workspace_;
  AscendC::LocalTensor<float> x_, pairs_, partial_, result_, slot_, slots_, maxima_, sums_;
  AscendC::LocalTensor<uint32_t> pattern_;
  uint32_t cores_ = 0, index_ = 0, count_ = 0, repeats_ = 0;
};

__global__ __mix__(0, 1) void softmax(GM_ADDR row, GM_ADDR out, GM_ADDR workspace, uint32_t length, uint32_t share) {
  AscendC::InitSocState();
  if ASCEND_IS_AIV {
    Softmax op;
    op.Init(row, out, workspace, length, share);
    op.Process();
  }
}
