#include "hostsim/vector_call.h"

#include <algorithm>
#include <string>
#include <vector>

#include "hostsim/profile.h"

namespace hostsim {
namespace {

constexpr int64_t kMaxRepeats = 255;

VecMask FirstLanes(uint64_t lanes) {
  auto word = [](uint64_t n) { return n >= 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1; };
  return {{word(lanes), lanes > 64 ? word(lanes - 64) : 0}};
}

}  // namespace

VectorCall::VectorCall(const char* op, Loc loc, uint32_t widest)
    : core_(Current()), op_(op), loc_(loc), per_repeat_(kRepeat / std::max<uint32_t>(widest, 2)) {}

VectorCall& VectorCall::Count(int64_t count) {
  counting_ = true;
  if (count < 0) {
    core_.FailAt(Fault::kBadArgument, Pipe::kV, op_, loc_, "count is " + std::to_string(count));
    bad_ = true;
    return *this;
  }
  count_ = static_cast<uint32_t>(count);
  repeats_ = CeilDiv(count_, per_repeat_);
  core_.vector_mask[0] = core_.vector_mask[1] = ~uint64_t{0};
  return *this;
}

VectorCall& VectorCall::Lanes(uint64_t lanes, int64_t repeats) {
  if (lanes == 0 || lanes > per_repeat_) {
    core_.FailAt(Fault::kBadMask, Pipe::kV, op_, loc_,
                 "mask of " + std::to_string(lanes) + " elements; a repeat holds " + std::to_string(per_repeat_));
    bad_ = true;
  }
  uint64_t words[2] = {FirstLanes(lanes).word[0], FirstLanes(lanes).word[1]};
  return bad_ ? *this : Bits(words, repeats);
}

VectorCall& VectorCall::Bits(const uint64_t mask[], int64_t repeats) {
  mask_.word[0] = mask[0];
  mask_.word[1] = per_repeat_ > 64 ? mask[1] : 0;
  VecMask allowed = FirstLanes(per_repeat_);
  bool beyond = (mask[0] & ~allowed.word[0]) != 0 || (per_repeat_ <= 64 && mask[1] != 0);
  if (beyond || (mask_.word[0] | mask_.word[1]) == 0) {
    core_.FailAt(Fault::kBadMask, Pipe::kV, op_, loc_,
                 beyond ? "mask bits beyond the " + std::to_string(per_repeat_) + " elements of a repeat"
                        : std::string("empty mask"));
    bad_ = true;
  }
  if (repeats < 0 || repeats > kMaxRepeats) {
    core_.FailAt(Fault::kBadRepeat, Pipe::kV, op_, loc_, std::to_string(repeats) + " repeats; at most 255");
    bad_ = true;
  }
  repeats_ = static_cast<uint32_t>(std::max<int64_t>(repeats, 0));
  core_.vector_mask[0] = mask_.word[0];
  core_.vector_mask[1] = mask_.word[1];
  return *this;
}

VectorCall& VectorCall::Register(int64_t repeats) {
  if (core_.mask_count) {
    counting_ = true;
    count_ = static_cast<uint32_t>(core_.vector_mask[0]);
    repeats_ = CeilDiv(count_, per_repeat_);
    return *this;
  }
  uint64_t words[2] = {core_.vector_mask[0], per_repeat_ > 64 ? core_.vector_mask[1] : 0};
  if (per_repeat_ < 64) words[0] &= FirstLanes(per_repeat_).word[0];
  return Bits(words, repeats);
}

VecMask VectorCall::MaskOf(uint32_t repeat) const {
  if (!counting_) return mask_;
  return FirstLanes(std::min(count_ - repeat * per_repeat_, per_repeat_));
}

bool VectorCall::Dense(const VecArg& arg) const {
  if (arg.blk != 1 || arg.rep * kBlock != per_repeat_ * arg.elem) return false;
  if (counting_) return true;
  VecMask all = FirstLanes(per_repeat_);
  return mask_.word[0] == all.word[0] && mask_.word[1] == all.word[1];
}

bool VectorCall::Touch(const VecArg& arg, bool write) {
  auto touch = [&](uint32_t offset, uint32_t bytes) {
    uint32_t addr = arg.ref.addr + offset;
    return write ? core_.WriteLocal(arg.ref, addr, bytes) : core_.ReadLocal(arg.ref, addr, bytes);
  };
  if (Dense(arg)) return touch(0, (counting_ ? count_ : repeats_ * per_repeat_) * arg.elem);
  uint32_t lanes_per_block = kBlock / arg.elem;
  for (uint32_t r = 0; r < repeats_; ++r) {
    VecMask mask = MaskOf(r);
    for (uint32_t i = 0; i < per_repeat_;) {
      if (!(mask.word[i / 64] >> (i % 64) & 1)) {
        ++i;
        continue;
      }
      uint32_t end = i + 1;  // a run of active lanes within one block
      while (end < per_repeat_ && end % lanes_per_block != 0 && (mask.word[end / 64] >> (end % 64) & 1)) ++end;
      if (!touch(Offset(arg, r, i), (end - i) * arg.elem)) return false;
      i = end;
    }
  }
  return true;
}

// Source and destination may be the same blocks in the same repeat. A block written by one repeat must not be read by
// a later one, except where the destination accumulates on itself (both repeat strides 0).
bool VectorCall::Overlaps(const VecArg& dst, const VecArg& src, bool may_accumulate) const {
  if (dst.ref.mem != src.ref.mem) return false;
  auto bytes = [&](const VecArg& arg) {
    uint32_t blocks = CeilDiv(per_repeat_ * arg.elem, kBlock);
    return ((repeats_ - 1) * arg.rep + (blocks - 1) * arg.blk + 1) * kBlock;
  };
  uint32_t dst_bytes = counting_ && Dense(dst) ? count_ * dst.elem : bytes(dst);
  uint32_t src_bytes = counting_ && Dense(src) ? count_ * src.elem : bytes(src);
  if (dst.ref.addr >= src.ref.addr + src_bytes || src.ref.addr >= dst.ref.addr + dst_bytes) return false;
  if (dst.ref.addr == src.ref.addr && dst.blk == src.blk && dst.rep == src.rep && dst.elem == src.elem &&
      (dst.rep != 0 || repeats_ == 1 || may_accumulate)) {
    return false;
  }
  // Exactly: which repeat writes each block first, and which lane of it.
  struct Writer {
    uint32_t repeat;
    uint32_t lane;
  };
  uint32_t base = std::min(dst.ref.addr, src.ref.addr) / kBlock;
  std::vector<Writer> writers(CeilDiv(std::max(dst.ref.addr + dst_bytes, src.ref.addr + src_bytes), kBlock) - base + 1,
                              {~0u, 0});
  auto each = [&](const VecArg& arg, auto&& visit) {
    uint32_t lanes = std::max<uint32_t>(kBlock / arg.elem, 1);
    for (uint32_t r = 0; r < repeats_; ++r) {
      VecMask mask = MaskOf(r);
      for (uint32_t i = 0; i < per_repeat_; i += lanes) {
        bool active = false;
        for (uint32_t k = i; k < std::min(i + lanes, per_repeat_); ++k) active |= mask.word[k / 64] >> (k % 64) & 1;
        if (active) visit((arg.ref.addr + Offset(arg, r, i)) / kBlock - base, r, i);
      }
    }
  };
  each(dst, [&](uint32_t block, uint32_t r, uint32_t lane) {
    if (block < writers.size() && writers[block].repeat == ~0u) writers[block] = {r, lane};
  });
  bool clash = false;
  each(src, [&](uint32_t block, uint32_t r, uint32_t lane) {
    if (block >= writers.size() || writers[block].repeat == ~0u) return;
    const Writer& writer = writers[block];
    clash |= writer.repeat < r || (writer.repeat == r && writer.lane != lane);
  });
  return clash;
}

// Vector calls do nothing on a cube core, as on hardware.
bool VectorCall::Ready() {
  if (core_.id().cube || bad_ || repeats_ == 0) return false;
  core_.Begin(Pipe::kV, op_, loc_);
  return true;
}

bool VectorCall::Sources(const VecArg& dst, const VecArg* sources, int source_count, bool check_overlap) {
  bool fine = core_.CheckAligned(dst.ref, kBlock);
  for (int i = 0; i < source_count; ++i) fine &= core_.CheckAligned(sources[i].ref, kBlock);
  for (int i = 0; check_overlap && i < source_count; ++i) {
    if (!Overlaps(dst, sources[i], i == 1)) continue;
    core_.FailRange(Fault::kOverlap, dst.ref.mem, dst.ref.addr, dst.ref.addr + kBlock,
                    "destination and source " + std::to_string(i) + " overlap but do not coincide");
  }
  for (int i = 0; i < source_count; ++i) fine &= Touch(sources[i], false);
  return fine;
}

void VectorCall::Book(uint32_t elem) {
  uint64_t bytes = uint64_t{counting_ ? count_ : repeats_ * per_repeat_} * elem;
  core_.Finish(cost::kVectorHead + repeats_ * cycles_, cost::kVectorTail, bytes, repeats_);
}

bool VectorCall::Start(const VecArg& dst, const VecArg* sources, int source_count) {
  if (!Ready()) return false;
  bool fine = Sources(dst, sources, source_count, true);
  fine &= Touch(dst, true);
  Book(dst.elem);
  return fine;
}

bool VectorCall::StartPacked(const VecArg& dst, uint32_t dst_bytes, const VecArg* sources, int source_count) {
  if (!Ready()) return false;
  bool fine = Sources(dst, sources, source_count, false);
  fine &= core_.WriteLocal(dst.ref, dst.ref.addr, dst_bytes);
  Book(sources[0].elem);
  return fine;
}

bool VectorCall::StartWithBits(const VecArg& dst, const VecArg* sources, int source_count, const LocalRef& bits,
                               uint32_t bit_bytes) {
  if (!Ready()) return false;
  bool fine = Sources(dst, sources, source_count, true) && core_.CheckAligned(bits, kBlock);
  fine &= core_.ReadLocal(bits, bits.addr, bit_bytes);
  fine &= Touch(dst, true);
  Book(dst.elem);
  return fine;
}

bool VectorCall::StartGather(const VecArg& dst, const VecArg& offsets) {
  if (!Ready()) return false;
  bool fine = Sources(dst, &offsets, 1, false);
  Book(dst.elem);
  return fine;
}

bool VectorCall::StartReduce(const LocalRef& dst, uint32_t dst_alignment, const VecArg& source) {
  if (!Ready()) return false;
  bool fine = core_.CheckAligned(dst, dst_alignment) && core_.CheckAligned(source.ref, kBlock);
  return fine && Touch(source, false);
}

void VectorCall::FinishReduce(uint32_t bytes_per_repeat) {
  core_.Finish(cost::kVectorHead + repeats_ * cycles_, cost::kVectorTail, uint64_t{repeats_} * bytes_per_repeat,
               repeats_);
}

}  // namespace hostsim
