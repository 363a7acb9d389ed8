// Reductions: of a repeat, of a data block, of pairs, and of a whole tensor.
#pragma once

#include <vector>

#include "ascendc/tpipe.h"
#include "ascendc/vector.h"

namespace AscendC {
namespace detail {

constexpr double kCostWholeReduce = 7, kCostBlockReduce = 1;

// Sum of n values by a binary tree, every partial sum rounded to T. n is a power of two; inactive lanes are 0.
template <class T>
T TreeSum(T* values, uint32_t n) {
  for (; n > 1; n /= 2) {
    for (uint32_t i = 0; i < n / 2; ++i) values[i] = AddOp{}(values[2 * i], values[2 * i + 1]);
  }
  return values[0];
}

// The active lanes of one repeat, and which they are.
template <class T>
struct Active {
  std::vector<T> values;
  std::vector<uint32_t> lanes;
};
template <class T>
Active<T> Gathered(const hostsim::VectorCall& call, const hostsim::VecArg& src, uint32_t repeat) {
  const T* s = reinterpret_cast<const T*>(hostsim::Current().Data(hostsim::Mem::kUb) + src.ref.addr);
  hostsim::VecMask mask = call.MaskOf(repeat);
  Active<T> active;
  for (uint32_t i = 0; i < call.per_repeat(); ++i) {
    if (!(mask.word[i / 64] >> (i % 64) & 1)) continue;
    active.values.push_back(s[hostsim::VectorCall::Offset(src, repeat, i) / sizeof(T)]);
    active.lanes.push_back(i);
  }
  return active;
}

template <ReduceType type, class T>
T Reduced(const Active<T>& active) {
  if constexpr (type == ReduceType::SUM) {
    T values[128] = {};
    uint32_t n = hostsim::kRepeat / sizeof(T);
    for (size_t i = 0; i < active.lanes.size(); ++i) values[active.lanes[i]] = active.values[i];
    return TreeSum(values, n);
  } else {
    T best = active.values[0];
    for (T v : active.values) best = type == ReduceType::MAX ? MaxOp{}(best, v) : MinOp{}(best, v);
    return best;
  }
}

// Which stride and alignment an output has, in bytes.
template <class T>
uint32_t OutputBytes(ReduceType type, ReduceOrder order) {
  if (type == ReduceType::SUM || order == ReduceOrder::ORDER_ONLY_VALUE) return sizeof(T);
  return order == ReduceOrder::ORDER_ONLY_INDEX ? 4 : 2 * sizeof(T);
}

template <class T>
using IndexOf = std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>;

// One result a repeat.
template <ReduceType type, class T>
void WholeReduce(const char* op, Loc loc, hostsim::VectorCall& call, const LocalTensor<T>& dst,
                 const LocalTensor<T>& src, int32_t dstRepStride, int32_t srcBlkStride, int32_t srcRepStride,
                 ReduceOrder order) {
  static_assert(kIsFloat<T>, "reductions support half and float");
  hostsim::Core& core = hostsim::Current();
  if (dstRepStride < 0 || srcBlkStride < 0 || srcRepStride < 0 || dstRepStride > 65535 || srcBlkStride > 65535 ||
      srcRepStride > 65535) {
    core.FailAt(hostsim::Fault::kBadStride, hostsim::Pipe::kV, op, loc, "strides must be in [0, 65535]");
    return;
  }
  call.CyclesPerRepeat(kCostWholeReduce);
  hostsim::VecArg source = Strided(src, srcBlkStride, srcRepStride);
  uint32_t bytes = OutputBytes<T>(type, order);
  if (!call.StartReduce(dst.ref(), bytes, source)) return;
  uint8_t* out = core.Data(hostsim::Mem::kUb) + dst.ref().addr;
  for (uint32_t r = 0; r < call.repeats(); ++r) {
    Active<T> active = Gathered<T>(call, source, r);
    T value = Reduced<type>(active);
    if (!core.WriteLocal(dst.ref(), dst.ref().addr + r * dstRepStride * bytes, bytes)) break;
    uint8_t* at = out + r * dstRepStride * bytes;
    uint32_t index = 0;
    if constexpr (type != ReduceType::SUM) {
      for (size_t i = active.lanes.size(); i-- > 0;) {
        if (active.values[i] == value) index = active.lanes[i];
      }
    }
    auto put = [&](auto what, size_t slot) { std::memcpy(at + slot * sizeof(T), &what, sizeof(what)); };
    if (type == ReduceType::SUM || order == ReduceOrder::ORDER_ONLY_VALUE) {
      put(value, 0);
    } else if (order == ReduceOrder::ORDER_ONLY_INDEX) {
      put(index, 0);
    } else {
      bool value_first = order == ReduceOrder::ORDER_VALUE_INDEX;
      put(value, value_first ? 0 : 1);
      put(static_cast<IndexOf<T>>(index), value_first ? 1 : 0);
    }
  }
  call.FinishReduce(bytes);
}

// One result a data block; a block without an active lane leaves its result untouched.
template <ReduceType type, class T>
void BlockReduce(const char* op, Loc loc, hostsim::VectorCall& call, const LocalTensor<T>& dst,
                 const LocalTensor<T>& src, int32_t dstRepStride, int32_t srcBlkStride, int32_t srcRepStride) {
  static_assert(kIsFloat<T>, "reductions support half and float");
  hostsim::Core& core = hostsim::Current();
  constexpr uint32_t kLanes = hostsim::kBlock / sizeof(T), kBlocks = hostsim::kRepeat / hostsim::kBlock;
  if (dstRepStride < 0 || srcBlkStride < 0 || srcRepStride < 0 || dstRepStride > 65535 || srcBlkStride > 65535 ||
      srcRepStride > 65535) {
    core.FailAt(hostsim::Fault::kBadStride, hostsim::Pipe::kV, op, loc, "strides must be in [0, 65535]");
    return;
  }
  call.CyclesPerRepeat(kCostBlockReduce);
  hostsim::VecArg source = Strided(src, srcBlkStride, srcRepStride);
  constexpr uint32_t kUnit = kBlocks * sizeof(T);
  if (!call.StartReduce(dst.ref(), kUnit, source)) return;
  for (uint32_t r = 0; r < call.repeats(); ++r) {
    Active<T> active = Gathered<T>(call, source, r);
    for (uint32_t b = 0; b < kBlocks; ++b) {
      Active<T> block;
      for (size_t i = 0; i < active.lanes.size(); ++i) {
        if (active.lanes[i] / kLanes != b) continue;
        block.values.push_back(active.values[i]);
        block.lanes.push_back(active.lanes[i] % kLanes);
      }
      if (block.lanes.empty()) continue;
      uint32_t addr = dst.ref().addr + r * dstRepStride * kUnit + b * sizeof(T);
      if (!core.WriteLocal(dst.ref(), addr, sizeof(T))) break;
      T value = Reduced<type>(block);
      std::memcpy(core.Data(hostsim::Mem::kUb) + addr, &value, sizeof(T));
    }
  }
  call.FinishReduce(kUnit);
}

// Sums of neighbouring elements: half as many results as a repeat has elements.
template <class T>
void PairReduce(hostsim::VectorCall& call, const LocalTensor<T>& dst, const LocalTensor<T>& src, int32_t dstRepStride,
                int32_t srcBlkStride, int32_t srcRepStride) {
  static_assert(kIsFloat<T>, "reductions support half and float");
  hostsim::Core& core = hostsim::Current();
  call.CyclesPerRepeat(kCostBlockReduce);
  hostsim::VecArg source = Strided(src, srcBlkStride, srcRepStride);
  constexpr uint32_t kUnit = hostsim::kRepeat / 2;
  if (!call.StartReduce(dst.ref(), hostsim::kBlock, source)) return;
  for (uint32_t r = 0; r < call.repeats(); ++r) {
    Active<T> active = Gathered<T>(call, source, r);
    T values[128] = {};
    bool used[64] = {};
    for (size_t i = 0; i < active.lanes.size(); ++i) {
      values[active.lanes[i]] = active.values[i];
      used[active.lanes[i] / 2] = true;
    }
    for (uint32_t i = 0; i < call.per_repeat() / 2; ++i) {
      if (!used[i]) continue;
      uint32_t addr = dst.ref().addr + r * dstRepStride * kUnit + i * sizeof(T);
      if (!core.WriteLocal(dst.ref(), addr, sizeof(T))) break;
      T value = AddOp{}(values[2 * i], values[2 * i + 1]);
      std::memcpy(core.Data(hostsim::Mem::kUb) + addr, &value, sizeof(T));
    }
  }
  call.FinishReduce(kUnit);
}

}  // namespace detail

#define HOSTSIM_WHOLE_REDUCE(MASK, MASK_ARG)                                                                       \
  template <ReduceType reduceType, typename T, typename U, bool isSetMask = true>                                  \
  void ReduceRepeat(const LocalTensor<T>& dst, const LocalTensor<U>& src, MASK, const int32_t repeatTime,          \
                    const int32_t dstRepStride, const int32_t srcBlkStride, const int32_t srcRepStride,            \
                    ReduceOrder order = ReduceOrder::ORDER_VALUE_INDEX, Loc loc = Loc::Here()) {                   \
    static_assert(std::is_same_v<T, U>, "source and destination must have one type on this architecture");         \
    if (ASCEND_IS_AIC) return;                                                                                     \
    hostsim::VectorCall call("ReduceRepeat", loc, sizeof(T));                                                      \
    detail::SetLanes<isSetMask>(call, MASK_ARG, repeatTime);                                                       \
    detail::WholeReduce<reduceType>("ReduceRepeat", loc, call, dst, src, dstRepStride, srcBlkStride, srcRepStride, \
                                    order);                                                                        \
  }                                                                                                                \
  template <typename T, bool isSetMask = true>                                                                     \
  void WholeReduceMax(const LocalTensor<T>& dst, const LocalTensor<T>& src, MASK, const int32_t repeatTime,        \
                      const int32_t dstRepStride, const int32_t srcBlkStride, const int32_t srcRepStride,          \
                      ReduceOrder order = ReduceOrder::ORDER_VALUE_INDEX, Loc loc = Loc::Here()) {                 \
    ReduceRepeat<ReduceType::MAX, T, T, isSetMask>(dst, src, MASK_ARG, repeatTime, dstRepStride, srcBlkStride,     \
                                                   srcRepStride, order, loc);                                      \
  }                                                                                                                \
  template <typename T, bool isSetMask = true>                                                                     \
  void WholeReduceMin(const LocalTensor<T>& dst, const LocalTensor<T>& src, MASK, const int32_t repeatTime,        \
                      const int32_t dstRepStride, const int32_t srcBlkStride, const int32_t srcRepStride,          \
                      ReduceOrder order = ReduceOrder::ORDER_VALUE_INDEX, Loc loc = Loc::Here()) {                 \
    ReduceRepeat<ReduceType::MIN, T, T, isSetMask>(dst, src, MASK_ARG, repeatTime, dstRepStride, srcBlkStride,     \
                                                   srcRepStride, order, loc);                                      \
  }                                                                                                                \
  template <typename T, bool isSetMask = true>                                                                     \
  void WholeReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src, MASK, const int32_t repeatTime,        \
                      const int32_t dstRepStride, const int32_t srcBlkStride, const int32_t srcRepStride,          \
                      Loc loc = Loc::Here()) {                                                                     \
    ReduceRepeat<ReduceType::SUM, T, T, isSetMask>(dst, src, MASK_ARG, repeatTime, dstRepStride, srcBlkStride,     \
                                                   srcRepStride, ReduceOrder::ORDER_ONLY_VALUE, loc);              \
  }
