// faults              lists the cases
// faults NAME         runs one: exit 0 when the fault is found at a line of the kernel and the mended twin is clean
#include <cstdio>
#include <cstring>

#include "cases.h"

float* g_in;
float* g_out;
int32_t* g_ints;

static hostsim::Report Run(const Case& c, bool broken, uint64_t seed) {
  hostsim::LaunchConfig config(c.name, c.kind, c.blocks);
  config.strict = c.strict;
  config.seed = seed;
  for (uint32_t i = 0; i < kGmCount; ++i) {
    g_in[i] = g_out[i] = static_cast<float>(i);
    g_ints[i] = 0;
  }
  return hostsim::Launch(config, c.kernel, broken);
}

int main(int argc, char** argv) {
  if (argc < 2) {
    for (const Case& c : Cases()) std::puts(c.name);
    return 0;
  }
  g_in = hostsim::GmAlloc<float>(kGmCount);
  g_out = hostsim::GmAlloc<float>(kGmCount);
  g_ints = hostsim::GmAlloc<int32_t>(kGmCount);
  for (const Case& c : Cases()) {
    if (std::strcmp(c.name, argv[1]) != 0) continue;
    bool good = true;
    for (uint64_t seed = 0; seed < 4; ++seed) {
      hostsim::Report broken = Run(c, true, seed), mended = Run(c, false, seed);
      bool only = !broken.errors.empty();
      for (const hostsim::Error& error : broken.errors) only &= error.fault == c.fault;
      if (!only || !mended.ok()) {
        std::printf("seed %llu, wanted [%s]\nbroken: %smended: %s", static_cast<unsigned long long>(seed),
                    hostsim::Name(c.fault), broken.Text().c_str(), mended.Text().c_str());
        good = false;
        break;
      }
      if (seed == 0) std::printf("%s\n", broken.errors[0].Text().c_str());
    }
    return good ? 0 : 1;
  }
  std::printf("no case %s\n", argv[1]);
  return 2;
}
