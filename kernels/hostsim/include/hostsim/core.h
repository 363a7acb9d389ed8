// One simulated AI core: its memories, pipes, flags and the checks on every access.
//
// An instruction runs to completion when the kernel calls it. Whether the hardware would have been allowed to reorder
// it is decided by vector clocks: `known_[p][q]` is the last instruction of pipe q that has completed before the next
// instruction of pipe p may start.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "hostsim/gm.h"
#include "hostsim/profile.h"
#include "hostsim/report.h"
#include "hostsim/timeline.h"
#include "hostsim/types.h"

namespace hostsim {

class Device;

using LocalClock = std::array<uint32_t, kPipes>;

// What a cross-core flag carries: how far every pipe of every core had got.
struct Signal {
  std::vector<uint32_t> clock;  // [core * kPipes + pipe]
  EventId event = 0;
};

struct CoreId {
  uint32_t index;  // among all cores of the launch
  bool cube;
  uint32_t block;
  uint32_t sub;  // vector core within its block
};

// State of TPipe and its queues. It lives here because the API reaches it through a global pointer.
struct QueueBuffer {
  enum class State : uint8_t { kFree, kOccupied, kQueued, kDequeued };
  LocalRef ref;
  State state = State::kFree;
  int queued_event = -1;
  int free_event = -1;
  Pipe free_from = Pipe::kS;
  Pipe free_to = Pipe::kS;
  Loc alloc_loc;
};

struct PipeState {
  bool alive = false;
  void* pipe = nullptr;             // the TPipe object
  std::deque<QueueBuffer> buffers;  // addresses of elements stay valid
  std::array<uint32_t, kLocalMems> used{};
  std::array<std::array<uint8_t, kPipes>, kPipes> events{};  // ids taken, a bit each
};

enum class AtomicOp : uint8_t { kNone, kAdd, kMax, kMin };
enum class Element : uint8_t { kInt8, kInt16, kInt32, kHalf, kBfloat16, kFloat, kOther };
struct AtomicState {
  AtomicOp op = AtomicOp::kNone;
  Element element = Element::kFloat;
};

class Core {
 public:
  Core(Device& device, CoreId id);
  ~Core();

  const CoreId& id() const { return id_; }
  Device& device() { return device_; }
  const std::string& name() const { return name_; }
  bool strict() const;

  // Instructions: Begin, then Read* of all sources, Write* of all destinations, then Finish. An access that returns
  // false was out of range and reported; the caller leaves the data alone.
  void Begin(Pipe pipe, const char* op, Loc loc);
  bool ReadLocal(const LocalRef& ref, uint32_t addr, uint32_t bytes);
  bool WriteLocal(const LocalRef& ref, uint32_t addr, uint32_t bytes);
  bool ReadGm(const void* address, size_t bytes);
  bool WriteGm(const void* address, size_t bytes, bool atomic = false);
  void Finish(double cycles, double tail, uint64_t bytes, uint32_t repeats);
  void FinishDma(uint64_t bytes, double cycles = 0);  // between GM and local memory; at least so many cycles
  void SetSelfOrdered() { records_.back().self_ordered = true; }
  void AddMacs(uint64_t macs) { report_.macs += macs; }

  // Marks bytes just written as undefined DMA padding.
  void MarkPadding(Mem mem, uint32_t addr, uint32_t bytes);
  bool CheckAligned(const LocalRef& ref, uint32_t alignment);
  uint8_t* Data(Mem mem) { return memories_[static_cast<int>(mem)].data.get(); }
  bool Has(Mem mem) const { return memories_[static_cast<int>(mem)].data != nullptr; }
  uint32_t Limit(Mem mem) const;

  // Synchronisation inside the core.
  void SetFlag(Pipe from, Pipe to, int id, Loc loc);
  void WaitFlag(Pipe from, Pipe to, int id, Loc loc);
  void Barrier(Pipe pipe);
  void BarrierAll();
  int FreeEvent(Pipe from, Pipe to);  // lowest id TPipe has not handed out
  int TakeEvent(Pipe from, Pipe to, Loc loc);
  void ReleaseEvent(Pipe from, Pipe to, int id);

  // Synchronisation between cores.
  void CrossCoreSet(uint32_t mode, Pipe pipe, uint32_t flag, Loc loc);
  void CrossCoreWait(uint32_t flag, Loc loc);
  void SyncAll(bool vector_only, Loc loc);
  void Deliver(uint32_t flag, const Signal& signal);
  struct Waiting {
    int flag = -1;  // -1: not waiting
    const char* op = "";
    Loc loc;
  };
  const Waiting& waiting() const { return waiting_; }
  bool CanRun() const { return waiting_.flag < 0 || !arrived_[waiting_.flag].empty(); }

