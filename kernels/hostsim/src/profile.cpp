#include "hostsim/profile.h"

#include <cstring>

namespace hostsim {
namespace {

constexpr uint64_t kMiB = 1024 * 1024;
constexpr DeviceProfile kProfiles[] = {
    {"910B1", 24, 48, 1.85, 1600, 7000, 100, 192 * kMiB}, {"910B2", 24, 48, 1.80, 1600, 7000, 100, 192 * kMiB},
    {"910B3", 20, 40, 1.80, 1600, 7000, 100, 192 * kMiB}, {"910B4", 20, 40, 1.50, 1600, 7000, 100, 96 * kMiB},
    {"A3", 24, 48, 1.85, 1600, 7000, 100, 192 * kMiB},
};

struct MemoryRule {
  const char* name;
  uint32_t size;
  uint32_t alignment;
};
constexpr MemoryRule kMemories[] = {
    {"UB", 192 * 1024 - 256, 32}, {"L1", 512 * 1024, 32}, {"L0A", 64 * 1024, 512}, {"L0B", 64 * 1024, 512},
    {"L0C", 128 * 1024, 64},      {"BT", 1024, 64},       {"FB", 7 * 1024, 64},    {"GM", 0, 1},
};
constexpr const char* kPipeNames[] = {"S", "V", "M", "MTE1", "MTE2", "MTE3", "FIX"};

}  // namespace

const DeviceProfile* FindProfile(const char* name) {
  for (const DeviceProfile& profile : kProfiles) {
    if (std::strcmp(profile.name, name) == 0) return &profile;
  }
  return nullptr;
}

uint32_t LocalSize(Mem mem) { return kMemories[static_cast<int>(mem)].size; }
uint32_t LocalAlignment(Mem mem) { return kMemories[static_cast<int>(mem)].alignment; }
const char* Name(Mem mem) { return kMemories[static_cast<int>(mem)].name; }
const char* Name(Pipe pipe) { return kPipeNames[static_cast<int>(pipe)]; }

}  // namespace hostsim
