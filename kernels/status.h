// Bits of the operators' `status` outputs: what was wrong with data that only the device sees.
#pragma once

#include <cstdint>

namespace specdec {

enum StatusBit : int32_t {
  kNotFinite = 1,        // NaN or +inf in a row of logits that was used
  kNoFiniteLogit = 2,    // a row of logits that was used has no finite entry
  kTokenOutOfRange = 4,  // a draft token that was reached is neither in [0, V) nor -1
  kMalformedTree = 8,    // cu_nodes or parents do not describe a tree
  kCacheExhausted = 16,  // no free cache block left
};

}  // namespace specdec
