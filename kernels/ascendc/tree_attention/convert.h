// An int8 cache on its way to the cube core: the vector cores write each tile as floating point to the workspace, two
// tiles ahead of its scores. Small integers are exact in every type; the scales are applied to scores and
// probabilities, or to what a whole head has in common.
#pragma once

#include "kernels/ascendc/tree_attention/rows.h"
#include "kernels/ascendc/tree_attention/schedule.h"

namespace specdec::ascendc {

template <typename T>
class Int8Converter {
 public:
  __aicore__ inline void Init(const TreeAttentionArguments& a, const TreeAttentionTiling& tiling, uint32_t block,
                              bool second) {
    tiling_ = &tiling;
    second_ = second;
    const TreeAttentionShape& shape = tiling.shape;
    table_.Init(a, shape);
    k_.cache.SetGlobalBuffer((__gm__ int8_t*)a.k_cache);
    v_.cache.SetGlobalBuffer((__gm__ int8_t*)a.v_cache);
    k_.scale.SetGlobalBuffer((__gm__ float*)a.k_scale);
    v_.scale.SetGlobalBuffer((__gm__ float*)a.v_scale);
    k_.block = shape.k_block, k_.slot = shape.k_slot, k_.head = shape.k_head, k_.width = shape.d_qk;
    v_.block = shape.v_block, v_.slot = shape.v_slot, v_.head = shape.v_head, v_.width = shape.d_v;
    const uint64_t rows = uint64_t{kConvertedTiles} * tiling.tile;
    __gm__ uint8_t* workspace = (__gm__ uint8_t*)a.workspace;
    k_.converted.SetGlobalBuffer((__gm__ T*)(workspace + tiling.workspace.keys) +
                                 block * rows * AlignUp(shape.d_qk, 32));
    v_.converted.SetGlobalBuffer((__gm__ T*)(workspace + tiling.workspace.values) +
                                 block * rows * AlignUp(shape.d_v, 32));

    using AscendC::LocalTensor;
    constexpr AscendC::TPosition kUb = AscendC::TPosition::VECCALC;
    const uint32_t size = tiling.convert_rows * AlignUp(shape.d_qk < shape.d_v ? shape.d_v : shape.d_qk, 32);
    raw_ = LocalTensor<int8_t>(kUb, tiling.ub.raw, size);
    half_ = LocalTensor<half>(kUb, tiling.ub.widened, size);
    float_ = LocalTensor<float>(kUb, tiling.ub.widened + size * 2, size);
    converted_ = LocalTensor<T>(kUb, tiling.ub.widened + size * (sizeof(T) == 4 ? 2 : 6), size);
    token_scales_ = LocalTensor<float>(kUb, tiling.ub.token_scales, tiling.tile * kRowBlock);
    k_.scales = LocalTensor<float>(kUb, tiling.ub.k_scales, kInFlight * tiling.tile);
    v_.scales = LocalTensor<float>(kUb, tiling.ub.v_scales, kInFlight * tiling.tile);
  }

  // This core's half of the item's tile, and the scales of all its keys.
  __aicore__ inline void Convert(const Item& item) {
    const uint32_t keys = item.Keys(tiling_->tile), middle = CeilDiv(keys, 2);
    const uint32_t end = second_ ? keys : middle;
    for (uint32_t at = second_ ? middle : 0; at < end;) {
      const SlotRun run =
          table_.Find(item.request, item.Slot(tiling_->tile) + at, Lesser(end - at, tiling_->convert_rows));
      if (run.block >= 0) {
        ConvertRows(k_, item, at, run);
        ConvertRows(v_, item, at, run);
      }
      at += run.count;
    }
    if (tiling_->shape.scale_per_token) {
      LoadScales(k_, item, keys);
      LoadScales(v_, item, keys);
    }
    AscendC::CrossCoreSetFlag<2, PIPE_MTE3>(kFlagConverted);
  }

  // Of the item's keys, one each.
  __aicore__ inline AscendC::LocalTensor<float> KeyScales(const Item& item) const {
    return k_.scales[item.tiles_before % kInFlight * tiling_->tile];
  }
  __aicore__ inline AscendC::LocalTensor<float> ValueScales(const Item& item) const {
    return v_.scales[item.tiles_before % kInFlight * tiling_->tile];
  }
  // Of the head.
  __aicore__ inline float KeyScale(const Item& item) const { return k_.scale.GetValue(item.head); }
  __aicore__ inline float ValueScale(const Item& item) const { return v_.scale.GetValue(item.head); }

