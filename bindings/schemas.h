// The operators' schemas, shared by every library that offers them.
#pragma once

#include <torch/library.h>

namespace specdec {

// Without `returns` every operator returns nothing.
void define_schemas(torch::Library& library, bool returns = true);

}  // namespace specdec
