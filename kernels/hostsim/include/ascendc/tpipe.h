// TPipe, queues and buffers. Queues synchronise with ordinary flags, so the race check sees exactly what they order.
#pragma once

#include <algorithm>

#include "ascendc/sync.h"

namespace AscendC {
namespace detail {

// Pipes that fill and drain a queue: the flag EnQue sets and DeQue waits for, and the reverse one for freeing.
constexpr PipePair QueuePipes(TPosition src, TPosition dst) {
  using P = hostsim::Pipe;
  auto is_ub = [](TPosition p) { return MemOf(p) == hostsim::Mem::kUb; };
  if (src == TPosition::GM && is_ub(dst)) return {P::kMte2, P::kV};
  if (is_ub(src) && is_ub(dst))
    return src == TPosition::VECIN && dst == TPosition::VECOUT ? PipePair{P::kMte2, P::kMte3} : PipePair{P::kV, P::kV};
  if (is_ub(src)) return {P::kV, P::kMte3};
  if (MemOf(dst) == hostsim::Mem::kL1) return {P::kMte2, P::kMte1};
  if (MemOf(src) == hostsim::Mem::kL1) return {P::kMte1, P::kM};
  return {P::kM, P::kFix};
}
// The side a queue of one position leaves open.
constexpr TPosition QueueSource(TPosition p) {
  switch (p) {
    case TPosition::VECOUT:
      return TPosition::VECOUT;
    case TPosition::A2:
      return TPosition::A1;
    case TPosition::B2:
      return TPosition::B1;
    case TPosition::CO1:
      return TPosition::CO1;
    default:
      return TPosition::GM;
  }
}
constexpr TPosition QueueTarget(TPosition p) {
  return p == TPosition::VECOUT ? TPosition::GM : (p == TPosition::CO1 ? TPosition::CO2 : p);
}

}  // namespace detail

template <TPosition src, TPosition dst, int32_t depth, auto mask = 0>
class TQueBind {
 public:
  static constexpr bool isTQue = true;
  static constexpr TPosition kPosition =
      src == TPosition::GM || src == TPosition::A1 || src == TPosition::B1 ? dst : src;
  static constexpr detail::PipePair kPipes = detail::QueuePipes(src, dst);

