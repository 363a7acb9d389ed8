#include "dispatch.h"

#include <ATen/Version.h>

#include <string>

namespace specdec::cpu {

Capability capability() {
  static const Capability chosen = [] {
    const std::string name = at::get_cpu_capability();
    if (name == "AVX512") return Capability::kAvx512;
    if (name == "AVX2") return Capability::kAvx2;
    return Capability::kBaseline;
  }();
  return chosen;
}

}  // namespace specdec::cpu
