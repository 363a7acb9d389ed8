// y = silu(A * B): the cube core of a block computes bands, its two vector cores activate them, half each.
//
// Bands go through a workspace with two places. Flags 0 and 1 say "band written", flags 2 and 3 "place free again".
#include "matmul_kernel.h"

constexpr uint32_t kFusedBand = 64, kFusedN = 64, kFusedStep = 64;
constexpr uint16_t kFlagWritten = 0, kFlagFree = 2;

class MatmulSilu {
 public:
  __aicore__ inline void Init(GM_ADDR a, GM_ADDR b, GM_ADDR workspace, GM_ADDR y, uint32_t m, uint32_t k) {
    blocks_ = static_cast<uint32_t>(AscendC::GetBlockNum());
    bands_ = m / kFusedBand;
    y_.SetGlobalBuffer((__gm__ float*)y);
    workspace_.SetGlobalBuffer((__gm__ float*)workspace);
    if ASCEND_IS_AIC {
      block_ = static_cast<uint32_t>(AscendC::GetBlockIdx());
      cube_.Init(a, b, k);
    }
    if ASCEND_IS_AIV {
      block_ = static_cast<uint32_t>(AscendC::GetBlockIdx() / AscendC::GetTaskRation());
      AscendC::LocalMemAllocator<AscendC::Hardware::UB> ub;
      x_ = ub.Alloc<float>(kHalf);
      e_ = ub.Alloc<float>(kHalf);
    }
    workspace_ = workspace_[block_ * 2 * kBand];
  }

  __aicore__ inline void Process() {
    uint32_t done = 0;
    for (uint32_t band = block_; band < bands_; band += blocks_, ++done) {
      uint16_t place = static_cast<uint16_t>(done & 1);
      if ASCEND_IS_AIC {
        if (done >= 2) AscendC::CrossCoreWaitFlag(kFlagFree + place);
        AscendC::PipeBarrier<PIPE_ALL>();  // the band before has left L1 and L0
        cube_.Compute(band * static_cast<uint64_t>(kFusedBand));
        cube_.Store(workspace_[place * kBand], kFusedN);
        AscendC::CrossCoreSetFlag<2, PIPE_FIX>(kFlagWritten + place);
      }
      if ASCEND_IS_AIV {
        AscendC::CrossCoreWaitFlag(kFlagWritten + place);
        Activate(place, band, done);
      }
    }
    if ASCEND_IS_AIC {
      for (uint32_t i = done < 2 ? 0 : done - 2; i < done; ++i) AscendC::CrossCoreWaitFlag(kFlagFree + (i & 1));
    }
    if ASCEND_IS_AIV {
      if (done > 0) AscendC::WaitFlag<AscendC::HardEvent::MTE3_MTE2>(EVENT_ID0);
    }
    AscendC::PipeBarrier<PIPE_ALL>();
  }

 private:
  static constexpr uint32_t kBand = kFusedBand * kFusedN;
  static constexpr uint32_t kHalf = kBand / 2;

  // x / (1 + exp(-x)) on this core's half of a band.
  __aicore__ inline void Activate(uint16_t place, uint32_t band, uint32_t done) {
    uint32_t half_start = static_cast<uint32_t>(AscendC::GetSubBlockIdx()) * kHalf;
    if (done > 0) AscendC::WaitFlag<AscendC::HardEvent::MTE3_MTE2>(EVENT_ID0);
    AscendC::DataCopy(x_, workspace_[place * kBand + half_start], kHalf);
    AscendC::CrossCoreSetFlag<2, PIPE_MTE2>(kFlagFree + place);
    AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(EVENT_ID0);
    AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(EVENT_ID0);
    AscendC::Muls(e_, x_, -1.0f, static_cast<int32_t>(kHalf));
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Exp(e_, e_, static_cast<int32_t>(kHalf));
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Adds(e_, e_, 1.0f, static_cast<int32_t>(kHalf));
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Div(x_, x_, e_, static_cast<int32_t>(kHalf));
    AscendC::SetFlag<AscendC::HardEvent::V_MTE3>(EVENT_ID0);
    AscendC::WaitFlag<AscendC::HardEvent::V_MTE3>(EVENT_ID0);
    AscendC::DataCopy(y_[static_cast<uint64_t>(band) * kBand + half_start], x_, kHalf);
    AscendC::SetFlag<AscendC::HardEvent::MTE3_MTE2>(EVENT_ID0);
  }

  AscendC::GlobalTensor<float> y_, workspace_;
  MatmulBand<kFusedBand, kFusedN, kFusedStep> cube_;
  AscendC::LocalTensor<float> x_, e_;
  uint32_t blocks_ = 0, bands_ = 0, block_ = 0;
};

__global__ __mix__(1, 2) void matmul_silu(GM_ADDR a, GM_ADDR b, GM_ADDR workspace, GM_ADDR y, uint32_t m, uint32_t k) {
  AscendC::InitSocState();
  MatmulSilu op;
  op.Init(a, b, workspace, y, m, k);
  op.Process();
}
