#include "bindings/propose.h"

#include <ATen/ops/empty.h>

#include "bindings/npu/device.h"
#include "kernels/ascendc/propose/propose_tiling.h"

namespace specdec::npu {

namespace {

std::tuple<at::Tensor, at::Tensor> ngram_propose(const at::Tensor& history, const at::Tensor& lengths, int64_t min_n,
                                                 int64_t max_n, int64_t num_draft) {
  check_ngram_propose(history, lengths, min_n, max_n, num_draft);
  const int64_t batch = history.size(0);
  at::Tensor tokens = at::empty({batch, num_draft}, history.options());
  at::Tensor num_found = at::empty({batch}, lengths.options());
  if (batch == 0) return {tokens, num_found};
  const auto tiling = ascendc::ngram_propose_tiling(batch, history.size(1), min_n, max_n, num_draft, cores().vector);
  const at::Tensor workspace =
      at::empty({static_cast<int64_t>(ascendc::ngram_propose_workspace(tiling))}, history.options().dtype(at::kByte));
  submit("specdec::ngram_propose", {history, lengths, workspace, tokens, num_found}, [=](void* stream) {
    ascendc::launch_ngram_propose(stream, history.const_data_ptr(), lengths.const_data_ptr(), workspace.data_ptr(),
                                  tokens.data_ptr(), num_found.data_ptr(), tiling);
  });
  return {tokens, num_found};
}

}  // namespace

SPECDEC_NPU_IMPL(m) { m.impl("ngram_propose", ngram_propose); }

}  // namespace specdec::npu
