// Philox4x32-10 on the scalar unit, which has the 32 x 32 -> 64 bit product that the vector unit lacks. A step needs
// some hundred numbers, spread over all cores.
#pragma once

#include "kernels/ascendc/common/pipe.h"
#include "kernels/ascendc/philox/philox_tiling.h"

namespace specdec::ascendc {

struct PhiloxWords {
  uint32_t w[4];
};

__aicore__ inline PhiloxWords Philox4x32(uint64_t key, uint64_t offset, uint32_t stream, uint32_t quad) {
  uint32_t c0 = static_cast<uint32_t>(offset), c1 = static_cast<uint32_t>(offset >> 32), c2 = stream, c3 = quad;
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int32_t round = 0; round < 10; ++round) {
    const uint64_t a = static_cast<uint64_t>(0xD2511F53u) * c0;
    const uint64_t b = static_cast<uint64_t>(0xCD9E8D57u) * c2;
    c0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(b);
    c2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(a);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return PhiloxWords{{c0, c1, c2, c3}};
}

class PhiloxUniform {
 public:
  __aicore__ inline void Init(GM_ADDR seeds, GM_ADDR offsets, GM_ADDR out, const PhiloxTiling& tiling) {
    tiling_ = tiling;
    const uint64_t batch = tiling.total / tiling.n;
    seeds_.SetGlobalBuffer((__gm__ int64_t*)seeds, batch);
    offsets_.SetGlobalBuffer((__gm__ int64_t*)offsets, batch);
    out_.SetGlobalBuffer((__gm__ float*)out, tiling.total);
  }

  __aicore__ inline void Process() {
    const uint64_t begin = AscendC::GetBlockIdx() * tiling_.share;
    const uint64_t end = begin + tiling_.share < tiling_.total ? begin + tiling_.share : tiling_.total;
    AscendC::LocalTensor<float> numbers(AscendC::TPosition::VECCALC, 0, kChunk);
    for (uint64_t at = begin; at < end; at += kChunk) {
      const uint32_t count = static_cast<uint32_t>(end - at < kChunk ? end - at : kChunk);
      Fill(numbers, at, count);
      Order<AscendC::HardEvent::S_MTE3>();
      Store(out_[at], numbers, count);
      Order<AscendC::HardEvent::MTE3_S>();
    }
  }

 private:
  static constexpr uint32_t kChunk = 4096;

  __aicore__ inline void Fill(const AscendC::LocalTensor<float>& numbers, uint64_t at, uint32_t count) {
    uint64_t row = at / tiling_.n, lane = at % tiling_.n;
    for (uint32_t i = 0; i < count;) {
      const PhiloxWords words =
          Philox4x32(static_cast<uint64_t>(seeds_.GetValue(row)), static_cast<uint64_t>(offsets_.GetValue(row)),
                     tiling_.stream, static_cast<uint32_t>(lane / 4));
      do {
        numbers.SetValue(i, static_cast<float>(static_cast<int32_t>(words.w[lane % 4] >> 8)) * 0x1p-24f);
        ++i;
        ++lane;
      } while (i < count && lane < tiling_.n && lane % 4 != 0);
      if (lane == tiling_.n) {
        lane = 0;
        ++row;
      }
    }
  }

  AscendC::GlobalTensor<int64_t> seeds_, offsets_;
  AscendC::GlobalTensor<float> out_;
  PhiloxTiling tiling_;
};

}  // namespace specdec::ascendc
