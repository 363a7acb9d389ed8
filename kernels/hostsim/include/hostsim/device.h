// The cores of one launch, the order they run in, and what passes between them.
#pragma once

#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "hostsim/core.h"
#include "hostsim/launch.h"

namespace hostsim {

class Device {
 public:
  Device(const LaunchConfig& config, const DeviceProfile& profile);
  Report Run(const std::function<void()>& body);

  const LaunchConfig& config() const { return config_; }
  const DeviceProfile& profile() const { return profile_; }
  size_t core_count() const { return cores_.size(); }
  Core& core(size_t index) { return *cores_[index]; }

  // One core arrived at a cross-core flag. When all participants have, the destinations get the joint signal.
  void Arrive(Core& from, uint32_t mode, uint32_t flag, Signal signal);
  // Gives up the processor until some other core has run.
  void Yield();

  void Add(Error error);
  // Whether L2 holds the line: it was touched in this launch, and since then no more than fits there came from HBM.
  bool TouchLine(GmGranule& granule);
  EventId NewEvent() { return ++num_events_; }

  bool scalar_stores = false;  // some core wrote global memory through its data cache
  bool sync_all_used = false;
  bool sync_all_ids_used = false;

 private:
  std::vector<size_t> Participants(const Core& from, uint32_t mode) const;
  std::vector<size_t> Destinations(const Core& from, uint32_t mode) const;
  void ReportDeadlock();

  const LaunchConfig& config_;
  const DeviceProfile& profile_;
  std::vector<std::unique_ptr<Core>> cores_;
  std::map<std::tuple<uint32_t, std::vector<size_t>, uint32_t>, std::vector<std::deque<Signal>>> arrivals_;
  std::vector<Error> errors_;
  uint64_t first_touch_ = 0;
  uint64_t from_hbm_ = 0;  // bytes
  std::vector<JointEvent> joints_;
  EventId num_events_ = 0;
};

}  // namespace hostsim
