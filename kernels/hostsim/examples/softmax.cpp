// Softmax of one row on all vector cores. Usage: softmax [seed [length]]
#include "softmax_kernel.h"

#include "example.h"

int main(int argc, char** argv) {
  constexpr uint32_t kCores = 40;
  uint32_t length = argc > 2 ? static_cast<uint32_t>(std::atoi(argv[2])) : 152064;
  uint32_t share = (length + kCores - 1) / kCores;
  share = (share + 7) / 8 * 8;  // whole 32-byte lines a core
  if (share > Softmax::kMaxShare) {
    std::puts("the row does not fit");
    return 2;
  }
  float* row = hostsim::GmAlloc<float>(length);
  float* out = hostsim::GmAlloc<float>(length);
  float* workspace = hostsim::GmAlloc<float>(kCores * Softmax::kSlot);
  example::Randomise(row, length, 20.0f, 3);

  hostsim::LaunchConfig config("softmax", hostsim::Mix(0, 1), kCores);
  config.seed = example::Seed(argc, argv);
  auto start = std::chrono::steady_clock::now();
  hostsim::Report report =
      hostsim::Launch(config, softmax, reinterpret_cast<GM_ADDR>(row), reinterpret_cast<GM_ADDR>(out),
                      reinterpret_cast<GM_ADDR>(workspace), length, share);
  std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::printf("simulated in %.3f s\n", seconds.count());

  double maximum = row[0], total = 0;
  for (uint32_t i = 0; i < length; ++i) maximum = std::max(maximum, double(row[i]));
  for (uint32_t i = 0; i < length; ++i) total += std::exp(row[i] - maximum);
  return example::Verdict(
      report, example::Difference(out, length, [&](size_t i) { return std::exp(row[i] - maximum) / total; }));
}
