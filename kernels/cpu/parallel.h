// How work on rows is split over threads. No split changes the arithmetic of a request.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace specdec::cpu::SPECDEC_CAPABILITY {

// A row is worked on in chunks of so many ids. A thread takes kChunksAtOnce chunks, which is long enough to stream.
constexpr int64_t kChunk = 4096;
constexpr int64_t kChunksAtOnce = 4;

inline int64_t num_chunks(int64_t size) { return (size + kChunk - 1) / kChunk; }

// Calls `function` where its scope ends, also by an exception: kernels allocate, and what others wait for must come.
template <typename Function>
struct AtExit {
  Function function;
  ~AtExit() { function(); }
};
template <typename Function>
AtExit(Function) -> AtExit<Function>;

// A loop over chunks that a thread is in the middle of, and that others may join.
struct ChunkLoop {
  void (*body)(const void* function, int64_t chunk);
  const void* function;
  int64_t count;
  std::atomic<int64_t> next{0};

  void run() {
    for (int64_t begin; (begin = next.fetch_add(kChunksAtOnce, std::memory_order_relaxed)) < count;)
      for (int64_t chunk = begin; chunk < std::min(begin + kChunksAtOnce, count); ++chunk) body(function, chunk);
  }
};

// Where a thread offers its current loop to the others. The loop lives on its owner's stack: the owner withdraws it and
// then waits for the helpers, a helper announces itself and then looks for the loop.
struct alignas(64) Offer {
  std::atomic<ChunkLoop*> loop{nullptr};
  std::atomic<int> helpers{0};

  void help() {
    if (!loop.load(std::memory_order_relaxed)) return;
    helpers.fetch_add(1);
    const AtExit leave{[&] { helpers.fetch_sub(1); }};
    if (ChunkLoop* found = loop.load()) found->run();
  }
};

inline thread_local Offer* my_offer = nullptr;  // nullptr: no other thread is at work on this operator

// f(chunk, first id, number of ids) for every chunk of a row.
template <typename Function>
void for_each_chunk(int64_t size, const Function& f) {
  const auto body = [&](int64_t chunk) { f(chunk, chunk * kChunk, std::min(kChunk, size - chunk * kChunk)); };
  using Body = decltype(body);
  ChunkLoop loop{[](const void* function, int64_t chunk) { (*static_cast<const Body*>(function))(chunk); }, &body,
                 num_chunks(size)};
  if (!my_offer || loop.count <= kChunksAtOnce) return loop.run();
  my_offer->loop.store(&loop);
  const AtExit withdraw{[] {
    my_offer->loop.store(nullptr);
    while (my_offer->helpers.load()) std::this_thread::yield();
  }};
  loop.run();
}

// Runs work(i) for i < count, items that go over rows of row_size ids. Every thread takes the next item when it is
// free; one that finds none left helps the others with the chunks of their rows.
template <typename Work>
void for_each_request(int64_t count, int64_t row_size, const Work& work) {
  const int64_t pieces = count * ((num_chunks(row_size) + kChunksAtOnce - 1) / kChunksAtOnce);
  const int64_t threads = at::in_parallel_region() ? 1 : std::min<int64_t>(at::get_num_threads(), pieces);
  if (threads <= 1) {
    for (int64_t i = 0; i < count; ++i) work(i);
    return;
  }
  std::vector<Offer> offers(threads);
  std::atomic<int64_t> next{0}, finished{0};
  at::parallel_for(0, threads, 1, [&](int64_t begin, int64_t) {
    {
      my_offer = &offers[begin];
      const AtExit leave{[] { my_offer = nullptr; }};
      for (int64_t i; (i = next.fetch_add(1)) < count;) {
        const AtExit done{[&] { finished.fetch_add(1); }};
        work(i);
      }
    }
    while (finished.load() < count) {
      for (Offer& offer : offers) offer.help();
      std::this_thread::yield();
    }
  });
}

}  // namespace specdec::cpu::SPECDEC_CAPABILITY
