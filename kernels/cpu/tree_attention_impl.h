// What every tree attention kernel shares: how the work is cut into tasks, where keys lie, who sees them, the online
// softmax and how results leave.
//
// A task is a block of query rows of one request (row = node * group + head of the group), for some KV heads, against a
// range of slots. It goes through the slots block by block and through the heads within a block: the rows of one head
// lie a whole token apart, and reading a token's heads soon after each other is 1.5 to 2 times as fast as one head's
// whole context at a time. While it computes on a block, it asks for the next one (ReadAhead). What is cut where
// depends on the request's own sizes and on static arguments alone, so that neither the rest of the batch nor the
// number of threads changes a result. A kernel keeps the rows in the lanes of its vectors: the scores of a tile are S^T
// [key][row], and the softmax state is a vector a tile, without a horizontal reduction anywhere.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "tree_attention.h"
#include "vec.h"

namespace specdec::cpu::SPECDEC_CAPABILITY {

namespace {

constexpr int64_t kStateBytes = 512 * 1024;  // of a task's float32 queries and outputs: half a usual L2
constexpr int64_t kTasksPerRequest = 16;     // slots are split until there are as many...
constexpr int64_t kMinSplit = 256;           // ...but not further than this, nor than a few times the rows: a split
constexpr int64_t kMinSplitRows = 32;        // writes and reads its rows' partial results
constexpr int64_t kTasksPerThread = 4;       // heads are split until there are as many, but with few rows only
                                             // until all threads have one: long runs of memory count more
constexpr int kMaxKeys = 128;                // keys a block, at most

SPECDEC_INLINE I splat_int(int32_t x) { return I{} + x; }
SPECDEC_INLINE F select(I condition, F a, F b) { return condition ? a : b; }

constexpr int64_t round_up(int64_t x, int64_t multiple) { return (x + multiple - 1) / multiple * multiple; }

// Scratch of one thread, kept from call to call: fresh pages would cost a short request more than its attention.
class Arena {
 public:
  static Arena& of_thread() {
    static thread_local Arena arena;
    return arena;
  }
  Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena() { ::operator delete(memory_, kAlign); }

  char* take(int64_t bytes) {
    const bool fits = used_ + bytes <= capacity_;
    char* data =
        fits ? memory_ + used_ : static_cast<char*>(::operator new(bytes, kAlign));  // until the arena can grow
    ++live_;
    used_ += bytes;
    return data;
  }
  void give_back(char* data) {
    if (data < memory_ || data >= memory_ + capacity_) ::operator delete(data, kAlign);
    if (--live_ > 0) return;
    if (used_ > capacity_) {
      ::operator delete(memory_, kAlign);
      capacity_ = 0;
      memory_ = static_cast<char*>(::operator new(used_, kAlign, std::nothrow));
      if (memory_) capacity_ = used_;
    }
    used_ = 0;
  }

 private:
  static constexpr std::align_val_t kAlign{64};
  char* memory_ = nullptr;
  int64_t capacity_ = 0, used_ = 0, live_ = 0;
};

// A cache-line aligned piece of the thread's scratch, not initialised.
template <typename T>
class Buffer {
 public:
  explicit Buffer(int64_t size)
      : size_(size),
        data_(reinterpret_cast<T*>(Arena::of_thread().take(round_up(std::max<int64_t>(size, 1) * sizeof(T), 64)))) {}
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { Arena::of_thread().give_back(reinterpret_cast<char*>(data_)); }
  T* get() const { return data_; }
  void clear() { std::memset(static_cast<void*>(data_), 0, size_ * sizeof(T)); }

 private:
  const int64_t size_;
  T* data_;
};

// Calls function(T{}) with the float type that `dtype` names.
template <typename Function>
void with_float(DType dtype, Function function) {
  if (dtype == DType::kFloat32) return function(float{});
  if (dtype == DType::kBFloat16) return function(BFloat16{});
  function(Float16{});
}

template <typename T>
void widen_row(const T* in, float factor, int64_t n, float* out) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(out + i, load(in + i) * splat(factor));
  if (i < n) store_partial(out + i, load_partial(in + i, n - i, 0.f) * splat(factor), n - i);
}

template <typename T>
void narrow_row(const float* in, float factor, int64_t n, T* out) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(out + i, load(in + i) * splat(factor));
  if (i < n) store_partial(out + i, load_partial(in + i, n - i, 0.f) * splat(factor), n - i);
}

constexpr int64_t element_size(DType dtype) { return dtype == DType::kFloat32 ? 4 : dtype == DType::kInt8 ? 1 : 2; }

struct Request {
  int64_t first_node, nodes;
  int64_t context;  // may pass the table's capacity: positions count from here all the same
  int64_t slots;    // context and nodes, as far as the table goes
  const int32_t* block_table;
};

struct Task {
  const Request* request;
  int64_t head_begin, head_end, row_begin, row_end, slot_begin, slot_end;
  int64_t partial;  // first row of this task in the partial results, -1: it is the only one and writes the output
  bool few;         // rows of the request: a task for FewRows, see attend()
};