HOSTSIM_WHOLE_REDUCE(const int32_t mask, static_cast<uint64_t>(mask))
HOSTSIM_WHOLE_REDUCE(const uint64_t mask[], mask)
#undef HOSTSIM_WHOLE_REDUCE

// The older names take the repeat count before the mask.
#define HOSTSIM_BLOCK_REDUCE(MASK, MASK_ARG)                                                                           \
  template <ReduceType reduceType, typename T, typename U, bool isSetMask = true>                                      \
  void ReduceDataBlock(const LocalTensor<T>& dst, const LocalTensor<U>& src, MASK, const int32_t repeatTime,           \
                       const int32_t dstRepStride, const int32_t srcBlkStride, const int32_t srcRepStride,             \
                       Loc loc = Loc::Here()) {                                                                        \
    static_assert(std::is_same_v<T, U>, "source and destination must have one type on this architecture");             \
    if (ASCEND_IS_AIC) return;                                                                                         \
    hostsim::VectorCall call("ReduceDataBlock", loc, sizeof(T));                                                       \
    detail::SetLanes<isSetMask>(call, MASK_ARG, repeatTime);                                                           \
    detail::BlockReduce<reduceType>("ReduceDataBlock", loc, call, dst, src, dstRepStride, srcBlkStride, srcRepStride); \
  }                                                                                                                    \
  template <typename T, bool isSetMask = true>                                                                         \
  void BlockReduceMax(const LocalTensor<T>& dst, const LocalTensor<T>& src, const int32_t repeatTime, MASK,            \
                      const int32_t dstRepStride, const int32_t srcBlkStride, const int32_t srcRepStride,              \
                      Loc loc = Loc::Here()) {                                                                         \
    ReduceDataBlock<ReduceType::MAX, T, T, isSetMask>(dst, src, MASK_ARG, repeatTime, dstRepStride, srcBlkStride,      \
                                                      srcRepStride, loc);                                              \
  }                                                                                                                    \
  template <typename T, bool isSetMask = true>                                                                         \
  void BlockReduceMin(const LocalTensor<T>& dst, const LocalTensor<T>& src, const int32_t repeatTime, MASK,            \
                      const int32_t dstRepStride, const int32_t srcBlkStride, const int32_t srcRepStride,              \
                      Loc loc = Loc::Here()) {                                                                         \
    ReduceDataBlock<ReduceType::MIN, T, T, isSetMask>(dst, src, MASK_ARG, repeatTime, dstRepStride, srcBlkStride,      \
                                                      srcRepStride, loc);                                              \
  }                                                                                                                    \
  template <typename T, bool isSetMask = true>                                                                         \
  void BlockReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src, const int32_t repeatTime, MASK,            \
                      const int32_t dstRepStride, const int32_t srcBlkStride, const int32_t srcRepStride,              \
                      Loc loc = Loc::Here()) {                                                                         \
    ReduceDataBlock<ReduceType::SUM, T, T, isSetMask>(dst, src, MASK_ARG, repeatTime, dstRepStride, srcBlkStride,      \
                                                      srcRepStride, loc);                                              \
  }                                                                                                                    \
  template <ReduceType reduceType, typename T, typename U, bool isSetMask = true>                                      \
  void ReducePairElem(const LocalTensor<T>& dst, const LocalTensor<U>& src, MASK, const int32_t repeatTime,            \
                      const int32_t dstRepStride, const int32_t srcBlkStride, const int32_t srcRepStride,              \
                      Loc loc = Loc::Here()) {                                                                         \
    static_assert(reduceType == ReduceType::SUM && std::is_same_v<T, U>, "ReducePairElem supports SUM of one type");   \
    if (ASCEND_IS_AIC) return;                                                                                         \
    hostsim::VectorCall call("ReducePairElem", loc, sizeof(T));                                                        \
    detail::SetLanes<isSetMask>(call, MASK_ARG, repeatTime);                                                           \
    detail::PairReduce(call, dst, src, dstRepStride, srcBlkStride, srcRepStride);                                      \
  }                                                                                                                    \
  template <typename T, bool isSetMask = true>                                                                         \
  void PairReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src, const int32_t repeatTime, MASK,             \
                     const int32_t dstRepStride, const int32_t srcBlkStride, const int32_t srcRepStride,               \
                     Loc loc = Loc::Here()) {                                                                          \
    ReducePairElem<ReduceType::SUM, T, T, isSetMask>(dst, src, MASK_ARG, repeatTime, dstRepStride, srcBlkStride,       \
                                                     srcRepStride, loc);                                               \
  }
