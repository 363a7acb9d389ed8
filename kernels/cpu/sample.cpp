#include "sample.h"

#include "distribution.h"

namespace specdec::cpu::SPECDEC_CAPABILITY {

namespace {

struct Candidate {
  float logit;
  int64_t id;
};

// The ids of the k largest logits that pass the filters, descending, the lowest id first on a tie.
std::vector<int64_t> best(const Distribution& d, int64_t k) {
  float cut = std::max(d.cut, -FLT_MAX);
  if (k <= int64_t(d.tops.size())) {
    // At least k logits reach the k-th largest of the maxima of chunks: the best k are among them.
    std::vector<float> tops = d.tops;
    std::nth_element(tops.begin(), tops.begin() + (k - 1), tops.end(), std::greater<>());
    cut = std::max(cut, tops[k - 1]);
  } else if (k < d.row.size) {
    const std::unique_ptr<float[]> buffer(new float[d.row.size + kLanes]);
    const float temperature = float(kLog2E / d.scale);
    cut = std::max(cut, threshold(d.row, d.max, temperature, double(k), [](F) { return splat(1.f); }, buffer.get()));
  }
  std::vector<Candidate> candidates;
  visit(d.row, [&](auto* x) {
    for (size_t chunk = 0; chunk < d.tops.size(); ++chunk) {
      if (d.tops[chunk] < cut) continue;
      const int64_t begin = int64_t(chunk) * kChunk;
      for_each_vector(x + begin, std::min(kChunk, d.row.size - begin), [&](int64_t i, F v) {
        if (!any(v >= splat(cut))) return;
        for (int lane = 0; lane < kLanes; ++lane)
          if (v[lane] >= cut) candidates.push_back({v[lane], begin + i + lane});
      });
    }
  });
  const auto before = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  };
  const size_t count = std::min(candidates.size(), size_t(k));
  std::partial_sort(candidates.begin(), candidates.begin() + count, candidates.end(), before);
  std::vector<int64_t> ids(count);
  for (size_t i = 0; i < count; ++i) ids[i] = candidates[i].id;
  return ids;
}

std::vector<int64_t> draw_distinct(const Distribution& d, const float* uniforms, int64_t k) {
  Remainder rest(d);
  std::vector<int64_t> ids;
  for (int64_t j = 0; j < k; ++j) {
    const int64_t id = rest.draw(uniforms[j]);
    if (id < 0) break;
    ids.push_back(id);
    rest.remove(id);
  }
  return ids;
}

}  // namespace

void sample(const SampleParams& p) {
  for_each_request(p.rows, p.logits.vocab_size, [&](int64_t i) {
    const Row row = row_of(p.logits, i);
    const Filters filters = filters_of(p.sampling, i);
    p.logprobs[i] = 0;
    if (filters.temperature == 0) {
      const Argmax top = argmax(row);
      p.tokens[i] = top.id;
      p.status[i] = top.status;
      return;
    }
    const Distribution d = process(row, filters);
    p.status[i] = d.status;
    if (d.status) {
      p.tokens[i] = finite_argmax(row);
    } else {
      p.tokens[i] = draw(d, p.uniforms[i]);
      p.logprobs[i] = logprob(d, p.tokens[i]);
    }
  });
}

void sample_topk(const SampleTopkParams& p) {
  for_each_request(p.rows, p.logits.vocab_size, [&](int64_t i) {
    const Row row = row_of(p.logits, i);
    Filters filters = filters_of(p.sampling, i);
    const bool greedy = filters.temperature == 0;
    if (greedy) filters.temperature = 1;
    const Distribution d = process(row, filters);
    std::vector<int64_t> ids;
    if (d.status)
      ids = {finite_argmax(row)};
    else if (greedy || !p.uniforms)
      ids = best(d, p.k);
    else
      ids = draw_distinct(d, p.uniforms + i * p.k, p.k);
    for (int64_t j = 0; j < p.k; ++j) {
      const bool found = j < int64_t(ids.size());
      p.tokens[i * p.k + j] = found ? ids[j] : -1;
      p.logprobs[i * p.k + j] = !found ? -kInf : d.status ? 0 : logprob(d, ids[j]);
    }
  });
}

}  // namespace specdec::cpu::SPECDEC_CAPABILITY
