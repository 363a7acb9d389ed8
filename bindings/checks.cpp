#include "checks.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <sstream>

namespace specdec {

namespace {

std::string join(at::IntArrayRef sizes) {
  std::ostringstream out;
  out << '[';
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (i) out << ", ";
    if (sizes[i] == kAny)
      out << '*';
    else
      out << sizes[i];
  }
  out << ']';
  return out.str();
}

std::string dtype_name(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return "float32";
    case at::kDouble:
      return "float64";
    case at::kHalf:
      return "float16";
    case at::kBFloat16:
      return "bfloat16";
    case at::kChar:
      return "int8";
    case at::kByte:
      return "uint8";
    case at::kInt:
      return "int32";
    case at::kLong:
      return "int64";
    case at::kBool:
      return "bool";
    default:
      return c10::toString(type);
  }
}

}  // namespace

std::string describe(const at::Tensor& tensor) { return dtype_name(tensor.scalar_type()) + ' ' + join(tensor.sizes()); }

void check_shape(const char* name, const at::Tensor& tensor, std::initializer_list<int64_t> expected) {
  const at::IntArrayRef sizes = tensor.sizes();
  const bool same = sizes.size() == expected.size() &&
                    std::equal(expected.begin(), expected.end(), sizes.begin(),
                               [](int64_t want, int64_t got) { return want == kAny || want == got; });
  TORCH_CHECK_VALUE(same, name, ": expected shape ", join(expected), ", got ", join(sizes));
}

void check_dtype(const char* name, const at::Tensor& tensor, std::initializer_list<at::ScalarType> allowed) {
  if (std::find(allowed.begin(), allowed.end(), tensor.scalar_type()) != allowed.end()) return;
  std::string names;
  for (at::ScalarType type : allowed) names += (names.empty() ? "" : " or ") + dtype_name(type);
  TORCH_CHECK_VALUE(false, name, ": expected dtype ", names, ", got ", dtype_name(tensor.scalar_type()));
}

void check_device(const char* name, const at::Tensor& tensor, const at::Tensor& reference) {
  TORCH_CHECK_VALUE(tensor.device() == reference.device(), name, ": expected device ", reference.device().str(),
                    ", got ", tensor.device().str());
}

void check_contiguous(const char* name, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.is_contiguous(), name, ": expected a contiguous tensor, got shape ", join(tensor.sizes()),
                    " with strides ", join(tensor.strides()));
}

void check_unit_stride(const char* name, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.size(-1) <= 1 || tensor.stride(-1) == 1, name,
                    ": expected a last dimension of stride 1, got shape ", join(tensor.sizes()), " with strides ",
                    join(tensor.strides()));
}

void check_range(const char* name, int64_t value, int64_t low, int64_t high) {
  TORCH_CHECK_VALUE(low <= value && value <= high, name, ": expected ", low, " to ", high, ", got ", value);
}

void check_dense(const char* name, const at::Tensor& tensor, std::initializer_list<int64_t> expected,
                 std::initializer_list<at::ScalarType> allowed, const at::Tensor& reference) {
  check_dtype(name, tensor, allowed);
  check_shape(name, tensor, expected);
  check_device(name, tensor, reference);
  check_contiguous(name, tensor);
}

int64_t check_cu_nodes(const at::Tensor& cu_nodes, const at::Tensor& reference) {
  check_dense("cu_nodes", cu_nodes, {kAny}, {at::kInt}, reference);
  TORCH_CHECK_VALUE(cu_nodes.size(0) > 0, "cu_nodes: expected batch + 1 elements, got none");
  return cu_nodes.size(0) - 1;
}

}  // namespace specdec
