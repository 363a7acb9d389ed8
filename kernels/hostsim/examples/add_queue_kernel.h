// z = x + y with queues: TPipe hands out the buffers and the flags.
#include "kernel_operator.h"

class AddQueue {
 public:
  __aicore__ inline void Init(GM_ADDR x, GM_ADDR y, GM_ADDR z, uint32_t per_core, AscendC::TPipe* pipe) {
    uint64_t start = AscendC::GetBlockIdx() * static_cast<uint64_t>(per_core);
    x_.SetGlobalBuffer((__gm__ float*)x + start, per_core);
    y_.SetGlobalBuffer((__gm__ float*)y + start, per_core);
    z_.SetGlobalBuffer((__gm__ float*)z + start, per_core);
    tiles_ = per_core / kTile;
    pipe->InitBuffer(in_x_, kBuffers, kTile * sizeof(float));
    pipe->InitBuffer(in_y_, kBuffers, kTile * sizeof(float));
    pipe->InitBuffer(out_z_, kBuffers, kTile * sizeof(float));
  }
  __aicore__ inline void Process() {
    for (uint32_t i = 0; i < tiles_; ++i) {
      CopyIn(i);
      Compute();
      CopyOut(i);
    }
  }

 private:
  static constexpr uint32_t kTile = 1024;
  static constexpr uint8_t kBuffers = 2;

  __aicore__ inline void CopyIn(uint32_t i) {
    AscendC::LocalTensor<float> x = in_x_.AllocTensor<float>();
    AscendC::LocalTensor<float> y = in_y_.AllocTensor<float>();
    AscendC::DataCopy(x, x_[i * kTile], kTile);
    AscendC::DataCopy(y, y_[i * kTile], kTile);
    in_x_.EnQue(x);
    in_y_.EnQue(y);
  }
  __aicore__ inline void Compute() {
    AscendC::LocalTensor<float> x = in_x_.DeQue<float>();
    AscendC::LocalTensor<float> y = in_y_.DeQue<float>();
    AscendC::LocalTensor<float> z = out_z_.AllocTensor<float>();
    AscendC::Add(z, x, y, kTile);
    out_z_.EnQue(z);
    in_x_.FreeTensor(x);
    in_y_.FreeTensor(y);
  }
  __aicore__ inline void CopyOut(uint32_t i) {
    AscendC::LocalTensor<float> z = out_z_.DeQue<float>();
    AscendC::DataCopy(z_[i * kTile], z, kTile);
    out_z_.FreeTensor(z);
  }

  AscendC::GlobalTensor<float> x_, y_, z_;
  AscendC::TQue<AscendC::TPosition::VECIN, 1> in_x_, in_y_;
  AscendC::TQue<AscendC::TPosition::VECOUT, 1> out_z_;
  uint32_t tiles_ = 0;
};

__global__ __vector__ void add_queue(GM_ADDR x, GM_ADDR y, GM_ADDR z, uint32_t per_core) {
  AscendC::TPipe pipe;
  AddQueue op;
  op.Init(x, y, z, per_core, &pipe);
  op.Process();
}