std::vector<Request> list_requests(const TreeAttentionParams& p) {
  std::vector<Request> requests(p.batch);
  int64_t end = std::clamp<int64_t>(p.cu_nodes[0], 0, p.num_nodes);
  for (int64_t b = 0; b < p.batch; ++b) {
    const int64_t begin = end;
    end = std::clamp<int64_t>(p.cu_nodes[b + 1], begin, p.num_nodes);
    const int64_t context = std::max(p.context_lens[b], 0);
    const int64_t nodes = std::min(end - begin, p.max_nodes);
    requests[b] = {begin, nodes, context, std::min(context + nodes, p.max_blocks * p.block_size),
                   p.block_table + b * p.max_blocks};
  }
  return requests;
}

// The depths of a request's nodes: given, or counted from the mask, or those of a chain.
void list_depths(const TreeAttentionParams& p, const Request& request, std::vector<int32_t>& depths) {
  depths.resize(request.nodes);
  for (int64_t i = 0; i < request.nodes; ++i) {
    const int64_t row = request.first_node + i;
    if (p.depth) {
      depths[i] = p.depth[row];
    } else if (p.mask) {
      int32_t bits = 0;
      for (int64_t first = 0; first < request.nodes; first += 64) {
        const int64_t live = std::min<int64_t>(64, request.nodes - first);
        bits += __builtin_popcountll(uint64_t(p.mask[row * p.mask_words + first / 64]) & (~uint64_t{0} >> (64 - live)));
      }
      depths[i] = bits - 1;
    } else {
      depths[i] = int32_t(i);
    }
  }
}

// The slots that some row of the nodes [first, last] can see.
void slot_range(const TreeAttentionParams& p, const Request& request, int64_t first, int64_t last, int64_t* begin,
                int64_t* end) {
  *begin = 0;
  *end = request.slots;
  if (!p.mask) *end = std::min(*end, request.context + last + 1);
  if (p.window > 0) {
    if (!p.mask && !p.depth) {
      *begin = std::max<int64_t>(0, request.context + first - p.window + 1);
    } else {
      std::vector<int32_t> depths;
      list_depths(p, request, depths);
      const int64_t lowest = *std::min_element(depths.begin() + first, depths.begin() + last + 1);
      *begin = std::clamp<int64_t>(request.context + lowest - p.window + 1, 0, request.context);
    }
  }
  *begin = std::min(*begin, *end);
}

// Lane j of v[i] changes places with lane i of v[j], in every kSize lanes by themselves; only moves bits. A recursion,
// as the compiler does not unroll a loop over the steps and would then build the indices at run time.
template <int kStep = 1, int kSize>
SPECDEC_INLINE void transpose(F (&v)[kSize]) {
  if constexpr (kStep < kSize) {
    I low, high;
    for (int i = 0; i < kLanes; ++i) {
      low[i] = i & kStep ? i - kStep + kLanes : i;
      high[i] = i & kStep ? i + kLanes : i + kStep;
    }
    for (int i = 0; i < kSize; ++i) {
      if (i & kStep) continue;
      const F a = v[i], b = v[i + kStep];
      v[i] = __builtin_shuffle(a, b, low);
      v[i + kStep] = __builtin_shuffle(a, b, high);
    }
    transpose<2 * kStep>(v);
  }
}

// out[j][i] = in[i][j] for kLanes i and n j; both are padded to whole vectors.
inline void transpose_rows(const float* in, int64_t in_stride, int64_t n, float* out, int64_t out_stride) {
  for (int64_t j = 0; j < n; j += kLanes) {
    F v[kLanes];
    for (int i = 0; i < kLanes; ++i) v[i] = load(in + i * in_stride + j);
    transpose(v);
    for (int i = 0; i < kLanes; ++i) store(out + (j + i) * out_stride, v[i]);
  }
}

// out[i][j] = in[j][i] for kLanes i and n j, padded likewise.
inline void transpose_columns(const float* in, int64_t in_stride, int64_t n, float* out, int64_t out_stride) {
  for (int64_t j = 0; j < n; j += kLanes) {
    F v[kLanes];
    for (int i = 0; i < kLanes; ++i) v[i] = load(in + (j + i) * in_stride);
    transpose(v);
    for (int i = 0; i < kLanes; ++i) store(out + i * out_stride + j, v[i]);
  }
}

