// `torch.ops.specdec_sim.*`: the NPU's host code and kernels on the host simulator, with CPU tensors.
#include <cstring>
#include <sstream>

#include "bindings/npu/device.h"
#include "bindings/schemas.h"
#include "kernels/ascendc/common/launch.h"

namespace specdec {

namespace {

struct Simulator {
  std::string profile = "910B3";
  uint64_t seed = 0;
  bool keep_reports = false;
  bool keep_log = false;
  std::vector<hostsim::Report> reports;
} simulator;

// Which device, in which order its cores run, and whether `take_reports` shall have something to give, and every
// instruction with it.
void configure(std::string profile, int64_t seed, bool keep_reports, bool keep_log) {
  TORCH_CHECK_VALUE(hostsim::FindProfile(profile.c_str()) != nullptr, "profile: unknown device ", profile);
  simulator = {std::move(profile), static_cast<uint64_t>(seed), keep_reports, keep_log, {}};
}

void write_device(std::ostream& out, const hostsim::DeviceProfile& device) {
  out << "{\"cube_cores\": " << device.cube_cores << ", \"vector_cores\": " << device.vector_cores
      << ", \"clock_ghz\": " << device.clock_ghz << ", \"hbm_gb_s\": " << device.hbm_gb_s << "}";
}

// [pipe, instruction, start, end] each, in cycles.
void write_log(std::ostream& out, const std::vector<hostsim::Instruction>& log) {
  out << "[";
  for (size_t i = 0; i < log.size(); ++i)
    out << (i ? ", " : "") << "[\"" << hostsim::Name(log[i].pipe) << "\", \"" << log[i].op << "\", " << log[i].start
        << ", " << log[i].end << "]";
  out << "]";
}

void write_busy(std::ostream& out, const std::array<double, hostsim::kPipes>& busy) {
  out << "{";
  for (int pipe = 0; pipe < hostsim::kPipes; ++pipe)
    out << (pipe ? ", " : "") << '"' << hostsim::Name(static_cast<hostsim::Pipe>(pipe)) << "\": " << busy[pipe];
  out << "}";
}

// The launches since the last call as a JSON list. Model estimates, uncalibrated.
std::string take_reports() {
  std::ostringstream out;
  out << "[";
  for (size_t i = 0; i < simulator.reports.size(); ++i) {
    const hostsim::Report& report = simulator.reports[i];
    out << (i ? ",\n" : "") << "{\"kernel\": \"" << report.kernel << "\", \"profile\": \"" << report.profile
        << "\", \"device\": ";
    write_device(out, *hostsim::FindProfile(report.profile.c_str()));
    out << ", \"gm_read\": " << report.gm_read << ", \"gm_written\": " << report.gm_written
        << ", \"gm_first_touch\": " << report.gm_first_touch << ", \"macs\": " << report.macs
        << ", \"cycles\": " << report.cycles << ", \"microseconds\": " << report.microseconds << ", \"cores\": [";
    for (size_t c = 0; c < report.cores.size(); ++c) {
      const hostsim::CoreReport& core = report.cores[c];
      out << (c ? ", " : "") << "{\"name\": \"" << core.name << "\", \"cube\": " << (core.cube ? "true" : "false")
          << ", \"cycles\": " << core.cycles << ", \"gm_read\": " << core.gm_read
          << ", \"gm_written\": " << core.gm_written << ", \"macs\": " << core.macs << ", \"busy\": ";
      write_busy(out, core.busy);
      if (!core.log.empty()) write_log(out << ", \"log\": ", core.log);
      out << "}";
    }
    out << "]}";
  }
  out << "]";
  simulator.reports.clear();
  return out.str();
}

}  // namespace

namespace sim {

void launch(const char* name, hostsim::Kind kind, uint32_t blocks, void*, const std::function<void()>& kernel) {
  hostsim::LaunchConfig config(name, kind, blocks);
  config.profile = simulator.profile.c_str();
  config.seed = simulator.seed;
  config.keep_log = simulator.keep_log;
  hostsim::Report report = hostsim::Launch(config, kernel);
  TORCH_CHECK(report.ok(), report.Text());
  if (simulator.keep_reports) simulator.reports.push_back(std::move(report));
}

}  // namespace sim

namespace npu {

Cores cores() {
  const hostsim::DeviceProfile* profile = hostsim::FindProfile(simulator.profile.c_str());
  return {profile->cube_cores, profile->vector_cores};
}

void submit(const char*, const std::vector<at::Tensor>& tensors, const std::function<void(void*)>& launch) {
  struct Registered {
    std::vector<const void*> memory;
    ~Registered() {
      for (const void* range : memory) hostsim::GmUnregister(range);
    }
  } registered;
  for (const at::Tensor& tensor : tensors) {
    const c10::Storage& storage = tensor.storage();
    if (storage.nbytes() == 0) continue;
    hostsim::GmRegister(storage.data(), storage.nbytes());
    registered.memory.push_back(storage.data());
  }
  launch(nullptr);
}

}  // namespace npu

}  // namespace specdec

TORCH_LIBRARY(specdec_sim, m) {
  specdec::define_schemas(m);
  m.def("configure(str profile, int seed=0, bool keep_reports=False, bool keep_log=False) -> ()", specdec::configure);
  m.def("take_reports() -> str", specdec::take_reports);
}
