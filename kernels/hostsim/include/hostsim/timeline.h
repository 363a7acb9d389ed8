// When everything happens: what the cores were given, replayed over time.
//
// A core's scalar unit hands instructions to its pipes in program order and waits where the kernel tells it to; every
// pipe works through its own queue. Copies between global and local memory share the bandwidth of HBM and L2 among all
// that run at the same time, which is why time is known only after all cores have run.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "hostsim/profile.h"

namespace hostsim {

using EventId = uint32_t;  // something that happens once; 0: nothing

struct Step {
  enum class Kind : uint8_t {
    kInstruction,
    kSignal,      // the event happens when the pipe has done all before
    kWait,        // of the pipe, or of the scalar unit, for an event
    kBarrier,     // the pipe finishes what it was given
    kBarrierAll,  // and all of them
  };
  Kind kind;
  Pipe pipe = Pipe::kS;
  EventId event = 0;
  uint32_t instruction = 0;  // number in the core's log
  double cycles = 0;         // of the instruction at least, or on top of the wait
  double tail = 0;           // until a dependent instruction may start
  uint64_t hbm_bytes = 0;
  uint64_t l2_bytes = 0;
};

struct CoreSteps {
  bool cube = false;
  std::vector<Step> steps;
};

// An event that happens when all its parts have.
struct JointEvent {
  EventId event;
  std::vector<EventId> parts;
};

struct CoreTimes {
  struct Span {
    double start, end;
  };
  std::vector<Span> instructions;  // by number
  std::array<double, kPipes> busy{};
  double end = 0;
};

// Times in cycles. More cores of a kind than the device has wait for earlier ones to end.
std::vector<CoreTimes> Replay(const DeviceProfile& profile, const std::vector<CoreSteps>& cores,
                              const std::vector<JointEvent>& joints, EventId num_events);

}  // namespace hostsim
