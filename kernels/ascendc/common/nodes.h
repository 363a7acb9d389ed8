// Which rows are a request's.
#pragma once

#include "kernel_operator.h"

namespace specdec::ascendc {

// cu_nodes[b], made ascending whatever it holds: `low` is the bound before, `num_nodes` the rows there are.
__aicore__ inline int64_t NodeBound(const AscendC::GlobalTensor<int32_t>& cu_nodes, uint64_t b, int64_t low,
                                    uint64_t num_nodes) {
  const int64_t bound = cu_nodes.GetValue(b), high = static_cast<int64_t>(num_nodes);
  return bound < low ? low : (bound > high ? high : bound);
}

}  // namespace specdec::ascendc
