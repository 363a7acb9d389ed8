// One kernel source, compiled once per CPU capability; the best one this machine has is chosen at the first call.
//
// A family's header declares its kernels with SPECDEC_CPU_KERNEL(name, Params); its source defines them inside
// `namespace specdec::cpu::SPECDEC_CAPABILITY`. The build compiles the source with -DSPECDEC_CAPABILITY=baseline, avx2
// and avx512 and the matching -m flags (setup.py). Everything a kernel source includes from this folder must live in
// that namespace too: an inline function shared between objects built with different flags would be an illegal
// instruction on an older CPU.
#pragma once

namespace specdec::cpu {

enum class Capability { kBaseline, kAvx2, kAvx512 };

// Follows torch's own choice, so that ATEN_CPU_CAPABILITY=default|avx2|avx512 applies to these kernels as well.
Capability capability();

// Whether AMX tiles with bfloat16 may be used: beside AVX-512 the CPU and the kernel's permission are needed.
// SPECDEC_AMX=0 turns it off.
bool has_amx_bf16();

// Whether AVX-512's dot products of bfloat16 pairs may be used. SPECDEC_AVX512_BF16=0 turns it off.
bool has_avx512_bf16();

}  // namespace specdec::cpu

#if defined(__x86_64__)
#define SPECDEC_CPU_KERNEL(name, Params)   \
  namespace baseline {                     \
  void name(const Params&);                \
  }                                        \
  namespace avx2 {                         \
  void name(const Params&);                \
  }                                        \
  namespace avx512 {                       \
  void name(const Params&);                \
  }                                        \
  inline void name(const Params& params) { \
    switch (capability()) {                \
      case Capability::kAvx512:            \
        return avx512::name(params);       \
      case Capability::kAvx2:              \
        return avx2::name(params);         \
      default:                             \
        return baseline::name(params);     \
    }                                      \
  }
#else
#define SPECDEC_CPU_KERNEL(name, Params) \
  namespace baseline {                   \
  void name(const Params&);              \
  }                                      \
  inline void name(const Params& params) { baseline::name(params); }
#endif