HOSTSIM_BLOCK_REDUCE(const int32_t mask, static_cast<uint64_t>(mask))
HOSTSIM_BLOCK_REDUCE(const uint64_t mask[], mask)
#undef HOSTSIM_BLOCK_REDUCE

// Whole-tensor reductions. On the device they are sequences that end in the scalar unit and take event ids from TPipe,
// so they must not be used without one.
namespace detail {

inline bool CheckTPipe(const char* op, Loc loc) {
  if (hostsim::Current().pipe_state.alive) return true;
  hostsim::Current().FailAt(hostsim::Fault::kNeedsTPipe, hostsim::Pipe::kV, op, loc,
                            "it takes event ids from TPipe and there is none; in static tensor style use the repeat, "
                            "block or Duplicate forms");
  return false;
}

inline void InternalSync(HardEvent event, Loc loc) {
  TEventID id = GetTPipePtr()->FetchEventID(event);
  Set(event, id, loc);
  Wait(event, id, loc);
}

// Runs the vector part through `call`, then lets the scalar unit store `results`.
template <class T>
void StoreByScalar(const char* op, Loc loc, const LocalTensor<T>& dst, const T* results, uint32_t n) {
  hostsim::Core& core = hostsim::Current();
  InternalSync(HardEvent::V_S, loc);
  core.Begin(hostsim::Pipe::kS, op, loc);
  if (core.WriteLocal(dst.ref(), dst.ref().addr, n * sizeof(T))) {
    std::memcpy(core.Data(hostsim::Mem::kUb) + dst.ref().addr, results, n * sizeof(T));
  }
  core.Finish(hostsim::cost::kScalar, 0, n * sizeof(T), 0);
  InternalSync(HardEvent::S_V, loc);
  InternalSync(HardEvent::S_MTE3, loc);
}

template <class T>
uint32_t WorkElements(uint32_t repeats, bool index) {
  constexpr uint32_t kPerBlock = hostsim::kBlock / sizeof(T), kPerRepeat = hostsim::kRepeat / sizeof(T);
  uint32_t total = 0, produced = repeats * 2;
  while (true) {
    total += hostsim::CeilDiv(produced, kPerBlock) * kPerBlock;
    if (!index || produced <= 2) return total;
    produced = hostsim::CeilDiv(produced, kPerRepeat) * 2;
  }
}

template <ReduceType type, class T>
void ReduceTensor(const char* op, Loc loc, hostsim::VectorCall& call, const LocalTensor<T>& dst,
                  const hostsim::VecArg& source, const LocalTensor<T>& work, uint32_t work_elements, bool index) {
  static_assert(kIsFloat<T>, "reductions support half and float");
  if (ASCEND_IS_AIC || !CheckTPipe(op, loc)) return;
  call.CyclesPerRepeat(kCostWholeReduce);
  if (!call.StartReduce(dst.ref(), type == ReduceType::SUM || !index ? sizeof(T) : 2 * sizeof(T), source)) return;
  hostsim::Core& core = hostsim::Current();
  bool fine = work_elements == 0 || (core.CheckAligned(work.ref(), 32) &&
                                     core.WriteLocal(work.ref(), work.ref().addr, work_elements * uint32_t{sizeof(T)}));
  T best{};
  uint32_t where = 0;
  for (uint32_t r = 0; r < call.repeats(); ++r) {
    Active<T> active = Gathered<T>(call, source, r);
    T value = Reduced<type>(active);
    if constexpr (type == ReduceType::SUM) {
      best = r == 0 ? value : AddOp{}(best, value);
    } else if (r == 0 || (type == ReduceType::MAX ? best < value : value < best)) {
      best = value;
      for (size_t i = active.lanes.size(); i-- > 0;) {
        if (active.values[i] == value) {
          where = hostsim::VectorCall::Offset(source, r, active.lanes[i]) / sizeof(T);
        }
      }
    }
  }
  call.FinishReduce(sizeof(T));
  if (!fine) return;
  T results[2] = {best, T{}};
  auto stored = static_cast<IndexOf<T>>(where);
  std::memcpy(&results[1], &stored, sizeof(T));
  StoreByScalar(op, loc, dst, results, index ? 2 : 1);
}

}  // namespace detail

