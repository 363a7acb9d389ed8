// Flags, barriers, cross-core flags, and what a kernel asks about its core.
#pragma once

#include <cstdio>

#include "ascendc/tensor.h"

namespace AscendC {
namespace detail {

// Events of the vector pipe do nothing on a cube core and the other way round, as on the device.
inline bool Applies(HardEvent event) {
  switch (event) {
    case HardEvent::MTE2_V:
    case HardEvent::V_MTE2:
    case HardEvent::MTE3_V:
    case HardEvent::V_MTE3:
    case HardEvent::V_V:
    case HardEvent::S_V:
    case HardEvent::V_S:
      return ASCEND_IS_AIV;
    case HardEvent::MTE2_MTE1:
    case HardEvent::MTE1_MTE2:
    case HardEvent::MTE1_M:
    case HardEvent::M_MTE1:
    case HardEvent::M_FIX:
    case HardEvent::FIX_M:
      return ASCEND_IS_AIC;
    default:
      return true;
  }
}

inline void Set(HardEvent event, int32_t id, Loc loc) {
  if (!Applies(event)) return;
  PipePair pipes = PipesOf(event);
  if (pipes.from == pipes.to) {
    hostsim::Current().Barrier(pipes.from);
  } else {
    hostsim::Current().SetFlag(pipes.from, pipes.to, id, loc);
  }
}
inline void Wait(HardEvent event, int32_t id, Loc loc) {
  PipePair pipes = PipesOf(event);
  if (Applies(event) && pipes.from != pipes.to) hostsim::Current().WaitFlag(pipes.from, pipes.to, id, loc);
}

}  // namespace detail

template <HardEvent event>
void SetFlag(int32_t eventID, Loc loc = Loc::Here()) {
  detail::Set(event, eventID, loc);
}
template <HardEvent event>
void WaitFlag(int32_t eventID, Loc loc = Loc::Here()) {
  detail::Wait(event, eventID, loc);
}

template <pipe_t pipe>
void PipeBarrier() {
  static_assert(pipe != PIPE_S, "PipeBarrier does not support PIPE_S");
  if constexpr (pipe == PIPE_ALL) {
    hostsim::Current().BarrierAll();
  } else {
    hostsim::Current().Barrier(detail::PipeOf(pipe));
  }
}
template <MemDsbT>
void DataSyncBarrier() {}

template <pipe_t src, pipe_t dst>
class TQueSync {
 public:
  void SetFlag(TEventID id, Loc loc = Loc::Here()) {
    hostsim::Current().SetFlag(detail::PipeOf(src), detail::PipeOf(dst), id, loc);
  }
  void WaitFlag(TEventID id, Loc loc = Loc::Here()) {
    hostsim::Current().WaitFlag(detail::PipeOf(src), detail::PipeOf(dst), id, loc);
  }
};

template <uint8_t modeId, pipe_t pipe>
void CrossCoreSetFlag(uint16_t flagId, Loc loc = Loc::Here()) {
  static_assert(pipe != PIPE_S && pipe != PIPE_ALL, "CrossCoreSetFlag supports neither PIPE_S nor PIPE_ALL");
  hostsim::Current().CrossCoreSet(modeId, detail::PipeOf(pipe), flagId, loc);
}
template <uint8_t modeId = 0, pipe_t pipe = PIPE_S>
void CrossCoreWaitFlag(uint16_t flagId, Loc loc = Loc::Here()) {
  hostsim::Current().CrossCoreWait(flagId, loc);
}
template <bool isAIVOnly = true>
void SyncAll(Loc loc = Loc::Here()) {
  hostsim::Current().SyncAll(isAIVOnly, loc);
}

inline int64_t GetBlockNum() { return hostsim::BlockNum(); }
inline int64_t GetTaskRatio() { return hostsim::TaskRatio(); }
inline int64_t GetTaskRation() { return GetTaskRatio(); }
inline int64_t GetSubBlockNum() { return GetTaskRatio(); }
inline int64_t GetSubBlockIdx() { return ASCEND_IS_AIV ? hostsim::Current().id().sub : 0; }
inline int64_t GetBlockIdx() { return hostsim::Current().id().block * GetTaskRatio() + GetSubBlockIdx(); }
constexpr int16_t GetDataBlockSizeInBytes() { return ONE_BLK_SIZE; }
// Grows; cycles are known only when all cores have run.
inline int64_t GetSystemCycle() { return hostsim::Current().instructions(); }
inline void InitSocState() {}

template <class... Args>
void printf(const char* format, Args... args) {
  std::printf(format, args...);
}

}  // namespace AscendC

// The block index as the compiler's built-in variable.
struct HostsimBlockIndex {
  operator int64_t() const { return hostsim::Current().id().block; }
};
inline HostsimBlockIndex block_idx;
