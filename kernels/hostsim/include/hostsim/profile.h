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
  double hbm_gb_s;   // all cores together, first touch of a line
  double l2_gb_s;    // all cores together, later touches
  double core_gb_s;  // ceiling of one core
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
constexpr double kDmaStart = 40;
constexpr double kDmaHalfSize = 4096;  // bytes at which a DMA reaches half of the bandwidth
constexpr double kMte1Bytes = 128;     // a cycle
constexpr double kFixpipeBytes = 128;
constexpr double kCubeHead = 16;
constexpr double kFlag = 1;
constexpr double kCrossCore = 300;
}  // namespace cost

}  // namespace hostsim
