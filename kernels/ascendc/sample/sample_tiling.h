// What host and device share of the operators on rows of logits: sizes, the layout of the workspace, the launches.
#pragma once

#include <cstdint>

namespace specdec::ascendc {

enum LogitsType : uint32_t { kFloat32, kBFloat16, kFloat16 };

constexpr uint32_t kLine = 64;  // bytes that no two cores may write scalars to
constexpr uint32_t kMaxChunks = 512;
constexpr uint32_t kMaxVocab = kMaxChunks * 4096;
constexpr uint32_t kMaxWidth = 8192;
constexpr uint32_t kRecord = 8;                      // floats that a pass leaves of a chunk: a whole 32-byte block
constexpr uint32_t kPassWords = 16;                  // of a request for a pass: a whole line
constexpr uint32_t kMaxPasses = 64;                  // that a core may ask for in a round
constexpr uint32_t kPassLines = 2 * kMaxPasses + 1;  // for those of two kinds, and how many there are
constexpr uint32_t kNodeWords = 48;                  // what a core remembers of a node
constexpr uint32_t kMostLanes = 4;                   // requests that a core looks after at a time

// A core looks after few requests at a time, each of them in a lane, so that only the results grow with the batch.
struct RowsTiling {
  int64_t target_stride, draft_stride;  // elements from row to row
  // Byte offsets in the workspace, after the passes. Every lane has a part of each, every request one of the results.
  uint64_t table_at, results_at, records_at, workspace;
  uint64_t table_bytes, result_bytes;                                    // of a lane, of a request
  uint64_t logprobs_at, path_at;                                         // in a request's results, after the tokens
  uint32_t target_type, draft_type, vocab, chunk, chunks, slots, cores;  // slots: rows of records of a lane
  uint32_t lanes;                                                        // of a core
  uint32_t batch, nodes, width;                                          // requests, nodes of one, tokens it may emit
  uint32_t entropy;                                                      // whether scans collect what an entropy needs
  uint32_t maxima;  // whether the largest logits are wanted of rows that are neither greedy nor filtered too
};

inline uint64_t round_up(uint64_t n, uint64_t unit) { return (n + unit - 1) / unit * unit; }

// `slots_per_node` rows of records. Chunks depend on the vocabulary alone, so that results depend on nothing else.
inline void set_layout(RowsTiling* t, uint32_t slots_per_node, uint32_t vector_cores) {
  t->chunk = t->vocab > 512 ? 4096 : 512;
  t->chunks = (t->vocab + t->chunk - 1) / t->chunk;
  const uint64_t work = uint64_t{t->batch} * t->nodes * t->chunks;
  t->cores = static_cast<uint32_t>(work < vector_cores ? work : vector_cores);
  const uint32_t lanes = (t->batch + t->cores - 1) / t->cores;
  t->lanes = lanes < kMostLanes ? lanes : kMostLanes;
  t->slots = t->nodes * slots_per_node;
  t->table_bytes = round_up((uint64_t{t->nodes} * kNodeWords + t->nodes + t->width) * 4, kLine);
  t->logprobs_at = kLine + round_up(uint64_t{t->width} * 8, kLine);
  t->path_at = t->logprobs_at + round_up(uint64_t{t->width} * 4, kLine);
  t->result_bytes = t->path_at + round_up(uint64_t{t->width} * 4, kLine);
  t->table_at = uint64_t{t->cores} * kPassLines * kPassWords * 4;
  t->results_at = t->table_at + uint64_t{t->cores} * t->lanes * t->table_bytes;
  t->records_at = t->results_at + t->batch * t->result_bytes;
  t->workspace = t->records_at + uint64_t{t->cores} * t->lanes * t->slots * t->chunks * kRecord * 4;
}

struct SampleTiling {
  RowsTiling rows;
  uint32_t k;     // 0: one draw a row
  uint32_t best;  // the k best whatever the temperature
};

// logits [rows, V], uniforms float32 [rows] or [rows, k], parameters [rows] or nullptr -> tokens int64, logprobs
// float32 as uniforms, status int32 [rows] or nullptr
void launch_sample(void* stream, const void* logits, const void* uniforms, const void* temperature, const void* top_k,
                   const void* top_p, const void* min_p, void* tokens, void* logprobs, void* status, void* workspace,
                   const SampleTiling& tiling);

}  // namespace specdec::ascendc
