// What stands for libtorch_npu.so: a PrivateUse1 backend of two devices whose memory is host memory, and the functions
// of torch_npu that the binding calls. Operators of other libraries run on the CPU.
//
// Like torch_npu's, the queue is not run by the caller: tasks wait until someone needs their results, and another
// thread, with current streams of its own, runs them.
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <exception>
#include <thread>

#include "cann.h"
#include "torch_npu/csrc/core/npu/NPUStream.h"
#include "torch_npu/csrc/framework/OpCommand.h"

namespace {

constexpr auto kNpu = c10::DeviceType::PrivateUse1;
constexpr c10::DeviceIndex kDevices = 2;

thread_local c10::DeviceIndex current_device = 0;
thread_local c10::StreamId current_streams[kDevices] = {};
c10::StreamId last_stream = 0;
bool host_reads_forbidden = false;
std::vector<std::function<void()>> queue;

void drain() {
  const auto tasks = std::exchange(queue, {});  // the last tensors of a task go with it, and use the queue
  std::exception_ptr failure;
  std::thread([&] {
    try {
      for (const auto& task : tasks) task();
    } catch (...) {
      failure = std::current_exception();
    }
  }).join();
  if (failure) std::rethrow_exception(failure);
}

void host_read(const char* what) { TORCH_CHECK(!host_reads_forbidden, "the host reads device data: ", what); }

c10::Device device_or_current(std::optional<at::Device> device) {
  return {kNpu, device && device->has_index() ? device->index() : current_device};
}

struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, c10::Device(kNpu, current_device)};
    void* memory = std::aligned_alloc(512, (bytes + 511) / 512 * 512);
    fake_cann::state().memory[memory] = bytes;
    return {memory, memory, &release, c10::Device(kNpu, current_device)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { memcpy(to, from, bytes); }

  // At once, whatever still waits in the queue: a task that uses the memory of a tensor has to hold the tensor.
  static void release(void* memory) {
    fake_cann::state().memory.erase(memory);
    std::free(memory);
  }
} allocator;
REGISTER_ALLOCATOR(kNpu, &allocator);

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kNpu; }
  c10::Device getDevice() const override { return {kNpu, current_device}; }
  void setDevice(c10::Device device) const override { current_device = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current_device = device.index(); }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {kNpu, std::exchange(current_device, device.index())};
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
  c10::Stream getStream(c10::Device device) const override { return stream(device, current_streams[device.index()]); }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream(device, 0); }
  c10::Stream getNewStream(c10::Device device, int) const override { return stream(device, ++last_stream); }
  c10::Stream exchangeStream(c10::Stream next) const override {
    return stream(next.device(), std::exchange(current_streams[next.device_index()], next.id()));
  }
  void synchronizeDevice(c10::DeviceIndex) const override { drain(); }
  static c10::Stream stream(c10::Device device, c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, device, id);
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
};
const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

at::Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(device_or_current(device));
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &allocator,
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype),
                                   format);
}

at::Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(device_or_current(device));
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), &allocator,
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

at::Tensor on_cpu(const at::Tensor& tensor) {  // the same memory
  if (tensor.is_cpu()) return tensor;
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  if (to.is_cpu()) host_read("a copy to the host");
  drain();
  if (to.numel() != 0) on_cpu(to).copy_(on_cpu(from));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

const at::Tensor& resize(const at::Tensor& self, c10::SymIntArrayRef size, std::optional<at::MemoryFormat>) {
  const auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  const size_t bytes = at::detail::computeStorageNbytesContiguous(sizes, self.itemsize(), self.storage_offset());
  at::Storage storage = self.storage();
  if (storage.nbytes() < bytes) {
    drain();
    c10::DataPtr memory = allocator.allocate(bytes);
    if (storage.nbytes() != 0) memcpy(memory.get(), storage.data(), storage.nbytes());
    storage.set_data_ptr_noswap(std::move(memory));
    storage.set_nbytes(bytes);
  }
  self.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage storage, c10::SymInt offset, c10::SymIntArrayRef size,
                        c10::SymIntArrayRef stride) {
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(storage));
  self.unsafeGetTensorImpl()->set_sizes_and_strides(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
                                                    offset.expect_int());
  return self;
}

at::Scalar local_scalar(const at::Tensor& self) {
  host_read("a scalar");
  drain();
  return on_cpu(self).item();
}

void on_the_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) { at::native::cpu_fallback(op, stack); }

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", local_scalar);
  m.impl("resize_", resize);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", at::native::view);
  m.impl("_reshape_alias", at::native::_reshape_alias);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_the_cpu>()); }

// For the tests.
TORCH_LIBRARY(fake_npu, m) {
  m.def("configure(str profile, int cube_cores) -> ()", [](std::string profile, int64_t cube_cores) {
    fake_cann::state().profile = std::move(profile);
    fake_cann::state().cube_cores = cube_cores;
  });
  m.def("forbid_host_reads(bool forbidden) -> ()", [](bool forbidden) { host_reads_forbidden = forbidden; });
  m.def("waiting_tasks() -> int", [] { return static_cast<int64_t>(queue.size()); });
  m.def("set_device(int device) -> ()", [](int64_t device) { current_device = static_cast<c10::DeviceIndex>(device); });
  m.def("current_device() -> int", [] { return static_cast<int64_t>(current_device); });
  // Of each launch the kernel; its cores, device, stream, bytes read, bytes written and multiply-accumulates.
  m.def("take_launches() -> (str[], int[][])", [] {
    drain();
    std::vector<std::string> kernels;
    std::vector<std::vector<int64_t>> numbers;
    for (const auto& launch : std::exchange(fake_cann::state().launches, {})) {
      kernels.push_back(launch.kernel);
      numbers.push_back(launch.numbers);
    }
    return std::make_tuple(kernels, numbers);
  });
}

// What the binding calls of torch_npu, as its headers declare it.

c10::DeviceIndex c10_npu::current_device() { return ::current_device; }

c10_npu::NPUStream::NPUStream(c10::Stream stream) : stream_(stream) {}

c10_npu::NPUStream c10_npu::getCurrentNPUStream(c10::DeviceIndex device) {
  if (device < 0) device = ::current_device;
  return NPUStream(Guard::stream(c10::Device(kNpu, device), current_streams[device]));
}

aclrtStream c10_npu::NPUStream::stream(const bool) const {
  return fake_cann::stream_handle(stream_.device_index(), stream_.id());
}

void at_npu::native::OpCommand::RunOpApiV2(const std::string& name, const PROC_FUNC& launch, bool) {
  queue.emplace_back([name, launch] { TORCH_CHECK(launch() == ACL_SUCCESS, name, " failed"); });
}
