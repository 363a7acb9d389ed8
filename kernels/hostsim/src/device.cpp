// Runs the cores of a launch as coroutines, in an order drawn from the seed.
#include "hostsim/device.h"

#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <random>
#include <string>

namespace hostsim {
namespace {

constexpr size_t kStackBytes = 512 * 1024;
constexpr size_t kMaxErrors = 200;

struct Coroutine {
  ucontext_t context;
  void* stack = nullptr;
  Core* core = nullptr;
  const std::function<void()>* body = nullptr;
  bool done = false;
};

thread_local Coroutine* t_running = nullptr;
thread_local ucontext_t t_scheduler;

void Entry() {
  Coroutine* self = t_running;
  (*self->body)();
  self->core->AtEnd();
  self->done = true;
  swapcontext(&self->context, &t_scheduler);
}

// A raw pointer in the kernel left its allocation: end this core, keep the others.
void OnBadAccess(int signal, siginfo_t* info, void*) {
  Coroutine* self = t_running;
  if (self == nullptr) {
    ::signal(signal, SIG_DFL);
    return;  // not ours: the instruction faults again and the process dies as usual
  }
  uint64_t address = reinterpret_cast<uintptr_t>(info->si_addr);
  self->core->FailRange(Fault::kGmOutOfBounds, Mem::kGm, address, address + 1,
                        "raw pointer access to no global memory; the line is that of the instruction before it");
  self->done = true;
  setcontext(&t_scheduler);
}

class BadAccessGuard {
 public:
  BadAccessGuard() {
    stack_.ss_sp = std::malloc(kSize);
    stack_.ss_size = kSize;
    stack_.ss_flags = 0;
    sigaltstack(&stack_, &old_stack_);
    struct sigaction action = {};
    action.sa_sigaction = OnBadAccess;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigaction(SIGSEGV, &action, &old_segv_);
    sigaction(SIGBUS, &action, &old_bus_);
  }
  ~BadAccessGuard() {
    sigaction(SIGSEGV, &old_segv_, nullptr);
    sigaction(SIGBUS, &old_bus_, nullptr);
    sigaltstack(&old_stack_, nullptr);
    std::free(stack_.ss_sp);
  }

