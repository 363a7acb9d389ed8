#pragma once

#include "checks.h"

namespace specdec {

inline void check_philox_uniform(const at::Tensor& seeds, const at::Tensor& offsets, int64_t n, int64_t stream) {
  check_dense("seeds", seeds, {kAny}, {at::kLong}, seeds);
  check_dense("offsets", offsets, {seeds.size(0)}, {at::kLong}, seeds);
  check_range("n", n, 0, int64_t{1} << 31);
  check_range("stream", stream, 0, (int64_t{1} << 32) - 1);
}

}  // namespace specdec