  template <typename T>
  LocalTensor<T> AllocTensor(Loc loc = Loc::Here()) {
    hostsim::Core& core = hostsim::Current();
    for (hostsim::QueueBuffer* buffer : Buffers()) {
      if (buffer->state != hostsim::QueueBuffer::State::kFree) continue;
      WaitFree(*buffer, loc);
      buffer->state = hostsim::QueueBuffer::State::kOccupied;
      buffer->alloc_loc = loc;
      return TensorOf<T>(*buffer);
    }
    core.FailAt(hostsim::Fault::kQueueDepth, kPipes.from, "AllocTensor", loc,
                "all " + std::to_string(count_) + " buffers are in use: the core would hang");
    return count_ > 0 ? TensorOf<T>(*first_) : LocalTensor<T>();
  }
  template <typename T>
  bool EnQue(const LocalTensor<T>& tensor, Loc loc = Loc::Here()) {
    hostsim::Core& core = hostsim::Current();
    hostsim::QueueBuffer* buffer = Own(tensor.buffer(), "EnQue", loc);
    if (buffer == nullptr) return false;
    if (queued_ >= (depth > 0 ? depth : 1)) {
      core.FailAt(hostsim::Fault::kQueueDepth, kPipes.from, "EnQue", loc,
                  "more than " + std::to_string(depth) + " tensor(s) queued");
      return false;
    }
    if (buffer->state == hostsim::QueueBuffer::State::kFree || buffer->state == hostsim::QueueBuffer::State::kQueued) {
      core.FailAt(hostsim::Fault::kQueueDepth, kPipes.from, "EnQue", loc,
                  "the tensor is not allocated, or queued twice");
      return false;
    }
    if (kPipes.from == kPipes.to) {
      core.Barrier(kPipes.from);
    } else {
      buffer->queued_event = core.TakeEvent(kPipes.from, kPipes.to, loc);
      core.SetFlag(kPipes.from, kPipes.to, buffer->queued_event, loc);
    }
    buffer->state = hostsim::QueueBuffer::State::kQueued;
    order_[queued_++] = buffer;
    return true;
  }
  template <typename T>
  LocalTensor<T> DeQue(Loc loc = Loc::Here()) {
    hostsim::Core& core = hostsim::Current();
    if (queued_ == 0) {
      core.FailAt(hostsim::Fault::kQueueDepth, kPipes.to, "DeQue", loc, "nothing is queued");
      return count_ > 0 ? TensorOf<T>(*first_) : LocalTensor<T>();
    }
    hostsim::QueueBuffer* buffer = order_[0];
    std::copy(order_ + 1, order_ + queued_, order_);
    --queued_;
    if (buffer->queued_event >= 0) {
      core.WaitFlag(kPipes.from, kPipes.to, buffer->queued_event, loc);
      core.ReleaseEvent(kPipes.from, kPipes.to, buffer->queued_event);
      buffer->queued_event = -1;
    }
    buffer->state = hostsim::QueueBuffer::State::kDequeued;
    return TensorOf<T>(*buffer);
  }
  template <typename T>
  void FreeTensor(const LocalTensor<T>& tensor, Loc loc = Loc::Here()) {
    hostsim::Core& core = hostsim::Current();
    hostsim::QueueBuffer* buffer = Own(tensor.buffer(), "FreeTensor", loc);
    if (buffer == nullptr) return;
    if (buffer->state == hostsim::QueueBuffer::State::kFree) {
      core.FailAt(hostsim::Fault::kQueueDoubleFree, kPipes.to, "FreeTensor", loc, "the tensor is already free");
      return;
    }
    if (kPipes.from != kPipes.to) {
      buffer->free_event = core.TakeEvent(kPipes.to, kPipes.from, loc);
      core.SetFlag(kPipes.to, kPipes.from, buffer->free_event, loc);
    }
    buffer->state = hostsim::QueueBuffer::State::kFree;
  }
  // The forms of a queue of depth 0: the tensor stays with the caller.
  template <typename T>
  void AllocTensor(LocalTensor<T>& tensor, Loc loc = Loc::Here()) {
    tensor = AllocTensor<T>(loc);
  }
  template <typename T>
  void DeQue(LocalTensor<T>& tensor, Loc loc = Loc::Here()) {
    tensor = DeQue<T>(loc);
  }
  bool VacantInQue() const { return queued_ < depth; }
  bool HasTensorInQue() const { return queued_ > 0; }
  int32_t GetTensorCountInQue() const { return queued_; }
  bool HasIdleBuffer() const {
    for (hostsim::QueueBuffer* buffer : Buffers()) {
      if (buffer->state == hostsim::QueueBuffer::State::kFree) return true;
    }
    return false;
  }

  // TPipe::InitBuffer.
  void Init(hostsim::QueueBuffer* first, size_t start, uint32_t count) {
    first_ = first;
    start_ = start;
    count_ = count;
  }

 private:
  // The buffers of this queue, in the core's pool.
  struct Range {
    size_t start;
    uint32_t count;
    struct Iterator {
      size_t index;
      hostsim::QueueBuffer* operator*() const { return &hostsim::Current().pipe_state.buffers[index]; }
      Iterator& operator++() {
        ++index;
        return *this;
      }
      bool operator!=(const Iterator& other) const { return index != other.index; }
    };
    Iterator begin() const { return {start}; }
    Iterator end() const { return {start + count}; }
  };
  Range Buffers() const { return {start_, count_}; }

