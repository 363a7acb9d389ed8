#include "dispatch.h"

#include <ATen/Version.h>

#include <cstdlib>
#include <string>
#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

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

bool has_amx_bf16() {
  static const bool found = [] {
#if defined(__x86_64__) && defined(__linux__)
    const char* wanted = std::getenv("SPECDEC_AMX");
    if (capability() != Capability::kAvx512 || (wanted && std::string(wanted) == "0")) return false;
    unsigned eax, ebx, ecx, edx;
    constexpr unsigned kTile = 1u << 24, kBf16 = 1u << 22;
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || !(edx & kTile) || !(edx & kBf16)) return false;
    constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
    return false;
#endif
  }();
  return found;
}

}  // namespace specdec::cpu
