// Running a kernel on the simulated device, from an ordinary C++ program.
//
//   float* x = hostsim::GmAlloc<float>(n);
//   hostsim::Report report = hostsim::Launch({"add", hostsim::Vector(), 8}, add_kernel, x, y, z, n);
//   if (!report.ok()) puts(report.Text().c_str());
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "hostsim/profile.h"
#include "hostsim/report.h"

namespace hostsim {

// Cores of one block, as the function qualifiers __vector__, __cube__ and __mix__(cube, vector) declare them.
// Only mixed kernels have the scheduler that cross-core flags need.
struct Kind {
  uint32_t cube;
  uint32_t vector;
  bool mix;
};
constexpr Kind Vector() { return {0, 1, false}; }
constexpr Kind Cube() { return {1, 0, false}; }
constexpr Kind Mix(uint32_t cube, uint32_t vector) { return {cube, vector, true}; }

struct LaunchConfig {
  std::string name;
  Kind kind = Vector();
  uint32_t blocks = 1;
  const char* profile = "910B3";
  bool strict = true;           // false: assume the compiler's automatic synchronisation on vector cores
  uint64_t seed = 0;            // of the order in which cores run
  bool keep_log = false;        // keep every instruction in the report
  uint32_t ub_reserved = 8192;  // bytes at the end of UB the APIs use themselves

  LaunchConfig(std::string name, Kind kind, uint32_t blocks) : name(std::move(name)), kind(kind), blocks(blocks) {}
};

Report Launch(const LaunchConfig& config, const std::function<void()>& body);

template <class Kernel, class... Args>
Report Launch(const LaunchConfig& config, Kernel kernel, Args... args) {
  return Launch(config, std::function<void()>([=] { kernel(args...); }));
}

// Device memory. Allocations end at an inaccessible page, so even a raw pointer cannot run past them unseen.
void* GmAllocBytes(size_t bytes);
void GmFree(void* memory);
template <class T>
T* GmAlloc(size_t count) {
  return static_cast<T*>(GmAllocBytes(count * sizeof(T)));
}

// Makes existing host memory (a tensor's storage) visible to kernels. Ranges may overlap.
void GmRegister(const void* memory, size_t bytes);
void GmUnregister(const void* memory);

}  // namespace hostsim
