#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "bindings/philox.h"
#include "kernels/cpu/philox.h"

namespace specdec {

namespace {

at::Tensor philox_uniform(const at::Tensor& seeds, const at::Tensor& offsets, int64_t n, int64_t stream) {
  check_philox_uniform(seeds, offsets, n, stream);
  at::Tensor out = at::empty({seeds.size(0), n}, seeds.options().dtype(at::kFloat));
  cpu::philox_uniform({seeds.const_data_ptr<int64_t>(), offsets.const_data_ptr<int64_t>(), out.data_ptr<float>(),
                       seeds.size(0), n, static_cast<uint32_t>(stream)});
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(specdec, CPU, m) { m.impl("philox_uniform", philox_uniform); }

}  // namespace specdec
