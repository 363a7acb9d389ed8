// Tree attention on cube and vector cores: products and softmax of each split of the keys, then the splits' merge.
#pragma once

#include "kernels/ascendc/tree_attention/merge.h"
#include "kernels/ascendc/tree_attention/products.h"
#include "kernels/ascendc/tree_attention/softmax.h"

namespace specdec::ascendc {

template <typename T, bool kQuantized>
__aicore__ inline void TreeAttention(const TreeAttentionArguments& arguments, const TreeAttentionTiling& tiling) {
  if ASCEND_IS_AIC {
    TreeAttentionProducts<T, kQuantized> products;
    products.Init(arguments, tiling);
    products.Process();
  }
  if ASCEND_IS_AIV {
    TreeAttentionSoftmax<T, kQuantized> softmax;
    softmax.Init(arguments, tiling);
    softmax.Process();
  }
  AscendC::SyncAll<false>();
  if ASCEND_IS_AIV {
    TreeAttentionMerge<T> merge;
    merge.Init(arguments, tiling);
    merge.Process();
  }
  AscendC::PipeBarrier<PIPE_ALL>();
}

}  // namespace specdec::ascendc
