// Tensors as what the kernels on rows of logits take.
#pragma once

#include "bindings/npu/device.h"
#include "bindings/sample.h"
#include "kernels/ascendc/sample/sample_tiling.h"

namespace specdec::npu {

inline ascendc::LogitsType logits_type(const at::Tensor& logits) {
  return logits.scalar_type() == at::kFloat      ? ascendc::kFloat32
         : logits.scalar_type() == at::kBFloat16 ? ascendc::kBFloat16
                                                 : ascendc::kFloat16;
}

// Everything but the layout of the workspace.
inline ascendc::RowsTiling rows_tiling(const char* name, const at::Tensor& logits, int64_t batch, int64_t nodes,
                                       const char* width_name, int64_t width) {
  const int64_t vocab = logits.size(1);
  TORCH_CHECK_VALUE(vocab <= ascendc::kMaxVocab, name, ": expected at most ", ascendc::kMaxVocab, " columns, got ",
                    describe(logits));
  check_range(width_name, width, 1, ascendc::kMaxWidth);
  ascendc::RowsTiling tiling{};
  tiling.target_stride = logits.stride(0);
  tiling.target_type = logits_type(logits);
  tiling.vocab = static_cast<uint32_t>(vocab);
  tiling.batch = static_cast<uint32_t>(batch);
  tiling.nodes = static_cast<uint32_t>(nodes);
  tiling.width = static_cast<uint32_t>(width);
  return tiling;
}

inline at::Tensor workspace_of(const ascendc::RowsTiling& tiling, const at::Tensor& reference) {
  return at::empty({static_cast<int64_t>(tiling.workspace)}, reference.options().dtype(at::kByte));
}

}  // namespace specdec::npu
