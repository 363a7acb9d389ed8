#include "bindings/step.h"

#include <ATen/ops/empty.h>

#include "bindings/npu/device.h"
#include "kernels/ascendc/step/step_tiling.h"

namespace specdec::npu {

namespace {

bool begins_a_line(const at::Tensor& tensor) { return reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 32 == 0; }

at::Tensor advance(const at::Tensor& history, const at::Tensor& lengths, const at::Tensor& finished,
                   const at::Tensor& tokens, const at::Tensor& num_accepted, const at::Tensor& eos_ids,
                   const at::Tensor& max_lens) {
  check_advance(history, lengths, finished, tokens, num_accepted, eos_ids, max_lens);
  at::Tensor root = at::empty({history.size(0)}, history.options());
  if (history.size(0) == 0) return root;
  const bool lines = begins_a_line(history) && history.size(1) * history.element_size() % 32 == 0 &&
                     begins_a_line(lengths) && begins_a_line(finished);
  const auto tiling = ascendc::advance_tiling(history.size(0), history.size(1), tokens.size(1), eos_ids.size(-1),
                                              eos_ids.dim() == 2 ? eos_ids.size(1) : 0, lines, cores().vector);
  submit("specdec::advance", {history, lengths, finished, tokens, num_accepted, eos_ids, max_lens, root},
         [=](void* stream) {
           ascendc::launch_advance(stream, history.data_ptr(), lengths.data_ptr(), finished.data_ptr(),
                                   tokens.const_data_ptr(), num_accepted.const_data_ptr(), eos_ids.const_data_ptr(),
                                   max_lens.const_data_ptr(), root.data_ptr(), tiling);
         });
  return root;
}

at::Tensor adapt_draft_length(const at::Tensor& rate, const at::Tensor& drafted, const at::Tensor& accepted,
                              double decay, int64_t min_draft, int64_t max_draft, double draft_cost) {
  check_adapt_draft_length(rate, drafted, accepted, decay, min_draft, max_draft, draft_cost);
  at::Tensor num_draft = at::empty({rate.size(0)}, drafted.options());
  if (rate.size(0) == 0) return num_draft;
  const ascendc::AdaptDraftLengthTiling tiling{static_cast<uint64_t>(rate.size(0)), static_cast<float>(1 - decay),
                                               static_cast<float>(draft_cost), static_cast<int32_t>(min_draft),
                                               static_cast<int32_t>(max_draft)};
  submit("specdec::adapt_draft_length", {rate, drafted, accepted, num_draft}, [=](void* stream) {
    ascendc::launch_adapt_draft_length(stream, rate.data_ptr(), drafted.const_data_ptr(), accepted.const_data_ptr(),
                                       num_draft.data_ptr(), tiling);
  });
  return num_draft;
}

}  // namespace

SPECDEC_NPU_IMPL(m) {
  m.impl("advance", advance);
  m.impl("adapt_draft_length", adapt_draft_length);
}

}  // namespace specdec::npu