  template <typename T>
  LocalTensor<T> TensorOf(hostsim::QueueBuffer& buffer) const {
    uint32_t bytes = buffer.ref.end - buffer.ref.addr;
    return {buffer.ref, kPosition, static_cast<uint32_t>(bytes / sizeof(T)), &buffer};
  }
  hostsim::QueueBuffer* Own(hostsim::QueueBuffer* buffer, const char* op, Loc loc) const {
    for (hostsim::QueueBuffer* mine : Buffers()) {
      if (mine == buffer) return buffer;
    }
    hostsim::Current().FailAt(hostsim::Fault::kQueueDepth, kPipes.from, op, loc, "the tensor is not of this queue");
    return nullptr;
  }
  static void WaitFree(hostsim::QueueBuffer& buffer, Loc loc) {
    if (buffer.free_event < 0) return;
    hostsim::Current().WaitFlag(buffer.free_from, buffer.free_to, buffer.free_event, loc);
    hostsim::Current().ReleaseEvent(buffer.free_from, buffer.free_to, buffer.free_event);
    buffer.free_event = -1;
  }

  static constexpr int kSlots = depth > 0 ? depth : 1;
  hostsim::QueueBuffer* first_ = nullptr;
  size_t start_ = 0;
  uint32_t count_ = 0;
  int32_t queued_ = 0;
  hostsim::QueueBuffer* order_[kSlots] = {};
};

template <TPosition pos, int32_t depth, auto mask = 0>
class TQue : public TQueBind<detail::QueueSource(pos), detail::QueueTarget(pos), depth, mask> {};

template <TPosition pos = TPosition::LCM>
class TBuf {
 public:
  static constexpr TPosition kPosition = pos;
  template <typename T>
  LocalTensor<T> Get() {
    return {ref_, pos, static_cast<uint32_t>((ref_.end - ref_.addr) / sizeof(T)), nullptr};
  }
  template <typename T>
  LocalTensor<T> Get(uint32_t len, Loc loc = Loc::Here()) {
    return GetWithOffset<T>(len, 0, loc);
  }
  template <typename T>
  LocalTensor<T> GetWithOffset(uint32_t size, uint32_t offset, Loc loc = Loc::Here()) {
    hostsim::LocalRef part = ref_;
    part.addr += offset;
    if (part.addr + size * uint32_t{sizeof(T)} > ref_.end) {
      hostsim::Current().FailAt(hostsim::Fault::kOverrun, hostsim::Pipe::kS, "TBuf::Get", loc,
                                "the buffer has " + std::to_string(ref_.end - ref_.addr) + " bytes");
    } else {
      part.end = part.addr + size * uint32_t{sizeof(T)};
    }
    return {part, pos, size, nullptr};
  }
  void Init(const hostsim::LocalRef& ref) { ref_ = ref; }

 private:
  hostsim::LocalRef ref_;
};

class TPipe {
 public:
  TPipe(Loc loc = Loc::Here()) : loc_(loc) { Init(); }
  ~TPipe() {
    if (State().alive) Destroy();
  }
  TPipe(const TPipe&) = delete;
  TPipe& operator=(const TPipe&) = delete;