 private:
  static constexpr size_t kSize = 64 * 1024;
  stack_t stack_ = {}, old_stack_ = {};
  struct sigaction old_segv_ = {}, old_bus_ = {};
};

}  // namespace

Core& Current() {
  if (t_running == nullptr) {
    std::fprintf(stderr, "hostsim: an Ascend C call outside hostsim::Launch\n");
    std::abort();
  }
  return *t_running->core;
}

uint32_t BlockNum() { return Current().device().config().blocks; }
uint32_t TaskRatio() { return Current().id().cube ? 1 : Current().device().config().kind.vector; }

Device::Device(const LaunchConfig& config, const DeviceProfile& profile) : config_(config), profile_(profile) {
  for (uint32_t block = 0; block < config.blocks; ++block) {
    for (uint32_t i = 0; i < config.kind.cube; ++i) {
      cores_.emplace_back(new Core(*this, {static_cast<uint32_t>(cores_.size()), true, block, i}));
    }
    for (uint32_t i = 0; i < config.kind.vector; ++i) {
      cores_.emplace_back(new Core(*this, {static_cast<uint32_t>(cores_.size()), false, block, i}));
    }
  }
}

Report Device::Run(const std::function<void()>& body) {
  std::vector<Coroutine> coroutines(cores_.size());
  for (size_t i = 0; i < cores_.size(); ++i) {
    Coroutine& c = coroutines[i];
    c.core = cores_[i].get();
    c.body = &body;
    c.stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    mprotect(c.stack, 4096, PROT_NONE);  // a kernel that overflows its stack stops here
    getcontext(&c.context);
    c.context.uc_stack.ss_sp = c.stack;
    c.context.uc_stack.ss_size = kStackBytes;
    c.context.uc_link = nullptr;
    makecontext(&c.context, Entry, 0);
  }
  std::vector<size_t> order(cores_.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::mt19937_64 random(config_.seed);
  {
    BadAccessGuard guard;
    for (bool progress = true; progress;) {
      progress = false;
      std::shuffle(order.begin(), order.end(), random);
      for (size_t i : order) {
        Coroutine& c = coroutines[i];
        if (c.done || !c.core->CanRun()) continue;
        progress = true;
        t_running = &c;
        swapcontext(&t_scheduler, &c.context);
        t_running = nullptr;
      }
    }
  }
  ReportDeadlock();
  for (auto& core : cores_) core->AfterAll();
  for (Coroutine& c : coroutines) munmap(c.stack, kStackBytes);

  Report report;
  report.kernel = config_.name;
  report.profile = profile_.name;
  report.errors = std::move(errors_);
  report.gm_first_touch = first_touch_;
  std::vector<CoreSteps> steps;
  for (auto& core : cores_) steps.push_back(core->TakeSteps());
  std::vector<CoreTimes> times = Replay(profile_, steps, joints_, num_events_);
  for (size_t i = 0; i < cores_.size(); ++i) {
    CoreReport part = cores_[i]->TakeReport(times[i]);
    report.cycles = std::max(report.cycles, times[i].end);
    report.instructions += part.instructions;
    report.gm_read += part.gm_read;
    report.gm_written += part.gm_written;
    report.macs += part.macs;
    for (int p = 0; p < kPipes; ++p) report.busy[p] += part.busy[p];
    report.cores.push_back(std::move(part));
  }
  report.microseconds = report.cycles / (profile_.clock_ghz * 1e3);
  return report;
}

void Device::Yield() { swapcontext(&t_running->context, &t_scheduler); }

void Device::ReportDeadlock() {
  for (auto& core : cores_) {
    const Core::Waiting& waiting = core->waiting();
    if (waiting.flag < 0) continue;
    core->FailAt(Fault::kDeadlock, Pipe::kS, waiting.op, waiting.loc,
                 "waits for ever for cross-core flag " + std::to_string(waiting.flag));
  }
}

std::vector<size_t> Device::Participants(const Core& from, uint32_t mode) const {
  std::vector<size_t> cores;
  for (size_t i = 0; i < cores_.size(); ++i) {
    const CoreId& id = cores_[i]->id();
    bool same_block = id.block == from.id().block;
    if (id.cube == from.id().cube && (mode == 0 || same_block)) cores.push_back(i);
  }
  return cores;
}

std::vector<size_t> Device::Destinations(const Core& from, uint32_t mode) const {
  if (mode != 2) return Participants(from, mode);
  std::vector<size_t> cores;
  for (size_t i = 0; i < cores_.size(); ++i) {
    const CoreId& id = cores_[i]->id();
    if (id.block == from.id().block && id.cube != from.id().cube) cores.push_back(i);
  }
  return cores;
}

void Device::Arrive(Core& from, uint32_t mode, uint32_t flag, Signal signal) {
  std::vector<size_t> participants = Participants(from, mode);
  auto& queues = arrivals_[{mode, participants, flag}];
  queues.resize(participants.size());
  size_t mine = std::find(participants.begin(), participants.end(), from.id().index) - participants.begin();
  queues[mine].push_back(std::move(signal));
  for (const auto& queue : queues) {
    if (queue.empty()) return;
  }
  Signal joint = std::move(queues[0].front());
  queues[0].pop_front();
  joints_.push_back({NewEvent(), {joint.event}});
  for (size_t q = 1; q < queues.size(); ++q) {
    const Signal& other = queues[q].front();
    for (size_t i = 0; i < joint.clock.size(); ++i) joint.clock[i] = std::max(joint.clock[i], other.clock[i]);
    joints_.back().parts.push_back(other.event);
    queues[q].pop_front();
  }
  joint.event = joints_.back().event;
  for (size_t to : Destinations(from, mode)) cores_[to]->Deliver(flag, joint);
}

void Device::Add(Error error) {
  for (Error& known : errors_) {
    if (known.fault == error.fault && known.access.loc.line == error.access.loc.line &&
        known.earlier.loc.line == error.earlier.loc.line && known.access.loc.file == error.access.loc.file &&
        known.access.op == error.access.op) {
      ++known.count;
      return;
    }
  }
  if (errors_.size() < kMaxErrors) errors_.push_back(std::move(error));
}

bool Device::TouchLine(GmGranule& granule) {
  const bool first = granule.touched == 0;
  const bool in_l2 = !first && from_hbm_ + 1 - granule.touched <= profile_.l2_bytes;
  if (first) first_touch_ += kBlock;
  if (!in_l2) from_hbm_ += kBlock;
  granule.touched = from_hbm_ + 1;
  return in_l2;
}

Report Launch(const LaunchConfig& config, const std::function<void()>& body) {
  std::lock_guard<std::recursive_mutex> lock(GmSpace::Instance().mutex());
  const DeviceProfile* profile = FindProfile(config.profile);
  if (profile == nullptr || config.blocks == 0) {
    Report report;
    report.kernel = config.name;
    report.errors.push_back(
        {Fault::kBadArgument,
         config.name,
         {"host", Pipe::kS, "Launch", {}},
         Mem::kUb,
         0,
         0,
         profile == nullptr ? std::string("unknown device profile ") + config.profile : std::string("no blocks")});
    return report;
  }
  GmSpace::Instance().ForgetAccesses();
  Device device(config, *profile);
  return device.Run(body);
}

}  // namespace hostsim