// Calls function(first) for each kLanes rows of a task once their queries are in `queries`, as `take` puts them there
// from an offset of p.q, `stride` apart and padded with zeros. Each head's rows start a new tile.
template <typename T, typename Take, typename Function>
void for_each_query_vector(const TreeAttentionParams& p, const Task& task, int64_t tile_rows, int64_t stride,
                           T* queries, Take take, Function function) {
  const int64_t group = p.heads / p.kv_heads, rows = task.row_end - task.row_begin;
  for (int64_t kv_head = task.head_begin; kv_head < task.head_end; ++kv_head) {
    for (int64_t first = 0; first < rows; first += kLanes) {
      for (int64_t i = 0; i < kLanes; ++i) {
        T* query = queries + i * stride;
        if (first + i >= rows) {
          std::fill_n(query, stride, T{});
          continue;
        }
        const int64_t row = task.row_begin + first + i;
        const int64_t node = task.request->first_node + row / group, head = kv_head * group + row % group;
        take(node * p.q_strides[0] + head * p.q_strides[1], query);
        std::fill(query + p.d_qk, query + stride, T{});
      }
      function((kv_head - task.head_begin) * round_up(rows, tile_rows) + first);
    }
  }
}

// A `take` for float32, times the scale.
inline auto widened_queries(const TreeAttentionParams& p) {
  return [&p](int64_t at, float* query) {
    with_float(p.q_dtype,
               [&](auto t) { widen_row(static_cast<const decltype(t)*>(p.q) + at, p.scale, p.d_qk, query); });
  };
}

// The keys and values of consecutive slots for one KV head: where they lie (null: no valid block there).
struct KeyBlock {
  int64_t first_slot = 0, head = 0;
  int count = 0;
  bool holes = false;
  const char* rows[2 * kMaxKeys];  // `count` keys, then `count` values
  float scales[2 * kMaxKeys];

  // Starts with the task's first head.
  void find(const TreeAttentionParams& p, const Task& task, int64_t slot, int keys) {
    const int64_t element = element_size(p.cache_dtype);
    first_slot = slot;
    head = task.head_begin;
    count = int(std::clamp<int64_t>(task.slot_end - slot, 0, keys));
    holes = false;
    int64_t page = slot / p.block_size, offset = slot % p.block_size;
    for (int j = 0; j < count; ++page, offset = 0) {
      const int64_t id = task.request->block_table[page];
      const bool valid = id >= 0 && id < p.num_blocks;
      const int64_t block = valid ? id : 0;
      holes |= !valid;
      const char* k = static_cast<const char*>(p.k_cache) + (block * p.k_strides[0] + head * p.k_strides[2]) * element;
      const char* v = static_cast<const char*>(p.v_cache) + (block * p.v_strides[0] + head * p.v_strides[2]) * element;
      for (; j < count && offset < p.block_size; ++j, ++offset) {
        rows[j] = valid ? k + offset * p.k_strides[1] * element : nullptr;
        rows[count + j] = valid ? v + offset * p.v_strides[1] * element : nullptr;
        tokens_[j] = block * p.block_size + offset;
      }
    }
    find_scales(p);
  }

  void next_head(const TreeAttentionParams& p) {
    const int64_t k_step = p.k_strides[2] * element_size(p.cache_dtype);
    const int64_t v_step = p.v_strides[2] * element_size(p.cache_dtype);
    ++head;
    for (int j = 0; j < count; ++j) rows[j] = rows[j] ? rows[j] + k_step : nullptr;
    for (int j = count; j < 2 * count; ++j) rows[j] = rows[j] ? rows[j] + v_step : nullptr;
    if (p.k_scale || p.v_scale) find_scales(p);
  }

 private:
  void find_scales(const TreeAttentionParams& p) {
    for (int j = 0; j < count; ++j) {
      const int64_t index = p.scale_per_token ? tokens_[j] * p.kv_heads + head : head;
      scales[j] = p.k_scale && rows[j] ? p.k_scale[index] : 1.f;
      scales[count + j] = p.v_scale && rows[j] ? p.v_scale[index] : 1.f;
    }
  }

  int64_t tokens_[kMaxKeys];
};

// Asks for the next block's keys and values in pieces while the kernels work on the present block, so that memory and
// arithmetic overlap. Small pieces, evenly spread: a burst keeps the kernels waiting and leaves the memory idle later.
// One head's rows lie a whole token apart, where the hardware's prefetchers do not follow; token by token, keys and
// values side by side, they do.
class ReadAhead {
 public:
  explicit ReadAhead(const TreeAttentionParams& p) {
    const int64_t element = element_size(p.cache_dtype);
    k_stride_ = p.k_strides[2] * element;
    v_stride_ = p.v_strides[2] * element;
    row_bytes_ = std::max(p.d_qk, p.d_v) * element;
    together_ = p.k_strides[2] == p.d_qk && p.v_strides[2] == p.d_v;
  }

  // `block` at its first head; step() is going to be called for about so much work.
  void start(const KeyBlock& block, int64_t heads, int64_t work) {
    const int64_t run_bytes = together_ ? heads * row_bytes_ : row_bytes_;
    block_ = &block;
    runs_ = together_ ? 1 : heads;
    run_pieces_ = (run_bytes + kPiece - 1) / kPiece;
    const int64_t pieces = block.count * runs_ * run_pieces_;
    rate_ = kOne * pieces / work + 1;
    due_ = 0;
    next_ = -1;
    left_ = 0;
    next_run();
  }

