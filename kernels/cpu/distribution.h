// The distribution of the token after one row of logits: temperature, top-k, top-p and min-p without a sort, the
// probability of single ids, and inverse-CDF draws in id order from it or from anything derived from it.
//
// All filters amount to one cut: an id is kept iff its logit is not below the cut. So a distribution is the row, the
// reference (largest logit), the scale log2(e) / temperature, the cut and the total of the kept weights
// 2^((logit - reference) * scale). Probabilities are never stored; they are computed a chunk at a time, in L1.
//
// A row is always worked on in the same chunks, each summed by itself, the sums then added in double and in order.
// Chunks can therefore go to different threads without changing a bit of the result.
#pragma once

#include <algorithm>
#include <cfloat>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <vector>

#include "kernels/cpu/logits.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vec.h"
#include "kernels/status.h"

namespace specdec::cpu::SPECDEC_CAPABILITY {

constexpr double kLog2E = 1.4426950408889634;

struct Row {
  const void* data;
  DType dtype;
  int64_t size;
};

// Calls f with the row's data as a pointer of its element type.
template <typename Function>
SPECDEC_INLINE auto visit(const Row& row, const Function& f) {
  switch (row.dtype) {
    case DType::kBFloat16:
      return f(static_cast<const BFloat16*>(row.data));
    case DType::kFloat16:
      return f(static_cast<const Float16*>(row.data));
    default:
      return f(static_cast<const float*>(row.data));
  }
}

inline float logit(const Row& row, int64_t id) {
  return visit(row, [&](auto* x) { return widen(x[id]); });
}

// f(offset, vector) for every vector of x[0..n); lanes past the end hold -inf.
template <typename T, typename Function>
SPECDEC_INLINE void for_each_vector(const T* x, int64_t n, const Function& f) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) f(i, load(x + i));
  if (i < n) f(i, load_partial(x + i, n - i, -kInf));
}

// ---------------------------------------------------------------------------------------------------------------------
// Streaming passes

constexpr int kAccumulators = 4;

// f(accumulator, vector) for x[0..n), the elements in any order; lanes past the end hold -inf.
template <typename T, typename Function>
SPECDEC_INLINE void stream(const T* x, int64_t n, const Function& f) {
  constexpr int64_t kStep = kAccumulators * kLanes;
  constexpr int64_t kPrefetchBytes = 4096;  // the hardware prefetcher stops at a page's end
  int64_t i = 0;
  for (; i + kStep <= n; i += kStep) {
    const char* ahead = reinterpret_cast<const char*>(x + i) + kPrefetchBytes;
    for (int64_t line = 0; line < int64_t(kStep * sizeof(T)); line += 64) __builtin_prefetch(ahead + line);
    for (int pair = 0; pair < kAccumulators; pair += 2) {
      F a, b;
      load_pair(x + i + pair * kLanes, &a, &b);
      f(pair, a);
      f(pair + 1, b);
    }
  }
  for_each_vector(x + i, n - i, [&](int64_t, F v) { f(0, v); });
}

SPECDEC_INLINE float reduce_max(const F (&lanes)[kAccumulators]) {
  return reduce_max(max(max(lanes[0], lanes[1]), max(lanes[2], lanes[3])));
}
SPECDEC_INLINE float reduce_add(const F (&lanes)[kAccumulators]) {
  return reduce_add((lanes[0] + lanes[1]) + (lanes[2] + lanes[3]));
}

struct ChunkScan {
  float max;
  float reference;  // sum is of 2^((x - reference) * scale)
  float sum;        // NaN where the chunk holds a NaN or +inf
};

