// One launch line for the device and for the simulator: `kernel<<<blocks, nullptr, stream>>>(...)`.
// `kind` repeats the kernel's qualifier: Vector() for __vector__, Cube() for __cube__, Mix(1, 2) for __mix__(1, 2).
#pragma once

#if defined(SPECDEC_HOSTSIM)
#include <functional>

#include "hostsim/launch.h"

namespace specdec::sim {
// Runs a kernel on the simulated cores; raises what it found.
void launch(const char* name, hostsim::Kind kind, uint32_t blocks, void* stream, const std::function<void()>& kernel);
}  // namespace specdec::sim

#define SPECDEC_LAUNCH(kernel, kind, blocks, stream, ...) \
  specdec::sim::launch(#kernel, hostsim::kind, blocks, stream, [=] { kernel(__VA_ARGS__); })
#else
#define SPECDEC_LAUNCH(kernel, kind, blocks, stream, ...) kernel<<<blocks, nullptr, stream>>>(__VA_ARGS__)
#endif
