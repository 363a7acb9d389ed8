// A matrix product on cube cores, and one with a fused activation. Usage: matmul [seed]
#include "matmul_silu_kernel.h"

#include "example.h"

int main(int argc, char** argv) {
  constexpr uint32_t kBlocks = 4, kK = 256, kM = 10 * kFusedBand;
  static_assert(kMatmulN == kFusedN, "both examples share B");
  half* a = hostsim::GmAlloc<half>(kM * kK);
  half* b = hostsim::GmAlloc<half>(kK * kFusedN);
  example::Randomise(a, kM * kK, 1.0f, 4);
  example::Randomise(b, kK * kFusedN, 1.0f, 5);
  auto product = [&](size_t i) {
    double sum = 0;
    for (uint32_t k = 0; k < kK; ++k) sum += double(a[i / kFusedN * kK + k]) * double(b[k * kFusedN + i % kFusedN]);
    return sum;
  };
  auto gm = [](void* p) { return static_cast<GM_ADDR>(p); };

  constexpr uint32_t kRows = kBlocks * kMatmulBand;
  float* c = hostsim::GmAlloc<float>(kRows * kMatmulN);
  hostsim::LaunchConfig config("matmul", hostsim::Cube(), kBlocks);
  config.seed = example::Seed(argc, argv);
  hostsim::Report report = hostsim::Launch(config, matmul, gm(a), gm(b), gm(c), kK);
  int failures = example::Verdict(report, example::Difference(c, kRows * kMatmulN, product));

  float* y = hostsim::GmAlloc<float>(kM * kFusedN);
  float* workspace = hostsim::GmAlloc<float>(kBlocks * 2 * kFusedBand * kFusedN);
  hostsim::LaunchConfig fused("matmul_silu", hostsim::Mix(1, 2), kBlocks);
  fused.seed = config.seed;
  report = hostsim::Launch(fused, matmul_silu, gm(a), gm(b), gm(workspace), gm(y), kM, kK);
  failures += example::Verdict(report, example::Difference(y, kM * kFusedN, [&](size_t i) {
                                 double x = product(i);
                                 return x / (1 + std::exp(-x));
                               }));
  return failures;
}