 private:
  static constexpr int32_t kFlag = 3;  // the softmax holds 0 to 2

  struct Cache {
    AscendC::GlobalTensor<int8_t> cache;
    AscendC::GlobalTensor<float> scale;
    AscendC::GlobalTensor<T> converted;
    AscendC::LocalTensor<float> scales;
    uint64_t block, slot, head;  // strides
    uint32_t width;
  };

  __aicore__ inline void ConvertRows(const Cache& c, const Item& item, uint32_t at, const SlotRun& run) {
    const uint32_t padded = AlignUp(c.width, 32), count = run.count * padded;
    Order<AscendC::HardEvent::V_MTE2>(kFlag);
    AscendC::DataCopyPad(raw_, c.cache[run.block * c.block + run.offset * c.slot + item.head * c.head],
                         AscendC::DataCopyExtParams(static_cast<uint16_t>(run.count), c.width,
                                                    static_cast<uint32_t>(c.slot - c.width), 0, 0),
                         AscendC::DataCopyPadExtParams<int8_t>(true, 0, static_cast<uint8_t>(padded - c.width), 0));
    Order<AscendC::HardEvent::MTE2_V>(kFlag);
    Widen(converted_, count);
    Order<AscendC::HardEvent::V_MTE3>(kFlag);
    const uint64_t row = uint64_t{item.tiles_before % kConvertedTiles} * tiling_->tile + at;
    AscendC::DataCopy(c.converted[row * padded], converted_, count);
  }

  // int8 becomes half, half float, float bfloat16. What was converted before has left by the last step.
  __aicore__ inline void Widen(const AscendC::LocalTensor<half>& to, uint32_t count) {
    Order<AscendC::HardEvent::MTE3_V>(kFlag);
    AscendC::Cast(to, raw_, AscendC::RoundMode::CAST_NONE, count);
  }
  __aicore__ inline void Widen(const AscendC::LocalTensor<float>& to, uint32_t count) {
    AscendC::Cast(half_, raw_, AscendC::RoundMode::CAST_NONE, count);
    Barrier();
    Order<AscendC::HardEvent::MTE3_V>(kFlag);
    AscendC::Cast(to, half_, AscendC::RoundMode::CAST_NONE, count);
  }
  __aicore__ inline void Widen(const AscendC::LocalTensor<bfloat16_t>& to, uint32_t count) {
    AscendC::Cast(half_, raw_, AscendC::RoundMode::CAST_NONE, count);
    Barrier();
    AscendC::Cast(float_, half_, AscendC::RoundMode::CAST_NONE, count);
    Barrier();
    Order<AscendC::HardEvent::MTE3_V>(kFlag);
    AscendC::Cast(to, float_, AscendC::RoundMode::CAST_RINT, count);
  }

  // Keys that are not in the cache get scale 0.
  __aicore__ inline void LoadScales(const Cache& c, const Item& item, uint32_t keys) {
    const uint32_t padded = item.Columns(tiling_->tile), heads = tiling_->shape.kv_heads;
    AscendC::Duplicate(token_scales_, 0.0f, static_cast<int32_t>(padded * kRowBlock));
    Order<AscendC::HardEvent::V_MTE2>(kFlag);
    for (uint32_t at = 0; at < keys;) {
      const SlotRun run = table_.Find(item.request, item.Slot(tiling_->tile) + at, keys - at);
      if (run.block >= 0) {
        const uint64_t token = uint64_t(run.block) * tiling_->shape.block_size + run.offset;
        AscendC::DataCopyPad(token_scales_[at * kRowBlock], c.scale[token * heads + item.head],
                             AscendC::DataCopyExtParams(static_cast<uint16_t>(run.count), 4, (heads - 1) * 4, 0, 0),
                             AscendC::DataCopyPadExtParams<float>(true, 0, kRowBlock - 1, 0.0f));
      }
      at += run.count;
    }
    Order<AscendC::HardEvent::MTE2_V>(kFlag);
    Fold<false>(c.scales[item.tiles_before % kInFlight * tiling_->tile], token_scales_, padded / 8);
    Barrier();
  }

  const TreeAttentionTiling* tiling_;
  BlockTable table_;
  Cache k_, v_;
  AscendC::LocalTensor<int8_t> raw_;
  AscendC::LocalTensor<half> half_;
  AscendC::LocalTensor<float> float_, token_scales_;
  AscendC::LocalTensor<T> converted_;
  bool second_;
};

}  // namespace specdec::ascendc
