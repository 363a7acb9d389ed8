// What `kernel<<<blocks, nullptr, stream>>>` does here: the kernel runs on the host simulator, which sees all memory of
// the devices and nothing else.
#include "kernels/ascendc/common/launch.h"

#include <c10/util/Exception.h>

#include "cann.h"

void specdec::sim::launch(const char* name, hostsim::Kind kind, uint32_t blocks, void* stream,
                          const std::function<void()>& kernel) {
  auto& device = fake_cann::state();
  hostsim::LaunchConfig config(name, kind, blocks);
  config.profile = device.profile.c_str();
  for (const auto& [memory, bytes] : device.memory) hostsim::GmRegister(memory, bytes);
  const hostsim::Report report = hostsim::Launch(config, kernel);
  for (const auto& [memory, bytes] : device.memory) hostsim::GmUnregister(memory);
  TORCH_CHECK(report.ok(), report.Text());
  const auto handle = reinterpret_cast<int64_t>(stream) - 1;
  const auto count = [](uint64_t value) { return static_cast<int64_t>(value); };
  device.launches.push_back({name,
                             {count(report.cores.size()), handle >> 32, handle & 0xffffffff, count(report.gm_read),
                              count(report.gm_written), count(report.macs)}});
}
