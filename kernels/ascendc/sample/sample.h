// Draws from rows of logits: one a row, or `k` distinct ones.
#pragma once

#include "kernels/ascendc/sample/rows.h"

namespace specdec::ascendc {

struct SampleRequest {
  bool greedy_;
  Filters filters_;
};

class Sample : public Rows, public SampleRequest {
 public:
  using Request = SampleRequest;

  __aicore__ inline void Init(GM_ADDR logits, GM_ADDR uniforms, GM_ADDR temperature, GM_ADDR top_k, GM_ADDR top_p,
                              GM_ADDR min_p, GM_ADDR tokens, GM_ADDR logprobs, GM_ADDR status, GM_ADDR workspace,
                              const SampleTiling& tiling) {
    Rows::Init(logits, nullptr, temperature, top_k, top_p, min_p, workspace, tiling.rows);
    k_ = tiling.k;
    best_ = tiling.best != 0;
    uniforms_.SetGlobalBuffer((__gm__ float*)uniforms, uint64_t{t_.batch} * t_.width);
    tokens_ = tokens;
    logprobs_ = logprobs;
    status_out_ = status;
  }

  __aicore__ inline void Process() { Run(this); }

  __aicore__ inline void PreloadRequest() const { PreloadFilters(request_); }
  __aicore__ inline void Find() {
    filters_ = FiltersOf(request_);
    greedy_ = filters_.temperature == 0.0f;
    if (k_ > 0 && greedy_) filters_.temperature = 1.0f;  // the k best need their order and filters alone
  }
  __aicore__ inline uint32_t CountFirst() const { return 1; }
  __aicore__ inline Pass First(uint32_t) const { return FirstPassOver(0, 0, static_cast<int32_t>(request_), filters_); }

  __aicore__ inline void Begin() {
    PreloadRequest();
    Find();
    ForgetRows(1);
  }

  __aicore__ inline bool Step() {
    Row row;
    if (!Ready(0, 0, static_cast<int32_t>(request_), filters_, &row)) return false;
    ClearResults(row.status);
    ClearRemoved();
    if (row.status) {
      Emit(FiniteArgmax(row), 0.0f);
      EmitNothing();
    } else if (k_ > 0) {
      EmitDistinct(row);
    } else if (greedy_) {
      Emit(Argmax(row), 0.0f);
    } else {
      Emit(row, Draw(row, uniforms_.GetValue(request_)));
    }
    return true;
  }

  __aicore__ inline void Write() {
    WriteTokens(0, tokens_);
    WriteLogprobs(1, logprobs_);
    WriteStatus(2, status_out_);
  }

 private:
  __aicore__ inline void EmitDistinct(const Row& row) {
    Row rest = row;
    rest.slot = SlotOf(0, 1);
    for (uint32_t j = 0; j < k_; ++j) {
      Row from = rest;
      if (j == 0) from.slot = row.slot;
      const int64_t id = !(rest.total > 0.0f) ? -1
                         : best_ || greedy_   ? Argmax(from)
                                              : Draw(from, uniforms_.GetValue(uint64_t{request_} * k_ + j));
      if (id < 0) break;
      Emit(row, id);
      AddRemoved(static_cast<uint64_t>(id));
      if (j + 1 < k_) Remove(&rest, static_cast<uint64_t>(id), from.slot);
    }
    EmitNothing();
  }
  // Where there are fewer than k.
  __aicore__ inline void EmitNothing() {
    while (num_emitted_ < t_.width) Emit(int64_t{-1}, -kInf);
  }

  AscendC::GlobalTensor<float> uniforms_;
  GM_ADDR tokens_;
  GM_ADDR logprobs_;
  GM_ADDR status_out_;
  uint32_t k_;
  bool best_;
};

}  // namespace specdec::ascendc
