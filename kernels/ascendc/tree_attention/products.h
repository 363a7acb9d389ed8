// The cube core's half of tree attention: S = Q K^T and P V, one item of the schedule after the other.
//
// K V tiles are loaded once for all rows of the task. S, P and P V pass between cube and vector cores through three
// places each in the workspace, in L2; a row of P takes the place of its scores. While the vector cores turn S of item
// i into P, S of item i + 1 is there for them to load, and the cube core is at S of item i + 2, then P V of item i - 1.
// P of item i tells the cube core that S of item i and P V of item i - 3 were read: neither needs a flag for a free
// place.
#pragma once

#include "kernels/ascendc/tree_attention/schedule.h"

namespace specdec::ascendc {

template <typename T, bool kQuantized>
class TreeAttentionProducts {
 public:
  __aicore__ inline void Init(const TreeAttentionArguments& a, const TreeAttentionTiling& tiling) {
    tiling_ = &tiling;
    const TreeAttentionShape& shape = tiling.shape;
    const uint32_t block = static_cast<uint32_t>(AscendC::GetBlockIdx());
    schedule_.Init(a, tiling, block);
    table_.Init(a, shape);
    group_ = shape.heads / shape.kv_heads;
    qk_fractals_ = CeilDiv(shape.d_qk, kDepth);
    v_blocks_ = CeilDiv(shape.d_v, kSide);
    tile_blocks_ = tiling.tile / kSide;

    q_.SetGlobalBuffer((__gm__ T*)a.q);
    if constexpr (kQuantized) {
      const uint64_t place = uint64_t{kConvertedTiles} * tiling.tile;
      k_width_ = AlignUp(shape.d_qk, 32);
      v_width_ = AlignUp(shape.d_v, 32);
      k_.SetGlobalBuffer((__gm__ T*)((__gm__ uint8_t*)a.workspace + tiling.workspace.keys) + block * place * k_width_);
      v_.SetGlobalBuffer((__gm__ T*)((__gm__ uint8_t*)a.workspace + tiling.workspace.values) +
                         block * place * v_width_);
    } else {
      k_.SetGlobalBuffer((__gm__ T*)a.k_cache);
      v_.SetGlobalBuffer((__gm__ T*)a.v_cache);
    }
    __gm__ uint8_t* workspace = (__gm__ uint8_t*)a.workspace;
    const uint64_t step = uint64_t{tiling.step_rows} * tiling.tile;
    scores_.SetGlobalBuffer((__gm__ float*)(workspace + tiling.workspace.scores) + block * kInFlight * step);
    products_.SetGlobalBuffer((__gm__ float*)(workspace + tiling.workspace.products) +
                              uint64_t{block} * kInFlight * tiling.step_rows * v_blocks_ * kSide);

    using AscendC::LocalTensor;
    using AscendC::TPosition;
    const uint32_t d_qk = AlignUp(shape.d_qk, kSide), d_v = v_blocks_ * kSide;
    q_l1_ = LocalTensor<T>(TPosition::A1, tiling.l1.queries, tiling.rows * d_qk);
    k_l1_ = LocalTensor<T>(TPosition::A1, tiling.l1.keys, tiling.places * tiling.tile * d_qk);
    p_l1_ = LocalTensor<T>(TPosition::A1, tiling.l1.probabilities, tiling.step_rows * tiling.tile);
    k_place_ = tiling.tile * d_qk;
    v_place_ = shape.values_in_keys ? k_place_ : tiling.tile * d_v;
    v_l1_ = k_l1_;
    if (!shape.values_in_keys) {
      v_l1_ = LocalTensor<T>(TPosition::A1, tiling.l1.values, tiling.places * v_place_);
    }
    a_l0_ = LocalTensor<T>(TPosition::A2, 0, 2 * kL0Place);
    b_l0_ = LocalTensor<T>(TPosition::B2, 0, 2 * kL0Place);
    c_l0_ = LocalTensor<float>(TPosition::CO1, 0, 2 * kProductPlace);
  }

