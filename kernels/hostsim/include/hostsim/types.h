// Words every part of the simulator shares: pipes, memories and where in the kernel source a call stands.
#pragma once

#include <cstdint>

namespace hostsim {

enum class Pipe : uint8_t { kS, kV, kM, kMte1, kMte2, kMte3, kFix };
constexpr int kPipes = 7;
const char* Name(Pipe pipe);

enum class Mem : uint8_t { kUb, kL1, kL0A, kL0B, kL0C, kBias, kFixbuf, kGm };
constexpr int kLocalMems = 7;
const char* Name(Mem mem);

constexpr uint32_t kBlock = 32;      // bytes of a data block, the unit of strides and of the race check
constexpr uint32_t kRepeat = 256;    // bytes one vector repeat covers
constexpr uint32_t kCacheLine = 64;  // bytes of a scalar data cache line

// Source position of a call in the kernel. A default argument `Loc loc = Loc::Here()` records the caller.
struct Loc {
  const char* file = "";
  int line = 0;
  static constexpr Loc Here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { return {file, line}; }
};

// A byte range of one local memory: [addr, end) is what the tensor may touch.
struct LocalRef {
  Mem mem = Mem::kUb;
  uint32_t addr = 0;
  uint32_t end = 0;
};

template <class T>
constexpr T CeilDiv(T a, T b) {
  return (a + b - 1) / b;
}

// Bits of the bytes of [begin, end) that fall into the block starting at `base`.
inline uint32_t ByteMask(uint64_t base, uint64_t begin, uint64_t end) {
  uint64_t low = begin > base ? begin - base : 0;
  uint64_t high = end < base + kBlock ? end - base : kBlock;
  return static_cast<uint32_t>(((uint64_t{1} << high) - 1) & ~((uint64_t{1} << low) - 1));
}

}  // namespace hostsim