template <typename T>
ChunkScan scan_chunk(const T* x, int64_t n, float scale) {
  // The reference is a guess: the largest of the first few logits. The sum takes a maximum up to 2^64 above it; where
  // that is not enough the chunk, by now in L1, is summed again with its true maximum.
  F first = splat(-FLT_MAX);
  for_each_vector(x, std::min<int64_t>(n, kAccumulators * kLanes), [&](int64_t, F v) { first = max(v, first); });
  float reference = reduce_max(first);
  for (;;) {
    const F origin = splat(reference), factor = splat(scale);
    F top[kAccumulators], sum[kAccumulators] = {};
    for (F& lanes : top) lanes = splat(-kInf);
    stream(x, n, [&](int u, F v) {
      top[u] = max(v, top[u]);
      sum[u] += exp2((v - origin) * factor);
    });
    const float max_logit = reduce_max(top);
    if (!(max_logit > reference && (max_logit - reference) * scale > 64))
      return {max_logit, reference, reduce_add(sum)};
    reference = max_logit;
  }
}

struct Argmax {
  int64_t id;
  int32_t status;
};

// The finite id with the largest logit (the lowest on a tie), 0 if there is none: what a flagged row yields.
inline int64_t finite_argmax(const Row& row) {
  int64_t best = 0;
  float max_logit = -kInf;
  visit(row, [&](auto* x) {
    for (int64_t id = 0; id < row.size; ++id) {
      const float v = widen(x[id]);
      if (v > max_logit && v < kInf) best = id, max_logit = v;
    }
  });
  return best;
}

template <typename T>
int64_t first_equal(const T* x, int64_t size, int64_t begin, float value) {
  int64_t i = begin;
  while (i + kLanes <= size && !any(load(x + i) == splat(value))) i += kLanes;
  while (widen(x[i]) != value) ++i;
  return i;
}

// The id with the largest logit, the lowest on a tie.
inline Argmax argmax(const Row& row) {
  struct ChunkMax {
    float max;
    bool nan;
  };
  std::vector<ChunkMax> chunks(num_chunks(row.size));
  visit(row, [&](auto* x) {
    for_each_chunk(row.size, [&](int64_t chunk, int64_t begin, int64_t n) {
      F top[kAccumulators];
      for (F& lanes : top) lanes = splat(-kInf);
      I nan = {};
      stream(x + begin, n, [&](int u, F v) {
        top[u] = max(v, top[u]);
        nan |= v != v;
      });
      chunks[chunk] = {reduce_max(top), any(nan)};
    });
  });
  size_t best = 0;
  bool nan = false;
  for (size_t chunk = 0; chunk < chunks.size(); ++chunk) {
    nan |= chunks[chunk].nan;
    if (chunks[chunk].max > chunks[best].max) best = chunk;
  }
  const float max_logit = chunks[best].max;
  if (nan || max_logit == kInf) return {finite_argmax(row), kNotFinite};
  if (max_logit == -kInf) return {0, kNoFiniteLogit};
  return {visit(row, [&](auto* x) { return first_equal(x, row.size, int64_t(best) * kChunk, max_logit); }), 0};
}

// ---------------------------------------------------------------------------------------------------------------------
// Thresholds

