// How work is split over threads. No split changes the arithmetic of a request.
#pragma once

#include <ATen/Parallel.h>

#include <atomic>
#include <cstdint>

namespace specdec::cpu::SPECDEC_CAPABILITY {

// Runs work(i) for i < count. With fewer items than threads they run one after another, so that each can split its own
// rows over all threads; otherwise every thread takes the next item when it is free, since items differ in length.
template <typename Work>
void for_each_request(int64_t count, const Work& work) {
  const int threads = at::get_num_threads();
  if (count < threads || at::in_parallel_region()) {
    for (int64_t i = 0; i < count; ++i) work(i);
    return;
  }
  std::atomic<int64_t> next{0};
  at::parallel_for(0, threads, 1, [&](int64_t, int64_t) {
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) work(i);
  });
}

}  // namespace specdec::cpu::SPECDEC_CAPABILITY