  __aicore__ inline void Process() {
    SetAll();
    if constexpr (sizeof(T) == 4) ClearUnevenValues();
    const bool values_in_keys = tiling_->shape.values_in_keys;
    for (uint32_t i = 0; Has(i) || i < found_ + kInFlight; ++i) {
      const Item& previous = items_[(i - kInFlight) % kItems];
      if (i >= kInFlight) LoadProbabilities(previous);
      if (i >= kInFlight && values_in_keys) Outputs(previous);  // gives the tile's place to the next
      if (i < found_) {
        LoadKeys(items_[i % kItems]);
        Scores(items_[i % kItems]);
      }
      if (i >= kInFlight && !values_in_keys) Outputs(previous);
      // What is not waited for yet comes after the probabilities, which are.
      if (tiling_->load_ahead && Has(i + 1)) LoadKeys(items_[(i + 1) % kItems]);
      if (i + 1 >= kInFlight && i + 1 < found_ + kInFlight) LoadValues(items_[(i + 1 - kInFlight) % kItems]);
    }
    WaitAll();
  }

 private:
  static constexpr uint32_t kSide = 16;                                         // a fractal is 16 rows of 32 bytes
  static constexpr uint32_t kDepth = 32 / sizeof(T);                            // elements of such a row
  static constexpr uint32_t kFractal = kSide * kDepth;                          // elements
  static constexpr uint32_t kStepFractals = 8;                                  // of depth a step through L0
  static constexpr uint32_t kStepBlocks = 8;                                    // 16 x 8 rows or columns of a product
  static constexpr uint32_t kL0Place = kStepBlocks * kStepFractals * kFractal;  // half of L0A, of L0B
  static constexpr uint32_t kProductPlace = kStepBlocks * kStepBlocks * kSide * kSide;
  static constexpr uint32_t kMaxStride = 65535;                          // of rows in global memory
  static constexpr uint32_t kScoreElements = sizeof(float) / sizeof(T);  // probabilities in the place of a score
  // Flags of L1: MTE2 to MTE1 loaded, back free. Keys have one for each place, up to three where no others are values.
  static constexpr int32_t kKeys = 0, kValues = 2, kProbabilities = 4, kQueries = 5;

  __aicore__ inline void SetAll() {
    for (int32_t i = 0; i <= kQueries; ++i) AscendC::SetFlag<AscendC::HardEvent::MTE1_MTE2>(i);
    for (int32_t i = 0; i < 2; ++i) {
      AscendC::SetFlag<AscendC::HardEvent::M_MTE1>(i);
      AscendC::SetFlag<AscendC::HardEvent::FIX_M>(i);
    }
  }
  __aicore__ inline void WaitAll() {
    for (int32_t i = 0; i <= kQueries; ++i) AscendC::WaitFlag<AscendC::HardEvent::MTE1_MTE2>(i);
    for (int32_t i = 0; i < 2; ++i) {
      AscendC::WaitFlag<AscendC::HardEvent::M_MTE1>(i);
      AscendC::WaitFlag<AscendC::HardEvent::FIX_M>(i);
    }
  }

  __aicore__ inline bool Has(uint32_t item) {
    while (found_ <= item && schedule_.Next(items_[found_ % kItems])) {
      if (!items_[found_ % kItems].Empty()) ++found_;
    }
    return item < found_;
  }

  __aicore__ inline uint32_t StepRows(const Item& item) const {
    return AlignUp(Lesser(item.rows - item.step * tiling_->step_rows, tiling_->step_rows), kSide);
  }

  // Rows of global memory to the fractals of L1, `column` rows a column of fractals.
  __aicore__ inline void LoadRows(const AscendC::LocalTensor<T>& to, const AscendC::GlobalTensor<T>& from,
                                  uint32_t rows, uint64_t stride, uint32_t width, uint32_t column) {
    if (stride <= kMaxStride) {
      AscendC::DataCopy(to, from,
                        AscendC::Nd2NzParams(1, static_cast<uint16_t>(rows), static_cast<uint16_t>(width), 0,
                                             static_cast<uint16_t>(stride), static_cast<uint16_t>(column), 1, 0));
      return;
    }
    for (uint32_t i = 0; i < rows; ++i) {
      AscendC::DataCopy(
          to[i * kDepth], from[i * stride],
          AscendC::Nd2NzParams(1, 1, static_cast<uint16_t>(width), 0, 1, static_cast<uint16_t>(column), 1, 0));
    }
  }
  __aicore__ inline void ClearRows(const AscendC::LocalTensor<T>& to, uint32_t rows, uint32_t width, uint32_t column) {
    AscendC::Fill(
        to, AscendC::InitConstValueParams<T>(static_cast<uint16_t>(CeilDiv(width, kDepth)), static_cast<uint16_t>(rows),
                                             static_cast<uint16_t>(column - rows), T(0.0f)));
  }

