// GlobalTensor, LocalTensor and the linear allocator.
#pragma once

#include <string>

#include "ascendc/params.h"

namespace AscendC {

// An element of a tensor as operator() gives it: every access goes through the checks.
template <class Tensor, class T>
class ElementRef {
 public:
  ElementRef(Tensor tensor, uint64_t offset, Loc loc) : tensor_(tensor), offset_(offset), loc_(loc) {}
  operator T() const { return tensor_.GetValue(offset_, loc_); }
  ElementRef& operator=(T value) {
    tensor_.SetValue(offset_, value, loc_);
    return *this;
  }
  ElementRef& operator=(const ElementRef& other) { return *this = static_cast<T>(other); }

 private:
  Tensor tensor_;
  uint64_t offset_;
  Loc loc_;
};

template <typename T>
class LocalTensor {
 public:
  using PrimType = T;

  LocalTensor() = default;
  LocalTensor(TPosition position, uint32_t addr, uint32_t tile_size, Loc loc = Loc::Here())
      : LocalTensor(hostsim::LocalRef{detail::MemOf(position), addr, addr + tile_size * uint32_t{sizeof(T)}}, position,
                    tile_size, nullptr) {
    hostsim::Core& core = hostsim::Current();
    if (uint64_t{addr} + uint64_t{tile_size} * sizeof(T) > core.Limit(ref_.mem)) {
      core.FailAt(hostsim::Fault::kLocalOverflow, hostsim::Pipe::kS, "LocalTensor", loc,
                  std::string("tensor ends at byte ") +
                      std::to_string(uint64_t{addr} + uint64_t{tile_size} * sizeof(T)) + " of " +
                      hostsim::Name(ref_.mem) + ", which has " + std::to_string(core.Limit(ref_.mem)));
    }
    if (addr % hostsim::LocalAlignment(ref_.mem) != 0) {
      core.FailAt(hostsim::Fault::kMisaligned, hostsim::Pipe::kS, "LocalTensor", loc,
                  std::string("address ") + std::to_string(addr) + " in " + hostsim::Name(ref_.mem));
    }
  }
  LocalTensor(const hostsim::LocalRef& ref, TPosition position, uint32_t size, hostsim::QueueBuffer* buffer)
      : ref_(ref), position_(position), size_(size), buffer_(buffer) {}

  T GetValue(const uint32_t index, Loc loc = Loc::Here()) const {
    hostsim::Core& core = hostsim::Current();
    T value{};
    if (!core.Has(ref_.mem)) return value;  // the other kind of core, as on the device
    core.Begin(hostsim::Pipe::kS, "GetValue", loc);
    uint32_t addr = ref_.addr + index * uint32_t{sizeof(T)};
    if (core.ReadLocal(ref_, addr, sizeof(T))) value = *reinterpret_cast<const T*>(core.Data(ref_.mem) + addr);
    core.Finish(hostsim::cost::kScalar, 0, sizeof(T), 0);
    return value;
  }
  template <typename S>
  void SetValue(const uint32_t index, const S value, Loc loc = Loc::Here()) const {
    hostsim::Core& core = hostsim::Current();
    if (!core.Has(ref_.mem)) return;
    core.Begin(hostsim::Pipe::kS, "SetValue", loc);
    uint32_t addr = ref_.addr + index * uint32_t{sizeof(T)};
    if (core.WriteLocal(ref_, addr, sizeof(T)))
      *reinterpret_cast<T*>(core.Data(ref_.mem) + addr) = static_cast<T>(value);
    core.Finish(hostsim::cost::kScalar, 0, sizeof(T), 0);
  }
  ElementRef<LocalTensor, T> operator()(const uint32_t offset, Loc loc = Loc::Here()) const {
    return {*this, offset, loc};
  }
  LocalTensor operator[](const uint32_t offset) const {
    LocalTensor part = *this;
    part.ref_.addr += offset * uint32_t{sizeof(T)};
    part.size_ = offset < size_ ? size_ - offset : 0;
    return part;
  }
  template <typename U>
  LocalTensor<U> ReinterpretCast() const {
    return {ref_, position_, static_cast<uint32_t>(size_ * sizeof(T) / sizeof(U)), buffer_};
  }
  uint64_t GetPhyAddr() const { return ref_.addr; }
  uint64_t GetPhyAddr(const uint32_t offset) const { return ref_.addr + offset * sizeof(T); }
  int32_t GetPosition() const { return static_cast<int32_t>(position_); }
  void SetSize(const uint32_t size) { size_ = size; }
  uint32_t GetSize() const { return size_; }
  uint32_t GetLength() const { return size_ * sizeof(T); }

