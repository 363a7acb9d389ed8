#include "hostsim/dma.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "hostsim/numeric.h"

namespace hostsim {
namespace {

template <class T>
void Combine(AtomicOp op, void* to, const void* from, size_t bytes) {
  T* t = static_cast<T*>(to);
  const T* f = static_cast<const T*>(from);
  for (size_t i = 0; i < bytes / sizeof(T); ++i) {
    T old, add;
    std::memcpy(&old, t + i, sizeof(T));
    std::memcpy(&add, f + i, sizeof(T));
    T result = op == AtomicOp::kAdd ? static_cast<T>(old + add)
                                    : (op == AtomicOp::kMax ? (old < add ? add : old) : (add < old ? add : old));
    std::memcpy(t + i, &result, sizeof(T));
  }
}

void FillPattern(uint8_t* to, uint32_t bytes, uint64_t value, uint32_t elem) {
  for (uint32_t i = 0; i < bytes; ++i) to[i] = static_cast<uint8_t>(value >> (i % elem * 8));
}

}  // namespace

void StoreAtomic(const AtomicState& atomic, void* to, const void* from, size_t bytes) {
  switch (atomic.element) {
    case Element::kInt8:
      return Combine<int8_t>(atomic.op, to, from, bytes);
    case Element::kInt16:
      return Combine<int16_t>(atomic.op, to, from, bytes);
    case Element::kInt32:
      return Combine<int32_t>(atomic.op, to, from, bytes);
    case Element::kHalf:
      return Combine<half>(atomic.op, to, from, bytes);
    case Element::kBfloat16:
      return Combine<bfloat16_t>(atomic.op, to, from, bytes);
    case Element::kFloat:
      return Combine<float>(atomic.op, to, from, bytes);
    case Element::kOther:
      return;
  }
}

void DmaIn(const char* op, Loc loc, const LocalRef& dst, const void* src, const Bursts& bursts,
           const Padding* padding) {
  Core& core = Current();
  if (!core.Has(dst.mem)) return;  // the other kind of core: nothing to do, as on hardware
  core.Begin(Pipe::kMte2, op, loc);
  bool fine = core.CheckAligned(dst, kBlock);
  uint32_t left = padding ? padding->left : 0, right = padding ? padding->right : 0;
  uint32_t used = left + bursts.bytes + right;
  uint32_t whole = CeilDiv(used, kBlock) * kBlock;
  uint64_t total = 0;
  for (uint32_t b = 0; b < bursts.count && fine; ++b) {
    const uint8_t* from = static_cast<const uint8_t*>(src) + b * bursts.src_step;
    uint32_t to = dst.addr + static_cast<uint32_t>(b * bursts.dst_step);
    fine = core.ReadGm(from, bursts.bytes) && core.WriteLocal(dst, to, whole);
    if (!fine) break;
    uint8_t* at = core.Data(dst.mem) + to;
    std::memcpy(at + left, from, bursts.bytes);
    total += bursts.bytes;
    if (whole == bursts.bytes) continue;
    bool set_by_register = core.pad_value_set && !(padding && padding->use_value);
    bool defined = padding && (left + right > 0) && (padding->use_value || set_by_register);
    if (defined) {
      uint64_t value = padding->use_value ? padding->value : core.pad_value;
      FillPattern(at, left, value, padding->elem);
      FillPattern(at + left + bursts.bytes, whole - left - bursts.bytes, value, padding->elem);
    } else {
      // The hardware repeats the first element or leaves junk; nothing to build on.
      core.MarkPadding(dst.mem, to, left);
      core.MarkPadding(dst.mem, to + left + bursts.bytes, whole - left - bursts.bytes);
    }
  }
  core.FinishDma(total);
}

void DmaOut(const char* op, Loc loc, void* dst, const LocalRef& src, const Bursts& bursts, Element element) {
  Core& core = Current();
  if (!core.Has(src.mem)) return;
  core.Begin(Pipe::kMte3, op, loc);
  bool fine = core.CheckAligned(src, kBlock);
  bool atomic = core.atomic.op != AtomicOp::kNone;
  if (atomic && core.atomic.element != element) {
    core.Fail(Fault::kBadArgument, "the atomic operation was set for another element type");
    fine = false;
  }
  uint64_t total = 0;
  for (uint32_t b = 0; b < bursts.count && fine; ++b) {
    uint8_t* to = static_cast<uint8_t*>(dst) + b * bursts.dst_step;
    uint32_t from = src.addr + static_cast<uint32_t>(b * bursts.src_step);
    fine = core.ReadLocal(src, from, bursts.bytes) && core.WriteGm(to, bursts.bytes, atomic);
    if (!fine) break;
    if (atomic) {
      StoreAtomic(core.atomic, to, core.Data(src.mem) + from, bursts.bytes);
    } else {
      std::memcpy(to, core.Data(src.mem) + from, bursts.bytes);
    }
    total += bursts.bytes;
  }
  core.FinishDma(total);
}

void DmaLocal(const char* op, Loc loc, const LocalRef& dst, const LocalRef& src, const Bursts& bursts) {
  Core& core = Current();
  bool in_ub = dst.mem == Mem::kUb && src.mem == Mem::kUb;
  bool from_l1 = src.mem == Mem::kL1 && (dst.mem == Mem::kBias || dst.mem == Mem::kFixbuf);
  Pipe pipe = in_ub ? Pipe::kV : (dst.mem == Mem::kFixbuf ? Pipe::kFix : Pipe::kMte1);
  if (!in_ub && !from_l1) {
    core.FailAt(Fault::kUnsupported, pipe, op, loc, std::string(Name(src.mem)) + " to " + Name(dst.mem));
    return;
  }
  if (in_ub == core.id().cube) return;  // the other kind of core: nothing to do, as on hardware
  core.Begin(pipe, op, loc);
  bool fine = core.CheckAligned(dst, LocalAlignment(dst.mem)) && core.CheckAligned(src, LocalAlignment(src.mem));
  for (uint32_t b = 0; b < bursts.count && fine; ++b) {
    uint32_t from = src.addr + static_cast<uint32_t>(b * bursts.src_step);
    fine = core.ReadLocal(src, from, bursts.bytes);
  }
  for (uint32_t b = 0; b < bursts.count && fine; ++b) {
    uint32_t from = src.addr + static_cast<uint32_t>(b * bursts.src_step);
    uint32_t to = dst.addr + static_cast<uint32_t>(b * bursts.dst_step);
    fine = core.WriteLocal(dst, to, bursts.bytes);
    if (fine) std::memmove(core.Data(dst.mem) + to, core.Data(src.mem) + from, bursts.bytes);
  }
  uint64_t total = uint64_t{bursts.count} * bursts.bytes;
  core.Finish(cost::kVectorHead + static_cast<double>(total) / (in_ub ? kRepeat : cost::kMte1Bytes), cost::kVectorTail,
              total, bursts.count);
}

void DmaNd2Nz(Loc loc, const LocalRef& dst, const void* src, const Nd2Nz& p) {
  Core& core = Current();
  if (!core.id().cube) return;
  core.Begin(Pipe::kMte2, "DataCopy Nd2Nz", loc);
  if (dst.mem != Mem::kL1) core.Fail(Fault::kUnsupported, "Nd2Nz goes from GM to L1");
  bool fine = dst.mem == Mem::kL1 && core.CheckAligned(dst, kBlock);
  uint32_t row_bytes = p.columns * p.elem;
  uint64_t total = 0;
  for (uint32_t m = 0; m < p.matrices && fine; ++m) {
    for (uint32_t r = 0; r < p.rows && fine; ++r) {
      const uint8_t* from = static_cast<const uint8_t*>(src) + m * p.src_matrix + r * p.src_row;
      fine = core.ReadGm(from, row_bytes);
      for (uint32_t c = 0; c * kBlock < row_bytes && fine; ++c) {
        uint32_t to = dst.addr + static_cast<uint32_t>(m * p.dst_matrix + c * p.dst_column + r * p.dst_row);
        fine = core.WriteLocal(dst, to, kBlock);
        if (!fine) break;
        uint32_t part = std::min(kBlock, row_bytes - c * kBlock);
        std::memcpy(core.Data(Mem::kL1) + to, from + c * kBlock, part);
        std::memset(core.Data(Mem::kL1) + to + part, 0, kBlock - part);
      }
      total += row_bytes;
    }
  }
  core.FinishDma(total);
}

}  // namespace hostsim