  __aicore__ inline void LoadQueries(const Item& item) {
    const TreeAttentionShape& shape = tiling_->shape;
    AscendC::WaitFlag<AscendC::HardEvent::MTE1_MTE2>(kQueries);
    for (uint32_t at = 0; at < item.rows;) {
      const RowPiece piece = PieceOf(item.row + at, item.rows - at, group_);
      const uint64_t from = (item.request.first + piece.node) * shape.q_node +
                            (uint64_t{item.head} * group_ + piece.member) * shape.q_head;
      const bool even = shape.q_node <= kMaxStride && shape.q_head <= kMaxStride && group_ * kDepth <= kMaxStride;
      if (group_ == 1) {
        LoadRows(q_l1_[at * kDepth], q_[from], piece.nodes, shape.q_node, shape.d_qk, tiling_->rows);
      } else if (even) {
        AscendC::DataCopy(
            q_l1_[at * kDepth], q_[from],
            AscendC::Nd2NzParams(static_cast<uint16_t>(piece.nodes), static_cast<uint16_t>(piece.members),
                                 static_cast<uint16_t>(shape.d_qk), static_cast<uint16_t>(shape.q_node),
                                 static_cast<uint16_t>(shape.q_head), static_cast<uint16_t>(tiling_->rows), 1,
                                 static_cast<uint16_t>(group_ * kDepth)));
      } else {
        for (uint32_t i = 0; i < piece.nodes; ++i) {
          LoadRows(q_l1_[(at + i * group_) * kDepth], q_[from + i * shape.q_node], piece.members, shape.q_head,
                   shape.d_qk, tiling_->rows);
        }
      }
      at += piece.Rows();
    }
    const uint32_t padding = AlignUp(item.rows, kSide) - item.rows;
    if (padding > 0) ClearRows(q_l1_[item.rows * kDepth], padding, shape.d_qk, tiling_->rows);
    AscendC::SetFlag<AscendC::HardEvent::MTE2_MTE1>(kQueries);
    AscendC::WaitFlag<AscendC::HardEvent::MTE2_MTE1>(kQueries);
  }

  // The item's keys, unless they have been loaded.
  __aicore__ inline void LoadKeys(const Item& item) {
    if (item.tiles_before < keys_loaded_) return;
    keys_loaded_ = item.tiles_before + 1;
    if constexpr (kQuantized) AscendC::CrossCoreWaitFlag(kFlagConverted);
    const TreeAttentionShape& shape = tiling_->shape;
    const int32_t place = static_cast<int32_t>(item.tiles_before % tiling_->places);
    AscendC::WaitFlag<AscendC::HardEvent::MTE1_MTE2>(kKeys + place);
    LoadTile<false>(item, k_l1_[place * k_place_], shape.d_qk);
    AscendC::SetFlag<AscendC::HardEvent::MTE2_MTE1>(kKeys + place);
  }
  __aicore__ inline void LoadValues(const Item& item) {
    if (item.step != 0 || tiling_->shape.values_in_keys) return;
    const int32_t place = static_cast<int32_t>(item.tiles_before % tiling_->places);
    AscendC::WaitFlag<AscendC::HardEvent::MTE1_MTE2>(kValues + place);
    LoadTile<true>(item, v_l1_[place * v_place_], tiling_->shape.d_v);
    AscendC::SetFlag<AscendC::HardEvent::MTE2_MTE1>(kValues + place);
  }