  // Asks for as much as is due after this much more work.
  SPECDEC_INLINE void step(int64_t work) {
    for (due_ += rate_ * work; due_ >= kOne && left_ > 0; due_ -= kOne) ask();
  }
  void finish() {
    while (left_ > 0) ask();
  }

 private:
  static constexpr int64_t kPiece = 128, kLine = 64, kOne = 1 << 16;

  SPECDEC_INLINE void ask() {
    for (int64_t i = 0; i < kPiece; i += kLine) {
      __builtin_prefetch(k_ + i, 0, 2);
      __builtin_prefetch(v_ + i, 0, 2);
    }
    k_ += kPiece;
    v_ += kPiece;
    if (--left_ == 0) next_run();
  }
  SPECDEC_INLINE void next_run() {
    while (++next_ < block_->count * runs_) {
      const int64_t j = next_ / runs_, head = next_ % runs_;
      if (!block_->rows[j]) continue;
      k_ = block_->rows[j] + head * k_stride_;
      v_ = block_->rows[block_->count + j] + head * v_stride_;
      left_ = run_pieces_;
      return;
    }
  }

  int64_t k_stride_, v_stride_, row_bytes_;
  bool together_;  // the heads of a token
  const KeyBlock* block_ = nullptr;
  const char *k_ = nullptr, *v_ = nullptr;
  int64_t runs_ = 0, run_pieces_ = 0, next_ = 0, left_ = 0;
  int64_t rate_ = 0, due_ = 0;  // pieces a unit of work, and pieces, times kOne
};

// Who sees what: for each row of a task, its node's ancestors and depth, laid out for tiles of `tile_rows` lanes.
class Visibility {
 public:
  Visibility(const TreeAttentionParams& p, int64_t tile_rows) : p_(p), tile_rows_(tile_rows) {}

  void start(const Task& task) {
    request_ = task.request;
    const int64_t group = p_.heads / p_.kv_heads, rows = task.row_end - task.row_begin;
    const int64_t padded = round_up(rows, tile_rows_);
    words_ = p_.mask ? (request_->nodes + 31) / 32 : 0;
    nodes_.assign(padded, 0);
    bits_.assign(padded * words_, 0);
    row_depths_.assign(padded, 0);
    last_seen_.assign(padded / tile_rows_, -1);
    if (p_.window > 0) list_depths(p_, *request_, depths_);
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t node = (task.row_begin + r) / group;
      nodes_[r] = int32_t(node);
      if (p_.window > 0) row_depths_[r] = depths_[node];
      int64_t& last_seen = last_seen_[r / tile_rows_];
      if (words_ == 0) {
        last_seen = node;
        continue;
      }
      const int64_t* mask = p_.mask + (request_->first_node + node) * p_.mask_words;
      uint32_t* bits = bits_.data() + r / tile_rows_ * tile_rows_ * words_ + r % tile_rows_;
      for (int64_t w = 0; w < words_; ++w) {
        const auto word = uint32_t(uint64_t(mask[w / 2]) >> (w % 2 * 32));
        bits[w * tile_rows_] = word;
        if (word) last_seen = std::max<int64_t>(last_seen, 32 * w + 31 - __builtin_clz(word));
      }
    }
  }

  // How many of the block's keys come before the last one that the tile's rows see.
  int reach(int64_t tile, const KeyBlock& block) const {
    return int(std::clamp<int64_t>(request_->context + last_seen_[tile] + 1 - block.first_slot, 0, block.count));
  }

  // Puts -inf where a key is not seen. Rows of S^T lie `stride` apart, kVecs vectors of them are in use.
  template <int kVecs>
  void apply(int64_t tile, const KeyBlock& block, int count, float* scores, int64_t stride) const {
    const int64_t context = request_->context, end = block.first_slot + count;
    const int32_t* depths = row_depths_.data() + tile * tile_rows_;
    bool whole = block.holes;
    if (p_.window > 0) {  // the deepest row's window leaves the earliest keys first
      const int64_t deepest = *std::max_element(depths, depths + kVecs * kLanes);
      whole |= context + deepest - p_.window + 1 > block.first_slot;
    }
    I node[kVecs], depth[kVecs];
    for (int v = 0; v < kVecs; ++v) {
      std::memcpy(&node[v], nodes_.data() + tile * tile_rows_ + v * kLanes, sizeof(I));
      std::memcpy(&depth[v], depths + v * kLanes, sizeof(I));
    }
    for (int64_t slot = whole ? block.first_slot : std::max(block.first_slot, context); slot < end; ++slot) {
      const int j = int(slot - block.first_slot);
      float* s = scores + j * stride;
      I seen[kVecs];
      for (int v = 0; v < kVecs; ++v) seen[v] = splat_int(block.rows[j] ? -1 : 0);
      int64_t distance = context - slot;  // of the key from the root, in positions
      if (slot >= context) {
        const int64_t key = slot - context;
        if (p_.mask) {
          const uint32_t* bits = bits_.data() + (tile * words_ + key / 32) * tile_rows_;
          for (int v = 0; v < kVecs; ++v) {
            U word;
            std::memcpy(&word, bits + v * kLanes, sizeof(U));
            seen[v] &= (I)((word & (U{} + (1u << key % 32))) != U{});
          }
        } else {
          for (int v = 0; v < kVecs; ++v) seen[v] &= node[v] >= splat_int(int32_t(key));
        }
        if (p_.window > 0) distance = -int64_t{depths_[key]};
      }
      if (p_.window > 0) {
        const int64_t limit = std::clamp<int64_t>(p_.window - distance - 1, INT32_MIN, INT32_MAX);
        for (int v = 0; v < kVecs; ++v) seen[v] &= depth[v] <= splat_int(int32_t(limit));
      }
      for (int v = 0; v < kVecs; ++v) store(s + v * kLanes, select(seen[v], load(s + v * kLanes), splat(-kInf)));
    }
  }

 private:
  const TreeAttentionParams& p_;
  const int64_t tile_rows_;
  const Request* request_ = nullptr;
  int64_t words_ = 0;
  std::vector<int32_t> nodes_, row_depths_, depths_;
  std::vector<uint32_t> bits_;      // [tile][word][lane]
  std::vector<int64_t> last_seen_;  // [tile], of the nodes' keys; -1: none
};

