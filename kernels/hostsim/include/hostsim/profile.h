// What a device is made of. Figures come from public documents; the costs are not calibrated against hardware.
#pragma once

#include <cstdint>

#include "hostsim/types.h"

namespace hostsim {

struct DeviceProfile {
  const char* name;
  uint32_t cube_cores;
  uint32_t vector_cores;
  double clock_ghz;
  double hbm_gb_s;   // shared by all copies that run, in and out
  double l2_gb_s;    // likewise
  double core_gb_s;  // at most, of one copy of a vector core
  uint64_t l2_bytes;
};

// 910B1, 910B2, 910B3, 910B4, A3. Null for an unknown name.
const DeviceProfile* FindProfile(const char* name);

// The memories are the same on all of them (architecture 2201).
uint32_t LocalSize(Mem mem);
uint32_t LocalAlignment(Mem mem);

namespace cost {  // cycles
constexpr double kVectorHead = 12;
constexpr double kVectorTail = 20;  // until a dependent instruction may start
constexpr double kScalar = 1;
constexpr double kScalarGm = 200;  // a data cache miss
// From asc-devkit's add_high_performance: with 48 cores reading, copies of 8 KB take 316 ns and of 32 KB 1080 ns each,
// which is 112 cycles and 32 GB/s a core.
constexpr double kDmaStart = 112;
constexpr double kCubeGmBytes = 110;  // a cycle of one copy at most; asc-devkit's GetCoreMemBw(L2) of this architecture
constexpr double kL0aBytes = 256;     // a cycle; asc-devkit's tables of instructions' theoretical performance
constexpr double kL0bBytes = 128;
constexpr double kMte1Bytes = 32;  // to the bias table and the fixpipe buffer
constexpr double kFixpipeBytes = 128;
constexpr double kCubeHead = 16;
constexpr double kFlag = 1;
constexpr double kCrossCore = 300;
}  // namespace cost

}  // namespace hostsim