  // Keys that are not in the cache become zeros: whoever sees them masks the scores, but 0 * NaN would be a NaN.
  template <bool kOfValues>
  __aicore__ inline void LoadTile(const Item& item, const AscendC::LocalTensor<T>& to, uint32_t width) {
    const int64_t slot = item.Slot(tiling_->tile);
    const uint32_t keys = item.Keys(tiling_->tile), padded = item.Columns(tiling_->tile);
    for (uint32_t at = 0; at < keys;) {
      const SlotRun run = table_.Find(item.request, slot + at, keys - at);
      if (run.block < 0) {
        PutTileRows<kOfValues, true>(to, at, run.count, width, 0, 0);
      } else if constexpr (kQuantized) {
        const uint64_t row_width = kOfValues ? v_width_ : k_width_;
        const uint64_t row = uint64_t{item.tiles_before % kConvertedTiles} * tiling_->tile + at;
        PutTileRows<kOfValues, false>(to, at, run.count, width, row * row_width, row_width);
      } else {
        const TreeAttentionShape& s = tiling_->shape;
        const uint64_t from = kOfValues ? run.block * s.v_block + run.offset * s.v_slot + item.head * s.v_head
                                        : run.block * s.k_block + run.offset * s.k_slot + item.head * s.k_head;
        PutTileRows<kOfValues, false>(to, at, run.count, width, from, kOfValues ? s.v_slot : s.k_slot);
      }
      at += run.count;
    }
    if (padded > keys) PutTileRows<kOfValues, true>(to, keys, padded - keys, width, 0, 0);
  }

  // Float values lie in groups of 16 rows, so that two fractals side by side follow each other: they are transposed
  // as squares of 16 x 16.
  template <bool kOfValues, bool kZeros>
  __aicore__ inline void PutTileRows(const AscendC::LocalTensor<T>& to, uint32_t at, uint32_t rows, uint32_t width,
                                     uint64_t from, uint64_t stride) {
    constexpr bool kGroups = kOfValues && sizeof(T) == 4;
    const uint32_t column = kGroups ? kSide : tiling_->tile;
    for (uint32_t end = at + rows; at < end; at += rows) {
      uint32_t start = at * kDepth;
      rows = end - at;
      if constexpr (kGroups) {
        start = at / kSide * kSide * v_blocks_ * kSide + at % kSide * kDepth;
        rows = Lesser(rows, kSide - at % kSide);
      }
      if constexpr (kZeros) {
        ClearRows(to[start], rows, width, column);
      } else {
        LoadRows(to[start], kOfValues ? v_[from] : k_[from], rows, stride, width, column);
        from += rows * stride;
      }
    }
  }
  // Where the values' width leaves the last square half empty, nothing ever writes that half.
  __aicore__ inline void ClearUnevenValues() {
    if (CeilDiv(tiling_->shape.d_v, kDepth) % 2 == 0) return;
    AscendC::Fill(v_l1_, AscendC::InitConstValueParams<T>(static_cast<uint16_t>(tiling_->places),
                                                          static_cast<uint16_t>(v_place_ / kDepth), 0, T(0.0f)));
    AscendC::PipeBarrier<PIPE_MTE2>();
  }

  __aicore__ inline void Scores(const Item& item) {
    const bool first = item.step == 0, last = item.step + 1 == schedule_.Steps(item);
    const int32_t place = static_cast<int32_t>(item.tiles_before % tiling_->places);
    if (first && item.tile == item.first_tile) LoadQueries(item);
    if (first) AscendC::WaitFlag<AscendC::HardEvent::MTE2_MTE1>(kKeys + place);
    const uint32_t rows = StepRows(item), columns = item.Columns(tiling_->tile);
    const AscendC::GlobalTensor<float> to =
        scores_[uint64_t{item.items_before % kInFlight} * tiling_->step_rows * tiling_->tile];
    for (uint32_t block = 0; block < columns / kSide; block += kStepBlocks) {
      Multiply<false>(q_l1_[item.step * tiling_->step_rows * kDepth], tiling_->rows / kSide, k_l1_[place * k_place_],
                      block, rows, Lesser(kStepBlocks, columns / kSide - block), qk_fractals_, to[block * kSide],
                      columns);
    }
    if (last) {
      if (!tiling_->shape.values_in_keys) AscendC::SetFlag<AscendC::HardEvent::MTE1_MTE2>(kKeys + place);
      if (item.tile + 1 == item.last_tile) AscendC::SetFlag<AscendC::HardEvent::MTE1_MTE2>(kQueries);
    }
    AscendC::CrossCoreSetFlag<2, PIPE_FIX>(kFlagScores);
  }

