// What stands for CANN: the memory of the devices, how many cores they have, and a log of what ran on them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace fake_cann {

struct Launch {
  std::string kernel;
  std::vector<int64_t> numbers;  // cores, device, stream, bytes read, bytes written, multiply-accumulates
};

struct State {
  std::string profile = "910B3";  // the simulator's name of the device
  int64_t cube_cores = 20;        // with two vector cores each
  std::map<void*, size_t> memory;
  std::vector<Launch> launches;
};
State& state();

// A stream's handle, from which the log tells device and stream. Never null: null is no stream.
inline void* stream_handle(int64_t device, int64_t stream) {
  return reinterpret_cast<void*>((device << 32) + stream + 1);
}

}  // namespace fake_cann
