#pragma once

#include <c10/util/Exception.h>

#include <cmath>
#include <limits>

#include "checks.h"

namespace specdec {

inline void check_advance(const at::Tensor& history, const at::Tensor& lengths, const at::Tensor& finished,
                          const at::Tensor& tokens, const at::Tensor& num_accepted, const at::Tensor& eos_ids,
                          const at::Tensor& max_lens) {
  check_dense("history", history, {kAny, kAny}, {at::kLong}, history);
  const int64_t batch = history.size(0);
  check_dense("lengths", lengths, {batch}, {at::kInt}, history);
  check_dense("finished", finished, {batch}, {at::kBool}, history);
  check_dense("tokens", tokens, {batch, kAny}, {at::kLong}, history);
  check_dense("num_accepted", num_accepted, {batch}, {at::kInt}, history);
  check_dense("eos_ids", eos_ids, {kAny}, {at::kLong}, history);
  check_dense("max_lens", max_lens, {batch}, {at::kInt}, history);
}

inline void check_adapt_draft_length(const at::Tensor& rate, const at::Tensor& drafted, const at::Tensor& accepted,
                                     double decay, int64_t min_draft, int64_t max_draft, double draft_cost) {
  check_dense("rate", rate, {kAny}, {at::kFloat}, rate);
  check_dense("drafted", drafted, {rate.size(0)}, {at::kInt}, rate);
  check_dense("accepted", accepted, {rate.size(0)}, {at::kInt}, rate);
  TORCH_CHECK_VALUE(decay >= 0 && decay <= 1, "decay: expected 0 to 1, got ", decay);
  TORCH_CHECK_VALUE(draft_cost >= 0 && std::isfinite(draft_cost), "draft_cost: expected 0 or more, got ", draft_cost);
  check_range("min_draft", min_draft, 0, std::numeric_limits<int32_t>::max());
  check_range("max_draft", max_draft, min_draft, std::numeric_limits<int32_t>::max());
}

}  // namespace specdec
