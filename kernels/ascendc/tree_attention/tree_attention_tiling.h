// What host and device share of tree attention: the tiling, the functions that fill it, and the launches.
#pragma once

#include <cstdint>

namespace specdec::ascendc {

struct TreeAttentionArguments {
  const void *q, *k_cache, *v_cache;                     // caches of q's type, or int8
  const void *block_table, *context_lens, *cu_nodes;     // int32
  const void *mask, *depth, *sinks, *k_scale, *v_scale;  // each may be null
  void *out, *lse, *workspace;
};

// Sizes and strides of the arguments, in elements.
struct TreeAttentionShape {
  uint64_t q_node, q_head;           // strides
  uint64_t k_block, k_slot, k_head;  // strides
  uint64_t v_block, v_slot, v_head;  // strides
  uint64_t num_nodes;
  uint32_t heads, kv_heads, d_qk, d_v;
  uint32_t batch, num_blocks, block_size, max_blocks, mask_words, max_nodes, window;
  float scale, softcap;
  bool scale_per_token;
  bool values_in_keys;  // the values are the first d_v of the keys (MLA)
};

// Byte addresses in the memories of a core.
struct TreeAttentionL1 {
  uint32_t queries, keys, values, probabilities;
};
struct TreeAttentionUb {
  uint32_t scores, probabilities, by_row, column, alpha, maximum, sums, bits, products, outputs;
  uint32_t raw, widened, token_scales, k_scales, v_scales;  // int8 cache only
};
// Byte offsets in the workspace.
struct TreeAttentionWorkspace {
  uint64_t scores, products, keys, values;  // of the cores, one after the other
  uint64_t outputs, lse;                    // of the splits
};

struct TreeAttentionTiling {
  TreeAttentionShape shape;
  uint32_t cores;         // cube cores, two vector cores each
  uint32_t rows;          // of a task at most: a row is one head of one node
  uint32_t step_rows;     // rows of one product at most
  uint32_t chunk_rows;    // of these, that a vector core takes at once
  bool load_ahead;        // the next tile of keys, while this one is in use
  uint32_t tile;          // keys of one product
  uint32_t places;        // for tiles of keys, and for tiles of values, in L1
  uint32_t splits;        // parts of one request's keys at most
  uint32_t convert_rows;  // of an int8 cache that a vector core widens at once
  uint32_t merge_rows;    // whose splits a vector core merges at once
  TreeAttentionL1 l1;
  TreeAttentionUb ub;
  TreeAttentionWorkspace workspace;
  uint64_t workspace_bytes;
};

constexpr uint32_t kMaxTile = 256;
constexpr uint32_t kMinSplitKeys = 256;  // a split has at least as many
constexpr uint32_t kMaxSplits = 24;      // as many as a device has cube cores
constexpr uint32_t kRowBlock = 8;        // lanes in which a row's maximum or sum is repeated: a 32-byte block
constexpr uint32_t kMergeRows = 16;      // are whole lines of `out` and `lse`; with an even d_v half as many are
constexpr uint32_t kMaxRepeats = 255;    // of a vector instruction, one a row
constexpr uint32_t kMaxValueSize = 512;  // head size of the values
constexpr uint32_t kInFlight = 3;        // items from scores to outputs
constexpr uint32_t kConvertedTiles = 5;  // int8 tiles on their way from vector to cube core

enum class TreeAttentionType { kHalf, kBfloat16, kFloat };

namespace tiling {

constexpr uint64_t kUbBytes = 184 * 1024;

inline uint32_t round_up(uint32_t x, uint32_t multiple) { return (x + multiple - 1) / multiple * multiple; }
inline uint64_t round_up(uint64_t x, uint64_t multiple) { return (x + multiple - 1) / multiple * multiple; }

template <typename Size>
class Carver {
 public:
  Size take(Size bytes) {
    const Size start = used_;
    used_ += round_up(bytes, Size{512});
    return start;
  }
  Size used() const { return used_; }