  void Init() {
    State() = {};
    State().alive = true;
    State().pipe = this;
    if (ASCEND_IS_AIC) {
      // The matmul library owns these three flags; TPipe sets them at the start and waits for them at the end.
      for (int i = 0; i < kMatmulEvents; ++i) {
        int id = hostsim::Current().TakeEvent(hostsim::Pipe::kM, hostsim::Pipe::kMte1, loc_);
        hostsim::Current().SetFlag(hostsim::Pipe::kM, hostsim::Pipe::kMte1, id, loc_);
      }
    }
  }
  template <class Queue>
  bool InitBuffer(Queue& queue, uint8_t num, uint32_t len, Loc loc = Loc::Here()) {
    static_assert(Queue::isTQue, "InitBuffer(queue, num, len) is for queues");
    auto& buffers = State().buffers;
    size_t start = buffers.size();
    for (uint8_t i = 0; i < num; ++i) {
      hostsim::QueueBuffer buffer;
      buffer.ref = Take(detail::MemOf(Queue::kPosition), len, loc);
      buffer.free_from = Queue::kPipes.to;
      buffer.free_to = Queue::kPipes.from;
      buffers.push_back(buffer);
    }
    if (buffers.size() > kMaxBuffers) {
      hostsim::Current().FailAt(hostsim::Fault::kQueueDepth, hostsim::Pipe::kS, "InitBuffer", loc,
                                "more than 64 queue buffers");
    }
    queue.Init(num > 0 ? &buffers[start] : nullptr, start, num);
    return true;
  }
  template <TPosition pos>
  bool InitBuffer(TBuf<pos>& buffer, uint32_t len, Loc loc = Loc::Here()) {
    buffer.Init(Take(detail::MemOf(pos), len, loc));
    return true;
  }
  template <HardEvent event>
  TEventID AllocEventID(Loc loc = Loc::Here()) {
    detail::PipePair pipes = detail::PipesOf(event);
    return static_cast<TEventID>(hostsim::Current().TakeEvent(pipes.from, pipes.to, loc));
  }
  template <HardEvent event>
  void ReleaseEventID(TEventID id) {
    detail::PipePair pipes = detail::PipesOf(event);
    hostsim::Current().ReleaseEvent(pipes.from, pipes.to, id);
  }
  template <HardEvent event>
  TEventID FetchEventID() {
    return FetchEventID(event);
  }
  TEventID FetchEventID(HardEvent event) {
    detail::PipePair pipes = detail::PipesOf(event);
    return static_cast<TEventID>(hostsim::Current().FreeEvent(pipes.from, pipes.to));
  }
  void Reset() {
    Drain();
    Init();
  }
  void Destroy() {
    Drain();
    State().alive = false;
    hostsim::Current().BarrierAll();
  }

 private:
  static constexpr int kMatmulEvents = 3;
  static constexpr size_t kMaxBuffers = 64;

  static hostsim::PipeState& State() { return hostsim::Current().pipe_state; }

  hostsim::LocalRef Take(hostsim::Mem mem, uint32_t len, Loc loc) {
    hostsim::Core& core = hostsim::Current();
    uint32_t& used = State().used[static_cast<int>(mem)];
    uint32_t bytes = hostsim::CeilDiv(len, hostsim::kBlock) * hostsim::kBlock;
    hostsim::LocalRef ref{mem, used, used + bytes};
    used += bytes;
    if (used > core.Limit(mem)) {
      core.FailAt(hostsim::Fault::kLocalOverflow, hostsim::Pipe::kS, "InitBuffer", loc,
                  std::string("buffers need ") + std::to_string(used) + " bytes of " + hostsim::Name(mem) +
                      ", which has " + std::to_string(core.Limit(mem)));
    }
    return ref;
  }
  // Waits for what FreeTensor set, and reports what was never freed.
  void Drain() {
    hostsim::Core& core = hostsim::Current();
    for (hostsim::QueueBuffer& buffer : State().buffers) {
      if (buffer.state != hostsim::QueueBuffer::State::kFree) {
        core.FailAt(hostsim::Fault::kQueueLeak, buffer.free_to, "AllocTensor", buffer.alloc_loc,
                    "the tensor was never freed");
      } else if (buffer.free_event >= 0) {
        core.WaitFlag(buffer.free_from, buffer.free_to, buffer.free_event, loc_);
        buffer.free_event = -1;
      }
    }
    State().buffers.clear();
    if (ASCEND_IS_AIC) {
      for (int id = 0; id < kMatmulEvents; ++id) {
        core.WaitFlag(hostsim::Pipe::kM, hostsim::Pipe::kMte1, id, loc_);
      }
    }
  }

  Loc loc_;
};

}  // namespace AscendC

// The device headers declare it outside the namespace.
inline AscendC::TPipe* GetTPipePtr() { return static_cast<AscendC::TPipe*>(hostsim::Current().pipe_state.pipe); }

namespace AscendC {
using ::GetTPipePtr;
}