  const hostsim::LocalRef& ref() const { return ref_; }
  hostsim::QueueBuffer* buffer() const { return buffer_; }

 private:
  hostsim::LocalRef ref_;
  TPosition position_ = TPosition::VECCALC;
  uint32_t size_ = 0;
  hostsim::QueueBuffer* buffer_ = nullptr;  // of the queue it came from
};

template <typename T>
class GlobalTensor {
 public:
  using PrimType = T;

  void SetGlobalBuffer(__gm__ T* buffer, uint64_t size) {
    address_ = buffer;
    size_ = size;
    bounded_ = true;
  }
  void SetGlobalBuffer(__gm__ T* buffer) {
    address_ = buffer;
    bounded_ = false;
  }
  const __gm__ T* GetPhyAddr() const { return address_; }
  __gm__ T* GetPhyAddr(const uint64_t offset) const { return address_ + offset; }
  T GetValue(const uint64_t offset, Loc loc = Loc::Here()) const {
    T value{};
    if (Inside(offset, 1, "GetValue", loc)) hostsim::Current().ScalarLoad(address_ + offset, sizeof(T), &value, loc);
    return value;
  }
  void SetValue(const uint64_t offset, T value, Loc loc = Loc::Here()) const {
    if (Inside(offset, 1, "SetValue", loc)) hostsim::Current().ScalarStore(address_ + offset, sizeof(T), &value, loc);
  }
  ElementRef<GlobalTensor, T> operator()(const uint64_t offset, Loc loc = Loc::Here()) const {
    return {*this, offset, loc};
  }
  GlobalTensor operator[](const uint64_t offset) const {
    GlobalTensor part = *this;
    part.address_ += offset;
    part.size_ = offset < size_ ? size_ - offset : 0;
    return part;
  }
  uint64_t GetSize() const { return size_; }
  template <CacheRwMode rwMode = CacheRwMode::RW>
  void SetL2CacheHint(CacheMode) {}

  // Whether [offset, offset + count) lies inside the size SetGlobalBuffer gave, if it gave one.
  bool Inside(uint64_t offset, uint64_t count, const char* op, Loc loc) const {
    if (!bounded_ || offset + count <= size_) return true;
    hostsim::Current().FailAt(hostsim::Fault::kOverrun, hostsim::Pipe::kS, op, loc,
                              "elements [" + std::to_string(offset) + ", " + std::to_string(offset + count) +
                                  ") of a GlobalTensor of " + std::to_string(size_));
    return false;
  }

 private:
  T* address_ = nullptr;
  uint64_t size_ = 0;
  bool bounded_ = false;
};

template <Hardware hard = Hardware::UB>
class LocalMemAllocator {
 public:
  uint32_t GetCurAddr() const { return head_; }
  template <TPosition pos, class DataType, uint32_t tileSize>
  LocalTensor<DataType> Alloc(Loc loc = Loc::Here()) {
    return Take<DataType>(pos, tileSize, loc);
  }
  template <TPosition pos, class DataType>
  LocalTensor<DataType> Alloc(uint32_t tileSize, Loc loc = Loc::Here()) {
    return Take<DataType>(pos, tileSize, loc);
  }
  template <class DataType, uint32_t tileSize>
  LocalTensor<DataType> Alloc(Loc loc = Loc::Here()) {
    return Take<DataType>(detail::DefaultPosition(hard), tileSize, loc);
  }
  template <class DataType>
  LocalTensor<DataType> Alloc(uint32_t tileSize, Loc loc = Loc::Here()) {
    return Take<DataType>(detail::DefaultPosition(hard), tileSize, loc);
  }

 private:
  template <class DataType>
  LocalTensor<DataType> Take(TPosition pos, uint32_t tileSize, Loc loc) {
    LocalTensor<DataType> tensor(pos, head_, tileSize, loc);
    head_ += tileSize * uint32_t{sizeof(DataType)};
    return tensor;
  }
  uint32_t head_ = 0;
};

}  // namespace AscendC
