// Partial results to whole ones, by their log-sum-exp: the splits of tree attention, and merge_attention.
// A core takes at once rows that are whole 32-byte lines of `out` and `lse`.
#pragma once

#include "kernels/ascendc/tree_attention/rows.h"
#include "kernels/ascendc/tree_attention/schedule.h"

namespace specdec::ascendc {

constexpr uint32_t kMergeLanes = kMergeRows * kRowBlock;

// Rows that no request covers become 0 with lse -inf; a sink is one more part of a row's weights.
template <typename T>
class TreeAttentionMerge {
 public:
  __aicore__ inline void Init(const TreeAttentionArguments& a, const TreeAttentionTiling& tiling) {
    tiling_ = &tiling;
    const TreeAttentionShape& shape = tiling.shape;
    requests_.Init(a, shape);
    width_ = AlignUp(shape.d_v, 16);
    rows_ = tiling.merge_rows;
    lanes_ = rows_ * kRowBlock;
    total_ = shape.num_nodes * shape.heads;
    has_sinks_ = a.sinks != nullptr;
    if (has_sinks_) sinks_gm_.SetGlobalBuffer((__gm__ float*)a.sinks, shape.heads);
    __gm__ uint8_t* workspace = (__gm__ uint8_t*)a.workspace;
    outputs_gm_.SetGlobalBuffer((__gm__ float*)(workspace + tiling.workspace.outputs), tiling.splits * total_ * width_);
    parts_gm_.SetGlobalBuffer((__gm__ float*)(workspace + tiling.workspace.lse), tiling.splits * total_ * kRowBlock);
    out_gm_.SetGlobalBuffer((__gm__ T*)a.out, total_ * shape.d_v);
    lse_gm_.SetGlobalBuffer((__gm__ float*)a.lse, total_);

    AscendC::LocalMemAllocator<AscendC::Hardware::UB> ub;
    out_ = ub.Alloc<float>(rows_ * width_);
    outputs_[0] = ub.Alloc<float>(rows_ * width_);
    outputs_[1] = ub.Alloc<float>(rows_ * width_);
    narrow_ = ub.Alloc<T>(rows_ * width_);
    parts_ = ub.Alloc<float>((tiling.splits + 1) * lanes_);
    lse_ = ub.Alloc<float>(lanes_);
    top_ = ub.Alloc<float>(2 * lanes_);
    sinks_ = ub.Alloc<float>(rows_);
    packed_ = ub.Alloc<float>(rows_);
  }

  __aicore__ inline void Process() {
    const uint64_t cores = uint64_t{2} * tiling_->cores;
    Request request;
    bool have = requests_.Next(request);
    AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(kStored);
    for (uint64_t unit = static_cast<uint64_t>(AscendC::GetBlockIdx()); unit * rows_ < total_; unit += cores) {
      const int64_t begin = static_cast<int64_t>(unit * rows_);
      const int64_t end = Lesser<int64_t>(begin + rows_, total_);
      AscendC::Duplicate(out_, 0.0f, static_cast<int32_t>(rows_ * width_));
      FillMinusInfinity(lse_, lanes_);
      Barrier();
      for (int64_t row = begin; row < end;) {
        const int64_t heads = tiling_->shape.heads;
        while (have && (request.first + request.nodes) * heads <= row) have = requests_.Next(request);
        if (!have || request.first * heads >= end) break;
        row = Greater(row, request.first * heads);
        const int64_t stop = Lesser(end, (request.first + request.nodes) * heads);
        MergeRequest(request, static_cast<uint32_t>(row - begin), row, static_cast<uint32_t>(stop - row));
        row = stop;
      }
      StoreRows(begin, static_cast<uint32_t>(end - begin));
    }
    AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(kStored);
  }

 private:
  // Flags: the rows before have left; weights are there; 0 and 1 are the parts' buffers.
  static constexpr int32_t kStored = 0, kWeights = 2;

