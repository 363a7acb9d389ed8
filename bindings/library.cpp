#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>

#include "schemas.h"

TORCH_LIBRARY(specdec, m) { specdec::define_schemas(m); }

// The operators that make floats of floats have no gradient: backward() raises where torch would only warn.
TORCH_LIBRARY_IMPL(specdec, Autograd, m) {
  for (const char* name : {"tree_attention", "merge_attention", "sample", "sample_topk", "verify_chain", "verify_tree"})
    m.impl(name, torch::autograd::autogradNotImplementedFallback());
}
