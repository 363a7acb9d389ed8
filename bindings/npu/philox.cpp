#include "bindings/philox.h"

#include <ATen/ops/empty.h>

#include "bindings/npu/device.h"
#include "kernels/ascendc/philox/philox_tiling.h"

namespace specdec::npu {

namespace {

at::Tensor philox_uniform(const at::Tensor& seeds, const at::Tensor& offsets, int64_t n, int64_t stream_id) {
  check_philox_uniform(seeds, offsets, n, stream_id);
  at::Tensor out = at::empty({seeds.size(0), n}, seeds.options().dtype(at::kFloat));
  if (out.numel() == 0) return out;
  const auto tiling = ascendc::philox_tiling(seeds.size(0), n, static_cast<uint32_t>(stream_id), cores().vector);
  submit("specdec::philox_uniform", {seeds, offsets, out}, [=](void* stream) {
    ascendc::launch_philox_uniform(stream, seeds.const_data_ptr(), offsets.const_data_ptr(), out.data_ptr(), tiling);
  });
  return out;
}

}  // namespace

SPECDEC_NPU_IMPL(m) { m.impl("philox_uniform", philox_uniform); }

}  // namespace specdec::npu
