// C = A * B on the cube cores: half in, float out. Each core computes a band of rows, in steps along K.
#pragma once
#include "kernel_operator.h"

// One band of kM rows. K runs in steps of kStep through one L1 and one L0 buffer each for A and B.
template <uint32_t kM, uint32_t kN, uint32_t kStep>
class MatmulBand {
 public:
  __aicore__ inline void Init(GM_ADDR a, GM_ADDR b, uint32_t k) {
    k_ = k;
    a_.SetGlobalBuffer((__gm__ half*)a);
    b_.SetGlobalBuffer((__gm__ half*)b);
    AscendC::LocalMemAllocator<AscendC::Hardware::L1> l1;
    AscendC::LocalMemAllocator<AscendC::Hardware::L0A> l0a;
    AscendC::LocalMemAllocator<AscendC::Hardware::L0B> l0b;
    AscendC::LocalMemAllocator<AscendC::Hardware::L0C> l0c;
    a_l1_ = l1.Alloc<half>(kM * kStep);
    b_l1_ = l1.Alloc<half>(kStep * kN);
    a_l0_ = l0a.Alloc<half>(kM * kStep);
    b_l0_ = l0b.Alloc<half>(kStep * kN);
    c_l0_ = l0c.Alloc<float>(kM * kN);
  }

  // Leaves rows [row, row + kM) of the product in L0C; the caller waits for M_FIX.
  __aicore__ inline void Compute(uint64_t row) {
    for (uint32_t k = 0; k < k_; k += kStep) {
      if (k > 0) AscendC::WaitFlag<AscendC::HardEvent::MTE1_MTE2>(EVENT_ID0);
      AscendC::DataCopy(a_l1_, a_[row * k_ + k],
                        AscendC::Nd2NzParams{1, kM, kStep, 0, static_cast<uint16_t>(k_), kM, 1, 0});
      AscendC::DataCopy(b_l1_, b_[static_cast<uint64_t>(k) * kN],
                        AscendC::Nd2NzParams{1, kStep, kN, 0, kN, kStep, 1, 0});
      AscendC::SetFlag<AscendC::HardEvent::MTE2_MTE1>(EVENT_ID0);
      AscendC::WaitFlag<AscendC::HardEvent::MTE2_MTE1>(EVENT_ID0);

      if (k > 0) AscendC::WaitFlag<AscendC::HardEvent::M_MTE1>(EVENT_ID3);
      // Nz to Zz for A, row of fractals by row of fractals; Nz to Zn for B, transposing each fractal.
      for (uint32_t i = 0; i < kM / kCube; ++i) {
        AscendC::LoadData(a_l0_[i * kStep * kCube], a_l1_[i * kFractal],
                          AscendC::LoadData2DParams{0, kStep / kCube, kM / kCube, 0, 0, false, 0});
      }
      for (uint32_t i = 0; i < kStep / kCube; ++i) {
        AscendC::LoadData(b_l0_[i * kN * kCube], b_l1_[i * kFractal],
                          AscendC::LoadData2DParams{0, kN / kCube, kStep / kCube, 0, 0, true, 0});
      }
      if (k + kStep < k_) AscendC::SetFlag<AscendC::HardEvent::MTE1_MTE2>(EVENT_ID0);
      AscendC::SetFlag<AscendC::HardEvent::MTE1_M>(EVENT_ID0);
      AscendC::WaitFlag<AscendC::HardEvent::MTE1_M>(EVENT_ID0);

      AscendC::MmadParams mmad{kM, kN, kStep, 0, false, k == 0};
      AscendC::Mmad(c_l0_, a_l0_, b_l0_, mmad);
      // A small tile leaves the pipeline before its result does.
      if ((kM / kCube) * (kN / kCube) < 10) AscendC::PipeBarrier<PIPE_M>();
      if (k + kStep < k_) AscendC::SetFlag<AscendC::HardEvent::M_MTE1>(EVENT_ID3);
    }
    AscendC::SetFlag<AscendC::HardEvent::M_FIX>(EVENT_ID0);
    AscendC::WaitFlag<AscendC::HardEvent::M_FIX>(EVENT_ID0);
  }

  // Copies L0C to rows of `c`, `stride` elements apart.
  __aicore__ inline void Store(const AscendC::GlobalTensor<float>& c, uint32_t stride) {
    AscendC::FixpipeParamsV220 fix;
    fix.nSize = kN;
    fix.mSize = kM;
    fix.srcStride = kM;
    fix.dstStride = stride;
    AscendC::Fixpipe(c, c_l0_, fix);
  }

 private:
  static constexpr uint32_t kCube = 16;
  static constexpr uint32_t kFractal = kCube * kCube;

  AscendC::GlobalTensor<half> a_, b_;
  AscendC::LocalTensor<half> a_l1_, b_l1_, a_l0_, b_l0_;
  AscendC::LocalTensor<float> c_l0_;
  uint32_t k_ = 0;
};

constexpr uint32_t kMatmulBand = 32, kMatmulN = 64, kMatmulStep = 64;

__global__ __cube__ void matmul(GM_ADDR a, GM_ADDR b, GM_ADDR c, uint32_t k) {
  AscendC::InitSocState();
  if ASCEND_IS_AIC {
    MatmulBand<kMatmulBand, kMatmulN, kMatmulStep> band;
    band.Init(a, b, k);
    uint64_t row = AscendC::GetBlockIdx() * static_cast<uint64_t>(kMatmulBand);
    AscendC::GlobalTensor<float> c_gm;
    c_gm.SetGlobalBuffer((__gm__ float*)c);
    band.Compute(row);
    band.Store(c_gm[row * kMatmulN], kMatmulN);
    AscendC::PipeBarrier<PIPE_ALL>();
  }
}
