// Enumerations, qualifiers and constants of the Ascend C programming interface, with its names and values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "hostsim/core.h"
#include "hostsim/numeric.h"
#include "hostsim/types.h"

#define __NPU_ARCH__ 2201
#define ASCENDC_HOSTSIM 1

#define __global__
#define __aicore__
#define __host__
#define __vector__
#define __cube__
#define __mix__(...)
#define __schedmode__(...)
#define __gm__
#define __ubuf__
#define __cbuf__
#define __ca__
#define __cb__
#define __cc__
#define __fbuf__
#define GM_ADDR __gm__ uint8_t*
#define KERNEL_TASK_TYPE(...)
#define KERNEL_TASK_TYPE_DEFAULT(...)

// The core type is a compile-time constant on the device; here one binary serves both kinds of core.
#define ASCEND_IS_AIV (!hostsim::Current().id().cube)
#define ASCEND_IS_AIC (hostsim::Current().id().cube)
#define ASCEND_IS_NOT_AIV (hostsim::Current().id().cube)
#define ASCEND_IS_NOT_AIC (!hostsim::Current().id().cube)

enum pipe_t { PIPE_S = 0, PIPE_V, PIPE_M, PIPE_MTE1, PIPE_MTE2, PIPE_MTE3, PIPE_ALL, PIPE_FIX = 10 };
enum event_t { EVENT_ID0 = 0, EVENT_ID1, EVENT_ID2, EVENT_ID3, EVENT_ID4, EVENT_ID5, EVENT_ID6, EVENT_ID7 };
enum QuantMode_t {
  NoQuant = 0,
  F322F16 = 1,
  VQF322B8_PRE,
  QF322B8_PRE,
  VDEQF16,
  DEQF16,
  VREQ8,
  REQ8,
  F322BF16 = 16,
};

