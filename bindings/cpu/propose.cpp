#include "kernels/cpu/propose.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "bindings/propose.h"

namespace specdec {

namespace {

std::tuple<at::Tensor, at::Tensor> ngram_propose(const at::Tensor& history, const at::Tensor& lengths, int64_t min_n,
                                                 int64_t max_n, int64_t num_draft) {
  check_ngram_propose(history, lengths, min_n, max_n, num_draft);
  at::Tensor tokens = at::empty({history.size(0), num_draft}, history.options());
  at::Tensor num_found = at::empty({history.size(0)}, lengths.options());
  cpu::ngram_propose({history.const_data_ptr<int64_t>(), lengths.const_data_ptr<int32_t>(), tokens.data_ptr<int64_t>(),
                      num_found.data_ptr<int32_t>(), history.size(0), history.size(1), min_n, max_n, num_draft});
  return {tokens, num_found};
}

}  // namespace

TORCH_LIBRARY_IMPL(specdec, CPU, m) { m.impl("ngram_propose", ngram_propose); }

}  // namespace specdec
