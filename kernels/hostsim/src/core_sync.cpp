// Flags, barriers and cross-core flags of one core.
#include <algorithm>
#include <string>

#include "hostsim/core.h"
#include "hostsim/device.h"

namespace hostsim {
namespace {

// Cross-core flag ids the hardware SyncAll uses.
constexpr uint32_t kFlagCubeAll = 11, kFlagVectorDone = 12, kFlagCubeDone = 13, kFlagVectorAll = 14;
constexpr size_t kFlagLimit = 15;

void MergeClock(LocalClock& into, const LocalClock& from) {
  for (int p = 0; p < kPipes; ++p) into[p] = std::max(into[p], from[p]);
}

std::string EventName(Pipe from, Pipe to, int id) {
  return std::string(Name(from)) + "_" + Name(to) + " id " + std::to_string(id);
}

}  // namespace

void Core::SetFlag(Pipe from, Pipe to, int id, Loc loc) {
  if (id < 0 || id >= 8) {
    FailAt(Fault::kEventId, from, "SetFlag", loc, EventName(from, to, id) + " is not in [0, 8)");
    return;
  }
  int f = static_cast<int>(from), t = static_cast<int>(to);
  bool taken = pipe_state.alive && (pipe_state.events[f][t] >> id & 1);
  if (id >= 6 && !taken) {
    FailAt(Fault::kEventId, from, "SetFlag", loc, EventName(from, to, id) + ": ids 6 and 7 are reserved");
  }
  Flag& flag = flags_[f][t][id];
  if (flag.set) {
    FailAt(Fault::kDoubleSet, from, "SetFlag", loc,
           EventName(from, to, id) + " is still set from line " + std::to_string(flag.loc.line));
  }
  flag.set = true;
  flag.loc = loc;
  flag.known = known_[f];
  flag.known[f] = now_;  // all of the pipe's instructions so far
  flag.event = device_.NewEvent();
  steps_.push_back({Step::Kind::kSignal, from, flag.event});
}

void Core::WaitFlag(Pipe from, Pipe to, int id, Loc loc) {
  if (id < 0 || id >= 8) {
    FailAt(Fault::kEventId, to, "WaitFlag", loc, EventName(from, to, id) + " is not in [0, 8)");
    return;
  }
  Flag& flag = flags_[static_cast<int>(from)][static_cast<int>(to)][id];
  if (!flag.set) {
    FailAt(Fault::kOrphanWait, to, "WaitFlag", loc, EventName(from, to, id) + " was not set: the pipe would hang");
    return;
  }
  flag.set = false;
  steps_.push_back({Step::Kind::kWait, to, flag.event});
  if (to == Pipe::kS) {
    // The scalar unit dispatches everything that follows, so all pipes are behind this wait.
    for (LocalClock& clock : known_) MergeClock(clock, flag.known);
  } else {
    MergeClock(known_[static_cast<int>(to)], flag.known);
  }
}

void Core::Barrier(Pipe pipe) {
  int p = static_cast<int>(pipe);
  known_[p][p] = now_;
  steps_.push_back({Step::Kind::kBarrier, pipe});
}

void Core::BarrierAll() {
  for (LocalClock& clock : known_) clock.fill(now_);
  steps_.push_back({Step::Kind::kBarrierAll});
}

int Core::FreeEvent(Pipe from, Pipe to) {
  uint8_t taken = pipe_state.events[static_cast<int>(from)][static_cast<int>(to)];
  for (int id = 0; id < 8; ++id) {
    if (!(taken >> id & 1)) return id;
  }
  return -1;
}

int Core::TakeEvent(Pipe from, Pipe to, Loc loc) {
  int id = FreeEvent(from, to);
  if (id < 0) {
    FailAt(Fault::kEventId, from, "AllocEventID", loc, "all 8 ids of " + EventName(from, to, 0) + " are taken");
    return 0;
  }
  pipe_state.events[static_cast<int>(from)][static_cast<int>(to)] |= static_cast<uint8_t>(1 << id);
  return id;
}

void Core::ReleaseEvent(Pipe from, Pipe to, int id) {
  pipe_state.events[static_cast<int>(from)][static_cast<int>(to)] &= static_cast<uint8_t>(~(1 << id));
}

void Core::CrossCoreSet(uint32_t mode, Pipe pipe, uint32_t flag, Loc loc) {
  auto fail = [&](const std::string& message) { FailAt(Fault::kCrossCore, pipe, "CrossCoreSetFlag", loc, message); };
  const LaunchConfig& config = device_.config();
  if (!config.kind.mix) {
    fail("a kernel that is only __vector__ or __cube__ has no cross-core scheduler; declare it __mix__");
  } else if (mode > 2) {
    fail("mode " + std::to_string(mode) + " does not exist on this architecture");
    return;
  } else if (mode > 0 && (config.kind.cube == 0 || config.kind.vector == 0)) {
    fail("modes 1 and 2 need cube and vector cores in the block");
  }
  const DeviceProfile& profile = device_.profile();
  if (mode == 0 && (config.blocks * config.kind.cube > profile.cube_cores ||
                    config.blocks * config.kind.vector > profile.vector_cores)) {
    fail("more blocks than physical cores: the cores waited for never start");
  }
  if (flag >= 16) fail("flag id " + std::to_string(flag) + " is cut to 4 bits");
  flag %= 16;
  if (!in_sync_all_ && flag >= kFlagCubeAll && flag <= kFlagVectorAll) {
    device_.sync_all_ids_used = true;
    if (device_.sync_all_used) fail("flag ids 11 to 14 belong to SyncAll, which this kernel uses");
  }
  Signal signal;
  signal.clock = foreign_;
  LocalClock own = known_[static_cast<int>(pipe)];
  own[static_cast<int>(pipe)] = now_;
  own[static_cast<int>(Pipe::kS)] = now_;  // scalar code before this call is done when it is dispatched
  std::copy(own.begin(), own.end(), signal.clock.begin() + id_.index * kPipes);
  signal.event = device_.NewEvent();
  steps_.push_back({Step::Kind::kSignal, pipe, signal.event});
  device_.Arrive(*this, mode, flag, std::move(signal));
}

void Core::Deliver(uint32_t flag, const Signal& signal) {
  if (arrived_[flag].size() >= kFlagLimit) {
    FailAt(Fault::kCrossCore, Pipe::kS, "CrossCoreSetFlag", records_.back().instruction.loc,
           "the counter of flag " + std::to_string(flag) + " passes 15");
    return;
  }
  arrived_[flag].push_back(signal);
}

void Core::CrossCoreWait(uint32_t flag, Loc loc) {
  if (flag >= 16) {
    FailAt(Fault::kCrossCore, Pipe::kS, "CrossCoreWaitFlag", loc,
           "flag id " + std::to_string(flag) + " is cut to 4 bits");
  }
  flag %= 16;
  if (arrived_[flag].empty()) {
    waiting_ = {static_cast<int>(flag), in_sync_all_ ? "SyncAll" : "CrossCoreWaitFlag", loc};
    while (arrived_[flag].empty()) device_.Yield();
    waiting_.flag = -1;
  }
  Merge(arrived_[flag].front());
  arrived_[flag].pop_front();
}

// The wait blocks every pipe, so what the signal knows is known to all of them.
void Core::Merge(const Signal& signal) {
  for (size_t i = 0; i < foreign_.size(); ++i) foreign_[i] = std::max(foreign_[i], signal.clock[i]);
  LocalClock own;
  std::copy_n(signal.clock.begin() + id_.index * kPipes, kPipes, own.begin());
  for (LocalClock& clock : known_) MergeClock(clock, own);
  foreign_history_.push_back(foreign_);
  steps_.push_back({Step::Kind::kWait, Pipe::kS, signal.event, 0, cost::kCrossCore});
}

void Core::SyncAll(bool vector_only, Loc loc) {
  device_.sync_all_used = true;
  if (device_.sync_all_ids_used) {
    FailAt(Fault::kCrossCore, Pipe::kS, "SyncAll", loc,
           "flag ids 11 to 14 belong to SyncAll, but the kernel sets them");
  }
  if (!vector_only && (device_.config().kind.cube == 0 || device_.config().kind.vector == 0)) {
    FailAt(Fault::kCrossCore, Pipe::kS, "SyncAll", loc, "SyncAll<false> needs cube and vector cores: it would hang");
    return;
  }
  BarrierAll();
  in_sync_all_ = true;
  if (vector_only) {
    CrossCoreSet(0, Pipe::kMte3, kFlagVectorAll, loc);
    CrossCoreWait(kFlagVectorAll, loc);
  } else if (id_.cube) {
    CrossCoreWait(kFlagVectorDone, loc);
    CrossCoreSet(0, Pipe::kFix, kFlagCubeAll, loc);
    CrossCoreWait(kFlagCubeAll, loc);
    CrossCoreSet(2, Pipe::kMte3, kFlagCubeDone, loc);
  } else {
    CrossCoreSet(2, Pipe::kMte3, kFlagVectorDone, loc);
    CrossCoreWait(kFlagCubeDone, loc);
  }
  in_sync_all_ = false;
}

}  // namespace hostsim
