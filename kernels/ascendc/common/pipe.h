// What every kernel needs of the pipes: order between two of them, and copies of any length.
#pragma once

#include "kernel_operator.h"

namespace specdec::ascendc {

constexpr uint32_t kBlockBytes = 32;    // granule of UB addresses and of lines that two cores must not share
constexpr uint32_t kRepeatBytes = 256;  // one vector instruction's repeat

template <typename T>
__aicore__ constexpr uint32_t BlockOf() {
  return kBlockBytes / sizeof(T);
}

__aicore__ inline uint32_t CeilDiv(uint32_t a, uint32_t b) { return (a + b - 1) / b; }
__aicore__ inline uint32_t AlignUp(uint32_t a, uint32_t b) { return CeilDiv(a, b) * b; }

// The second pipe waits for all that the first was given before.
template <AscendC::HardEvent event>
__aicore__ inline void Order(int32_t id = EVENT_ID0) {
  AscendC::SetFlag<event>(id);
  AscendC::WaitFlag<event>(id);
}

// Asks for the cache line of the first element, so that GetValue need not wait for it later.
template <typename T>
__aicore__ inline void Preload(const AscendC::GlobalTensor<T>& from) {
  AscendC::GlobalTensor<uint64_t> line;
  line.SetGlobalBuffer((__gm__ uint64_t*)from.GetPhyAddr());
  AscendC::DataCachePreload(line, int64_t{0});
}

// `count` elements into UB; the last 32-byte block is filled up with `fill`.
template <typename T>
__aicore__ inline void Load(const AscendC::LocalTensor<T>& to, const AscendC::GlobalTensor<T>& from, uint32_t count,
                            T fill = T(0)) {
  const uint32_t padding = AlignUp(count, BlockOf<T>()) - count;
  const AscendC::DataCopyExtParams copy{1, count * static_cast<uint32_t>(sizeof(T)), 0, 0, 0};
  const AscendC::DataCopyPadExtParams<T> pad{true, 0, static_cast<uint8_t>(padding), fill};
  AscendC::DataCopyPad(to, from, copy, pad);
}

// `count` elements out of UB; no byte after them is written.
template <typename T>
__aicore__ inline void Store(const AscendC::GlobalTensor<T>& to, const AscendC::LocalTensor<T>& from, uint32_t count) {
  const AscendC::DataCopyExtParams copy{1, count * static_cast<uint32_t>(sizeof(T)), 0, 0, 0};
  AscendC::DataCopyPad(to, from, copy);
}

}  // namespace specdec::ascendc
