#include "bindings/npu/device.h"

#include <c10/core/DeviceGuard.h>

#include "acl/acl.h"
#include "torch_npu/csrc/core/npu/NPUStream.h"
#include "torch_npu/csrc/framework/OpCommand.h"

namespace specdec::npu {

Cores cores() {
  const auto count = [](aclDeviceInfo what) {
    int64_t value = 0;
    TORCH_CHECK(aclGetDeviceCapability(c10_npu::current_device(), what, &value) == ACL_SUCCESS,
                "specdec: the device does not say how many cores it has");
    return static_cast<uint32_t>(value);
  };
  return {count(ACL_DEVICE_INFO_AI_CORE_NUM), count(ACL_DEVICE_INFO_VECTOR_CORE_NUM)};
}

void submit(const char* name, const std::vector<at::Tensor>& tensors, const std::function<void(void*)>& launch) {
  const c10::OptionalDeviceGuard guard(tensors.front().device());
  // Asked here, not in the task: the queue's thread has a current stream of its own.
  aclrtStream stream = c10_npu::getCurrentNPUStream().stream(false);
  at_npu::native::OpCommand::RunOpApiV2(name, [tensors, launch, stream]() -> int {
    launch(stream);
    return ACL_SUCCESS;
  });
}

}  // namespace specdec::npu
