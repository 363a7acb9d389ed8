#include "hostsim/report.h"

#include <cstdio>

namespace hostsim {
namespace {

constexpr const char* kFaultNames[] = {
    "local memory overflow",
    "misaligned operand",
    "tensor overrun",
    "queue depth",
    "queue leak",
    "queue double free",
    "uninitialised read",
    "undefined padding read",
    "read after write",
    "write after read",
    "write after write",
    "orphan wait",
    "double set",
    "flag left set",
    "event id",
    "bad repeat",
    "bad mask",
    "bad stride",
    "bad argument",
    "operand overlap",
    "GM out of bounds",
    "GM race",
    "shared line",
    "stale data cache",
    "deadlock",
    "cross-core flag",
    "API needs a TPipe",
    "unsupported",
};

template <class... Args>
std::string Format(const char* format, Args... args) {
  int size = std::snprintf(nullptr, 0, format, args...);
  std::string text(size, '\0');
  std::snprintf(&text[0], size + 1, format, args...);
  return text;
}

std::string Describe(const Access& access) {
  return Format("%s, pipe %s, %s at %s:%d", access.core.c_str(), Name(access.pipe), access.op.c_str(), access.loc.file,
                access.loc.line);
}

}  // namespace

const char* Name(Fault fault) { return kFaultNames[static_cast<int>(fault)]; }

std::string Error::Text() const {
  std::string text = Format("[%s] kernel %s, %s", Name(fault), kernel.c_str(), Describe(access).c_str());
  if (begin != end) {
    text += Format("; %s [0x%llx, 0x%llx)", Name(mem), static_cast<unsigned long long>(begin),
                   static_cast<unsigned long long>(end));
  }
  if (!message.empty()) text += "; " + message;
  if (has_earlier) text += "; earlier access: " + Describe(earlier);
  if (count > 1) text += Format("; seen %llu times", static_cast<unsigned long long>(count));
  return text;
}

bool Report::Has(Fault fault) const {
  for (const Error& error : errors) {
    if (error.fault == fault) return true;
  }
  return false;
}

std::string Report::Text() const {
  std::string text = Format("kernel %s on %s: %zu fault(s)\n", kernel.c_str(), profile.c_str(), errors.size());
  for (const Error& error : errors) text += "  " + error.Text() + "\n";
  text += Format("model estimate, uncalibrated: %.0f cycles, %.2f us\n", cycles, microseconds);
  text += Format("  instructions %llu, MACs %llu\n", static_cast<unsigned long long>(instructions),
                 static_cast<unsigned long long>(macs));
  text += Format("  GM read %llu B, written %llu B, distinct lines %llu B\n", static_cast<unsigned long long>(gm_read),
                 static_cast<unsigned long long>(gm_written), static_cast<unsigned long long>(gm_first_touch));
  text += "  busy cycles, all cores:";
  for (int p = 0; p < kPipes; ++p) text += Format(" %s %.0f", Name(static_cast<Pipe>(p)), busy[p]);
  return text + "\n";
}

}  // namespace hostsim