// s <- cap * tanh(s * factor / cap)
template <int kVecs>
void soft_cap(float* scores, int count, int64_t stride, float factor, float cap) {
  for (int j = 0; j < count; ++j) {
    for (int v = 0; v < kVecs; ++v) {
      float* s = scores + j * stride + v * kLanes;
      const F x = max(splat(-20.f), min(splat(20.f), load(s) * splat(factor / cap)));  // keeps a NaN
      store(s, splat(cap) - splat(2.f * cap) / (exp(x + x) + splat(1.f)));
    }
  }
}

// One block's step of the online softmax: scores become probabilities relative to `reference`; `alpha` is what the
// earlier output has to be multiplied by. The reference follows the maximum only when that has risen by more than
// kSlack: probabilities up to e^kSlack do no harm, and most blocks need no rescaling.
template <class Kernel, int kVecs>
void online_softmax(Kernel& kernel, float* scores, int count, float factor, F* reference, F* sum, F* alpha) {
  constexpr int64_t kStride = Kernel::stride(kVecs);
  constexpr float kSlack = 8.f;
  F top[kVecs], base[kVecs];
  for (int v = 0; v < kVecs; ++v) top[v] = splat(-kInf);
  for (int j = 0; j < count; ++j)
    for (int v = 0; v < kVecs; ++v) top[v] = max(load(scores + j * kStride + v * kLanes), top[v]);
  for (int v = 0; v < kVecs; ++v) {
    top[v] *= splat(factor);
    top[v] = select(top[v] > reference[v] + splat(kSlack), top[v], reference[v]);
    base[v] = select(top[v] == splat(-kInf), F{}, top[v]);  // -inf less -inf would be a NaN
    alpha[v] = exp(reference[v] - base[v]);
    reference[v] = top[v];
    sum[v] *= alpha[v];
  }
  for (int j = 0; j < count; j += 2) {
    kernel.ahead.step(kVecs);
    F even[kVecs], odd[kVecs];
    for (int v = 0; v < kVecs; ++v) {
      const float* s = scores + j * kStride + v * kLanes;
      even[v] = Kernel::exp_of(load(s) * splat(factor) - base[v]);
      odd[v] = j + 1 < count ? Kernel::exp_of(load(s + kStride) * splat(factor) - base[v]) : F{};
      sum[v] += even[v] + odd[v];
    }
    Kernel::template store_probabilities<kVecs>(scores, j, even, odd);
  }
}

// Writes one row's result, or keeps it until all splits are there. `weight` is the sum of exp(score - reference) that
// belongs to `out`; the sink joins the denominator only.
class Results {
 public:
  Results(const TreeAttentionParams& p, int64_t partial_rows)
      : p_(p), partial_out_(new float[partial_rows * p.d_v]), partial_lse_(new float[partial_rows]) {}

  // `r` counts the task's heads times rows.
  void put(const Task& task, int64_t r, const float* out, float reference, float weight) const {
    const int64_t group = p_.heads / p_.kv_heads, rows = task.row_end - task.row_begin;
    const int64_t row = task.row_begin + r % rows;
    const int64_t node = task.request->first_node + row / group;
    const int64_t head = (task.head_begin + r / rows) * group + row % group;
    if (task.partial < 0) return put(node, head, out, reference, weight);
    narrow_row(out, weight == 0.f ? 0.f : 1.f / weight, p_.d_v, partial_out_.get() + (task.partial + r) * p_.d_v);
    partial_lse_[task.partial + r] = weight == 0.f ? -kInf : reference + std::log(weight);
  }