  // Scores that follow come to their place in the workspace.
  __aicore__ inline void LoadProbabilities(const Item& item) {
    AscendC::CrossCoreWaitFlag(kFlagProbabilities);
    const uint32_t rows = StepRows(item), columns = item.Columns(tiling_->tile);
    const uint64_t slot = item.items_before % kInFlight;
    AscendC::GlobalTensor<T> probabilities;
    probabilities.SetGlobalBuffer((__gm__ T*)scores_[slot * tiling_->step_rows * tiling_->tile].GetPhyAddr());
    AscendC::WaitFlag<AscendC::HardEvent::MTE1_MTE2>(kProbabilities);
    LoadRows(p_l1_, probabilities, rows, columns * kScoreElements, columns, tiling_->step_rows);
    AscendC::SetFlag<AscendC::HardEvent::MTE2_MTE1>(kProbabilities);
    Order<AscendC::HardEvent::MTE2_FIX>();
  }

  __aicore__ inline void Outputs(const Item& item) {
    const bool first = item.step == 0, last = item.step + 1 == schedule_.Steps(item);
    const int32_t place = static_cast<int32_t>(item.tiles_before % tiling_->places);
    const bool values_in_keys = tiling_->shape.values_in_keys;
    if (first && !values_in_keys) AscendC::WaitFlag<AscendC::HardEvent::MTE2_MTE1>(kValues + place);
    AscendC::WaitFlag<AscendC::HardEvent::MTE2_MTE1>(kProbabilities);
    const uint32_t rows = StepRows(item), columns = item.Columns(tiling_->tile);
    const uint64_t slot = item.items_before % kInFlight;
    const uint32_t width = v_blocks_ * kSide;
    for (uint32_t block = 0; block < v_blocks_; block += kStepBlocks) {
      Multiply<true>(p_l1_, tiling_->step_rows / kSide, v_l1_[place * v_place_], block, rows,
                     Lesser(kStepBlocks, v_blocks_ - block), columns / kDepth,
                     products_[slot * tiling_->step_rows * width + block * kSide], width);
    }
    AscendC::SetFlag<AscendC::HardEvent::MTE1_MTE2>(kProbabilities);
    if (last) AscendC::SetFlag<AscendC::HardEvent::MTE1_MTE2>((values_in_keys ? kKeys : kValues) + place);
    AscendC::CrossCoreSetFlag<2, PIPE_FIX>(kFlagProducts);
  }

