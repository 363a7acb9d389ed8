// Global memory: the registered ranges and the record of who touched what.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "hostsim/types.h"

namespace hostsim {

struct GmAccess {
  uint16_t core = 0;
  Pipe pipe = Pipe::kS;
  bool atomic = false;
  uint32_t instruction = 0;  // 0: none
};

// Last accesses to 32 bytes of global memory, each with a bit a byte.
struct GmGranule {
  static constexpr int kReaders = 4;
  GmAccess write;
  uint32_t write_bytes = 0;
  uint32_t unordered_bytes = 0;  // of these, what the writing pipe itself may still be writing
  uint32_t next_reader = 0;
  uint64_t touched = 0;  // Device::TouchLine
  GmAccess reads[kReaders];
  uint32_t read_bytes[kReaders] = {};
};

struct GmRange {
  uintptr_t begin;
  uintptr_t end;
  std::vector<std::unique_ptr<GmGranule[]>> chunks;  // created on first touch

  static constexpr size_t kChunk = 1024;  // granules
  // Granule of an address inside the range; granules are aligned in the address space.
  GmGranule& At(uintptr_t address) {
    size_t index = address / kBlock - begin / kBlock;
    auto& chunk = chunks[index / kChunk];
    if (!chunk) chunk.reset(new GmGranule[kChunk]());
    return chunk[index % kChunk];
  }
};

class GmSpace {
 public:
  static GmSpace& Instance();
  void* Allocate(size_t bytes);
  void Free(void* memory);
  void Register(uintptr_t begin, size_t bytes);
  void Unregister(uintptr_t begin);
  // Range holding all of [address, address + bytes), or null.
  GmRange* Find(uintptr_t address, size_t bytes);
  // The registered range nearest to an address, for messages.
  const GmRange* Nearest(uintptr_t address) const;
  void ForgetAccesses();  // a new launch starts
  // Held by a launch from start to end, and by every change of the ranges.
  std::recursive_mutex& mutex() { return mutex_; }

 private:
  struct Registration {
    uintptr_t begin;
    uintptr_t end;
  };
  void Rebuild();

  std::recursive_mutex mutex_;
  std::vector<Registration> registrations_;  // may overlap: two views of one tensor
  std::vector<GmRange> ranges_;              // their union, sorted
  size_t last_ = 0;
};

}  // namespace hostsim
