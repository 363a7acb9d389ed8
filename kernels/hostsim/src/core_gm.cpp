// Global memory as one core sees it: DMA accesses and the scalar data cache.
#include <algorithm>
#include <cstring>

#include "hostsim/core.h"
#include "hostsim/device.h"

namespace hostsim {
bool Core::Knows(const GmAccess& access, Pipe pipe) const {
  int p = static_cast<int>(access.pipe);
  if (access.core != id_.index) return access.instruction <= foreign_[access.core * kPipes + p];
  return access.instruction == now_ || access.instruction <= known_[static_cast<int>(pipe)][p] ||
         (pipe == Pipe::kS && access.pipe == Pipe::kS);
}

GmRange* Core::FindGm(uintptr_t begin, size_t bytes) {
  GmRange* range = GmSpace::Instance().Find(begin, bytes);
  if (range != nullptr) return range;
  const GmRange* near = GmSpace::Instance().Nearest(begin);
  std::string message = "no global memory is registered";
  if (near != nullptr) {
    message = "the nearest allocation has " + std::to_string(near->end - near->begin) +
              " bytes, the access starts at byte " + std::to_string(static_cast<int64_t>(begin - near->begin));
  }
  FailRange(Fault::kGmOutOfBounds, Mem::kGm, begin, begin + bytes, message);
  return nullptr;
}

bool Core::ReadGm(const void* pointer, size_t bytes) {
  if (bytes == 0) return true;
  uintptr_t begin = reinterpret_cast<uintptr_t>(pointer), end = begin + bytes;
  GmRange* range = FindGm(begin, bytes);
  if (range == nullptr) return false;
  report_.gm_read += bytes;
  if (pipe_ != Pipe::kS) {
    for (uintptr_t line : dirty_lines_) {
      if (line + kCacheLine <= begin || line >= end) continue;
      FailRange(Fault::kStaleCache, Mem::kGm, std::max(line, begin), std::min<uintptr_t>(line + kCacheLine, end),
                "a scalar store to this line is still in the data cache");
    }
  }
  for (uintptr_t base = begin / kBlock * kBlock; base < end; base += kBlock) {
    GmGranule& granule = range->At(std::max(base, begin));
    if (!device_.TouchLine(granule)) from_hbm_ += kBlock;
    uint32_t mask = ByteMask(base, begin, end);
    if (granule.write.instruction != 0 && (granule.write_bytes & mask) != 0 && !Knows(granule.write, pipe_)) {
      bool own = granule.write.core == id_.index;
      Conflict(own ? Fault::kRaw : Fault::kGmRace, Mem::kGm, std::max(base, begin), std::min(base + kBlock, end),
               own ? "" : "read without synchronisation of a write by another core", device_.core(granule.write.core),
               granule.write.instruction);
      granule.write.instruction = 0;
    }
    // Keep the last few readers; an older read of the same pipe is implied by the newer one.
    int slot = -1;
    for (int i = 0; i < GmGranule::kReaders; ++i) {
      const GmAccess& read = granule.reads[i];
      if (read.instruction == 0 || (read.core == id_.index && read.pipe == pipe_)) {
        slot = i;
        break;
      }
    }
    bool same = slot >= 0 && granule.reads[slot].instruction != 0;
    if (slot < 0) slot = static_cast<int>(granule.next_reader++ % GmGranule::kReaders);
    granule.read_bytes[slot] = same ? granule.read_bytes[slot] | mask : mask;
    granule.reads[slot] = {static_cast<uint16_t>(id_.index), pipe_, false, now_};
  }
  return true;
}

bool Core::WriteGm(const void* pointer, size_t bytes, bool atomic_write) {
  if (bytes == 0) return true;
  uintptr_t begin = reinterpret_cast<uintptr_t>(pointer), end = begin + bytes;
  GmRange* range = FindGm(begin, bytes);
  if (range == nullptr) return false;
  report_.gm_written += bytes;
  for (uintptr_t base = begin / kBlock * kBlock; base < end; base += kBlock) {
    GmGranule& granule = range->At(std::max(base, begin));
    if (!device_.TouchLine(granule)) from_hbm_ += kBlock;
    uint32_t mask = ByteMask(base, begin, end);
    uintptr_t from = std::max(base, begin), to = std::min(base + kBlock, end);
    GmAccess& write = granule.write;
    bool same_pipe = write.core == id_.index && write.pipe == pipe_;
    bool ordered = Knows(write, pipe_);
    if (write.instruction != 0 && !(write.atomic && atomic_write) && !ordered) {
      bool overlap = ((same_pipe ? granule.unordered_bytes : granule.write_bytes) & mask) != 0;
      if (write.core != id_.index) {
        Conflict(overlap ? Fault::kGmRace : Fault::kSharedLine, Mem::kGm, from, to,
                 overlap ? "two cores write the same bytes without synchronisation"
                         : "two cores write different bytes of one 32-byte block without synchronisation",
                 device_.core(write.core), write.instruction);
      } else if (overlap) {
        Conflict(Fault::kWaw, Mem::kGm, from, to, "", *this, write.instruction);
      }
    }
    for (int i = 0; i < GmGranule::kReaders; ++i) {
      GmAccess& read = granule.reads[i];
      if (read.instruction == 0 || (granule.read_bytes[i] & mask) == 0 || Knows(read, pipe_)) continue;
      bool own = read.core == id_.index;
      Conflict(own ? Fault::kWar : Fault::kGmRace, Mem::kGm, from, to,
               own ? "" : "write without synchronisation with a read by another core", device_.core(read.core),
               read.instruction);
      read.instruction = 0;  // reported once
    }
    if (device_.scalar_stores) CheckLineSharing(*range, base, pipe_);
    bool more = same_pipe && write.instruction != 0;
    granule.write_bytes = more ? granule.write_bytes | mask : mask;
    granule.unordered_bytes = more && !ordered ? granule.unordered_bytes | mask : mask;
    write = {static_cast<uint16_t>(id_.index), pipe_, atomic_write, now_};
  }
  return true;
}

// A scalar store writes back a whole 64-byte line, so its neighbour block is at stake too.
void Core::CheckLineSharing(GmRange& range, uintptr_t granule, Pipe pipe) {
  uintptr_t neighbour = granule ^ kBlock;
  if (neighbour + kBlock <= range.begin || neighbour >= range.end) return;
  const GmAccess& write = range.At(std::max(neighbour, range.begin)).write;
  bool scalar = pipe == Pipe::kS || write.pipe == Pipe::kS;
  if (write.instruction == 0 || write.core == id_.index || !scalar || Knows(write, pipe)) return;
  Conflict(Fault::kSharedLine, Mem::kGm, granule, granule + kBlock,
           "two cores write one 64-byte cache line, one of them with scalar stores", device_.core(write.core),
           write.instruction);
}

bool Core::KnownWhenLoaded(const GmAccess& access, const CacheLine& line) const {
  int p = static_cast<int>(access.pipe);
  if (access.core == id_.index) return access.pipe == Pipe::kS || access.instruction <= line.known[p];
  const std::vector<uint32_t>& foreign = foreign_history_[line.foreign];
  return access.instruction <= foreign[access.core * kPipes + p];
}

Core::CacheLine& Core::Line(uintptr_t line) {
  auto [place, fresh] = cache_.try_emplace(line);
  CacheLine& entry = place->second;
  if (fresh) {
    if (foreign_history_.empty()) foreign_history_.push_back(foreign_);
    entry.foreign = static_cast<uint32_t>(foreign_history_.size() - 1);
    entry.known = known_[static_cast<int>(Pipe::kS)];
    entry.loaded_at = now_;
    // Only the registered part of the line can be read on the host.
    for (uintptr_t b = line; b < line + kCacheLine; ++b) {
      if (GmSpace::Instance().Find(b, 1)) entry.data[b - line] = *reinterpret_cast<const uint8_t*>(b);
    }
  }
  return entry;
}

void Core::ScalarLoad(const void* pointer, size_t bytes, void* out, Loc loc) {
  Begin(Pipe::kS, "GetValue", loc);
  uintptr_t begin = reinterpret_cast<uintptr_t>(pointer);
  size_t misses = cache_.size();
  std::memset(out, 0, bytes);
  if (ReadGm(pointer, bytes)) {
    for (uintptr_t at = begin; at < begin + bytes;) {
      uintptr_t line = at / kCacheLine * kCacheLine;
      size_t part = std::min<size_t>(begin + bytes - at, line + kCacheLine - at);
      CacheLine& entry = Line(line);
      if (entry.preload != 0) {
        steps_.push_back({Step::Kind::kWait, Pipe::kS, entry.preload, 0, cost::kScalarGm});
        entry.preload = 0;
      }
      GmRange* range = GmSpace::Instance().Find(at, part);
      for (uintptr_t base = at / kBlock * kBlock; entry.loaded_at != now_ && base < at + part; base += kBlock) {
        GmGranule& granule = range->At(std::max(base, range->begin));
        bool overlap = (granule.write_bytes & ByteMask(base, at, at + part)) != 0;
        if (granule.write.instruction == 0 || !overlap || KnownWhenLoaded(granule.write, entry)) continue;
        Conflict(Fault::kStaleCache, Mem::kGm, at, at + part,
                 "the line was cached before this write; DataCacheCleanAndInvalid must come in between",
                 device_.core(granule.write.core), granule.write.instruction);
      }
      std::memcpy(static_cast<char*>(out) + (at - begin), entry.data + (at - line), part);
      at += part;
    }
  }
  Finish(cache_.size() > misses ? cost::kScalarGm : cost::kScalar, 0, bytes, 0);
}

void Core::ScalarStore(void* pointer, size_t bytes, const void* value, Loc loc) {
  Begin(Pipe::kS, "SetValue", loc);
  uintptr_t begin = reinterpret_cast<uintptr_t>(pointer);
  if (GmSpace::Instance().Find(begin, bytes) == nullptr) {
    WriteGm(pointer, bytes);  // reports
  } else {
    device_.scalar_stores = true;
    for (size_t i = 0; i < bytes; ++i) {
      uintptr_t line = (begin + i) / kCacheLine * kCacheLine;
      CacheLine& entry = Line(line);
      if (entry.dirty == 0) dirty_lines_.push_back(line);
      entry.data[begin + i - line] = static_cast<const uint8_t*>(value)[i];
      entry.dirty |= uint64_t{1} << (begin + i - line);
      entry.store_loc = loc;
    }
  }
  Finish(cost::kScalar, 0, bytes, 0);
}

void Core::WriteBack(uintptr_t line, CacheLine& entry) {
  if (entry.dirty == 0) return;
  for (uint32_t half = 0; half < kCacheLine / kBlock; ++half) {
    uintptr_t base = line + half * kBlock;
    GmRange* range = GmSpace::Instance().Find(std::max(base, line), 1);
    if (range == nullptr) continue;
    GmGranule& granule = range->At(std::max(base, range->begin));
    if (granule.write.instruction != 0 && !KnownWhenLoaded(granule.write, entry)) {
      Conflict(Fault::kSharedLine, Mem::kGm, line, line + kCacheLine,
               "writing the cached line back overwrites what was written to it meanwhile",
               device_.core(granule.write.core), granule.write.instruction);
    }
  }
  for (uint32_t i = 0; i < kCacheLine;) {
    if (!(entry.dirty >> i & 1)) {
      ++i;
      continue;
    }
    uint32_t run = i;
    while (run < kCacheLine && (entry.dirty >> run & 1)) ++run;
    void* to = reinterpret_cast<void*>(line + i);
    if (WriteGm(to, run - i)) std::memcpy(to, entry.data + i, run - i);
    i = run;
  }
  entry.dirty = 0;
  dirty_lines_.erase(std::remove(dirty_lines_.begin(), dirty_lines_.end(), line), dirty_lines_.end());
}

void Core::PreloadCache(const void* pointer, Loc loc) {
  Begin(Pipe::kS, "DataCachePreload", loc);
  const uintptr_t line = reinterpret_cast<uintptr_t>(pointer) / kCacheLine * kCacheLine;
  const bool asks = ReadGm(pointer, 1) && cache_.count(line) == 0;
  Finish(cost::kScalar, 0, kCacheLine, 0);
  if (!asks) return;
  Line(line).preload = device_.NewEvent();
  steps_.push_back({Step::Kind::kSignal, Pipe::kS, Line(line).preload});
}

void Core::CleanCache(const void* pointer, bool whole, Loc loc) {
  Begin(Pipe::kS, "DataCacheCleanAndInvalid", loc);
  if (whole) {
    for (auto& [line, entry] : cache_) WriteBack(line, entry);
    cache_.clear();
  } else {
    uintptr_t line = reinterpret_cast<uintptr_t>(pointer) / kCacheLine * kCacheLine;
    auto found = cache_.find(line);
    if (found != cache_.end()) {
      WriteBack(line, found->second);
      cache_.erase(found);
    }
  }
  Finish(cost::kScalarGm, 0, kCacheLine, 0);
}

}  // namespace hostsim