  // Row r of `splits` tasks that differ in their slots only; their partial results lie `rows` apart.
  void merge(const Task& first, int64_t splits, int64_t rows, int64_t r, float* out) const {
    const float* lse = partial_lse_.get() + first.partial + r;
    float maximum = -kInf, sum = 0.f;
    for (int64_t i = 0; i < splits; ++i) maximum = lse[i * rows] > maximum ? lse[i * rows] : maximum;
    std::fill_n(out, p_.d_v, 0.f);
    for (int64_t i = 0; i < splits; ++i) {
      const float weight = lse[i * rows] == -kInf ? 0.f : std::exp(lse[i * rows] - maximum);
      const float* in = partial_out_.get() + (first.partial + i * rows + r) * p_.d_v;
      for (int64_t d = 0; d < p_.d_v; ++d) out[d] += weight * in[d];
      sum += weight;
    }
    Task whole = first;
    whole.partial = -1;
    put(whole, r, out, maximum, sum);
  }

 private:
  void put(int64_t node, int64_t head, const float* out, float reference, float weight) const {
    float factor = 1.f;
    if (p_.sinks) {
      const float sink = p_.sinks[head], top = sink > reference ? sink : reference;
      factor = reference == -kInf ? 0.f : std::exp(reference - top);
      weight = weight * factor + (sink == -kInf ? 0.f : std::exp(sink - top));
      reference = top;
    }
    const int64_t row = node * p_.heads + head;
    p_.lse[row] = weight == 0.f ? -kInf : reference + std::log(weight);
    with_float(p_.q_dtype, [&](auto t) {
      narrow_row(out, weight == 0.f ? 0.f : factor / weight, p_.d_v, static_cast<decltype(t)*>(p_.out) + row * p_.d_v);
    });
  }

  const TreeAttentionParams& p_;
  std::unique_ptr<float[]> partial_out_, partial_lse_;
};

// Runs one thread's tasks. A Kernel provides
//   kTileRows, kKeys                 rows a tile, some vectors, and keys a block
//   stride(vecs)                     from a key's scores to the next one's, where `vecs` vectors hold the tile's rows
//   start(task)                      take the queries, clear the outputs
//   fetch(block, tiles)              bring the keys and values to where the next two want them
//   scores<kVecs>(tile, block, count, s)    S^T <- K Q^T, the block's first `count` keys
//   accumulate<kVecs>(tile, block, count, s, alpha)    O <- alpha O + P V
//   output(tile, out)                O, kTileRows rows of round_up(d_v, kLanes)
//   exp_of, store_probabilities      see online_softmax
//   ahead                            its ReadAhead; step() is told the work done, in units of some 20 cycles:
//   fetch_work(tiles)                about so much in fetch(),
//   tile_work(tiles, vecs)           and so much in scores() and accumulate() of a whole block
template <class Kernel>
class Worker {
 public:
  // `max_rows`: of any task, heads times whole tiles.
  Worker(const TreeAttentionParams& p, const Results& results, int64_t max_rows)
      : p_(p),
        results_(results),
        kernel_(p, max_rows),
        visibility_(p, Kernel::kTileRows),
        scores_((Kernel::kKeys + kLanes) * Kernel::kTileRows),
        state_(2 * max_rows),
        out_(Kernel::kTileRows * round_up(p.d_v, kLanes)) {}

  // Runs `task` and those that `claim` gives after it. Returns the first that is one for the other kernel, or null.
  // While a task's last block is worked on, the next task's first one is asked for: short tasks have few others.
  template <class Claim>
  const Task* run(const Task* task, Claim claim) {
    const bool few = task->few;
    const auto ask = [&](int64_t slot, int64_t work) {
      next_->find(p_, *task, slot, Kernel::kKeys);
      kernel_.ahead.start(*next_, task->head_end - task->head_begin, work);
    };
    int64_t slot = task->slot_begin;
    ask(slot, 1);
    while (task && task->few == few) {
      const Task& present = *task;
      if (slot == present.slot_begin) begin(present);
      kernel_.ahead.finish();
      std::swap(block_, next_);
      slot += Kernel::kKeys;
      if (slot >= present.slot_end) {
        task = claim();
        if (task) slot = task->slot_begin;
      }
      if (task && task->few == few) ask(slot, block_work());
      if (block_->count > 0) run_block();
      if (task != &present) end(present);
    }
    return task;
  }

 private:
  void begin(const Task& task) {
    rows_ = task.row_end - task.row_begin;
    heads_ = task.head_end - task.head_begin;
    tiles_ = (rows_ + Kernel::kTileRows - 1) / Kernel::kTileRows;
    const int64_t size = heads_ * tiles_ * Kernel::kTileRows;
    reference_ = state_.get();
    sum_ = reference_ + size;
    std::fill_n(reference_, size, -kInf);
    std::fill_n(sum_, size, 0.f);
    kernel_.start(task);
    visibility_.start(task);
  }

  // What `ahead` is going to be told in run_block().
  int64_t block_work() const {
    const int64_t vecs = (std::min<int64_t>(rows_, Kernel::kTileRows) + kLanes - 1) / kLanes;
    return heads_ *
           (kernel_.fetch_work(tiles_) + tiles_ * (kernel_.tile_work(tiles_, vecs) + Kernel::kKeys / 2 * vecs));
  }

