#include "hostsim/gm.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

#include "hostsim/launch.h"

namespace hostsim {
namespace {

constexpr size_t kGmAlignment = 512;
constexpr int kGmPoison = 0xa5;

struct Mapping {
  void* base;
  size_t bytes;
};
std::map<void*, Mapping>& Mappings() {
  static std::map<void*, Mapping> mappings;
  return mappings;
}

}  // namespace

GmSpace& GmSpace::Instance() {
  static GmSpace space;
  return space;
}

void* GmSpace::Allocate(size_t bytes) {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  // [guard page | data, pushed to the end of its pages | guard page]
  size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  size_t padded = CeilDiv(std::max<size_t>(bytes, 1), kGmAlignment) * kGmAlignment;
  size_t pages = CeilDiv(padded, page) * page;
  size_t total = pages + 2 * page;
  void* base = mmap(nullptr, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  char* data = static_cast<char*>(base) + page;
  if (base == MAP_FAILED || mprotect(data, pages, PROT_READ | PROT_WRITE) != 0) {
    std::fprintf(stderr, "hostsim: cannot allocate %zu bytes of global memory\n", bytes);
    std::abort();
  }
  char* memory = data + (pages - padded);
  std::memset(memory, kGmPoison, padded);
  Mappings()[memory] = {base, total};
  Register(reinterpret_cast<uintptr_t>(memory), bytes);
  return memory;
}

void GmSpace::Free(void* memory) {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  auto found = Mappings().find(memory);
  if (found == Mappings().end()) return;
  Unregister(reinterpret_cast<uintptr_t>(memory));
  munmap(found->second.base, found->second.bytes);
  Mappings().erase(found);
}

void GmSpace::Register(uintptr_t begin, size_t bytes) {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  registrations_.push_back({begin, begin + bytes});
  Rebuild();
}

void GmSpace::Unregister(uintptr_t begin) {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  auto found = std::find_if(registrations_.begin(), registrations_.end(),
                            [&](const Registration& r) { return r.begin == begin; });
  if (found == registrations_.end()) return;
  registrations_.erase(found);
  Rebuild();
}

// Overlapping registrations become one range; neighbours that merely touch stay apart, so that a kernel cannot run
// from one tensor into the next.
void GmSpace::Rebuild() {
  std::vector<Registration> sorted = registrations_;
  std::sort(sorted.begin(), sorted.end(),
            [](const Registration& a, const Registration& b) { return a.begin < b.begin; });
  ranges_.clear();
  for (const Registration& r : sorted) {
    if (!ranges_.empty() && r.begin < ranges_.back().end) {
      ranges_.back().end = std::max(ranges_.back().end, r.end);
    } else {
      ranges_.push_back({r.begin, r.end, {}});
    }
  }
  for (GmRange& range : ranges_) {
    range.chunks.resize(CeilDiv<size_t>(range.end - range.begin + kBlock, kBlock * GmRange::kChunk) + 1);
  }
}

GmRange* GmSpace::Find(uintptr_t address, size_t bytes) {
  auto holds = [&](const GmRange& r) { return address >= r.begin && address <= r.end && bytes <= r.end - address; };
  if (last_ < ranges_.size() && holds(ranges_[last_])) return &ranges_[last_];
  auto after = std::upper_bound(ranges_.begin(), ranges_.end(), address,
                                [](uintptr_t value, const GmRange& other) { return value < other.begin; });
  if (after == ranges_.begin()) return nullptr;
  last_ = static_cast<size_t>(after - ranges_.begin()) - 1;
  return holds(ranges_[last_]) ? &ranges_[last_] : nullptr;
}

const GmRange* GmSpace::Nearest(uintptr_t address) const {
  const GmRange* best = nullptr;
  uintptr_t best_distance = ~uintptr_t{0};
  for (const GmRange& r : ranges_) {
    uintptr_t distance = address < r.begin ? r.begin - address : (address >= r.end ? address - r.end : 0);
    if (distance < best_distance) {
      best = &r;
      best_distance = distance;
    }
  }
  return best;
}

void GmSpace::ForgetAccesses() {
  for (GmRange& range : ranges_) {
    for (auto& chunk : range.chunks) chunk.reset();
  }
}

void* GmAllocBytes(size_t bytes) { return GmSpace::Instance().Allocate(bytes); }
void GmFree(void* memory) { GmSpace::Instance().Free(memory); }
void GmRegister(const void* memory, size_t bytes) {
  GmSpace::Instance().Register(reinterpret_cast<uintptr_t>(memory), bytes);
}
void GmUnregister(const void* memory) { GmSpace::Instance().Unregister(reinterpret_cast<uintptr_t>(memory)); }

}  // namespace hostsim
