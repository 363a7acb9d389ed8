// What the example programs share: data, and the verdict.
#pragma once

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "hostsim/launch.h"

namespace example {

// Values in [-range, range].
template <class T>
void Randomise(T* data, size_t count, float range, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> draw(-range, range);
  for (size_t i = 0; i < count; ++i) data[i] = T(draw(random));
}

// Largest difference to a float64 reference, relative to the largest value of the reference.
template <class Reference>
double Difference(const float* got, size_t count, Reference reference) {
  double worst = 0, largest = 0;
  for (size_t i = 0; i < count; ++i) {
    double want = reference(i);
    double difference = std::fabs(double(got[i]) - want);
    worst = difference > worst || difference != difference ? difference : worst;
    largest = std::max(largest, std::fabs(want));
  }
  return worst / largest;
}

inline int Verdict(const hostsim::Report& report, double difference) {
  std::printf("%sdifference to float64: %.2e\n", report.Text().c_str(), difference);
  bool good = report.ok() && difference <= 1e-4;
  std::puts(good ? "PASS" : "FAIL");
  return good ? 0 : 1;
}

// The seed of the core order, from the command line.
inline uint64_t Seed(int argc, char** argv) { return argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 0; }

}  // namespace example