  void run_block() {
    for (int64_t head = 0; head < heads_; ++head) {
      if (head > 0) block_->next_head(p_);
      kernel_.fetch(*block_, tiles_);
      for (int64_t tile = 0; tile < tiles_; ++tile) {
        const int64_t live = std::min<int64_t>(rows_ - tile * Kernel::kTileRows, Kernel::kTileRows);
        const int count = visibility_.reach(tile, *block_);
        if (count > 0)
          run_tile<Kernel::kTileRows / kLanes>((live + kLanes - 1) / kLanes, tile, head * tiles_ + tile, count);
      }
    }
  }

  void end(const Task& task) {
    const int64_t stride = round_up(p_.d_v, kLanes);
    for (int64_t tile = 0; tile < heads_ * tiles_; ++tile) {
      kernel_.output(tile, out_.get());
      const int64_t first = tile % tiles_ * Kernel::kTileRows;
      for (int64_t i = 0; i < std::min<int64_t>(Kernel::kTileRows, rows_ - first); ++i) {
        const int64_t at = tile * Kernel::kTileRows + i;
        results_.put(task, tile / tiles_ * rows_ + first + i, out_.get() + i * stride, reference_[at], sum_[at]);
      }
    }
  }

  // `tile` is the head's, `state_tile` the task's. `vecs` vectors hold its rows, which see none but the first `count`
  // keys.
  template <int kVecs>
  void run_tile(int64_t vecs, int64_t tile, int64_t state_tile, int count) {
    if constexpr (kVecs > 1)
      if (vecs < kVecs) return run_tile<kVecs - 1>(vecs, tile, state_tile, count);
    const KeyBlock& block = *block_;
    float *s = scores_.get(), *reference = reference_ + state_tile * Kernel::kTileRows,
          *sum = sum_ + state_tile * Kernel::kTileRows;
    float factor = kernel_.score_factor();
    kernel_.template scores<kVecs>(state_tile, block, count, s);
    if (p_.softcap > 0.f) {
      soft_cap<kVecs>(s, count, Kernel::stride(kVecs), factor, p_.softcap);
      factor = 1.f;
    }
    visibility_.template apply<kVecs>(tile, block, count, s, Kernel::stride(kVecs));
    F m[kVecs], l[kVecs], alpha[kVecs];
    for (int v = 0; v < kVecs; ++v) {
      m[v] = load(reference + v * kLanes);
      l[v] = load(sum + v * kLanes);
    }
    online_softmax<Kernel, kVecs>(kernel_, s, count, factor, m, l, alpha);
    for (int v = 0; v < kVecs; ++v) {
      store(reference + v * kLanes, m[v]);
      store(sum + v * kLanes, l[v]);
    }
    kernel_.template accumulate<kVecs>(state_tile, block, count, s, alpha);
  }

  const TreeAttentionParams& p_;
  const Results& results_;
  Kernel kernel_;
  Visibility visibility_;
  Buffer<float> scores_, state_, out_;
  KeyBlock blocks_[2], *block_ = &blocks_[0], *next_ = &blocks_[1];
  int64_t rows_ = 0, heads_ = 0, tiles_ = 0;  // of the task at work
  float *reference_ = nullptr, *sum_ = nullptr;
};

// Rows that no request covers: nothing visible.
inline void clear_uncovered(const TreeAttentionParams& p, const std::vector<Request>& requests) {
  const int64_t element = element_size(p.q_dtype);
  int64_t node = 0;
  const auto clear_until = [&](int64_t end) {
    if (end <= node) return;  // an empty tensor has no address to hand to memset
    std::memset(static_cast<char*>(p.out) + node * p.heads * p.d_v * element, 0,
                (end - node) * p.heads * p.d_v * element);
    std::fill(p.lse + node * p.heads, p.lse + end * p.heads, -kInf);
  };
  for (const Request& request : requests) {
    clear_until(request.first_node);
    node = request.first_node + request.nodes;
  }
  clear_until(p.num_nodes);
}

// What a call does: tasks in the order in which they are taken, and those among them whose partial results belong
// together.
struct Plan {
  struct Merge {
    size_t first_task;
    int64_t splits, rows;
  };
  std::vector<Task> tasks;
  std::vector<Merge> merges;
  int64_t partial_rows = 0;
};

