// Instructions and the checks on local memory.
#include "hostsim/core.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "hostsim/device.h"

namespace hostsim {
namespace {

enum ByteState : uint8_t { kNeverWritten = 0, kDefined = 1, kPadding = 2 };
constexpr uint8_t kPoison = 0xff;  // a NaN in every floating type

constexpr Mem kVectorMems[] = {Mem::kUb};
constexpr Mem kCubeMems[] = {Mem::kL1, Mem::kL0A, Mem::kL0B, Mem::kL0C, Mem::kBias, Mem::kFixbuf};

std::string CoreName(const CoreId& id) {
  char text[64];
  if (id.cube) {
    std::snprintf(text, sizeof(text), "AIC block %u", id.block);
  } else {
    std::snprintf(text, sizeof(text), "AIV block %u.%u", id.block, id.sub);
  }
  return text;
}

}  // namespace

Core::Core(Device& device, CoreId id) : device_(device), id_(id), name_(CoreName(id)) {
  auto add = [&](Mem mem) {
    Memory& memory = memories_[static_cast<int>(mem)];
    uint32_t size = LocalSize(mem);
    memory.data.reset(static_cast<uint8_t*>(std::calloc(size, 1)));
    memory.state.reset(static_cast<uint8_t*>(std::calloc(size, 1)));
    memory.granules.reset(static_cast<LocalGranule*>(std::calloc(CeilDiv(size, kBlock), sizeof(LocalGranule))));
  };
  if (id.cube) {
    for (Mem mem : kCubeMems) add(mem);
  } else {
    for (Mem mem : kVectorMems) add(mem);
  }
  records_.emplace_back();
  foreign_.resize(device.config().blocks * (device.config().kind.cube + device.config().kind.vector) * kPipes);
  report_.name = name_;
  report_.cube = id.cube;
}

Core::~Core() = default;

bool Core::strict() const { return device_.config().strict; }

uint32_t Core::Limit(Mem mem) const {
  uint32_t size = LocalSize(mem);
  if (mem != Mem::kUb) return size;
  return std::min(size, 192 * 1024 - device_.config().ub_reserved);
}

void Core::Begin(Pipe pipe, const char* op, Loc loc) {
  pipe_ = pipe;
  ++now_;
  from_hbm_ = 0;
  records_.push_back({{op, loc, pipe, 0, 0, 0, 0}, false});
  if (!strict() && !id_.cube) {
    // The compiler orders V-V, V-S and S-MTE by itself, and nothing else.
    LocalClock& known = known_[static_cast<int>(pipe)];
    auto assume = [&](Pipe other) { known[static_cast<int>(other)] = now_; };
    if (pipe == Pipe::kV) {
      assume(Pipe::kV);
      assume(Pipe::kS);
    } else if (pipe == Pipe::kS) {
      assume(Pipe::kV);
      assume(Pipe::kMte2);
      assume(Pipe::kMte3);
    } else {
      assume(Pipe::kS);
    }
  }
}

void Core::Finish(double cycles, double tail, uint64_t bytes, uint32_t repeats) {
  Instruction& instruction = records_.back().instruction;
  instruction.bytes = bytes;
  instruction.repeats = repeats;
  steps_.push_back({Step::Kind::kInstruction, pipe_, 0, now_, cycles, tail, 0, 0});
}

void Core::FinishDma(uint64_t bytes, double cycles) {
  Finish(cost::kDmaStart + cycles, 0, bytes, 0);
  steps_.back().hbm_bytes = std::min(from_hbm_, bytes);
  steps_.back().l2_bytes = bytes - steps_.back().hbm_bytes;
}

bool Core::InRange(const LocalRef& ref, uint32_t addr, uint32_t bytes) {
  uint64_t end = uint64_t{addr} + bytes;
  if (!Has(ref.mem)) {
    FailRange(Fault::kUnsupported, ref.mem, addr, end, "this kind of core has no such memory");
    return false;
  }
  if (end > Limit(ref.mem)) {
    FailRange(Fault::kLocalOverflow, ref.mem, addr, end,
              "the kernel may use " + std::to_string(Limit(ref.mem)) + " bytes");
    return false;
  }
  if (addr < ref.addr || end > ref.end) {
    FailRange(Fault::kOverrun, ref.mem, addr, end,
              "the tensor is [" + std::to_string(ref.addr) + ", " + std::to_string(ref.end) + ")");
    return false;
  }
  return true;
}

bool Core::ReadLocal(const LocalRef& ref, uint32_t addr, uint32_t bytes) {
  if (bytes == 0) return true;
  if (!InRange(ref, addr, bytes)) return false;
  Memory& memory = memories_[static_cast<int>(ref.mem)];
  // The state of every byte must be kDefined; compare the range with itself shifted by one for speed.
  const uint8_t* state = memory.state.get() + addr;
  if (state[0] != kDefined || (bytes > 1 && std::memcmp(state, state + 1, bytes - 1) != 0)) Undefined(ref, addr, bytes);

  int p = static_cast<int>(pipe_);
  const LocalClock& known = known_[p];
  uint32_t end = addr + bytes;
  for (uint32_t g = addr / kBlock; g * kBlock < end; ++g) {
    LocalGranule& granule = memory.granules[g];
    granule.reads[p] = now_;
    if (granule.write <= known[static_cast<int>(granule.write_pipe)] || granule.write == now_) continue;
    if (granule.write_pipe == pipe_) {
      // One pipe: only the very bytes count, and scalar code is sequential anyway.
      if (pipe_ == Pipe::kS || records_[granule.write].self_ordered) continue;
      if ((granule.write_bytes & ByteMask(g * kBlock, addr, end)) == 0) continue;
    }
    Conflict(Fault::kRaw, ref.mem, std::max(addr, g * kBlock), std::min(end, (g + 1) * kBlock), "", *this,
             granule.write);
    granule.write = 0;  // reported once
  }
  return true;
}

bool Core::WriteLocal(const LocalRef& ref, uint32_t addr, uint32_t bytes) {
  if (bytes == 0) return true;
  if (!InRange(ref, addr, bytes)) return false;
  Memory& memory = memories_[static_cast<int>(ref.mem)];
  std::memset(memory.state.get() + addr, kDefined, bytes);

  int p = static_cast<int>(pipe_);
  const LocalClock& known = known_[p];
  uint32_t end = addr + bytes;
  for (uint32_t g = addr / kBlock; g * kBlock < end; ++g) {
    LocalGranule& granule = memory.granules[g];
    uint32_t mask = ByteMask(g * kBlock, addr, end);
    bool same = granule.write_pipe == pipe_;
    if (granule.write > known[static_cast<int>(granule.write_pipe)] && granule.write != now_) {
      bool ordered =
          same && (pipe_ == Pipe::kS || records_[granule.write].self_ordered || (granule.write_bytes & mask) == 0);
      if (!ordered) {
        Conflict(Fault::kWaw, ref.mem, std::max(addr, g * kBlock), std::min(end, (g + 1) * kBlock), "", *this,
                 granule.write);
      }
    }
    for (int q = 0; q < kPipes; ++q) {
      // A pipe reads its operands in order, so it cannot overtake its own reads.
      if (q == p || granule.reads[q] <= known[q]) continue;
      Conflict(Fault::kWar, ref.mem, std::max(addr, g * kBlock), std::min(end, (g + 1) * kBlock), "", *this,
               granule.reads[q]);
      granule.reads[q] = 0;
    }
    granule.write_bytes = same && granule.write > 0 ? granule.write_bytes | mask : mask;
    granule.write = now_;
    granule.write_pipe = pipe_;
  }
  return true;
}

void Core::Undefined(const LocalRef& ref, uint32_t addr, uint32_t bytes) {
  Memory& memory = memories_[static_cast<int>(ref.mem)];
  uint32_t first = addr;
  while (first < addr + bytes && memory.state[first] == kDefined) ++first;
  if (first == addr + bytes) return;
  uint32_t last = first;
  while (last < addr + bytes && memory.state[last] == memory.state[first]) ++last;
  Fault fault = memory.state[first] == kPadding ? Fault::kPaddingRead : Fault::kUninitialised;
  FailRange(fault, ref.mem, first, last, "");
  for (uint32_t i = addr; i < addr + bytes; ++i) {
    if (memory.state[i] == kDefined) continue;
    memory.data[i] = kPoison;
    memory.state[i] = kDefined;  // reported once
  }
}

void Core::MarkPadding(Mem mem, uint32_t addr, uint32_t bytes) {
  std::memset(memories_[static_cast<int>(mem)].state.get() + addr, kPadding, bytes);
}

bool Core::CheckAligned(const LocalRef& ref, uint32_t alignment) {
  if (ref.addr % alignment == 0) return true;
  FailRange(Fault::kMisaligned, ref.mem, ref.addr, ref.addr + 1,
            "the start address must be a multiple of " + std::to_string(alignment));
  return false;
}

void Core::Conflict(Fault fault, Mem mem, uint64_t begin, uint64_t end, const std::string& message, const Core& other,
                    uint32_t instruction) {
  const Instruction& current = records_.back().instruction;
  const Instruction& earlier = other.records_[instruction].instruction;
  Error error{fault, device_.config().name, {name_, current.pipe, current.op, current.loc}, mem, begin, end, message};
  error.has_earlier = true;
  error.earlier = {other.name_, earlier.pipe, earlier.op, earlier.loc};
  device_.Add(std::move(error));
}

void Core::Fail(Fault fault, const std::string& message) { FailRange(fault, Mem::kUb, 0, 0, message); }

void Core::FailAt(Fault fault, Pipe pipe, const char* op, Loc loc, const std::string& message) {
  device_.Add({fault, device_.config().name, {name_, pipe, op, loc}, Mem::kUb, 0, 0, message});
}

void Core::FailRange(Fault fault, Mem mem, uint64_t begin, uint64_t end, const std::string& message) {
  const Instruction& current = records_.back().instruction;
  device_.Add({fault, device_.config().name, {name_, current.pipe, current.op, current.loc}, mem, begin, end, message});
}

void Core::AtEnd() {
  BarrierAll();
  for (auto& [line, entry] : cache_) {
    if (entry.dirty == 0) continue;
    Begin(Pipe::kS, "write-back at kernel end", entry.store_loc);
    WriteBack(line, entry);
    Finish(0, 0, kCacheLine, 0);
  }
  for (int from = 0; from < kPipes; ++from) {
    for (int to = 0; to < kPipes; ++to) {
      for (int id = 0; id < 8; ++id) {
        const Flag& flag = flags_[from][to][id];
        if (!flag.set) continue;
        FailAt(Fault::kFlagLeft, static_cast<Pipe>(from), "SetFlag", flag.loc,
               std::string("flag ") + Name(static_cast<Pipe>(from)) + "_" + Name(static_cast<Pipe>(to)) + " id " +
                   std::to_string(id) + " was never waited for");
      }
    }
  }
}

void Core::AfterAll() {
  for (size_t flag = 0; flag < arrived_.size(); ++flag) {
    if (arrived_[flag].empty()) continue;
    FailAt(Fault::kCrossCore, Pipe::kS, "kernel end", {},
           "cross-core flag " + std::to_string(flag) + " has " + std::to_string(arrived_[flag].size()) +
               " signal(s) nobody waited for");
  }
}

CoreSteps Core::TakeSteps() { return {id_.cube, std::move(steps_)}; }

CoreReport Core::TakeReport(const CoreTimes& times) {
  report_.cycles = times.end;
  report_.busy = times.busy;
  report_.instructions = records_.size() - 1;
  if (device_.config().keep_log) {
    for (size_t i = 1; i < records_.size(); ++i) {
      Instruction& instruction = records_[i].instruction;
      if (i < times.instructions.size()) {
        instruction.start = times.instructions[i].start;
        instruction.end = times.instructions[i].end;
      }
      report_.log.push_back(instruction);
    }
  }
  return std::move(report_);
}

}  // namespace hostsim
