#include "hostsim/timeline.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <queue>
#include <tuple>

namespace hostsim {
namespace {

constexpr double kNever = 1e300;
constexpr int kMemoriesShared = 2;  // HBM, L2
constexpr int kCoreKinds = 2;       // vector, cube

// Copies of one kind of core from one memory. They all run at one rate, so that one count of the bytes that each could
// have had so far says when the next one ends.
struct Flows {
  struct Flow {
    double until;  // of `served`
    size_t core;
    int pipe;
    bool operator>(const Flow& other) const {
      return std::tie(until, core, pipe) > std::tie(other.until, other.core, other.pipe);
    }
  };
  std::priority_queue<Flow, std::vector<Flow>, std::greater<Flow>> flows;
  double served = 0, rate = 0;
};

class Player {
 public:
  Player(const DeviceProfile& profile, const std::vector<CoreSteps>& cores, const std::vector<JointEvent>& joints,
         EventId num_events)
      : cores_(cores), states_(cores.size()), times_(cores.size()), events_(num_events + 1) {
    bandwidth_[0] = profile.hbm_gb_s / profile.clock_ghz;
    bandwidth_[1] = profile.l2_gb_s / profile.clock_ghz;
    ceiling_[0] = profile.core_gb_s / profile.clock_ghz;
    ceiling_[1] = cost::kCubeGmBytes;
    for (const JointEvent& joint : joints) {
      for (EventId part : joint.parts) events_[part].joint = joint.event;
      events_[joint.event].missing = static_cast<uint32_t>(joint.parts.size());
    }
    std::array<std::vector<size_t>, kCoreKinds> of_kind;
    for (size_t i = 0; i < cores.size(); ++i) {
      std::vector<size_t>& same = of_kind[cores[i].cube];
      const size_t physical = cores[i].cube ? profile.cube_cores : profile.vector_cores;
      if (same.size() >= physical) states_[same[same.size() - physical]].successor = i;
      if (same.size() < physical) first_.push_back(i);
      same.push_back(i);
      uint32_t instructions = 0;
      for (const Step& step : cores[i].steps) instructions = std::max(instructions, step.instruction);
      times_[i].instructions.resize(instructions + 1);
    }
  }

  std::vector<CoreTimes> Play() {
    for (size_t core : first_) ready_.push_back({core, kScalar});
    for (;;) {
      Settle();
      double end = kNever;
      Flows* ending = nullptr;
      for (auto& memory : flows_) {
        for (Flows& f : memory) {
          if (f.flows.empty()) continue;
          const double at = now_ + std::max(0.0, f.flows.top().until - f.served) / f.rate;
          if (at < end) end = at, ending = &f;
        }
      }
      const double begin = starts_.empty() ? kNever : starts_.top().time;
      if (begin == kNever && end == kNever) break;
      MoveTo(std::min(begin, end));
      if (begin <= end) {
        const Start start = starts_.top();
        starts_.pop();
        NextFlow(start.core, start.pipe);
      } else {
        const Flows::Flow flow = ending->flows.top();
        ending->flows.pop();
        SetRates();
        NextFlow(flow.core, flow.pipe);
      }
    }
    return std::move(times_);
  }

 private:
  static constexpr int kScalar = static_cast<int>(Pipe::kS);

  struct Queued {
    const Step* step;
    double issued;
  };
  struct PipeState {
    std::deque<Queued> queue;
    double free = 0, done = 0;  // of the last instruction, without and with its tail
    double start = 0;           // of the instruction that runs
    int next_memory = 0;
  };
  struct CoreState {
    size_t next = 0;  // step
    double scalar = 0;
    size_t successor = 0;  // none has number 0
    bool ended = false;
    std::array<PipeState, kPipes> pipes;
  };
  struct Unit {
    size_t core;
    int pipe;  // kScalar: the scalar unit
  };
  struct Event {
    bool happened = false;
    double time = 0;
    EventId joint = 0;
    uint32_t missing = 0;
    std::vector<Unit> waiters;
  };
  struct Start {
    double time;
    size_t core;
    int pipe;
    bool operator>(const Start& other) const {
      return std::tie(time, core, pipe) > std::tie(other.time, other.core, other.pipe);
    }
  };

  void Settle() {
    while (!ready_.empty()) {
      const Unit unit = ready_.back();
      ready_.pop_back();
      if (unit.pipe == kScalar) {
        Dispatch(unit.core);
      } else {
        Work(unit.core, unit.pipe);
      }
    }
  }

  // The scalar unit, until it has to wait.
  void Dispatch(size_t core) {
    CoreState& state = states_[core];
    const std::vector<Step>& steps = cores_[core].steps;
    for (; state.next < steps.size(); ++state.next) {
      const Step& step = steps[state.next];
      const int pipe = static_cast<int>(step.pipe);
      if (step.kind == Step::Kind::kBarrierAll) {
        if (!Drained(state)) return;
        for (const PipeState& p : state.pipes) state.scalar = std::max(state.scalar, p.done);
        continue;
      }
      if (pipe != kScalar) {
        state.scalar += step.kind == Step::Kind::kInstruction ? cost::kScalar : cost::kFlag;
        state.pipes[pipe].queue.push_back({&step, state.scalar});
        if (state.pipes[pipe].queue.size() == 1) Work(core, pipe);
      } else if (step.kind == Step::Kind::kInstruction) {
        state.scalar += cost::kScalar;
        times_[core].instructions[step.instruction] = {state.scalar, state.scalar + step.cycles};
        times_[core].busy[kScalar] += step.cycles;
        state.scalar += step.cycles;
      } else if (step.kind == Step::Kind::kSignal) {
        state.scalar += cost::kFlag;
        Happen(step.event, state.scalar);
      } else {
        Event& event = events_[step.event];
        if (!event.happened) {
          event.waiters.push_back({core, kScalar});
          return;
        }
        state.scalar = std::max(state.scalar + cost::kFlag, event.time + step.cycles);
      }
    }
    if (state.ended || !Drained(state)) return;
    state.ended = true;
    double end = state.scalar;
    for (const PipeState& p : state.pipes) end = std::max(end, p.done);
    times_[core].end = end;
    if (state.successor == 0) return;
    states_[state.successor].scalar = end;
    ready_.push_back({state.successor, kScalar});
  }

