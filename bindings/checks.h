// Host checks shared by every backend. Each raises ValueError naming the argument, what was expected and what came;
// none reads device data.
#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>
#include <optional>
#include <string>
#include <type_traits>

namespace specdec {

using OptionalTensor = std::optional<at::Tensor>;

// The data of an argument that may be absent. It is typed for the CPU kernels and `void` for launches.
template <typename T = void>
const T* optional_ptr(const OptionalTensor& tensor) {
  if (!tensor) return nullptr;
  if constexpr (std::is_void_v<T>)
    return tensor->const_data_ptr();
  else
    return tensor->const_data_ptr<T>();
}

constexpr int64_t kAny = -1;

// "float32 [4, 7]" for messages.
std::string describe(const at::Tensor& tensor);

// Sizes must match; kAny matches all.
void check_shape(const char* name, const at::Tensor& tensor, std::initializer_list<int64_t> expected);
void check_dtype(const char* name, const at::Tensor& tensor, std::initializer_list<at::ScalarType> allowed);
void check_device(const char* name, const at::Tensor& tensor, const at::Tensor& reference);
void check_contiguous(const char* name, const at::Tensor& tensor);
void check_unit_stride(const char* name, const at::Tensor& tensor);  // of the last dimension
void check_range(const char* name, int64_t value, int64_t low, int64_t high);

// Shape, dtype, device and contiguity at once: what every index, length and parameter tensor needs.
void check_dense(const char* name, const at::Tensor& tensor, std::initializer_list<int64_t> expected,
                 std::initializer_list<at::ScalarType> allowed, const at::Tensor& reference);

// int32 [B + 1]; returns B.
int64_t check_cu_nodes(const at::Tensor& cu_nodes, const at::Tensor& reference);

}  // namespace specdec
