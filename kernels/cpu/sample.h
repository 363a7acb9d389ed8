// Draws from rows of logits.
#pragma once

#include "dispatch.h"
#include "logits.h"

namespace specdec::cpu {

struct SampleParams {
  Logits logits;
  SamplingParams sampling;
  const float* uniforms;  // [rows]
  int64_t rows;
  int64_t* tokens;  // [rows]
  float* logprobs;  // [rows]
  int32_t* status;  // [rows]
};

struct SampleTopkParams {
  Logits logits;
  SamplingParams sampling;
  const float* uniforms;  // [rows, k], or nullptr for the k best
  int64_t rows;
  int64_t k;
  int64_t* tokens;  // [rows, k]
  float* logprobs;  // [rows, k]
};

SPECDEC_CPU_KERNEL(sample, SampleParams)
SPECDEC_CPU_KERNEL(sample_topk, SampleTopkParams)

}  // namespace specdec::cpu
