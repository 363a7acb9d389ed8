// A table of kernels with a planted fault, each with its mended twin.
#pragma once

#include <vector>

#include "hostsim/launch.h"
#include "kernel_operator.h"

struct Case {
  const char* name;
  hostsim::Fault fault;
  hostsim::Kind kind;
  uint32_t blocks;
  void (*kernel)(bool broken);
  bool strict = true;
};

inline std::vector<Case>& Cases() {
  static std::vector<Case> cases;
  return cases;
}
struct Register {
  explicit Register(const Case& c) { Cases().push_back(c); }
};

// FAULT(name, fault, kind, blocks) { body using `broken` }
#define FAULT(NAME, FAULT_KIND, KIND, BLOCKS)                                               \
  static void NAME(bool broken);                                                            \
  static Register register_##NAME({#NAME, hostsim::Fault::FAULT_KIND, KIND, BLOCKS, NAME}); \
  static void NAME(bool broken)

// Global memory the kernels use: initialised inputs, an output, a zeroed workspace.
constexpr uint32_t kGmCount = 4096;
extern float* g_in;
extern float* g_out;
extern int32_t* g_ints;

inline AscendC::GlobalTensor<float> Input() {
  AscendC::GlobalTensor<float> t;
  t.SetGlobalBuffer(g_in, kGmCount);
  return t;
}
inline AscendC::GlobalTensor<float> Output() {
  AscendC::GlobalTensor<float> t;
  t.SetGlobalBuffer(g_out, kGmCount);
  return t;
}
inline AscendC::GlobalTensor<int32_t> Ints() {
  AscendC::GlobalTensor<int32_t> t;
  t.SetGlobalBuffer(g_ints, kGmCount);
  return t;
}

// A tensor of `count` floats at a byte address of UB.
inline AscendC::LocalTensor<float> Ub(uint32_t addr, uint32_t count) {
  return AscendC::LocalTensor<float>(AscendC::TPosition::VECCALC, addr, count);
}

template <AscendC::HardEvent event>
void Order(bool yes = true) {
  if (!yes) return;
  AscendC::SetFlag<event>(0);
  AscendC::WaitFlag<event>(0);
}
inline void Finish() { AscendC::PipeBarrier<PIPE_ALL>(); }