 private:
  Size used_ = 0;
};

// Fills l1 and says whether it fits.
inline bool carve_l1(TreeAttentionTiling& t, uint32_t element) {
  constexpr uint64_t kL1Bytes = 512 * 1024;
  const uint32_t d_qk = round_up(t.shape.d_qk, 16u), d_v = round_up(t.shape.d_v, 16u);
  Carver<uint64_t> l1;
  t.l1.queries = static_cast<uint32_t>(l1.take(uint64_t{t.rows} * d_qk * element));
  t.l1.keys = static_cast<uint32_t>(l1.take(uint64_t{t.places} * t.tile * d_qk * element));
  if (!t.shape.values_in_keys)
    t.l1.values = static_cast<uint32_t>(l1.take(uint64_t{t.places} * t.tile * d_v * element));
  t.l1.probabilities = static_cast<uint32_t>(l1.take(uint64_t{t.step_rows} * t.tile * element));
  return l1.used() <= kL1Bytes;
}

inline bool carve_ub(TreeAttentionTiling& t, uint32_t element, bool quantized, uint32_t chunk_bytes) {
  const uint32_t d_qk = round_up(t.shape.d_qk, 32u), d_v = round_up(t.shape.d_v, 16u);
  const uint32_t step = t.step_rows / 2, rows = t.rows / 2;  // of one of the two vector cores
  constexpr uint32_t kFloat = 4;
  const uint32_t widest = t.tile < d_v ? d_v : t.tile;
  t.chunk_rows = step;
  while (t.chunk_rows > 8 && t.chunk_rows * widest * kFloat > chunk_bytes) t.chunk_rows -= 8;
  const uint32_t chunk = t.chunk_rows;
  Carver<uint64_t> ub;
  const auto take = [&ub](uint64_t bytes) { return static_cast<uint32_t>(ub.take(bytes)); };
  t.ub.scores = take(2 * chunk * t.tile * kFloat);
  t.ub.probabilities = take(chunk * t.tile * element);
  t.ub.by_row = take(chunk * kRowBlock * kFloat);
  t.ub.column = take(chunk * kFloat);
  t.ub.alpha = take(kInFlight * step * kRowBlock * kFloat);
  t.ub.maximum = take(kInFlight * rows * kFloat);
  t.ub.sums = take(kInFlight * rows * kRowBlock * kFloat);
  t.ub.bits = take(chunk * t.tile / 8);
  t.ub.products = take(chunk * d_v * kFloat);
  t.ub.outputs = take(uint64_t{rows} * d_v * kFloat);
  if (quantized) {
    const uint32_t width = d_qk > round_up(t.shape.d_v, 32u) ? d_qk : round_up(t.shape.d_v, 32u);
    t.ub.token_scales = take(t.tile * kRowBlock * kFloat);
    t.ub.k_scales = take(kInFlight * t.tile * kFloat);
    t.ub.v_scales = take(kInFlight * t.tile * kFloat);
    const uint32_t widened = width * (2 + kFloat + (element == 4 ? 0 : element));  // as half, as float, as q's type
    const uint32_t bytes = width + widened;
    t.convert_rows = t.tile / 2;
    while (t.convert_rows > 16 && ub.used() + 1024 + t.convert_rows * bytes > kUbBytes) t.convert_rows -= 16;
    t.ub.raw = take(t.convert_rows * width);
    t.ub.widened = take(t.convert_rows * widened);
  }
  return ub.used() <= kUbBytes;
}

// The most rows that fit, up to `wanted`; 0 if none do.
inline uint32_t fit_rows(TreeAttentionTiling& t, uint32_t wanted, uint32_t element, bool quantized) {
  for (t.rows = round_up(wanted, t.step_rows); t.rows >= t.step_rows; t.rows -= t.step_rows) {
    if (!carve_l1(t, element)) continue;
    for (uint32_t chunk_bytes = 32 * 1024; chunk_bytes >= 8 * 1024; chunk_bytes /= 2)
      if (carve_ub(t, element, quantized, chunk_bytes)) return t.rows;
  }
  return 0;
}

// As even parts as fit of a vector core's share of all rows.
inline uint32_t merge_rows(const TreeAttentionTiling& t) {
  const uint64_t row_bytes = round_up(t.shape.d_v, 16u) * 16 + (t.splits + 5) * kRowBlock * 4;
  const uint64_t unit = t.shape.d_v % 2 == 0 ? kMergeRows / 2 : kMergeRows;
  const uint64_t fitting = kUbBytes / row_bytes, cores = 2 * t.cores;
  const uint64_t most = (fitting < kMaxRepeats ? fitting : kMaxRepeats) / unit * unit;
  const uint64_t share = (t.shape.num_nodes * t.shape.heads + cores - 1) / cores;
  const uint64_t rounds = (share + most - 1) / most;
  return static_cast<uint32_t>(round_up((share + rounds - 1) / rounds, unit));
}

}  // namespace tiling

// Cuts the work by host sizes alone. False if the head sizes do not fit the memories of a core.
inline bool tree_attention_tiling(const TreeAttentionShape& shape, TreeAttentionType type, bool quantized,
                                  uint32_t cube_cores, TreeAttentionTiling* result) {
  const uint32_t element = type == TreeAttentionType::kFloat ? 4 : 2;
  const uint64_t group = shape.heads / shape.kv_heads;
  const uint64_t all_rows = group * (shape.max_nodes > 0 ? shape.max_nodes : 1);  // of a request, not of the batch
  const uint32_t wanted = all_rows > 1024 ? 1024 : tiling::round_up(static_cast<uint32_t>(all_rows), 16u);
  const uint64_t keys = uint64_t{shape.max_blocks} * shape.block_size;  // of a request at most
  // Few passes over the keys first, then large products, then room to load ahead. Wide tiles save products in between:
  // for many rows, and where one request has one for every core.
  struct Choice {
    uint32_t step_rows, tile, places;
  };
  constexpr Choice kChoices[] = {{128, 256, 2}, {128, 128, 2}, {64, 128, 2}, {64, 64, 2},
                                 {32, 64, 2},   {32, 64, 1},   {16, 64, 1}};
  uint32_t most = 0;
  for (const Choice& choice : kChoices) {
    if (choice.tile > 128 && (wanted <= 64 || keys * shape.kv_heads < uint64_t{choice.tile} * cube_cores)) continue;
    TreeAttentionTiling t{};
    t.shape = shape;
    t.step_rows = choice.step_rows < wanted ? choice.step_rows : tiling::round_up(wanted, 16u);
    t.tile = choice.tile;
    t.places = shape.values_in_keys ? 3 : choice.places;  // such a tile is in use from its scores to its values
    t.load_ahead = choice.places > 1 && !shape.values_in_keys && !quantized;
    const uint32_t rows = tiling::fit_rows(t, wanted, element, quantized);
    if (rows == 0) continue;
    const uint32_t useful = rows < wanted ? rows : wanted;
    if (most > 0 && (wanted + useful - 1) / useful >= (wanted + most - 1) / most) continue;
    most = useful;
    *result = t;
  }
  if (most == 0) return false;
  TreeAttentionTiling& t = *result;

  // As many splits as keep all cores busy with one request: the batch must not decide, it would change results.
  const uint64_t tasks = shape.kv_heads * ((all_rows + t.rows - 1) / t.rows);
  double best = 0;
  t.splits = 1;
  for (uint32_t splits = 1; splits <= kMaxSplits && best < 0.96; ++splits) {
    if (splits > 1 && keys < uint64_t{kMinSplitKeys} * splits) break;
    const uint64_t total = tasks * splits, rounds = (total + cube_cores - 1) / cube_cores;
    const double busy = static_cast<double>(total) / static_cast<double>(rounds * cube_cores);
    if (busy > best) {
      best = busy;
      t.splits = splits;
    }
  }
  const uint64_t total = tasks * t.splits * shape.batch;
  t.cores = total == 0 ? 1 : total < cube_cores ? static_cast<uint32_t>(total) : cube_cores;
  t.merge_rows = tiling::merge_rows(t);

  const uint64_t d_qk = tiling::round_up(shape.d_qk, 32u), d_v = tiling::round_up(shape.d_v, 16u);
  const uint64_t step = uint64_t{t.step_rows} * t.tile, result_rows = t.splits * shape.num_nodes * shape.heads;
  const uint64_t converted = quantized ? kConvertedTiles * t.tile * element : 0;
  tiling::Carver<uint64_t> workspace;
  t.workspace.scores = workspace.take(t.cores * kInFlight * step * 4);
  t.workspace.products = workspace.take(t.cores * kInFlight * t.step_rows * d_v * 4);
  t.workspace.keys = workspace.take(t.cores * converted * d_qk);
  t.workspace.values = workspace.take(t.cores * converted * tiling::round_up(shape.d_v, 32u));
  t.workspace.outputs = workspace.take(result_rows * d_v * 4);
  t.workspace.lse = workspace.take(result_rows * kRowBlock * 4);
  t.workspace_bytes = workspace.used();
  return true;
}

struct MergeAttentionTiling {
  uint64_t rows;
  uint32_t dim;
  uint32_t cores;
};

inline MergeAttentionTiling merge_attention_tiling(uint64_t rows, uint32_t dim, uint32_t vector_cores) {
  const uint64_t units = (rows + kMergeRows - 1) / kMergeRows;
  return {rows, dim, units < vector_cores ? static_cast<uint32_t>(units) : vector_cores};
}

void launch_tree_attention(void* stream, const TreeAttentionArguments& arguments, TreeAttentionType type,
                           bool quantized, const TreeAttentionTiling& tiling);
// out_a, out_b [rows, dim] of `type`, lse_a, lse_b float32 [rows] -> out, lse
void launch_merge_attention(void* stream, const void* out_a, const void* lse_a, const void* out_b, const void* lse_b,
                            void* out, void* lse, TreeAttentionType type, const MergeAttentionTiling& tiling);

}  // namespace specdec::ascendc