// Only the cut by rows and slots, made first, changes the arithmetic.
template <class Kernel, class FewRows>
Plan make_plan(const TreeAttentionParams& p, const std::vector<Request>& requests) {
  struct Span {
    const Request* request;
    int64_t row_begin, row_end, slot_begin, slot_end, split, splits, heads;
    bool few;
  };
  const int64_t group = p.heads / p.kv_heads;
  const int64_t state_rows = std::max<int64_t>(1, kStateBytes / int64_t(sizeof(float)) / (p.d_qk + p.d_v));
  const int64_t row_block = std::max<int64_t>(1, state_rows / Kernel::kTileRows) * Kernel::kTileRows;
  std::vector<Span> spans;
  int64_t num_tasks = 0;
  for (const Request& request : requests) {
    const int64_t rows = request.nodes * group;
    if (rows == 0) continue;
    const bool few = rows <= FewRows::kMaxRows;
    const int64_t row_blocks = (rows + row_block - 1) / row_block;
    const int64_t heads = std::clamp<int64_t>(state_rows / round_up(rows, kLanes), 1, p.kv_heads);
    const int64_t head_blocks = (p.kv_heads + heads - 1) / heads;
    for (int64_t row = 0; row < rows; row += row_block) {
      const int64_t row_end = std::min(row + row_block, rows);
      int64_t slot_begin, slot_end;
      slot_range(p, request, row / group, (row_end - 1) / group, &slot_begin, &slot_end);
      const int64_t slots = slot_end - slot_begin;
      const int64_t shortest = std::max(kMinSplit, kMinSplitRows * (row_end - row));
      const int64_t wanted =
          std::max<int64_t>(1, std::min(kTasksPerRequest / (row_blocks * head_blocks), slots / shortest));
      const int64_t split = round_up((slots + wanted - 1) / wanted, few ? FewRows::kKeys : Kernel::kKeys);
      const int64_t splits = std::max<int64_t>(1, (slots + split - 1) / std::max<int64_t>(split, 1));
      spans.push_back({&request, row, row_end, slot_begin, slot_end, split, splits, heads, few});
      num_tasks += splits * head_blocks;
    }
  }
  Plan plan;
  for (const Span& span : spans) {
    // A short or lonely request occupies all threads by its heads.
    const int64_t wanted_tasks = (span.few ? 1 : kTasksPerThread) * at::get_num_threads();
    const int64_t heads = std::clamp<int64_t>(span.heads * num_tasks / wanted_tasks, 1, span.heads);
    for (int64_t head = 0; head < p.kv_heads; head += heads) {
      const int64_t head_end = std::min(head + heads, p.kv_heads);
      const int64_t task_rows = (head_end - head) * (span.row_end - span.row_begin);
      if (span.splits > 1) plan.merges.push_back({plan.tasks.size(), span.splits, task_rows});
      for (int64_t i = 0; i < span.splits; ++i) {
        const int64_t begin = span.slot_begin + i * span.split;
        plan.tasks.push_back({span.request, head, head_end, span.row_begin, span.row_end, begin,
                              std::min(begin + span.split, span.slot_end), span.splits > 1 ? plan.partial_rows : -1,
                              span.few});
        if (span.splits > 1) plan.partial_rows += task_rows;
      }
    }
  }
  return plan;
}

// FewRows serves the requests with up to its kMaxRows rows a KV head, Kernel the others.
template <class Kernel, class FewRows>
void attend(const TreeAttentionParams& p) {
  const std::vector<Request> requests = list_requests(p);
  clear_uncovered(p, requests);
  const Plan plan = make_plan<Kernel, FewRows>(p, requests);
  const std::vector<Task>& tasks = plan.tasks;
  int64_t most_rows = 0, most_few_rows = 0;  // of a task, whole tiles
  for (const Task& task : tasks) {
    const int64_t heads = task.head_end - task.head_begin, rows = task.row_end - task.row_begin;
    int64_t& most = task.few ? most_few_rows : most_rows;
    most = std::max(most, heads * round_up(rows, task.few ? FewRows::kTileRows : Kernel::kTileRows));
  }

  const Results results(p, plan.partial_rows);
  std::atomic<size_t> next{0};  // tasks differ in length: whoever is free takes the next one
  at::parallel_for(0, std::min<int64_t>(at::get_num_threads(), tasks.size()), 1, [&](int64_t, int64_t) {
    std::unique_ptr<Worker<Kernel>> worker;
    std::unique_ptr<Worker<FewRows>> few_worker;
    const auto claim = [&]() -> const Task* {
      const size_t i = next++;
      return i < tasks.size() ? &tasks[i] : nullptr;
    };
    for (const Task* task = claim(); task;) {
      if (task->few) {
        if (!few_worker) few_worker = std::make_unique<Worker<FewRows>>(p, results, most_few_rows);
        task = few_worker->run(task, claim);
      } else {
        if (!worker) worker = std::make_unique<Worker<Kernel>>(p, results, most_rows);
        task = worker->run(task, claim);
      }
    }
  });
  at::parallel_for(0, plan.merges.size(), 1, [&](int64_t begin, int64_t end) {
    std::vector<float> row(p.d_v);
    for (int64_t i = begin; i < end; ++i) {
      const Plan::Merge& merge = plan.merges[i];
      for (int64_t r = 0; r < merge.rows; ++r)
        results.merge(tasks[merge.first_task], merge.splits, merge.rows, r, row.data());
    }
  });
}

}  // namespace

}  // namespace specdec::cpu::SPECDEC_CAPABILITY
