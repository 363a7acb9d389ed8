// What a launch found: faults, and a model estimate of the work done.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "hostsim/types.h"

namespace hostsim {

enum class Fault : uint8_t {
  kLocalOverflow,  // allocation or access past the end of a local memory
  kMisaligned,     // start address of an operand
  kOverrun,        // access past the end of a tensor
  kQueueDepth,     // AllocTensor, EnQue or DeQue on a queue that has nothing left
  kQueueLeak,      // a queue buffer never freed
  kQueueDoubleFree,
  kUninitialised,  // local memory read before it was written
  kPaddingRead,    // undefined bytes a DMA left behind were read
  kRaw,            // read after write, write after read, write after write without synchronisation
  kWar,
  kWaw,
  kOrphanWait,  // WaitFlag without a SetFlag before it
  kDoubleSet,   // SetFlag on a flag still set
  kFlagLeft,    // a flag still set when the kernel ends
  kEventId,
  kBadRepeat,
  kBadMask,
  kBadStride,
  kBadArgument,
  kOverlap,  // source and destination overlap in a way the vector unit does not support
  kGmOutOfBounds,
  kGmRace,      // two cores touch the same bytes unordered
  kSharedLine,  // two cores write different bytes of one line
  kStaleCache,  // the scalar data cache and memory disagree
  kDeadlock,
  kCrossCore,   // misuse of cross-core flags
  kNeedsTPipe,  // an API that takes its event ids from TPipe, used without one
  kUnsupported,
};
const char* Name(Fault fault);

// One side of a conflict.
struct Access {
  std::string core;
  Pipe pipe = Pipe::kS;
  std::string op;
  Loc loc;
};

struct Error {
  Fault fault;
  std::string kernel;
  Access access;
  Mem mem = Mem::kUb;
  uint64_t begin = 0;  // byte range; begin == end where no memory is involved
  uint64_t end = 0;
  std::string message;
  bool has_earlier = false;
  Access earlier = {};
  uint64_t count = 1;  // how often this fault was seen at this line

  std::string Text() const;
};

// One executed instruction, in program order of its core.
struct Instruction {
  const char* op;
  Loc loc;
  Pipe pipe;
  uint32_t repeats;
  uint64_t bytes;  // moved by a DMA, or touched in the destination
  double start;    // cycles, model estimate
  double end;
};

struct CoreReport {
  std::string name;  // "AIV 3 (block 1.1)"
  bool cube = false;
  double cycles = 0;
  std::array<double, kPipes> busy{};
  uint64_t instructions = 0;
  uint64_t gm_read = 0;
  uint64_t gm_written = 0;
  uint64_t macs = 0;
  std::vector<Instruction> log;  // only when the launch asked for it
};

struct Report {
  std::string kernel;
  std::string profile;
  std::vector<Error> errors;
  std::vector<CoreReport> cores;
  uint64_t instructions = 0;
  uint64_t gm_read = 0;  // bytes moved from GM by DMA and scalar loads
  uint64_t gm_written = 0;
  uint64_t gm_first_touch = 0;  // bytes of distinct lines touched: what HBM must deliver at least
  uint64_t macs = 0;
  double cycles = 0;  // of the slowest physical core
  double microseconds = 0;
  std::array<double, kPipes> busy{};

  bool ok() const { return errors.empty(); }
  bool Has(Fault fault) const;
  std::string Text() const;
};

}  // namespace hostsim
