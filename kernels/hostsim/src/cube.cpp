#include "hostsim/cube.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "hostsim/numeric.h"
#include "hostsim/profile.h"

namespace hostsim {
namespace {

constexpr uint32_t kFractal = 512;
constexpr uint32_t kCubeSide = 16;
// Below this many 16x16 output tiles the accumulator is still in flight when the next product could read it.
constexpr uint32_t kPipelinedTiles = 10;

bool CheckL0(Core& core, const LocalRef& dst, const LocalRef& src) {
  if (dst.mem != Mem::kL0A && dst.mem != Mem::kL0B) {
    core.Fail(Fault::kUnsupported, std::string("LoadData into ") + Name(dst.mem));
    return false;
  }
  if (src.mem != Mem::kL1) {
    core.Fail(Fault::kUnsupported, std::string("LoadData from ") + Name(src.mem));
    return false;
  }
  return core.CheckAligned(dst, LocalAlignment(dst.mem)) && core.CheckAligned(src, LocalAlignment(src.mem));
}

float ReadElement(const uint8_t* p, Element type) {
  switch (type) {
    case Element::kHalf: {
      uint16_t bits;
      std::memcpy(&bits, p, 2);
      return HalfToFloat(bits);
    }
    case Element::kBfloat16: {
      uint16_t bits;
      std::memcpy(&bits, p, 2);
      return Bfloat16ToFloat(bits);
    }
    case Element::kInt8:
      return static_cast<float>(*reinterpret_cast<const int8_t*>(p));
    default: {
      float value;
      std::memcpy(&value, p, 4);
      return value;
    }
  }
}

uint32_t SizeOf(Element type) {
  return type == Element::kInt8 ? 1 : (type == Element::kHalf || type == Element::kBfloat16 ? 2 : 4);
}

// acc[m][n] += a[m][k] * b[k][n]; Acc is float or int32_t.
template <class Acc>
void Gemm(std::vector<Acc>& acc, const std::vector<Acc>& a, const std::vector<Acc>& b, uint32_t m, uint32_t n,
          uint32_t k) {
  for (uint32_t i = 0; i < m; ++i) {
    Acc* row = acc.data() + size_t{i} * n;
    for (uint32_t x = 0; x < k; ++x) {
      Acc left = a[size_t{i} * k + x];
      const Acc* right = b.data() + size_t{x} * n;
      for (uint32_t j = 0; j < n; ++j) row[j] += left * right[j];
    }
  }
}

template <class Acc>
void MultiplyInto(Core& core, const LocalRef& c, const LocalRef& a, const LocalRef& b, Element input, const Product& p,
                  uint32_t k_block) {
  uint32_t elem = SizeOf(input);
  uint32_t k_blocks = CeilDiv(p.k, p.align_k ? kCubeSide : k_block) * (p.align_k ? kCubeSide / k_block : 1);
  uint32_t n_blocks = CeilDiv(p.n, kCubeSide), m_padded = CeilDiv(p.m, kCubeSide) * kCubeSide;
  const uint8_t* pa = core.Data(a.mem) + a.addr;
  const uint8_t* pb = core.Data(b.mem) + b.addr;
  uint8_t* pc = core.Data(c.mem) + c.addr;
  std::vector<Acc> left(size_t{p.m} * p.k), right(size_t{p.k} * p.n), acc(size_t{p.m} * p.n);
  for (uint32_t i = 0; i < p.m; ++i) {
    for (uint32_t x = 0; x < p.k; ++x) {  // Zz: fractals row by row, rows inside
      size_t fractal = size_t{i / kCubeSide} * k_blocks + x / k_block;
      left[size_t{i} * p.k + x] = static_cast<Acc>(
          ReadElement(pa + fractal * kFractal + (i % kCubeSide * k_block + x % k_block) * elem, input));
    }
  }
  for (uint32_t x = 0; x < p.k; ++x) {
    for (uint32_t j = 0; j < p.n; ++j) {  // Zn: fractals row by row, columns inside
      size_t fractal = size_t{x / k_block} * n_blocks + j / kCubeSide;
      right[size_t{x} * p.n + j] = static_cast<Acc>(
          ReadElement(pb + fractal * kFractal + (j % kCubeSide * k_block + x % k_block) * elem, input));
    }
  }
  auto at = [&](uint32_t i, uint32_t j) {  // Nz
    return pc + (size_t{j / kCubeSide} * m_padded * kCubeSide + i * kCubeSide + j % kCubeSide) * sizeof(Acc);
  };
  for (uint32_t i = 0; i < p.m; ++i) {
    for (uint32_t j = 0; j < p.n; ++j) {
      Acc& value = acc[size_t{i} * p.n + j];
      if (p.accumulate) std::memcpy(&value, at(i, j), sizeof(Acc));
      if (p.bias) std::memcpy(&value, core.Data(p.bias->mem) + p.bias->addr + j * sizeof(Acc), sizeof(Acc));
    }
  }
  Gemm(acc, left, right, p.m, p.n, p.k);
  for (uint32_t i = 0; i < p.m; ++i) {
    for (uint32_t j = 0; j < p.n; ++j) std::memcpy(at(i, j), &acc[size_t{i} * p.n + j], sizeof(Acc));
  }
}

// One element of L0C to the output type. Returns its size.
uint32_t ConvertElement(const uint8_t* from, uint8_t* to, const Drain& p) {
  float f;
  int32_t i;
  std::memcpy(&f, from, 4);
  std::memcpy(&i, from, 4);
  uint16_t bits = 0;
  switch (p.convert) {
    case Convert::kNone:
      if (p.relu && i < 0) i = 0;  // the sign bit of a float and of an integer are the same bit
      std::memcpy(to, &i, 4);
      return 4;
    case Convert::kHalf:
      bits = ToHalfBits(p.relu && f < 0 ? 0.0f : f, Round::kRint);
      break;
    case Convert::kBfloat16:
      bits = ToBfloat16Bits(p.relu && f < 0 ? 0.0f : f, Round::kRint);
      break;
    case Convert::kIntToHalf:
      bits = ToHalfBits(double(p.relu && i < 0 ? 0 : i) * p.scale, Round::kRint);
      break;
  }
  std::memcpy(to, &bits, 2);
  return 2;
}

// Reads L0C and gives `store(matrix, row, column, bytes, count)` the converted elements of up to 16 columns.
template <class Store>
bool DrainColumns(Core& core, const LocalRef& src, const Drain& p, Store store) {
  if (src.mem != Mem::kL0C) {
    core.Fail(Fault::kUnsupported, std::string("Fixpipe from ") + Name(src.mem));
    return false;
  }
  if (!core.CheckAligned(src, LocalAlignment(Mem::kL0C))) return false;
  for (uint32_t matrix = 0; matrix < p.matrices; ++matrix) {
    for (uint32_t column = 0; column < p.n; column += kCubeSide) {
      uint32_t width = std::min(kCubeSide, p.n - column);
      for (uint32_t row = 0; row < p.m; ++row) {
        uint64_t offset = matrix * p.src_matrix + column / kCubeSide * p.src_column + uint64_t{row} * kCubeSide * 4;
        uint32_t addr = src.addr + static_cast<uint32_t>(offset);
        if (!core.ReadLocal(src, addr, width * 4)) return false;
        uint8_t out[kCubeSide * 4];
        uint32_t size = 0;
        for (uint32_t j = 0; j < width; ++j) {
          size = ConvertElement(core.Data(Mem::kL0C) + addr + j * 4, out + j * size, p);
        }
        if (!store(matrix, row, column, out, width * size)) return false;
      }
    }
  }
  return true;
}

// Into L0A, L0B or, when it is filled, L1.
double LoadCycles(Mem to, uint64_t bytes) {
  return cost::kCubeHead + static_cast<double>(bytes) / (to == Mem::kL0A ? cost::kL0aBytes : cost::kL0bBytes);
}

double DrainCycles(const Drain& p) { return p.matrices * double(p.m) * p.n * 4 / cost::kFixpipeBytes; }

}  // namespace

void LoadFractals(Loc loc, const LocalRef& dst, const LocalRef& src, const Load2D& p, uint32_t elem) {
  Core& core = Current();
  if (!core.id().cube || p.repeats == 0) return;
  core.Begin(Pipe::kMte1, "LoadData", loc);
  if (p.transpose && elem != 2) {
    core.Fail(Fault::kUnsupported, "transposing LoadData takes 16-bit elements");
    return;
  }
  bool fine = CheckL0(core, dst, src);
  for (uint32_t r = 0; r < p.repeats && fine; ++r) {
    int64_t index = p.start + (p.descending ? -1 : 1) * int64_t{r} * p.src_stride;
    uint32_t from = src.addr + static_cast<uint32_t>(index * kFractal);
    uint32_t to = dst.addr + r * (1 + p.dst_gap) * kFractal;
    fine = core.ReadLocal(src, from, kFractal) && core.WriteLocal(dst, to, kFractal);
    if (!fine) break;
    const uint8_t* s = core.Data(src.mem) + from;
    uint8_t* d = core.Data(dst.mem) + to;
    if (!p.transpose) {
      std::memcpy(d, s, kFractal);
      continue;
    }
    for (uint32_t i = 0; i < kCubeSide; ++i) {
      for (uint32_t j = 0; j < kCubeSide; ++j) std::memcpy(d + (j * kCubeSide + i) * 2, s + (i * kCubeSide + j) * 2, 2);
    }
  }
  uint64_t bytes = uint64_t{p.repeats} * kFractal;
  core.Finish(LoadCycles(dst.mem, bytes), cost::kVectorTail, bytes, p.repeats);
}

void LoadSquares(Loc loc, const LocalRef& dst, const LocalRef& src, const Load2D& p, uint32_t dst_frac_gap,
                 uint32_t elem) {
  Core& core = Current();
  if (!core.id().cube || p.repeats == 0) return;
  core.Begin(Pipe::kMte1, "LoadDataWithTranspose", loc);
  bool fine = CheckL0(core, dst, src);
  uint32_t fractals = elem == 2 ? 1 : 2;       // of a square
  uint32_t side = elem == 1 ? 32 : kCubeSide;  // of a square, elements
  uint32_t square = fractals * kFractal;
  for (uint32_t r = 0; r < p.repeats && fine; ++r) {
    int64_t index = p.start + (p.descending ? -1 : 1) * int64_t{r} * p.src_stride;
    uint32_t from = src.addr + static_cast<uint32_t>(index * square);
    uint32_t to = dst.addr + r * (1 + p.dst_gap) * kFractal;
    fine = core.ReadLocal(src, from, square);
    for (uint32_t f = 0; f < fractals && fine; ++f) {
      fine = core.WriteLocal(dst, to + f * (1 + dst_frac_gap) * kFractal, kFractal);
    }
    if (!fine) break;
    const uint8_t* s = core.Data(src.mem) + from;
    uint8_t* d = core.Data(dst.mem) + to;
    auto place = [&](uint32_t row, uint32_t column) {  // byte of an element of a square made of fractals
      if (elem == 4) return std::pair<uint32_t, uint32_t>{column / 8, (row * 8 + column % 8) * 4};
      return std::pair<uint32_t, uint32_t>{row / kCubeSide, (row % kCubeSide * side + column) * elem};
    };
    for (uint32_t i = 0; i < side; ++i) {
      for (uint32_t j = 0; j < side; ++j) {
        auto [src_fractal, src_offset] = place(i, j);
        auto [dst_fractal, dst_offset] = place(j, i);
        std::memcpy(d + dst_fractal * (1 + dst_frac_gap) * kFractal + dst_offset,
                    s + src_fractal * kFractal + src_offset, elem);
      }
    }
  }
  uint64_t bytes = uint64_t{p.repeats} * square;
  core.Finish(LoadCycles(dst.mem, bytes), cost::kVectorTail, bytes, p.repeats);
}

void FillFractals(Loc loc, const LocalRef& dst, uint32_t repeats, uint32_t bytes, uint32_t gap_bytes, uint64_t value,
                  uint32_t elem) {
  Core& core = Current();
  if (!core.id().cube || repeats == 0) return;
  core.Begin(dst.mem == Mem::kL1 ? Pipe::kMte2 : Pipe::kMte1, "Fill", loc);
  bool fine = dst.mem == Mem::kL1 || dst.mem == Mem::kL0A || dst.mem == Mem::kL0B;
  if (!fine) core.Fail(Fault::kUnsupported, std::string("Fill of ") + Name(dst.mem));
  for (uint32_t r = 0; r < repeats && fine; ++r) {
    uint32_t to = dst.addr + r * (bytes + gap_bytes);
    fine = core.WriteLocal(dst, to, bytes);
    if (!fine) break;
    for (uint32_t i = 0; i < bytes; ++i) core.Data(dst.mem)[to + i] = static_cast<uint8_t>(value >> (i % elem * 8));
  }
  core.Finish(LoadCycles(dst.mem, uint64_t{repeats} * bytes), cost::kVectorTail, repeats * bytes, repeats);
}

void Multiply(Loc loc, const LocalRef& c, const LocalRef& a, const LocalRef& b, Element input, const Product& p) {
  Core& core = Current();
  if (!core.id().cube || p.m == 0 || p.n == 0 || p.k == 0) return;
  core.Begin(Pipe::kM, "Mmad", loc);
  if (a.mem != Mem::kL0A || b.mem != Mem::kL0B || c.mem != Mem::kL0C) {
    core.Fail(Fault::kUnsupported, "Mmad takes A from L0A, B from L0B and C in L0C");
    return;
  }
  constexpr uint32_t kMax = 4095, kProductAlignment = 1024;
  if (p.m > kMax || p.n > kMax || p.k > kMax) core.Fail(Fault::kBadArgument, "m, n and k are at most 4095");
  if (p.unit_flag != 0) core.Fail(Fault::kUnsupported, "unitFlag");
  uint32_t elem = SizeOf(input), k_block = kBlock / elem;
  uint32_t m_blocks = CeilDiv(p.m, kCubeSide), n_blocks = CeilDiv(p.n, kCubeSide);
  uint32_t k_blocks = CeilDiv(p.k, p.align_k ? kCubeSide : k_block) * (p.align_k ? kCubeSide / k_block : 1);
  uint32_t c_bytes = m_blocks * n_blocks * kCubeSide * kCubeSide * 4;
  bool fine = core.CheckAligned(a, 512) && core.CheckAligned(b, 512) && core.CheckAligned(c, kProductAlignment);
  fine = fine && core.ReadLocal(a, a.addr, m_blocks * k_blocks * kFractal);
  fine = fine && core.ReadLocal(b, b.addr, n_blocks * k_blocks * kFractal);
  if (p.accumulate) fine = fine && core.ReadLocal(c, c.addr, c_bytes);
  if (p.bias) fine = fine && core.CheckAligned(*p.bias, 64) && core.ReadLocal(*p.bias, p.bias->addr, p.n * 4);
  fine = fine && core.WriteLocal(c, c.addr, c_bytes);
  if (fine) {
    if (input == Element::kInt8) {
      MultiplyInto<int32_t>(core, c, a, b, input, p, k_block);
    } else {
      MultiplyInto<float>(core, c, a, b, input, p, k_block);
    }
  }
  if ((p.m / kCubeSide) * (p.n / kCubeSide) >= kPipelinedTiles) core.SetSelfOrdered();
  core.AddMacs(uint64_t{p.m} * p.n * p.k);
  double tile_cycles = input == Element::kFloat ? 2 : 1;  // a float tile is half as deep and takes twice as long
  core.Finish(cost::kCubeHead + tile_cycles * m_blocks * n_blocks * k_blocks, cost::kVectorTail, c_bytes, 1);
}

void DrainToGm(Loc loc, void* dst, const LocalRef& src, const Drain& p, Element output) {
  Core& core = Current();
  if (!core.id().cube || p.m == 0 || p.n == 0 || p.matrices == 0) return;
  core.Begin(Pipe::kFix, "Fixpipe", loc);
  bool atomic = core.atomic.op != AtomicOp::kNone;
  if (atomic && core.atomic.element != output) {
    core.Fail(Fault::kBadArgument, "the atomic operation was set for another element type");
    return;
  }
  uint64_t total = 0;
  DrainColumns(core, src, p, [&](uint32_t matrix, uint32_t row, uint32_t column, const uint8_t* data, uint32_t bytes) {
    uint32_t elem = p.convert == Convert::kNone ? 4 : 2;
    uint8_t* to = static_cast<uint8_t*>(dst) + matrix * p.dst_matrix;
    to += p.row_major ? row * p.dst_step + column * elem
                      : column / kCubeSide * p.dst_step + uint64_t{row} * kCubeSide * elem;
    if (!core.WriteGm(to, bytes, atomic)) return false;
    if (atomic) {
      StoreAtomic(core.atomic, to, data, bytes);
    } else {
      std::memcpy(to, data, bytes);
    }
    total += bytes;
    return true;
  });
  core.FinishDma(total, DrainCycles(p));
}

void DrainToL1(Loc loc, const LocalRef& dst, const LocalRef& src, const Drain& p) {
  Core& core = Current();
  if (!core.id().cube || p.m == 0 || p.n == 0) return;
  core.Begin(Pipe::kFix, "Fixpipe", loc);
  if (dst.mem != Mem::kL1 || p.row_major || p.convert == Convert::kNone) {
    core.Fail(Fault::kUnsupported, "Fixpipe into local memory: L1, NZ layout and 16-bit output only");
    return;
  }
  uint64_t total = 0;
  DrainColumns(core, src, p, [&](uint32_t, uint32_t row, uint32_t column, const uint8_t* data, uint32_t bytes) {
    uint32_t to = dst.addr + static_cast<uint32_t>(column / kCubeSide * p.dst_step + uint64_t{row} * kBlock);
    if (!core.WriteLocal(dst, to, bytes)) return false;
    std::memcpy(core.Data(Mem::kL1) + to, data, bytes);
    total += bytes;
    return true;
  });
  core.Finish(cost::kDmaStart + DrainCycles(p), cost::kVectorTail, total, 1);
}

}  // namespace hostsim
