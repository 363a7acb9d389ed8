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

namespace {

#if defined(__x86_64__) && defined(__linux__)
// Whether the CPU may use what `setting` stands for in the environment, where "0" turns it off.
bool allowed(const char* setting) {
  const char* wanted = std::getenv(setting);
  return capability() == Capability::kAvx512 && !(wanted && std::string(wanted) == "0");
}
#endif

}  // namespace

bool has_amx_bf16() {
  static const bool found = [] {
#if defined(__x86_64__) && defined(__linux__)
    if (!allowed("SPECDEC_AMX")) return false;
#if defined(SPECDEC_EMULATE_AMX)  // amx_emulation.h
    return true;
#endif
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

bool has_avx512_bf16() {
  static const bool found = [] {
#if defined(__x86_64__) && defined(__linux__)
    unsigned eax, ebx, ecx, edx;
    constexpr unsigned kBf16 = 1u << 5;
    return allowed("SPECDEC_AVX512_BF16") && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax & kBf16);
#else
    return false;
#endif
  }();
  return found;
}

}  // namespace specdec::cpu
