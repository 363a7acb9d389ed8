// Vector addition, both ways. Usage: add [seed]
#include "add_queue_kernel.h"
#include "add_static_kernel.h"
#include "example.h"

int main(int argc, char** argv) {
  constexpr uint32_t kCores = 8, kPerCore = 8 * 1024;
  constexpr size_t kCount = kCores * kPerCore;
  float* x = hostsim::GmAlloc<float>(kCount);
  float* y = hostsim::GmAlloc<float>(kCount);
  example::Randomise(x, kCount, 10.0f, 1);
  example::Randomise(y, kCount, 10.0f, 2);
  int failures = 0;
  struct {
    const char* name;
    void (*kernel)(GM_ADDR, GM_ADDR, GM_ADDR, uint32_t);
  } const both[] = {{"add_queue", add_queue}, {"add_static", add_static}};
  for (const auto& [name, kernel] : both) {
    float* z = hostsim::GmAlloc<float>(kCount);
    hostsim::LaunchConfig config(name, hostsim::Vector(), kCores);
    config.seed = example::Seed(argc, argv);
    hostsim::Report report = hostsim::Launch(config, kernel, reinterpret_cast<GM_ADDR>(x), reinterpret_cast<GM_ADDR>(y),
                                             reinterpret_cast<GM_ADDR>(z), kPerCore);
    failures += example::Verdict(report, example::Difference(z, kCount, [&](size_t i) { return double(x[i]) + y[i]; }));
  }
  return failures;
}