  // to [rows, 16 blocks] = A [rows, fractals] B, `to` with rows `stride` apart. B is the tile of values or, transposed,
  // that of keys; its columns from `block` on.
  template <bool kOfValues>
  __aicore__ inline void Multiply(const AscendC::LocalTensor<T>& a, uint32_t a_column, const AscendC::LocalTensor<T>& b,
                                  uint32_t block, uint32_t rows, uint32_t blocks, uint32_t fractals,
                                  const AscendC::GlobalTensor<float>& to, uint32_t stride) {
    const uint32_t row_blocks = rows / kSide;
    const AscendC::LocalTensor<float> product = c_l0_[product_ * kProductPlace];
    AscendC::WaitFlag<AscendC::HardEvent::FIX_M>(product_);
    for (uint32_t x = 0; x < fractals; x += kStepFractals) {
      const uint32_t depth = Lesser(kStepFractals, fractals - x);
      const AscendC::LocalTensor<T> left = a_l0_[operands_ * kL0Place], right = b_l0_[operands_ * kL0Place];
      AscendC::WaitFlag<AscendC::HardEvent::M_MTE1>(operands_);
      for (uint32_t i = 0; i < row_blocks; ++i) {
        AscendC::LoadData(
            left[i * depth * kFractal], a[(x * a_column + i) * kFractal],
            AscendC::LoadData2DParams(0, static_cast<uint8_t>(depth), static_cast<uint16_t>(a_column), 0, 0, false, 0));
      }
      if constexpr (kOfValues) {
        LoadValueFractals(right, b, block, blocks, x, depth);
      } else {
        for (uint32_t i = 0; i < depth; ++i) {
          AscendC::LoadData(right[i * blocks * kFractal], b[((x + i) * tile_blocks_ + block) * kFractal],
                            AscendC::LoadData2DParams(0, static_cast<uint8_t>(blocks), 1, 0, 0, false, 0));
        }
      }
      AscendC::SetFlag<AscendC::HardEvent::MTE1_M>(operands_);
      AscendC::WaitFlag<AscendC::HardEvent::MTE1_M>(operands_);
      AscendC::Mmad(product, left, right,
                    AscendC::MmadParams(static_cast<uint16_t>(rows), static_cast<uint16_t>(blocks * kSide),
                                        static_cast<uint16_t>(depth * kDepth), 0, false, x == 0));
      if (row_blocks * blocks < kPipelinedTiles) AscendC::PipeBarrier<PIPE_M>();
      AscendC::SetFlag<AscendC::HardEvent::M_MTE1>(operands_);
      operands_ ^= 1;
    }
    AscendC::SetFlag<AscendC::HardEvent::M_FIX>(product_);
    AscendC::WaitFlag<AscendC::HardEvent::M_FIX>(product_);
    AscendC::Fixpipe(to, product,
                     AscendC::FixpipeParamsV220(static_cast<uint16_t>(blocks * kSide), static_cast<uint16_t>(rows),
                                                static_cast<uint16_t>(rows), stride, false));
    AscendC::SetFlag<AscendC::HardEvent::FIX_M>(product_);
    product_ ^= 1;
  }

  // `depth` fractals of keys from `x` on, `blocks` blocks of columns from `block` on.
  __aicore__ inline void LoadValueFractals(const AscendC::LocalTensor<T>& to, const AscendC::LocalTensor<T>& values,
                                           uint32_t block, uint32_t blocks, uint32_t x, uint32_t depth) {
    if constexpr (sizeof(T) == 2) {
      for (uint32_t i = 0; i < depth; ++i) {
        AscendC::LoadData(to[i * blocks * kFractal], values[(block * tile_blocks_ + x + i) * kFractal],
                          AscendC::LoadData2DParams(0, static_cast<uint8_t>(blocks),
                                                    static_cast<uint16_t>(tile_blocks_), 0, 0, true, 0));
      }
    } else {
      for (uint32_t i = 0; i < depth; i += 2) {  // a square of 16 x 16 is two fractals
        AscendC::LoadDataWithTranspose(to[i * blocks * kFractal],
                                       values[((x + i) / 2 * v_blocks_ + block) * kSide * kSide],
                                       AscendC::LoadData2dTransposeParams(0, static_cast<uint8_t>(blocks), 1, 0,
                                                                          static_cast<uint16_t>(blocks - 1)));
      }
    }
  }

  static constexpr uint32_t kPipelinedTiles = 10;  // a smaller product leaves the pipeline before its result does

  const TreeAttentionTiling* tiling_;
  Schedule schedule_;
  BlockTable table_;
  AscendC::GlobalTensor<T> q_, k_, v_;
  AscendC::GlobalTensor<float> scores_, products_;
  AscendC::LocalTensor<T> q_l1_, k_l1_, v_l1_, p_l1_, a_l0_, b_l0_;
  AscendC::LocalTensor<float> c_l0_;
  uint32_t group_, qk_fractals_, v_blocks_, tile_blocks_, k_place_, v_place_;
  uint64_t k_width_ = 0, v_width_ = 0;  // of rows of the converted cache
  Item items_[kItems];
  uint32_t found_ = 0, keys_loaded_ = 0;
  int32_t operands_ = 0, product_ = 0;  // places in L0
};

}  // namespace specdec::ascendc