  __aicore__ inline void MergeRequest(const Request& request, uint32_t at, uint64_t row, uint32_t rows) {
    const uint32_t splits = SplitsOf(request, *tiling_), lanes = rows * kRowBlock;
    uint32_t parts = splits;
    AscendC::DataCopyPad(parts_, parts_gm_[row * kRowBlock],
                         AscendC::DataCopyExtParams(static_cast<uint16_t>(splits), lanes * 4,
                                                    static_cast<uint32_t>((total_ - rows) * kRowBlock * 4), 0, 0),
                         AscendC::DataCopyPadExtParams<float>(false, 0, 0, 0));
    AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(kWeights);
    for (uint32_t i = 0; i < 2 && i < splits; ++i) LoadPart(i, row, rows);
    if (has_sinks_) {
      Order<AscendC::HardEvent::V_S>();
      for (uint32_t i = 0; i < rows; ++i) {
        sinks_.SetValue(i, sinks_gm_.GetValue((row + i) % tiling_->shape.heads));
      }
      for (uint32_t i = rows; i < rows_; ++i) sinks_.SetValue(i, 0.0f);
      Order<AscendC::HardEvent::S_V>();
      Spread(parts_[splits * lanes], sinks_, rows_);
      ++parts;
    }
    AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(kWeights);
    Barrier();
    MergeWeights(parts_, parts, lanes, lse_[at * kRowBlock], top_);
    for (uint32_t i = 0; i < splits; ++i) {
      const AscendC::LocalTensor<float>& part = outputs_[i % 2];
      const int32_t id = static_cast<int32_t>(i % 2);
      AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(id);
      ByRow<RowOp::kMul>(part, parts_[i * lanes], rows, width_);
      Barrier();
      AscendC::Add(out_[at * width_], out_[at * width_], part, static_cast<int32_t>(rows * width_));
      Barrier();
      Order<AscendC::HardEvent::V_MTE2>(id);
      if (i + 2 < splits) LoadPart(i + 2, row, rows);
    }
  }

  __aicore__ inline void LoadPart(uint32_t i, uint64_t row, uint32_t rows) {
    AscendC::DataCopy(outputs_[i % 2], outputs_gm_[(i * total_ + row) * width_], rows * width_);
    AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(static_cast<int32_t>(i % 2));
  }

  __aicore__ inline void StoreRows(uint64_t row, uint32_t rows) {
    const uint32_t d_v = tiling_->shape.d_v, bytes = d_v * static_cast<uint32_t>(sizeof(T));
    AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(kStored);
    Narrow(narrow_, out_, rows_ * width_);
    Fold<true>(packed_, lse_, lanes_ / kLanes);
    Order<AscendC::HardEvent::V_MTE3>();
    const uint32_t gap = (width_ * static_cast<uint32_t>(sizeof(T)) - AlignUp(bytes, kBlockBytes)) / kBlockBytes;
    AscendC::DataCopyPad(out_gm_[row * d_v], narrow_,
                         AscendC::DataCopyExtParams(static_cast<uint16_t>(rows), bytes, gap, 0, 0));
    Store(lse_gm_[row], packed_, rows);
    AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(kStored);
  }

  const TreeAttentionTiling* tiling_;
  Requests requests_;
  AscendC::GlobalTensor<float> sinks_gm_, outputs_gm_, parts_gm_, lse_gm_;
  AscendC::GlobalTensor<T> out_gm_;
  AscendC::LocalTensor<float> out_, outputs_[2], parts_, lse_, top_, sinks_, packed_;
  AscendC::LocalTensor<T> narrow_;
  uint64_t total_;
  uint32_t width_, rows_, lanes_;
  bool has_sinks_;
};

template <typename T>
class MergeAttention {
 public:
  __aicore__ inline void Init(GM_ADDR out_a, GM_ADDR lse_a, GM_ADDR out_b, GM_ADDR lse_b, GM_ADDR out, GM_ADDR lse,
                              const MergeAttentionTiling& tiling) {
    tiling_ = tiling;
    const uint64_t size = tiling.rows * tiling.dim;
    parts_gm_[0].SetGlobalBuffer((__gm__ T*)out_a, size);
    parts_gm_[1].SetGlobalBuffer((__gm__ T*)out_b, size);
    lses_gm_[0].SetGlobalBuffer((__gm__ float*)lse_a, tiling.rows);
    lses_gm_[1].SetGlobalBuffer((__gm__ float*)lse_b, tiling.rows);
    out_gm_.SetGlobalBuffer((__gm__ T*)out, size);
    lse_gm_.SetGlobalBuffer((__gm__ float*)lse, tiling.rows);

    AscendC::LocalMemAllocator<AscendC::Hardware::UB> ub;
    for (uint32_t i = 0; i < 2; ++i) {
      part_[i] = ub.Alloc<T>(kMergeRows * kColumnsAtOnce);
      wide_[i] = ub.Alloc<float>(kMergeRows * kColumnsAtOnce);
      lses_[i] = ub.Alloc<float>(kMergeRows);
    }
    weights_ = ub.Alloc<float>(2 * kMergeLanes);
    lse_ = ub.Alloc<float>(kMergeLanes);
    top_ = ub.Alloc<float>(2 * kMergeLanes);
    packed_ = ub.Alloc<float>(kMergeRows);
    weighty_ = ub.Alloc<uint8_t>(2 * kMergeLanes / 8);
    ones_ = ub.Alloc<float>(2 * kMergeLanes);
    kept_ = ub.Alloc<float>(2 * kMergeLanes);
  }