// The largest t for which the weights of the values >= t add up to `target`; -inf where all of them do not. `max_value`
// is the largest value, `step` a typical distance below it. `buffer` has room for row.size + kLanes values and may be
// the row itself.
//
// Every round measures the weight above eight pivots and keeps the values between the two that enclose the threshold.
template <typename Weight>
float threshold(Row row, float max_value, float step, double target, const Weight& weight, float* buffer) {
  constexpr int kPivots = 8;
  constexpr int64_t kFew = 32;
  float pivots[kPivots] = {max_value};
  for (int k = 1; k < kPivots; ++k) pivots[k] = max_value - step * float(1 << k) / 4;
  float high = kInf;  // the values from here on weigh `above`, which is less than the target
  double above = 0;
  for (;;) {
    double mass[kPivots] = {};
    visit(row, [&](auto* x) {
      for (int64_t begin = 0; begin < row.size; begin += kChunk) {
        F sums[kPivots] = {};
        for_each_vector(x + begin, std::min(kChunk, row.size - begin), [&](int64_t, F v) {
          const F w = v > splat(-kInf) ? weight(v) : F{};
          for (int k = 0; k < kPivots; ++k) sums[k] += v >= splat(pivots[k]) ? w : F{};
        });
        for (int k = 0; k < kPivots; ++k) mass[k] += reduce_add(sums[k]);
      }
    });
    int k = 0;
    while (k < kPivots && above + mass[k] < target) ++k;
    const float low = k < kPivots ? std::max(pivots[k], -FLT_MAX) : -FLT_MAX;
    if (k > 0) {
      high = pivots[k - 1];
      above += mass[k - 1];
    }

    int64_t count = 0;
    F least = splat(kInf), greatest = splat(-kInf);
    visit(row, [&](auto* x) {
      for_each_vector(x, row.size, [&](int64_t, F v) {
        const I keep = (v >= splat(low)) & (v < splat(high));
        least = min(keep ? v : splat(kInf), least);
        greatest = max(keep ? v : splat(-kInf), greatest);
        count += compress(buffer + count, v, keep);
      });
    });
    if (count == 0) return -kInf;
    row = {buffer, DType::kFloat32, count};
    const float bottom = -reduce_max(-least), top = reduce_max(greatest);
    if (bottom == top) return bottom;
    if (count <= kFew) {
      std::sort(buffer, buffer + count, std::greater<>());
      for (int64_t i = 0; i < count; ++i) {
        above += weight(splat(buffer[i]))[0];
        if (above >= target) return buffer[i];
      }
      return bottom;
    }
    for (int i = 0; i < kPivots; ++i) {
      const float part = float(i) / kPivots;
      pivots[i] = i ? top * (1 - part) + bottom * part : top;
    }
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Distributions

struct Filters {
  float temperature = 1;
  int32_t top_k = 0;  // off where <= 0 or >= V
  float top_p = 1;    // off where >= 1
  float min_p = 0;    // off where <= 0
};

struct Distribution {
  Row row;
  float scale = 1;                // log2(e) / temperature
  float max = -kInf;              // the largest logit: its weight is 1
  float cut = -kInf;              // ids with a smaller logit are filtered out
  std::vector<double> mass = {};  // the kept weight of every chunk
  std::vector<float> tops = {};   // the largest logit of every chunk
  double total = 0;
  int32_t status = 0;  // with any bit set nothing but row is meaningful: use finite_argmax
};

inline double sum(const std::vector<double>& mass) { return std::accumulate(mass.begin(), mass.end(), 0.0); }

SPECDEC_INLINE F weight(const Distribution& d, F logits) { return exp2((logits - splat(d.max)) * splat(d.scale)); }

// factor * weight of ids begin.. begin + n; 0 up to the next multiple of kLanes.
inline void weights(const Distribution& d, int64_t begin, int64_t n, float factor, float* out) {
  visit(d.row, [&](auto* x) {
    for_each_vector(x + begin, n,
                    [&](int64_t i, F v) { store(out + i, v >= splat(d.cut) ? weight(d, v) * splat(factor) : F{}); });
  });
}

// Probabilities of ids begin.. begin + n, times `factor`; 0 up to the next multiple of kLanes.
inline void probabilities(const Distribution& d, int64_t begin, int64_t n, float* out, double factor = 1) {
  weights(d, begin, n, float(factor / d.total), out);
}

// The mass of a chunk of anything that fill(first id, n, out) can write; out holds 0 past n up to the next multiple of
// kLanes.
template <typename Fill>
double chunk_mass(int64_t begin, int64_t n, const Fill& fill) {
  alignas(64) float out[kChunk];
  fill(begin, n, out);
  F sums = {};
  for (int64_t i = 0; i < n; i += kLanes) sums += load(out + i);
  return reduce_add(sums);
}

template <typename Fill>
std::vector<double> chunk_masses(int64_t size, const Fill& fill) {
  std::vector<double> mass(num_chunks(size));
  for_each_chunk(size, [&](int64_t chunk, int64_t begin, int64_t n) { mass[chunk] = chunk_mass(begin, n, fill); });
  return mass;
}

// The first id whose cumulative mass exceeds u * total, the last one with positive mass where rounding runs past it;
// -1 if there is no mass. `mass` is chunk_masses of the same `fill`.
template <typename Fill>
int64_t draw(const std::vector<double>& mass, int64_t size, double u, const Fill& fill) {
  const double target = u * sum(mass);
  double cumulative = 0;
  int64_t chosen = -1;
  for (size_t chunk = 0; chunk < mass.size(); ++chunk) {
    if (!(mass[chunk] > 0)) continue;
    chosen = int64_t(chunk);
    if (cumulative + mass[chunk] > target) break;
    cumulative += mass[chunk];
  }
  if (chosen < 0) return -1;

  alignas(64) float out[kChunk];
  const int64_t begin = chosen * kChunk, n = std::min(kChunk, size - begin);
  fill(begin, n, out);
  for (int64_t i = 0; i < n; i += kLanes) {
    const double vector_mass = reduce_add(load(out + i));
    if (!(cumulative + vector_mass > target)) {
      cumulative += vector_mass;
      continue;
    }
    for (int64_t lane = i; lane < std::min<int64_t>(i + kLanes, n); ++lane) {
      cumulative += out[lane];
      if (out[lane] > 0 && cumulative > target) return begin + lane;
    }
  }
  for (int64_t i = n - 1; i >= 0; --i)
    if (out[i] > 0) return begin + i;
  return -1;
}

inline int64_t draw(const Distribution& d, double u) {
  return draw(d.mass, d.row.size, u, [&](int64_t begin, int64_t n, float* out) { weights(d, begin, n, 1, out); });
}

inline double probability(const Distribution& d, int64_t id) {
  const float x = logit(d.row, id);
  return x >= d.cut ? std::exp2((double(x) - d.max) * d.scale) / d.total : 0;
}

inline float logprob(const Distribution& d, int64_t id) {
  const float x = logit(d.row, id);
  return x >= d.cut ? float((double(x) - d.max) * d.scale / kLog2E - std::log(d.total)) : -kInf;
}

// -sum p ln p
inline double entropy(const Distribution& d) {
  std::vector<double> moments(num_chunks(d.row.size));
  visit(d.row, [&](auto* x) {
    for_each_chunk(d.row.size, [&](int64_t chunk, int64_t begin, int64_t n) {
      F moment = {};
      for_each_vector(x + begin, n, [&](int64_t, F v) {
        const F w = weight(d, v);
        moment += (v >= splat(d.cut)) & (w > F{}) ? w * ((v - splat(d.max)) * splat(d.scale)) : F{};
      });
      moments[chunk] = reduce_add(moment);
    });
  });
  return std::log(d.total) - sum(moments) / (d.total * kLog2E);
}

// The logit below which ids are filtered out.
inline float filter_cut(const Distribution& d, const Filters& filters) {
  const float temperature = float(kLog2E / d.scale);
  const bool has_top_k = filters.top_k > 0 && filters.top_k < d.row.size, has_top_p = filters.top_p < 1;
  const std::unique_ptr<float[]> buffer(has_top_k || has_top_p ? new float[d.row.size + kLanes] : nullptr);
  float cut = -kInf;
  if (has_top_k) cut = threshold(d.row, d.max, temperature, filters.top_k, [](F) { return splat(1.f); }, buffer.get());
  if (has_top_p) {
    Row kept = d.row;
    double total = d.total;
    if (cut > -kInf) {
      int64_t count = 0;
      visit(d.row, [&](auto* x) {
        for_each_vector(x, d.row.size,
                        [&](int64_t, F v) { count += compress(buffer.get() + count, v, v >= splat(cut)); });
      });
      kept = {buffer.get(), DType::kFloat32, count};
      const Distribution top{kept, d.scale, d.max};
      total = sum(chunk_masses(count, [&](int64_t begin, int64_t n, float* out) { weights(top, begin, n, 1, out); }));
    }
    cut = std::max(
        cut,
        threshold(kept, d.max, temperature, filters.top_p * total, [&](F v) { return weight(d, v); }, buffer.get()));
  }
  if (filters.min_p > 0 && filters.temperature < kInf)  // at an infinite one no id is less likely than another
    cut = std::max(cut, float(d.max + std::log(std::min(filters.min_p, 1.f)) * double(temperature)));
  return cut;
}

// A negative temperature or a NaN is greedy too.
inline float temperature_of(float value) { return value > 0 ? value : 0; }

// Request i's filters. The temperature is 0 where the request is greedy: those rows have no Distribution.
inline Filters filters_of(const SamplingParams& sampling, int64_t i) {
  Filters filters;
  if (sampling.temperature) filters.temperature = temperature_of(sampling.temperature[i]);
  if (sampling.top_k) filters.top_k = sampling.top_k[i];
  if (sampling.top_p) filters.top_p = sampling.top_p[i];
  if (sampling.min_p) filters.min_p = sampling.min_p[i];
  return filters;
}

inline Row row_of(const Logits& logits, int64_t i) {
  const int64_t width = logits.dtype == DType::kFloat32 ? 4 : 2;
  const char* data = static_cast<const char*>(logits.data);
  return {data + i * logits.row_stride * width, logits.dtype, logits.vocab_size};
}

// The processed distribution of a row. One pass where no filter is on.
inline Distribution process(const Row& row, const Filters& filters) {
  Distribution d{row};
  // Clamped so that (-inf - max) * scale is -inf and (max - max) * scale is 0 at any temperature.
  d.scale = std::clamp(float(kLog2E / filters.temperature), FLT_MIN, FLT_MAX);
  std::vector<ChunkScan> scans(num_chunks(row.size));
  visit(row, [&](auto* x) {
    for_each_chunk(row.size,
                   [&](int64_t chunk, int64_t begin, int64_t n) { scans[chunk] = scan_chunk(x + begin, n, d.scale); });
  });
  bool finite = true;
  for (const ChunkScan& scan : scans) {
    d.max = std::max(d.max, scan.max);
    finite &= scan.sum == scan.sum;
  }
  if (!finite || d.max == -kInf) {
    d.status = finite ? kNoFiniteLogit : kNotFinite;
    return d;
  }
  d.mass.resize(scans.size());
  d.tops.resize(scans.size());
  for (size_t chunk = 0; chunk < scans.size(); ++chunk) {
    // A chunk whose largest weight could be flushed to zero has no mass: a draw would find nothing in it.
    const ChunkScan& scan = scans[chunk];
    const bool has_mass = (scan.max - d.max) * d.scale > -125;
    d.mass[chunk] = has_mass ? scan.sum * std::exp2((double(scan.reference) - d.max) * d.scale) : 0;
    d.tops[chunk] = scan.max;
  }
  d.total = sum(d.mass);

  d.cut = filter_cut(d, filters);
  if (d.cut > -kInf) {
    for_each_chunk(row.size, [&](int64_t chunk, int64_t begin, int64_t n) {
      const auto fill = [&](int64_t, int64_t, float* out) { weights(d, begin, n, 1, out); };
      d.mass[chunk] = d.tops[chunk] >= d.cut ? chunk_mass(begin, n, fill) : 0;
    });
    d.total = sum(d.mass);
  }
  return d;
}

// What is left of a distribution when ids are taken out of it.
class Remainder {
 public:
  explicit Remainder(const Distribution& d) : rest_(d) {}

  bool empty() const { return !(rest_.total > 0); }
  bool removed(int64_t id) const { return std::find(removed_.begin(), removed_.end(), id) != removed_.end(); }

  // Of the ids that are left, normalised; 0 if there are none.
  double probability(int64_t id) const {
    return removed(id) || empty() ? 0 : SPECDEC_CAPABILITY::probability(rest_, id);
  }

  // Probability of what is left, of what was left in `before`. Either may be too small for its weights: each has a
  // maximum of its own.
  double share_of(const Remainder& before) const {
    if (empty() || before.empty()) return 0;
    return rest_.total / before.rest_.total * std::exp2((double(rest_.max) - before.rest_.max) * rest_.scale);
  }

  // Takes factor * probability from what is in `out`, down to 0. Removed ids get 0.
  void subtract(int64_t begin, int64_t n, double factor, float* out) const {
    if (!empty()) {
      alignas(64) float minus[kChunk];
      probabilities(rest_, begin, n, minus, factor);
      for (int64_t i = 0; i < n; i += kLanes) store(out + i, max(load(out + i) - load(minus + i), F{}));
    }
    clear_removed(begin, n, out);
  }

  void remove(int64_t id) {
    removed_.push_back(id);
    // The chunk is summed again: subtracting would leave rounding where nothing is left.
    const int64_t begin = id / kChunk * kChunk;
    rest_.mass[id / kChunk] = mass(begin, std::min(kChunk, rest_.row.size - begin));
    rest_.total = sum(rest_.mass);
    if (rest_.total < kRescale && !rescale()) rest_.total = 0;
  }

  // Removes nothing. -1 if no id is left.
  int64_t draw(double u) const {
    if (empty()) return -1;
    return SPECDEC_CAPABILITY::draw(rest_.mass, rest_.row.size, u,
                                    [&](int64_t begin, int64_t n, float* out) { fill(begin, n, out); });
  }

 private:
  // Below this total, weights relative to the old maximum come near what is flushed to zero.
  static constexpr double kRescale = 0x1p-60;

  void fill(int64_t begin, int64_t n, float* out) const {
    weights(rest_, begin, n, 1, out);
    clear_removed(begin, n, out);
  }
  void clear_removed(int64_t begin, int64_t n, float* out) const {
    for (int64_t id : removed_)
      if (begin <= id && id < begin + n) out[id - begin] = 0;
  }

  double mass(int64_t begin, int64_t n) const {
    return chunk_mass(begin, n, [&](int64_t first, int64_t count, float* out) { fill(first, count, out); });
  }

  // Makes the largest logit that is left the reference. False if none is left.
  bool rescale() {
    std::vector<float> chunk_max(rest_.mass.size());
    visit(rest_.row, [&](auto* x) {
      for_each_chunk(rest_.row.size, [&](int64_t chunk, int64_t begin, int64_t n) {
        alignas(64) float values[kChunk];
        for_each_vector(x + begin, n, [&](int64_t i, F v) { store(values + i, v); });
        for (int64_t id : removed_)
          if (begin <= id && id < begin + n) values[id - begin] = -kInf;
        F top = splat(-kInf);
        for (int64_t i = 0; i < n; i += kLanes) top = max(load(values + i), top);
        chunk_max[chunk] = reduce_max(top);
      });
    });
    const float left = *std::max_element(chunk_max.begin(), chunk_max.end());
    if (left < std::max(rest_.cut, -FLT_MAX)) return false;
    rest_.max = left;
    for_each_chunk(rest_.row.size,
                   [&](int64_t chunk, int64_t begin, int64_t n) { rest_.mass[chunk] = mass(begin, n); });
    rest_.total = sum(rest_.mass);
    return true;
  }

  Distribution rest_;
  std::vector<int64_t> removed_;
};

// The draft distribution q of a verification is absent where token x was chosen deterministically: q is one-hot at x.
inline double draft_probability(const std::optional<Distribution>& q, int64_t x) { return q ? probability(*q, x) : 1; }

// Fills max(weight * p - q, 0).
inline auto residual(const Distribution& p, const std::optional<Distribution>& q, int64_t x, double weight) {
  return [&p, &q, x, weight](int64_t begin, int64_t n, float* out) {
    probabilities(p, begin, n, out, weight);
    if (!q) {
      if (begin <= x && x < begin + n) out[x - begin] = 0;
      return;
    }
    alignas(64) float minus[kChunk];
    probabilities(*q, begin, n, minus);
    for (int64_t i = 0; i < n; i += kLanes) store(out + i, max(load(out + i) - load(minus + i), F{}));
  };
}

// Draws from the residual, from p where the residual has no mass (p = q but for rounding).
inline int64_t draw_residual(const Distribution& p, const std::optional<Distribution>& q, int64_t x, double weight,
                             double u) {
  const auto fill = residual(p, q, x, weight);
  const int64_t id = draw(chunk_masses(p.row.size, fill), p.row.size, u, fill);
  return id < 0 ? draw(p, u) : id;
}

}  // namespace specdec::cpu::SPECDEC_CAPABILITY
