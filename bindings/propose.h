#pragma once

#include <limits>

#include "checks.h"

namespace specdec {

inline void check_ngram_propose(const at::Tensor& history, const at::Tensor& lengths, int64_t min_n, int64_t max_n,
                                int64_t num_draft) {
  check_dense("history", history, {kAny, kAny}, {at::kLong}, history);
  check_dense("lengths", lengths, {history.size(0)}, {at::kInt}, history);
  check_range("min_n", min_n, 1, std::numeric_limits<int32_t>::max());
  check_range("max_n", max_n, min_n, std::numeric_limits<int32_t>::max());
  check_range("num_draft", num_draft, 0, std::numeric_limits<int32_t>::max());
}

}  // namespace specdec
