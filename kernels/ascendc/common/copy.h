// From global memory to global memory through UB, and runs of one byte value.
#pragma once

#include "kernels/ascendc/common/pipe.h"

namespace specdec::ascendc {

// Several pieces are in flight. Stores keep the order of the copies, and each comes after all loads before it: a copy
// may overwrite what an earlier one has read.
class GmCopy {
 public:
  static constexpr uint32_t kSlots = 4, kSlotBytes = 32 * 1024;
  static constexpr uint32_t kUbBytes = kSlots * kSlotBytes;

  __aicore__ inline void Begin(uint32_t ub_address) {
    ub_ = ub_address;
    slot_ = 0;
    for (uint32_t i = 0; i < kSlots; ++i) AscendC::SetFlag<AscendC::HardEvent::MTE3_MTE2>(static_cast<int32_t>(i));
  }
  __aicore__ inline void End() {
    for (uint32_t i = 0; i < kSlots; ++i) AscendC::WaitFlag<AscendC::HardEvent::MTE3_MTE2>(static_cast<int32_t>(i));
  }

  // `count` rows of `bytes`, `to_step` and `from_step` bytes apart.
  __aicore__ inline void Rows(GM_ADDR to, uint64_t to_step, GM_ADDR from, uint64_t from_step, uint64_t bytes,
                              uint64_t count) {
    if (bytes == 0) return;
    if (to_step == bytes && from_step == bytes) {
      bytes *= count;
      count = 1;
    }
    uint64_t together = 1;
    if (bytes <= kSlotBytes && IsGap(to_step, bytes) && IsGap(from_step, bytes)) {
      together = kSlotBytes / AlignUp(static_cast<uint32_t>(bytes), kBlockBytes);
      if (together > kMaxBursts) together = kMaxBursts;
    }
    for (uint64_t row = 0; row < count; row += together) {
      const uint64_t rows = count - row < together ? count - row : together;
      for (uint64_t at = 0; at < bytes; at += kSlotBytes)
        Piece(to + row * to_step + at, to_step - bytes, from + row * from_step + at, from_step - bytes,
              bytes - at < kSlotBytes ? bytes - at : kSlotBytes, rows);
    }
  }
  __aicore__ inline void Bytes(GM_ADDR to, GM_ADDR from, uint64_t bytes) { Rows(to, bytes, from, bytes, bytes, 1); }

 private:
  static constexpr uint64_t kMaxBursts = 4095;

  __aicore__ inline bool IsGap(uint64_t step, uint64_t bytes) { return step >= bytes && step - bytes <= 0xFFFFFFFFull; }

  // The gaps count between rows only: those of a single row may be anything.
  __aicore__ inline void Piece(GM_ADDR to, uint64_t to_gap, GM_ADDR from, uint64_t from_gap, uint64_t bytes,
                               uint64_t rows) {
    const int32_t event = static_cast<int32_t>(slot_);
    AscendC::LocalTensor<uint8_t> slot(AscendC::TPosition::VECCALC, ub_ + slot_ * kSlotBytes, kSlotBytes);
    AscendC::GlobalTensor<uint8_t> source, target;
    source.SetGlobalBuffer(from);
    target.SetGlobalBuffer(to);
    const uint16_t bursts = static_cast<uint16_t>(rows);
    const uint32_t length = static_cast<uint32_t>(bytes);
    const AscendC::DataCopyExtParams in{bursts, length, rows > 1 ? static_cast<uint32_t>(from_gap) : 0, 0, 0};
    const AscendC::DataCopyExtParams out{bursts, length, 0, rows > 1 ? static_cast<uint32_t>(to_gap) : 0, 0};
    const AscendC::DataCopyPadExtParams<uint8_t> no_value{false, 0, 0, 0};
    AscendC::WaitFlag<AscendC::HardEvent::MTE3_MTE2>(event);
    AscendC::DataCopyPad(slot, source, in, no_value);
    Order<AscendC::HardEvent::MTE2_MTE3>(event);
    AscendC::DataCopyPad(target, slot, out);
    AscendC::SetFlag<AscendC::HardEvent::MTE3_MTE2>(event);
    slot_ = (slot_ + 1) % kSlots;
  }

  uint32_t ub_ = 0, slot_ = 0;
};

// Writes -1 of any integer type: what pads tokens and parents.
class GmMinusOnes {
 public:
  static constexpr uint32_t kUbBytes = 4096;

  __aicore__ inline void Begin(uint32_t ub_address) {
    ones_ = AscendC::LocalTensor<int32_t>(AscendC::TPosition::VECCALC, ub_address, kUbBytes / sizeof(int32_t));
    AscendC::Duplicate(ones_, -1, static_cast<int32_t>(kUbBytes / sizeof(int32_t)));
    Order<AscendC::HardEvent::V_MTE3>();
  }
  __aicore__ inline void Bytes(GM_ADDR to, uint64_t bytes) {
    const AscendC::LocalTensor<uint8_t> ones = ones_.template ReinterpretCast<uint8_t>();
    for (uint64_t at = 0; at < bytes; at += kUbBytes) {
      AscendC::GlobalTensor<uint8_t> target;
      target.SetGlobalBuffer(to + at);
      Store(target, ones, static_cast<uint32_t>(bytes - at < kUbBytes ? bytes - at : kUbBytes));
    }
  }

 private:
  AscendC::LocalTensor<int32_t> ones_;
};

}  // namespace specdec::ascendc
