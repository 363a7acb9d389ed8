// What the host code of an operator needs of the device. `device.cpp` is the NPU, by torch_npu;
// `bindings/sim/hostsim.cpp` the simulator, on CPU tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <functional>
#include <initializer_list>
#include <vector>

#include "bindings/checks.h"

#if defined(SPECDEC_SIM)
#define SPECDEC_NPU_IMPL(m) TORCH_LIBRARY_IMPL(specdec_sim, CPU, m)
#else
#define SPECDEC_NPU_IMPL(m) TORCH_LIBRARY_IMPL(specdec, PrivateUse1, m)
#endif

namespace specdec::npu {

struct Cores {
  uint32_t cube, vector;
};
Cores cores();  // of the current device

// Calls `launch(stream)`, in order, on the current stream. `tensors` are all whose memory the kernels touch: they are
// kept until then, since a call returns before.
void submit(const char* name, const std::vector<at::Tensor>& tensors, const std::function<void(void*)>& launch);

// What a launch touches: `tensors` and those of `optional` that are there.
inline std::vector<at::Tensor> touched(std::vector<at::Tensor> tensors,
                                       std::initializer_list<OptionalTensor> optional) {
  for (const OptionalTensor& tensor : optional)
    if (tensor) tensors.push_back(*tensor);
  return tensors;
}

}  // namespace specdec::npu
