#include "kernels/cpu/step.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "bindings/step.h"

namespace specdec {

namespace {

at::Tensor advance(const at::Tensor& history, const at::Tensor& lengths, const at::Tensor& finished,
                   const at::Tensor& tokens, const at::Tensor& num_accepted, const at::Tensor& eos_ids,
                   const at::Tensor& max_lens) {
  check_advance(history, lengths, finished, tokens, num_accepted, eos_ids, max_lens);
  at::Tensor root = at::empty({history.size(0)}, history.options());
  cpu::advance({history.data_ptr<int64_t>(), lengths.data_ptr<int32_t>(), finished.data_ptr<bool>(),
                tokens.const_data_ptr<int64_t>(), num_accepted.const_data_ptr<int32_t>(),
                eos_ids.const_data_ptr<int64_t>(), max_lens.const_data_ptr<int32_t>(), root.data_ptr<int64_t>(),
                history.size(0), history.size(1), tokens.size(1), eos_ids.size(0)});
  return root;
}

at::Tensor adapt_draft_length(const at::Tensor& rate, const at::Tensor& drafted, const at::Tensor& accepted,
                              double decay, int64_t min_draft, int64_t max_draft, double draft_cost) {
  check_adapt_draft_length(rate, drafted, accepted, decay, min_draft, max_draft, draft_cost);
  at::Tensor num_draft = at::empty({rate.size(0)}, drafted.options());
  cpu::adapt_draft_length({rate.data_ptr<float>(), drafted.const_data_ptr<int32_t>(),
                           accepted.const_data_ptr<int32_t>(), num_draft.data_ptr<int32_t>(), rate.size(0), decay,
                           static_cast<int32_t>(min_draft), static_cast<int32_t>(max_draft), draft_cost});
  return num_draft;
}

}  // namespace

TORCH_LIBRARY_IMPL(specdec, CPU, m) {
  m.impl("advance", advance);
  m.impl("adapt_draft_length", adapt_draft_length);
}

}  // namespace specdec
