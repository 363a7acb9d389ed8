// The cube core: fractal loads, matrix products and the way out of L0C.
#pragma once

#include "hostsim/core.h"
#include "hostsim/dma.h"

namespace hostsim {

// L1 (or GM, for the first) to L0A or L0B in fractals of 512 bytes.
struct Load2D {
  uint32_t start, repeats, src_stride, dst_gap;
  bool transpose;
  bool descending;
};
void LoadFractals(Loc loc, const LocalRef& dst, const LocalRef& src, const Load2D& p, uint32_t elem);
void LoadSquares(Loc loc, const LocalRef& dst, const LocalRef& src, const Load2D& p, uint32_t dst_frac_gap,
                 uint32_t elem);
// Writes a constant into L1, L0A or L0B.
void FillFractals(Loc loc, const LocalRef& dst, uint32_t repeats, uint32_t bytes, uint32_t gap_bytes, uint64_t value,
                  uint32_t elem);

struct Product {
  uint32_t m, n, k;
  bool accumulate;       // C holds the initial value
  bool align_k;          // float: K padded to 16 instead of 8
  const LocalRef* bias;  // [n] in the bias table, or null
  uint32_t unit_flag;
};
void Multiply(Loc loc, const LocalRef& c, const LocalRef& a, const LocalRef& b, Element input, const Product& p);

enum class Convert : uint8_t { kNone, kHalf, kBfloat16, kIntToHalf };
struct Drain {
  uint32_t n, m;
  uint64_t src_column;  // bytes between columns of 16 in L0C
  uint64_t dst_step;    // bytes between rows (row major) or between columns (NZ)
  bool row_major;
  bool relu;
  Convert convert;
  float scale;  // of kIntToHalf
  uint32_t matrices;
  uint64_t src_matrix, dst_matrix;
};
void DrainToGm(Loc loc, void* dst, const LocalRef& src, const Drain& p, Element output);
void DrainToL1(Loc loc, const LocalRef& dst, const LocalRef& src, const Drain& p);

}  // namespace hostsim
