// Parameter structures. Field order, types and defaults are those of the interface, so that brace initialisers mean
// the same and narrow where they would narrow on the device.
#pragma once

#include "ascendc/enums.h"

namespace AscendC {

struct UnaryRepeatParams {
  UnaryRepeatParams() {}
  UnaryRepeatParams(const uint16_t dst_blk, const uint16_t src_blk, const uint8_t dst_rep, const uint8_t src_rep)
      : dstBlkStride(dst_blk), srcBlkStride(src_blk), dstRepStride(dst_rep), srcRepStride(src_rep) {}
  uint32_t blockNumber = DEFAULT_BLK_NUM;
  uint16_t dstBlkStride = DEFAULT_BLK_STRIDE;
  uint16_t srcBlkStride = DEFAULT_BLK_STRIDE;
  uint8_t dstRepStride = DEFAULT_REPEAT_STRIDE;
  uint8_t srcRepStride = DEFAULT_REPEAT_STRIDE;
};

struct BinaryRepeatParams {
  BinaryRepeatParams() {}
  BinaryRepeatParams(const uint8_t dst_blk, const uint8_t src0_blk, const uint8_t src1_blk, const uint8_t dst_rep,
                     const uint8_t src0_rep, const uint8_t src1_rep)
      : dstBlkStride(dst_blk),
        src0BlkStride(src0_blk),
        src1BlkStride(src1_blk),
        dstRepStride(dst_rep),
        src0RepStride(src0_rep),
        src1RepStride(src1_rep) {}
  uint32_t blockNumber = DEFAULT_BLK_NUM;
  uint8_t dstBlkStride = DEFAULT_BLK_STRIDE;
  uint8_t src0BlkStride = DEFAULT_BLK_STRIDE;
  uint8_t src1BlkStride = DEFAULT_BLK_STRIDE;
  uint8_t dstRepStride = DEFAULT_REPEAT_STRIDE;
  uint8_t src0RepStride = DEFAULT_REPEAT_STRIDE;
  uint8_t src1RepStride = DEFAULT_REPEAT_STRIDE;
};

struct BrcbRepeatParams {
  BrcbRepeatParams() {}
  BrcbRepeatParams(const uint16_t dst_blk, const uint16_t dst_rep) : dstRepStride(dst_rep), dstBlkStride(dst_blk) {}
  uint32_t blockNumber = DEFAULT_BLK_NUM;
  uint16_t dstRepStride = DEFAULT_REPEAT_STRIDE;
  uint16_t dstBlkStride = DEFAULT_BLK_STRIDE;
};

struct GatherRepeatParams {
  GatherRepeatParams() {}
  GatherRepeatParams(const uint8_t dst_blk, const uint8_t dst_rep) : dstRepStride(dst_rep), dstBlkStride(dst_blk) {}
  uint32_t blockNumber = DEFAULT_BLK_NUM;
  uint16_t dstRepStride = DEFAULT_REPEAT_STRIDE;
  uint8_t dstBlkStride = DEFAULT_BLK_STRIDE;
};

struct GatherMaskParams {
  GatherMaskParams() {}
  GatherMaskParams(const uint8_t src0_blk, const uint16_t repeats, const uint16_t src0_rep, const uint8_t src1_rep)
      : src0BlockStride(src0_blk), repeatTimes(repeats), src0RepeatStride(src0_rep), src1RepeatStride(src1_rep) {}
  uint8_t src0BlockStride = DEFAULT_BLK_STRIDE;
  uint16_t repeatTimes = 0;
  uint16_t src0RepeatStride = DEFAULT_REPEAT_STRIDE;
  uint8_t src1RepeatStride = DEFAULT_REPEAT_STRIDE;
};

struct CopyRepeatParams {
  CopyRepeatParams() {}
  CopyRepeatParams(const uint16_t dst_blk, const uint16_t src_blk, uint16_t dst_rep, uint16_t src_rep)
      : dstStride(dst_blk), srcStride(src_blk), dstRepeatSize(dst_rep), srcRepeatSize(src_rep) {}
  uint16_t dstStride = 0;
  uint16_t srcStride = 0;
  uint16_t dstRepeatSize = DEFAULT_REPEAT_STRIDE;
  uint16_t srcRepeatSize = DEFAULT_REPEAT_STRIDE;
};

struct DataCopyParams {
  DataCopyParams() {}
  DataCopyParams(const uint16_t count, const uint16_t len, const uint16_t src_gap, const uint16_t dst_gap)
      : blockCount(count), blockLen(len), srcGap(src_gap), dstGap(dst_gap) {}
  uint16_t blockCount = 1;
  uint16_t blockLen = 0;
  union {
    uint16_t srcGap = 0;
    uint16_t srcStride;  // older name
  };
  union {
    uint16_t dstGap = 0;
    uint16_t dstStride;  // older name
  };
};

struct DataCopyExtParams {
  DataCopyExtParams() {}
  DataCopyExtParams(const uint16_t count, const uint32_t len, const uint32_t src_stride, const uint32_t dst_stride,
                    const uint32_t reserved)
      : blockCount(count), blockLen(len), srcStride(src_stride), dstStride(dst_stride), rsv(reserved) {}
  uint16_t blockCount = 1;
  uint32_t blockLen = 0;
  uint32_t srcStride = 0;
  uint32_t dstStride = 0;
  uint32_t rsv = 0;
};

struct DataCopyPadParams {
  DataCopyPadParams() {}
  DataCopyPadParams(const bool pad, const uint8_t left, const uint8_t right, const uint64_t value)
      : isPad(pad), leftPadding(left), rightPadding(right), paddingValue(value) {}
  bool isPad = false;
  uint8_t leftPadding = 0;
  uint8_t rightPadding = 0;
  uint64_t paddingValue = 0;
};

template <typename T>
struct DataCopyPadExtParams {
  DataCopyPadExtParams() {}
  DataCopyPadExtParams(const bool pad, const uint8_t left, const uint8_t right, T value)
      : isPad(pad), leftPadding(left), rightPadding(right), paddingValue(value) {}
  bool isPad = false;
  uint8_t leftPadding = 0;
  uint8_t rightPadding = 0;
  T paddingValue = 0;
};

struct Nd2NzParams {
  Nd2NzParams() {}
  Nd2NzParams(const uint16_t nd_num, const uint16_t n, const uint16_t d, const uint16_t src_nd_matrix_stride,
              const uint16_t src_d, const uint16_t dst_c0_stride, const uint16_t dst_n_stride,
              const uint16_t dst_matrix_stride)
      : ndNum(nd_num),
        nValue(n),
        dValue(d),
        srcNdMatrixStride(src_nd_matrix_stride),
        srcDValue(src_d),
        dstNzC0Stride(dst_c0_stride),
        dstNzNStride(dst_n_stride),
        dstNzMatrixStride(dst_matrix_stride) {}
  uint16_t ndNum = 0;
  uint16_t nValue = 0;
  uint16_t dValue = 0;
  uint16_t srcNdMatrixStride = 0;
  uint16_t srcDValue = 0;
  uint16_t dstNzC0Stride = 0;
  uint16_t dstNzNStride = 0;
  uint16_t dstNzMatrixStride = 0;
};

struct LoadData2DParams {
  LoadData2DParams() {}
  LoadData2DParams(const uint16_t start, const uint8_t repeats, const uint16_t src_stride, const uint8_t sid_in,
                   const uint16_t dst_gap, const bool transpose, const uint8_t addr_mode)
      : startIndex(start),
        dstGap(dst_gap),
        srcStride(src_stride),
        ifTranspose(transpose),
        repeatTimes(repeats),
        sid(sid_in),
        addrMode(addr_mode) {}
  uint16_t startIndex = 0;
  uint16_t dstGap = 0;
  uint16_t srcStride = 0;
  bool ifTranspose = 0;
  uint8_t repeatTimes = 0;
  uint8_t sid = 0;
  uint8_t addrMode = 0;
};
using LoadData2dParams = LoadData2DParams;

struct LoadData2dTransposeParams {
  LoadData2dTransposeParams() {}
  LoadData2dTransposeParams(const uint16_t start, const uint8_t repeats, const uint16_t src_stride,
                            const uint16_t dst_gap, const uint16_t dst_frac_gap, const uint8_t addr_mode)
      : startIndex(start),
        repeatTimes(repeats),
        srcStride(src_stride),
        dstGap(dst_gap),
        dstFracGap(dst_frac_gap),
        addrMode(addr_mode) {}
  LoadData2dTransposeParams(const uint16_t start, const uint8_t repeats, const uint16_t src_stride,
                            const uint16_t dst_gap, const uint16_t dst_frac_gap)
      : LoadData2dTransposeParams(start, repeats, src_stride, dst_gap, dst_frac_gap, 0) {}
  uint16_t startIndex = 0;
  uint8_t repeatTimes = 0;
  uint16_t srcStride = 0;
  uint16_t dstGap = 0;
  uint16_t dstFracGap = 0;
  uint8_t addrMode = 0;
};

struct MmadParams {
  MmadParams() {}
  MmadParams(const uint16_t m_in, const uint16_t n_in, const uint16_t k_in, const bool is_bias, const int32_t fm_offset,
             const bool sparse, const bool winograd_a, const bool winograd_b)
      : m(m_in),
        n(n_in),
        k(k_in),
        isBias(is_bias),
        fmOffset(fm_offset),
        enSsparse(sparse),
        enWinogradA(winograd_a),
        enWinogradB(winograd_b) {}
  MmadParams(const uint16_t m_in, const uint16_t n_in, const uint16_t k_in, const uint8_t unit_flag,
             const bool c_source, const bool c_init)
      : m(m_in), n(n_in), k(k_in), unitFlag(unit_flag), cmatrixSource(c_source), cmatrixInitVal(c_init) {}
  uint16_t m = 0;
  uint16_t n = 0;
  uint16_t k = 0;
  bool isBias = false;
  int32_t fmOffset = 0;
  bool enSsparse = false;
  bool enWinogradA = false;
  bool enWinogradB = false;
  uint8_t unitFlag = 0;
  bool kDirectionAlign = false;
  bool cmatrixSource = false;
  bool cmatrixInitVal = true;
  bool disableGemv = false;
};

enum class CO2Layout : uint8_t { NZ = 0, ROW_MAJOR, COLUMN_MAJOR };

struct FixpipeConfig {
  CO2Layout format;
  bool isToUB;
  constexpr FixpipeConfig(CO2Layout format_in) : format(format_in), isToUB(false) {}
  constexpr FixpipeConfig(CO2Layout format_in, bool to_ub) : format(format_in), isToUB(to_ub) {}
};
constexpr FixpipeConfig CFG_NZ = {CO2Layout::NZ};
constexpr FixpipeConfig CFG_ROW_MAJOR = {CO2Layout::ROW_MAJOR};

struct FixpipeParamsV220 {
  FixpipeParamsV220() {}
  FixpipeParamsV220(const uint16_t n, const uint16_t m, const uint16_t src_stride, const uint32_t dst_stride,
                    const bool relu)
      : nSize(n), mSize(m), srcStride(src_stride), dstStride(dst_stride), reluEn(relu) {}
  FixpipeParamsV220(const uint16_t n, const uint16_t m, const uint16_t src_stride, const uint32_t dst_stride,
                    const bool relu, const QuantMode_t quant, const int64_t deq, const uint16_t nd_num,
                    const uint16_t src_nd_stride, const uint16_t dst_nd_stride, const uint8_t unit_flag)
      : nSize(n),
        mSize(m),
        srcStride(src_stride),
        dstStride(dst_stride),
        quantPre(quant),
        deqScalar(static_cast<uint64_t>(deq)),
        ndNum(nd_num),
        srcNdStride(src_nd_stride),
        dstNdStride(dst_nd_stride),
        reluEn(relu),
        unitFlag(unit_flag) {}
  uint16_t nSize = 0;
  uint16_t mSize = 0;
  uint16_t srcStride = 0;
  uint32_t dstStride = 0;
  QuantMode_t quantPre = QuantMode_t::NoQuant;
  uint64_t deqScalar = 0;
  uint16_t ndNum = 1;
  uint16_t srcNdStride = 0;
  uint16_t dstNdStride = 0;
  bool reluEn = false;
  uint8_t unitFlag = 0;
  bool isChannelSplit = false;
};

template <typename T>
struct InitConstValueParams {
  InitConstValueParams() {}
  InitConstValueParams(const uint16_t repeats, const uint16_t blocks, const uint16_t dst_gap, const T value)
      : repeatTimes(repeats), blockNum(blocks), dstGap(dst_gap), initValue(value) {}
  InitConstValueParams(const uint16_t repeats, const T value) : repeatTimes(repeats), initValue(value) {}
  uint16_t repeatTimes = 0;
  uint16_t blockNum = 0;
  uint16_t dstGap = 0;
  T initValue = 0;
};

}  // namespace AscendC