  __aicore__ inline void Process() {
    AscendC::Duplicate(ones_.ReinterpretCast<uint32_t>(), uint32_t{0xffffffff}, static_cast<int32_t>(2 * kMergeLanes));
    AscendC::Duplicate(lses_[0], 0.0f, static_cast<int32_t>(kMergeRows));
    AscendC::Duplicate(lses_[1], 0.0f, static_cast<int32_t>(kMergeRows));
    for (uint64_t row = static_cast<uint64_t>(AscendC::GetBlockIdx()) * kMergeRows; row < tiling_.rows;
         row += uint64_t{tiling_.cores} * kMergeRows) {
      MergeRows(row, static_cast<uint32_t>(Lesser<uint64_t>(tiling_.rows - row, kMergeRows)));
    }
  }

 private:
  static constexpr uint32_t kColumnsAtOnce = 512;

  __aicore__ inline void MergeRows(uint64_t row, uint32_t rows) {
    Order<AscendC::HardEvent::V_MTE2>();
    for (uint32_t i = 0; i < 2; ++i) Load(lses_[i], lses_gm_[i][row], rows);
    Order<AscendC::HardEvent::MTE2_V>();
    for (uint32_t i = 0; i < 2; ++i) Spread(weights_[i * kMergeLanes], lses_[i], kMergeRows);
    Barrier();
    MergeWeights(weights_, 2, kMergeLanes, lse_, top_);
    AscendC::Compares(weighty_, weights_, 0.0f, AscendC::CMPMODE::NE, 2 * kMergeLanes);
    Barrier();
    AscendC::Select(kept_, weighty_, ones_, 0.0f, AscendC::SELMODE::VSEL_TENSOR_SCALAR_MODE, 2 * kMergeLanes);
    Fold<true>(packed_, lse_, kMergeLanes / kLanes);
    Order<AscendC::HardEvent::V_MTE3>();
    Store(lse_gm_[row], packed_, rows);
    for (uint32_t column = 0; column < tiling_.dim; column += kColumnsAtOnce) {
      MergeColumns(row, rows, column, Lesser(kColumnsAtOnce, tiling_.dim - column));
    }
    Order<AscendC::HardEvent::MTE3_V>();
  }

  __aicore__ inline void MergeColumns(uint64_t row, uint32_t rows, uint32_t column, uint32_t columns) {
    const uint32_t width = AlignUp(columns, BlockOf<T>());
    const uint32_t bytes = columns * static_cast<uint32_t>(sizeof(T));
    const uint32_t gap = (tiling_.dim - columns) * static_cast<uint32_t>(sizeof(T));
    const uint64_t at = row * tiling_.dim + column;
    const int32_t count = static_cast<int32_t>(rows * width);
    Order<AscendC::HardEvent::MTE3_V>();  // the columns before have left
    Order<AscendC::HardEvent::V_MTE2>();
    for (uint32_t i = 0; i < 2; ++i) {
      AscendC::DataCopyPad(part_[i], parts_gm_[i][at],
                           AscendC::DataCopyExtParams(static_cast<uint16_t>(rows), bytes, gap, 0, 0),
                           AscendC::DataCopyPadExtParams<T>(true, 0, static_cast<uint8_t>(width - columns), T(0.0f)));
    }
    Order<AscendC::HardEvent::MTE2_V>();
    for (uint32_t i = 0; i < 2; ++i) {
      if constexpr (sizeof(T) == 4) {
        AscendC::DataCopy(wide_[i], part_[i], static_cast<uint32_t>(count));
      } else {
        AscendC::Cast(wide_[i], part_[i], AscendC::RoundMode::CAST_NONE, static_cast<uint32_t>(count));
      }
    }
    Barrier();
    for (uint32_t i = 0; i < 2; ++i) ByRow<RowOp::kAnd>(wide_[i], kept_[i * kMergeLanes], rows, width);
    Barrier();
    for (uint32_t i = 0; i < 2; ++i) ByRow<RowOp::kMul>(wide_[i], weights_[i * kMergeLanes], rows, width);
    Barrier();
    AscendC::Add(wide_[0], wide_[0], wide_[1], count);
    Barrier();
    Narrow(part_[0], wide_[0], static_cast<uint32_t>(count));
    Order<AscendC::HardEvent::V_MTE3>();
    AscendC::DataCopyPad(out_gm_[at], part_[0],
                         AscendC::DataCopyExtParams(static_cast<uint16_t>(rows), bytes, 0, gap, 0));
  }

  MergeAttentionTiling tiling_;
  AscendC::GlobalTensor<T> parts_gm_[2], out_gm_;
  AscendC::GlobalTensor<float> lses_gm_[2], lse_gm_;
  AscendC::LocalTensor<T> part_[2];
  AscendC::LocalTensor<float> wide_[2], lses_[2], weights_, lse_, top_, packed_;
  // What has no weight may be anything, also a NaN: `kept_` has the bits of a part's row that may stay, all or none.
  AscendC::LocalTensor<float> ones_, kept_;
  AscendC::LocalTensor<uint8_t> weighty_;
};

}  // namespace specdec::ascendc
