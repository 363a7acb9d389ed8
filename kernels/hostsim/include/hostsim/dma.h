// Data movement between memories. All lengths and strides are in bytes; the front end converts.
#pragma once

#include "hostsim/core.h"

namespace hostsim {

// `count` bursts of `bytes`; the next burst starts at the given distance.
struct Bursts {
  uint32_t count;
  uint32_t bytes;
  uint64_t src_step;
  uint64_t dst_step;
};

struct Padding {
  uint32_t left = 0;  // bytes
  uint32_t right = 0;
  bool use_value = false;
  uint64_t value = 0;  // bits of one element
  uint32_t elem = 1;
};

// GM to UB or L1. With `padding`, a burst in local memory is [left | data | right | up to 32 bytes].
void DmaIn(const char* op, Loc loc, const LocalRef& dst, const void* src, const Bursts& bursts, const Padding* padding);
// UB to GM, with the core's atomic state.
void DmaOut(const char* op, Loc loc, void* dst, const LocalRef& src, const Bursts& bursts, Element element);
// UB to UB, or L1 to the bias table or the fixpipe buffer.
void DmaLocal(const char* op, Loc loc, const LocalRef& dst, const LocalRef& src, const Bursts& bursts);

// Rows of a matrix in GM to 32-byte wide columns in L1.
struct Nd2Nz {
  uint32_t matrices, rows, columns, elem;
  uint64_t src_matrix, src_row;              // bytes
  uint64_t dst_column, dst_row, dst_matrix;  // bytes
};
void DmaNd2Nz(Loc loc, const LocalRef& dst, const void* src, const Nd2Nz& p);

// Adds, or takes the larger or smaller of, what is in memory: used by DMA out and by fixpipe.
void StoreAtomic(const AtomicState& atomic, void* to, const void* from, size_t bytes);

}  // namespace hostsim