#define HOSTSIM_REDUCE_TENSOR(NAME, TYPE)                                                                     \
  template <typename T>                                                                                       \
  void NAME(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& sharedTmpBuffer,      \
            const int32_t count, bool calIndex = 0, Loc loc = Loc::Here()) {                                  \
    hostsim::VectorCall call(#NAME, loc, sizeof(T));                                                          \
    call.Count(count);                                                                                        \
    detail::ReduceTensor<TYPE>(#NAME, loc, call, dst, detail::Dense(call, src), sharedTmpBuffer,              \
                               detail::WorkElements<T>(call.repeats(), calIndex), calIndex);                  \
  }                                                                                                           \
  template <typename T>                                                                                       \
  void NAME(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& sharedTmpBuffer,      \
            const int32_t mask, const int32_t repeatTime, const int32_t srcRepStride, bool calIndex = 0,      \
            Loc loc = Loc::Here()) {                                                                          \
    hostsim::VectorCall call(#NAME, loc, sizeof(T));                                                          \
    call.Lanes(static_cast<uint64_t>(mask), repeatTime);                                                      \
    detail::ReduceTensor<TYPE>(#NAME, loc, call, dst, detail::Strided(src, 1, srcRepStride), sharedTmpBuffer, \
                               detail::WorkElements<T>(call.repeats(), calIndex), calIndex);                  \
  }
HOSTSIM_REDUCE_TENSOR(ReduceMax, ReduceType::MAX)
HOSTSIM_REDUCE_TENSOR(ReduceMin, ReduceType::MIN)
#undef HOSTSIM_REDUCE_TENSOR

template <typename T, bool isSetMask = true>
void ReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& sharedTmpBuffer,
               const int32_t count, Loc loc = Loc::Here()) {
  hostsim::VectorCall call("ReduceSum", loc, sizeof(T));
  call.Count(count);
  // The count form accumulates in a register and leaves the work space alone.
  detail::ReduceTensor<ReduceType::SUM>("ReduceSum", loc, call, dst, detail::Dense(call, src), sharedTmpBuffer, 0,
                                        false);
}
template <typename T>
void ReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& sharedTmpBuffer,
               const int32_t mask, const int32_t repeatTime, const int32_t srcRepStride, Loc loc = Loc::Here()) {
  hostsim::VectorCall call("ReduceSum", loc, sizeof(T));
  call.Lanes(static_cast<uint64_t>(mask), repeatTime);
  constexpr uint32_t kPerBlock = hostsim::kBlock / sizeof(T);
  detail::ReduceTensor<ReduceType::SUM>("ReduceSum", loc, call, dst, detail::Strided(src, 1, srcRepStride),
                                        sharedTmpBuffer, hostsim::CeilDiv(call.repeats(), kPerBlock) * kPerBlock,
                                        false);
}

}  // namespace AscendC