  static bool Drained(const CoreState& state) {
    return std::all_of(state.pipes.begin(), state.pipes.end(), [](const PipeState& p) { return p.queue.empty(); });
  }

  // A pipe, until it has to wait or copies.
  void Work(size_t core, int pipe) {
    PipeState& p = states_[core].pipes[pipe];
    for (; !p.queue.empty(); p.queue.pop_front()) {
      const auto [step, issued] = p.queue.front();
      if (step->kind == Step::Kind::kInstruction) {
        p.start = std::max(issued, p.free);
        if (step->hbm_bytes + step->l2_bytes > 0) {
          p.next_memory = 0;
          starts_.push({p.start + cost::kDmaStart, core, pipe});
          return;
        }
        End(core, pipe, p.start + step->cycles);
      } else if (step->kind == Step::Kind::kSignal) {
        Happen(step->event, std::max({issued, p.free, p.done}));
      } else if (step->kind == Step::Kind::kBarrier) {
        p.free = std::max(p.free, p.done);
      } else {
        Event& event = events_[step->event];
        if (!event.happened) {
          event.waiters.push_back({core, pipe});
          return;
        }
        p.free = std::max(p.free, event.time);
      }
    }
    const CoreState& state = states_[core];
    const std::vector<Step>& steps = cores_[core].steps;
    const bool scalar_waits = state.next == steps.size() || steps[state.next].kind == Step::Kind::kBarrierAll;
    if (scalar_waits) ready_.push_back({core, kScalar});
  }

  void End(size_t core, int pipe, double time) {
    PipeState& p = states_[core].pipes[pipe];
    const Step& step = *p.queue.front().step;
    p.free = time;
    p.done = time + step.tail;
    times_[core].instructions[step.instruction] = {p.start, time};
    times_[core].busy[pipe] += time - p.start;
  }

  // A copy goes on with the next memory that it has bytes of, or ends.
  void NextFlow(size_t core, int pipe) {
    PipeState& p = states_[core].pipes[pipe];
    const Step& step = *p.queue.front().step;
    const uint64_t bytes[kMemoriesShared] = {step.hbm_bytes, step.l2_bytes};
    while (p.next_memory < kMemoriesShared) {
      const int memory = p.next_memory++;
      if (bytes[memory] == 0) continue;
      Flows& f = flows_[memory][cores_[core].cube];
      f.flows.push({f.served + static_cast<double>(bytes[memory]), core, pipe});
      SetRates();
      return;
    }
    End(core, pipe, std::max(now_, p.start + step.cycles));
    p.queue.pop_front();
    ready_.push_back({core, pipe});
  }

  void MoveTo(double time) {
    for (auto& memory : flows_) {
      for (Flows& f : memory) {
        if (!f.flows.empty()) f.served += (time - now_) * f.rate;
      }
    }
    now_ = time;
  }
  void SetRates() {
    for (int memory = 0; memory < kMemoriesShared; ++memory) {
      const size_t active = flows_[memory][0].flows.size() + flows_[memory][1].flows.size();
      for (int kind = 0; kind < kCoreKinds; ++kind) {
        flows_[memory][kind].rate = std::min(ceiling_[kind], bandwidth_[memory] / std::max<size_t>(active, 1));
      }
    }
  }

  void Happen(EventId id, double time) {
    Event& event = events_[id];
    event.happened = true;
    event.time = std::max(event.time, time);
    if (event.joint != 0) {
      Event& joint = events_[event.joint];
      joint.time = std::max(joint.time, event.time);
      if (--joint.missing == 0) Happen(event.joint, joint.time);
    }
    ready_.insert(ready_.end(), event.waiters.begin(), event.waiters.end());
    event.waiters.clear();
  }

  const std::vector<CoreSteps>& cores_;
  std::vector<CoreState> states_;
  std::vector<CoreTimes> times_;
  std::vector<Event> events_;
  std::vector<size_t> first_;
  std::vector<Unit> ready_;  // what they waited for has happened
  std::priority_queue<Start, std::vector<Start>, std::greater<Start>> starts_;
  Flows flows_[kMemoriesShared][kCoreKinds];
  double bandwidth_[kMemoriesShared], ceiling_[kCoreKinds], now_ = 0;
};

}  // namespace

std::vector<CoreTimes> Replay(const DeviceProfile& profile, const std::vector<CoreSteps>& cores,
                              const std::vector<JointEvent>& joints, EventId num_events) {
  return Player(profile, cores, joints, num_events).Play();
}

}  // namespace hostsim
