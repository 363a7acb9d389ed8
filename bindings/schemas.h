// The operators' schemas, shared by every library that offers them.
#pragma once

#include <torch/library.h>

namespace specdec {

void define_schemas(torch::Library& library);

}  // namespace specdec