namespace AscendC {

using hostsim::Loc;
using TEventID = int8_t;

enum class TPosition : uint8_t {
  GM,
  A1,
  A2,
  B1,
  B2,
  C1,
  C2,
  CO1,
  CO2,
  VECIN,
  VECOUT,
  VECCALC,
  LCM = VECCALC,
  SPM,
  SHM = SPM,
  TSCM,
  C2PIPE2GM,
  C2PIPE2LOCAL,
  MAX,
};
using QuePosition = TPosition;

enum class Hardware : uint8_t { GM, UB, L1, L0A, L0B, L0C, BIAS, FIXBUF, MAX };

enum class HardEvent : uint8_t {
  MTE2_MTE1,
  MTE1_MTE2,
  MTE1_M,
  M_MTE1,
  MTE2_V,
  V_MTE2,
  MTE3_V,
  V_MTE3,
  M_V,
  V_M,
  V_V,
  MTE3_MTE1,
  MTE1_MTE3,
  MTE1_V,
  MTE2_M,
  M_MTE2,
  V_MTE1,
  M_FIX,
  FIX_M,
  MTE3_MTE2,
  MTE2_MTE3,
  S_V,
  V_S,
  S_MTE2,
  MTE2_S,
  S_MTE3,
  MTE3_S,
  MTE2_FIX,
  FIX_MTE2,
  FIX_S,
  M_S,
  FIX_MTE3,
  MTE1_FIX,
  FIX_MTE1,
  FIX_FIX,
  MAX,
};

enum class RoundMode : uint8_t { CAST_NONE = 0, CAST_RINT, CAST_FLOOR, CAST_CEIL, CAST_ROUND, CAST_TRUNC, CAST_ODD };
enum class CMPMODE : uint8_t { LT = 0, GT, EQ, LE, GE, NE };
enum class SELMODE : uint8_t { VSEL_CMPMASK_SPR = 0, VSEL_TENSOR_SCALAR_MODE, VSEL_TENSOR_TENSOR_MODE };
enum class ReduceType { NONE = -1, SUM = 0, MAX, MIN };
enum class ReduceOrder : uint8_t { ORDER_VALUE_INDEX = 0, ORDER_INDEX_VALUE, ORDER_ONLY_VALUE, ORDER_ONLY_INDEX };
enum class MaskMode : uint8_t { NORMAL = 0, COUNTER };
enum class GatherMaskMode : uint8_t { VERSION_V1 = 0, VERSION_V2 = 1 };
constexpr GatherMaskMode defaultGatherMaskMode = GatherMaskMode::VERSION_V2;
enum class CacheLine : uint64_t { SINGLE_CACHE_LINE = 0, ENTIRE_DATA_CACHE };
enum class DcciDst : uint64_t { CACHELINE_ALL = 0, CACHELINE_UB, CACHELINE_OUT, CACHELINE_ATOMIC };
enum class CacheMode { CACHE_MODE_DISABLE = 0, CACHE_MODE_NORMAL = 1, CACHE_MODE_LAST = 2, CACHE_MODE_PERSISTENT = 4 };
enum class CacheRwMode { READ = 1, WRITE = 2, RW = 3 };
enum class MemDsbT : uint8_t { ALL = 0, DDR, UB, SEQ };
enum class HF32Mode { ENABLE, DISABLE };

constexpr uint64_t MASK_PLACEHOLDER = 0;
constexpr uint64_t MASK_PLACEHOLDER_LIST[2] = {0, 0};
constexpr int32_t BLOCK_CUBE = 16;
constexpr uint16_t ONE_BLK_SIZE = 32;
constexpr int32_t ONE_REPEAT_BYTE_SIZE = 256;
constexpr int32_t DEFAULT_BLK_NUM = 8;
constexpr int32_t DEFAULT_BLK_STRIDE = 1;
constexpr uint8_t DEFAULT_REPEAT_STRIDE = 8;
constexpr uint8_t HALF_DEFAULT_REPEAT_STRIDE = 4;
constexpr int32_t MAX_REPEAT_TIMES = 255;
constexpr uint32_t TOTAL_UB_SIZE = 192 * 1024;
constexpr uint32_t TMP_UB_OFFSET = 184 * 1024;

namespace detail {

template <class T, class... List>
constexpr bool kIsOneOf = (std::is_same_v<T, List> || ...);
template <class T>
constexpr bool kIsFloat = kIsOneOf<T, half, float>;
template <class T>
constexpr bool kIsArithmetic = kIsOneOf<T, half, float, int16_t, int32_t>;

constexpr hostsim::Mem MemOf(TPosition position) {
  switch (position) {
    case TPosition::A1:
    case TPosition::B1:
    case TPosition::C1:
    case TPosition::TSCM:
      return hostsim::Mem::kL1;
    case TPosition::A2:
      return hostsim::Mem::kL0A;
    case TPosition::B2:
      return hostsim::Mem::kL0B;
    case TPosition::CO1:
      return hostsim::Mem::kL0C;
    case TPosition::C2:
      return hostsim::Mem::kBias;
    case TPosition::C2PIPE2GM:
      return hostsim::Mem::kFixbuf;
    case TPosition::GM:
    case TPosition::CO2:
      return hostsim::Mem::kGm;
    default:
      return hostsim::Mem::kUb;
  }
}

constexpr TPosition DefaultPosition(Hardware hardware) {
  switch (hardware) {
    case Hardware::L1:
      return TPosition::A1;
    case Hardware::L0A:
      return TPosition::A2;
    case Hardware::L0B:
      return TPosition::B2;
    case Hardware::L0C:
      return TPosition::CO1;
    case Hardware::BIAS:
      return TPosition::C2;
    case Hardware::FIXBUF:
      return TPosition::C2PIPE2GM;
    default:
      return TPosition::VECCALC;
  }
}

constexpr hostsim::Pipe PipeOf(pipe_t pipe) {
  return pipe == PIPE_FIX ? hostsim::Pipe::kFix : static_cast<hostsim::Pipe>(pipe);
}

struct PipePair {
  hostsim::Pipe from;
  hostsim::Pipe to;
};
constexpr PipePair PipesOf(HardEvent event) {
  using P = hostsim::Pipe;
  constexpr PipePair kPairs[] = {
      {P::kMte2, P::kMte1}, {P::kMte1, P::kMte2}, {P::kMte1, P::kM},    {P::kM, P::kMte1},   {P::kMte2, P::kV},
      {P::kV, P::kMte2},    {P::kMte3, P::kV},    {P::kV, P::kMte3},    {P::kM, P::kV},      {P::kV, P::kM},
      {P::kV, P::kV},       {P::kMte3, P::kMte1}, {P::kMte1, P::kMte3}, {P::kMte1, P::kV},   {P::kMte2, P::kM},
      {P::kM, P::kMte2},    {P::kV, P::kMte1},    {P::kM, P::kFix},     {P::kFix, P::kM},    {P::kMte3, P::kMte2},
      {P::kMte2, P::kMte3}, {P::kS, P::kV},       {P::kV, P::kS},       {P::kS, P::kMte2},   {P::kMte2, P::kS},
      {P::kS, P::kMte3},    {P::kMte3, P::kS},    {P::kMte2, P::kFix},  {P::kFix, P::kMte2}, {P::kFix, P::kS},
      {P::kM, P::kS},       {P::kFix, P::kMte3},  {P::kMte1, P::kFix},  {P::kFix, P::kMte1}, {P::kFix, P::kFix},
  };
  return kPairs[static_cast<int>(event)];
}

constexpr hostsim::Round RoundOf(RoundMode mode) {
  constexpr hostsim::Round kModes[] = {hostsim::Round::kNone, hostsim::Round::kRint,  hostsim::Round::kFloor,
                                       hostsim::Round::kCeil, hostsim::Round::kRound, hostsim::Round::kTrunc,
                                       hostsim::Round::kOdd};
  return kModes[static_cast<int>(mode)];
}

}  // namespace detail
}  // namespace AscendC