  // Scalar access to global memory, through the core's own data cache.
  void ScalarLoad(const void* address, size_t bytes, void* out, Loc loc);
  void ScalarStore(void* address, size_t bytes, const void* value, Loc loc);
  void CleanCache(const void* address, bool whole, Loc loc);
  void PreloadCache(const void* address, Loc loc);

  void Fail(Fault fault, const std::string& message);
  void FailAt(Fault fault, Pipe pipe, const char* op, Loc loc, const std::string& message);
  void FailRange(Fault fault, Mem mem, uint64_t begin, uint64_t end, const std::string& message);

  void AtEnd();     // the kernel returned
  void AfterAll();  // it returned on all cores
  uint32_t instructions() const { return now_; }
  CoreSteps TakeSteps();
  CoreReport TakeReport(const CoreTimes& times);

  PipeState pipe_state;
  AtomicState atomic;  // what DMA writes to global memory do
  // Registers of the vector unit that outlive an instruction.
  uint64_t vector_mask[2] = {~uint64_t{0}, ~uint64_t{0}};
  bool mask_count = false;
  float deq_scale = 1.0f;
  uint64_t pad_value = 0;  // SetPadValue, as bits
  bool pad_value_set = false;

 private:
  struct LocalGranule {
    uint32_t write = 0;        // instruction
    uint32_t write_bytes = 0;  // a bit a byte
    Pipe write_pipe = Pipe::kS;
    LocalClock reads{};
  };
  // Zeroed pages from calloc: what a kernel never touches costs nothing.
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  template <class T>
  using Pages = std::unique_ptr<T[], Free>;
  struct Memory {
    Pages<uint8_t> data;
    Pages<uint8_t> state;  // per byte
    Pages<LocalGranule> granules;
  };
  struct Flag {
    bool set = false;
    LocalClock known{};
    EventId event = 0;
    Loc loc;
  };
  struct CacheLine {
    uint8_t data[kCacheLine];
    uint64_t dirty = 0;
    uint32_t foreign = 0;  // index into foreign_history_ when loaded
    LocalClock known{};    // of the scalar pipe when loaded
    uint32_t loaded_at = 0;
    EventId preload = 0;  // that asked for the line, and no load has waited for it yet
    Loc store_loc;
  };
  struct Record {
    Instruction instruction;
    bool self_ordered = false;  // a later instruction of this pipe sees its result without a barrier
  };

  bool InRange(const LocalRef& ref, uint32_t addr, uint32_t bytes);
  GmRange* FindGm(uintptr_t begin, size_t bytes);  // null, and reported, when out of bounds
  bool Knows(const GmAccess& access, Pipe pipe) const;
  bool KnownWhenLoaded(const GmAccess& access, const CacheLine& line) const;
  void Conflict(Fault fault, Mem mem, uint64_t begin, uint64_t end, const std::string& message, const Core& other,
                uint32_t instruction);
  void Undefined(const LocalRef& ref, uint32_t addr, uint32_t bytes);
  void CheckLineSharing(GmRange& range, uintptr_t granule, Pipe pipe);
  CacheLine& Line(uintptr_t line);
  void WriteBack(uintptr_t line, CacheLine& entry);
  void Merge(const Signal& signal);

  Device& device_;
  CoreId id_;
  std::string name_;
  std::array<Memory, kLocalMems> memories_;
  std::vector<Record> records_;  // [0] is a dummy: instruction numbers start at 1
  uint32_t now_ = 0;             // number of the last instruction
  Pipe pipe_ = Pipe::kS;         // of the current instruction
  std::array<LocalClock, kPipes> known_{};
  std::array<std::array<std::array<Flag, 8>, kPipes>, kPipes> flags_{};
  std::vector<uint32_t> foreign_;  // other cores: what every pipe here knows of them
  std::vector<std::vector<uint32_t>> foreign_history_;
  std::array<std::deque<Signal>, 16> arrived_;
  std::unordered_map<uintptr_t, CacheLine> cache_;
  std::vector<uintptr_t> dirty_lines_;
  Waiting waiting_;
  bool in_sync_all_ = false;
  uint64_t from_hbm_ = 0;  // bytes of the lines that the current instruction does not find in L2

  std::vector<Step> steps_;
  CoreReport report_;
};

// The core running in this thread; aborts with a message outside a launch.
Core& Current();
uint32_t BlockNum();   // blocks of the launch
uint32_t TaskRatio();  // vector cores a block, 1 on a cube core

}  // namespace hostsim
