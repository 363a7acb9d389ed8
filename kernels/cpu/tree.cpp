#include "tree.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace specdec::cpu::SPECDEC_CAPABILITY {

namespace {

// Nodes a thread should handle to be worth waking.
constexpr int64_t kGrainNodes = 4096;

struct Scratch {
  explicit Scratch(int64_t size) : score(size), place(size) { ranked.reserve(size); }
  std::vector<float> score;     // of each node, no more than its parent's; NaN where it is no candidate
  std::vector<int32_t> place;   // of each node among those kept, -1 where it is not
  std::vector<int32_t> ranked;  // candidates
};

// Writes the kept nodes of one request and returns how many there are.
int64_t select_nodes(const int64_t* tokens, const float* scores, const int32_t* parents, int64_t size,
                     int64_t num_nodes, Scratch& scratch, int64_t* out_tokens, int32_t* out_parents) {
  auto& [score, place, ranked] = scratch;
  ranked.clear();
  score[0] = std::numeric_limits<float>::infinity();
  for (int64_t i = 1; i < size; ++i) {
    const int32_t parent = parents[i];
    score[i] = std::numeric_limits<float>::quiet_NaN();
    if (parent < 0 || parent >= i || tokens[i] < 0) continue;
    // A child is never better than its parent, and comes after it: the best nodes always form a tree.
    const bool candidate = score[parent] == score[parent] && scores[i] > -std::numeric_limits<float>::infinity();
    if (!candidate) continue;
    score[i] = std::min(scores[i], score[parent]);
    ranked.push_back(i);
  }
  const auto better = [&score = score](int32_t a, int32_t b) {
    return score[a] > score[b] || (score[a] == score[b] && a < b);
  };
  if (int64_t(ranked.size()) > num_nodes - 1) {
    std::nth_element(ranked.begin(), ranked.begin() + (num_nodes - 1), ranked.end(), better);
    ranked.resize(num_nodes - 1);
  }
  std::fill(place.begin(), place.end(), -1);
  for (const int32_t i : ranked) place[i] = 0;
  out_tokens[0] = tokens[0];
  out_parents[0] = -1;
  place[0] = 0;
  int64_t count = 1;
  for (int64_t i = 1; i < size; ++i) {
    if (place[i] < 0) continue;
    out_tokens[count] = tokens[i];
    out_parents[count] = place[parents[i]];
    place[i] = count++;
  }
  return count;
}

}  // namespace

void tree_mask(const TreeMaskParams& p) {
  const int64_t words = (p.max_nodes + 63) / 64;
  std::fill_n(p.mask, p.num_nodes * words, 0);
  std::fill_n(p.depth, p.num_nodes, 0);
  // Made ascending, so that no two requests write one row whatever cu_nodes holds.
  std::vector<int64_t> bounds(p.batch + 1);
  for (int64_t b = 0; b <= p.batch; ++b)
    bounds[b] = std::clamp<int64_t>(p.cu_nodes[b], b ? bounds[b - 1] : 0, p.num_nodes);
  const int64_t grain = std::max<int64_t>(1, kGrainNodes * p.batch / std::max<int64_t>(1, p.num_nodes * words));
  at::parallel_for(0, p.batch, grain, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const int32_t* parents = p.parents + bounds[b];
      uint64_t* mask = p.mask + bounds[b] * words;
      int32_t* depth = p.depth + bounds[b];
      const int64_t nodes = std::min(bounds[b + 1] - bounds[b], p.max_nodes);
      for (int64_t i = 0; i < nodes; ++i) {
        const int64_t parent = parents[i];
        if (parent >= 0 && parent < i) {
          std::copy_n(mask + parent * words, words, mask + i * words);
          depth[i] = depth[parent] + 1;
        }
        mask[i * words + i / 64] |= uint64_t{1} << (i % 64);
      }
    }
  });
}

void tree_select(const TreeSelectParams& p) {
  std::vector<int64_t> counts(p.batch);
  at::parallel_for(0, p.batch, std::max<int64_t>(1, kGrainNodes / p.size), [&](int64_t begin, int64_t end) {
    Scratch scratch(p.size);
    for (int64_t b = begin; b < end; ++b)
      counts[b] = select_nodes(p.tokens + b * p.size, p.scores + b * p.size, p.parents_in + b * p.size, p.size,
                               p.num_nodes, scratch, p.out_tokens + b * p.num_nodes, p.out_parents + b * p.num_nodes);
  });
  // Close the gaps that requests with few candidates leave.
  int64_t total = 0;
  p.out_cu_nodes[0] = 0;
  for (int64_t b = 0; b < p.batch; ++b) {
    if (total != b * p.num_nodes) {
      std::copy_n(p.out_tokens + b * p.num_nodes, counts[b], p.out_tokens + total);
      std::copy_n(p.out_parents + b * p.num_nodes, counts[b], p.out_parents + total);
    }
    total += counts[b];
    p.out_cu_nodes[b + 1] = total;
  }
  std::fill(p.out_tokens + total, p.out_tokens + p.batch * p.num_nodes, -1);
  std::fill(p.out_parents + total, p.out_parents + p.batch * p.num_nodes, -1);
}

}  // namespace specdec::cpu::SPECDEC_CAPABILITY
