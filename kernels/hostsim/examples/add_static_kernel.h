// z = x + y with static tensors, explicit flags and two buffers.
#include "kernel_operator.h"

__global__ __vector__ void add_static(GM_ADDR x, GM_ADDR y, GM_ADDR z, uint32_t per_core) {
  constexpr uint32_t kTile = 1024;
  constexpr uint32_t kTileBytes = kTile * sizeof(float);
  AscendC::InitSocState();
  AscendC::GlobalTensor<float> x_gm, y_gm, z_gm;
  uint64_t start = AscendC::GetBlockIdx() * static_cast<uint64_t>(per_core);
  x_gm.SetGlobalBuffer((__gm__ float*)x + start, per_core);
  y_gm.SetGlobalBuffer((__gm__ float*)y + start, per_core);
  z_gm.SetGlobalBuffer((__gm__ float*)z + start, per_core);

  // Both buffers start free: for loading (V has read x and y) and for computing (MTE3 has read z).
  for (int32_t b = 0; b < 2; ++b) {
    AscendC::SetFlag<AscendC::HardEvent::V_MTE2>(b);
    AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(b);
  }
  for (uint32_t done = 0, i = 0; done < per_core; done += kTile, ++i) {
    int32_t b = static_cast<int32_t>(i & 1);
    uint32_t base = static_cast<uint32_t>(b) * 3 * kTileBytes;
    uint32_t count = per_core - done < kTile ? per_core - done : kTile;
    AscendC::LocalTensor<float> xl(AscendC::TPosition::VECCALC, base, kTile);
    AscendC::LocalTensor<float> yl(AscendC::TPosition::VECCALC, base + kTileBytes, kTile);
    AscendC::LocalTensor<float> zl(AscendC::TPosition::VECCALC, base + 2 * kTileBytes, kTile);
    AscendC::DataCopyExtParams copy{1, count * static_cast<uint32_t>(sizeof(float)), 0, 0, 0};
    AscendC::DataCopyPadExtParams<float> pad{false, 0, 0, 0.0f};

    AscendC::WaitFlag<AscendC::HardEvent::V_MTE2>(b);
    AscendC::DataCopyPad(xl, x_gm[done], copy, pad);
    AscendC::DataCopyPad(yl, y_gm[done], copy, pad);
    AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(b);

    AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(b);
    AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(b);
    AscendC::Add(zl, xl, yl, static_cast<int32_t>(count));
    AscendC::SetFlag<AscendC::HardEvent::V_MTE2>(b);
    AscendC::SetFlag<AscendC::HardEvent::V_MTE3>(b);

    AscendC::WaitFlag<AscendC::HardEvent::V_MTE3>(b);
    AscendC::DataCopyPad(z_gm[done], zl, copy);
    AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(b);
  }
  for (int32_t b = 0; b < 2; ++b) {
    AscendC::WaitFlag<AscendC::HardEvent::V_MTE2>(b);
    AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(b);
  }
  AscendC::PipeBarrier<PIPE_ALL>();
}
