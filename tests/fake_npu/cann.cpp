#include "cann.h"

#include "acl/acl.h"

fake_cann::State& fake_cann::state() {
  static State state;
  return state;
}

extern "C" aclError aclGetDeviceCapability(uint32_t, aclDeviceInfo what, int64_t* value) {
  if (what != ACL_DEVICE_INFO_AI_CORE_NUM && what != ACL_DEVICE_INFO_VECTOR_CORE_NUM) return ACL_ERROR_INVALID_PARAM;
  *value = fake_cann::state().cube_cores * (what == ACL_DEVICE_INFO_VECTOR_CORE_NUM ? 2 : 1);
  return ACL_SUCCESS;
}
