// One vector instruction: which lanes it covers and what it touches.
#pragma once

#include "hostsim/core.h"

namespace hostsim {

// An operand in UB. Strides are in 32-byte blocks; `rep` may be 0 to revisit the same blocks.
struct VecArg {
  LocalRef ref;
  uint32_t elem;  // bytes of an element
  uint32_t blk = 1;
  uint32_t rep = 8;
};

// Lanes of a repeat that take part.
struct VecMask {
  uint64_t word[2];
};

class VectorCall {
 public:
  // `widest` is the largest element size among the operands: it sets how many elements a repeat holds.
  VectorCall(const char* op, Loc loc, uint32_t widest);

  // Either the first `count` elements, contiguously,
  VectorCall& Count(int64_t count);
  // or `repeats` repeats with a mask of the first `lanes` elements or one bit a lane.
  VectorCall& Lanes(uint64_t lanes, int64_t repeats);
  VectorCall& Bits(const uint64_t mask[], int64_t repeats);
  // The mask register decides (isSetMask = false).
  VectorCall& Register(int64_t repeats);
  VectorCall& CyclesPerRepeat(double cycles) {
    cycles_ = cycles;
    return *this;
  }

  // An operand laid out for the count form: blocks side by side.
  VecArg Dense(const LocalRef& ref, uint32_t elem) const { return {ref, elem, 1, per_repeat_ * elem / kBlock}; }

  // Checks everything and books the instruction. False: nothing to do, or a fault was reported.
  bool Start(const VecArg& dst, const VecArg* sources, int source_count);
  // The same with a destination of `dst_bytes` packed bytes, and with a packed bit string as a further source.
  bool StartPacked(const VecArg& dst, uint32_t dst_bytes, const VecArg* sources, int source_count);
  bool StartWithBits(const VecArg& dst, const VecArg* sources, int source_count, const LocalRef& bits,
                     uint32_t bit_bytes);
  // A gather: the destination is checked here and marked by the caller once the sources are read.
  bool StartGather(const VecArg& dst, const VecArg& offsets);
  // A reduction: the caller writes its results, aligned to `dst_alignment`, and then finishes.
  bool StartReduce(const LocalRef& dst, uint32_t dst_alignment, const VecArg& source);
  void FinishReduce(uint32_t bytes_per_repeat);

  uint32_t per_repeat() const { return per_repeat_; }
  uint32_t repeats() const { return repeats_; }
  uint32_t count() const { return count_; }
  bool counting() const { return counting_; }
  VecMask MaskOf(uint32_t repeat) const;
  // All lanes of all repeats, and the operand has no gaps: element i is at i * elem.
  bool Dense(const VecArg& arg) const;

  // Byte offset of a lane from the operand's start.
  static uint32_t Offset(const VecArg& arg, uint32_t repeat, uint32_t lane) {
    uint32_t byte = lane * arg.elem;
    return (repeat * arg.rep + byte / kBlock * arg.blk) * kBlock + byte % kBlock;
  }
  // Declares an operand's active lanes to the core.
  bool Touch(const VecArg& arg, bool write);

 private:
  bool Ready();
  bool Sources(const VecArg& dst, const VecArg* sources, int source_count, bool check_overlap);
  void Book(uint32_t elem);
  bool Overlaps(const VecArg& dst, const VecArg& src, bool may_accumulate) const;

  Core& core_;
  const char* op_;
  Loc loc_;
  uint32_t per_repeat_;
  uint32_t repeats_ = 0;
  uint32_t count_ = 0;  // elements, when counting
  bool counting_ = false;
  bool bad_ = false;
  VecMask mask_{};
  double cycles_ = 1;
};

// dst[i] = f(src[i]) and dst[i] = f(a[i], b[i]) over the active lanes, in hardware order.
template <class D, class S, class F>
void Map(VectorCall& call, const VecArg& dst, const VecArg& src, F f) {
  if (!call.Start(dst, &src, 1)) return;
  uint8_t* ub = Current().Data(Mem::kUb);
  D* d = reinterpret_cast<D*>(ub + dst.ref.addr);
  const S* s = reinterpret_cast<const S*>(ub + src.ref.addr);
  if (call.Dense(dst) && call.Dense(src)) {
    uint32_t n = call.counting() ? call.count() : call.repeats() * call.per_repeat();
    for (uint32_t i = 0; i < n; ++i) d[i] = f(s[i]);
    return;
  }
  for (uint32_t r = 0; r < call.repeats(); ++r) {
    VecMask mask = call.MaskOf(r);
    for (uint32_t i = 0; i < call.per_repeat(); ++i) {
      if (!(mask.word[i / 64] >> (i % 64) & 1)) continue;
      d[VectorCall::Offset(dst, r, i) / sizeof(D)] = f(s[VectorCall::Offset(src, r, i) / sizeof(S)]);
    }
  }
}

template <class D, class S, class F>
void Map(VectorCall& call, const VecArg& dst, const VecArg& src0, const VecArg& src1, F f) {
  VecArg sources[] = {src0, src1};
  if (!call.Start(dst, sources, 2)) return;
  uint8_t* ub = Current().Data(Mem::kUb);
  D* d = reinterpret_cast<D*>(ub + dst.ref.addr);
  const S* a = reinterpret_cast<const S*>(ub + src0.ref.addr);
  const S* b = reinterpret_cast<const S*>(ub + src1.ref.addr);
  if (call.Dense(dst) && call.Dense(src0) && call.Dense(src1)) {
    uint32_t n = call.counting() ? call.count() : call.repeats() * call.per_repeat();
    for (uint32_t i = 0; i < n; ++i) d[i] = f(a[i], b[i]);
    return;
  }
  for (uint32_t r = 0; r < call.repeats(); ++r) {
    VecMask mask = call.MaskOf(r);
    for (uint32_t i = 0; i < call.per_repeat(); ++i) {
      if (!(mask.word[i / 64] >> (i % 64) & 1)) continue;
      d[VectorCall::Offset(dst, r, i) / sizeof(D)] =
          f(a[VectorCall::Offset(src0, r, i) / sizeof(S)], b[VectorCall::Offset(src1, r, i) / sizeof(S)]);
    }
  }
}

}  // namespace hostsim
