// Comparing API functions with plain C++: what the checks share.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "hostsim/launch.h"
#include "kernel_operator.h"

using namespace AscendC;

// Checks by name. Each file adds its own.
inline std::map<std::string, void (*)()>& Checks() {
  static std::map<std::string, void (*)()> checks;
  return checks;
}
struct Check {
  Check(const char* name, void (*run)()) { Checks()[name] = run; }
};
#define CHECK_FUNCTIONS(NAME)             \
  static void NAME();                     \
  static Check check_##NAME(#NAME, NAME); \
  static void NAME()

inline int g_failures = 0;

inline void Expect(bool good, const std::string& what) {
  if (good) return;
  if (++g_failures <= 20) std::printf("differs: %s\n", what.c_str());
}
template <class T>
void Same(const std::vector<T>& got, const std::vector<T>& want, const std::string& what, double tolerance = 0) {
  for (size_t i = 0; i < want.size(); ++i) {
    double g = double(got[i]), w = double(want[i]);
    bool good = (std::isnan(g) && std::isnan(w)) || g == w || std::fabs(g - w) <= tolerance * std::fabs(w);
    if (!good) {
      Expect(false, what + " element " + std::to_string(i) + ": " + std::to_string(g) + ", not " + std::to_string(w));
      return;
    }
  }
}

template <class T>
std::vector<T> Random(size_t n, double low, double high, unsigned seed = 1) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> draw(low, high);
  std::vector<T> values;
  for (size_t i = 0; i < n; ++i) values.push_back(T(draw(random)));
  return values;
}

// Runs `body` on one core and insists on a clean report.
inline hostsim::Report Run(const char* name, hostsim::Kind kind, const std::function<void()>& body,
                           uint32_t blocks = 1) {
  hostsim::LaunchConfig config(name, kind, blocks);
  config.keep_log = true;
  hostsim::Report report = hostsim::Launch(config, body);
  Expect(report.ok(), report.Text());
  return report;
}
inline hostsim::Report OnVector(const char* name, const std::function<void()>& body) {
  return Run(name, hostsim::Vector(), body);
}

// Vectors in global memory.
template <class T>
class Gm {
 public:
  explicit Gm(const std::vector<T>& values) : Gm(values.size()) { std::copy(values.begin(), values.end(), data_); }
  explicit Gm(size_t n) : data_(hostsim::GmAlloc<T>(n)), n_(n) { std::fill_n(data_, n, T(0)); }
  ~Gm() { hostsim::GmFree(data_); }
  GlobalTensor<T> tensor() const {
    GlobalTensor<T> t;
    t.SetGlobalBuffer(data_, n_);
    return t;
  }
  std::vector<T> values() const { return {data_, data_ + n_}; }

 private:
  T* data_;
  size_t n_;
};

template <class T>
LocalTensor<T> Ub(uint32_t addr, uint32_t n) {
  return LocalTensor<T>(TPosition::VECCALC, addr, n);
}
template <class T>
void Load(const LocalTensor<T>& to, const Gm<T>& from) {
  uint32_t bytes = from.values().size() * sizeof(T);
  DataCopyPad(to, from.tensor(), DataCopyExtParams{1, bytes, 0, 0, 0}, DataCopyPadExtParams<T>{});
}
template <class T>
void Store(const Gm<T>& to, const LocalTensor<T>& from) {
  PipeBarrier<PIPE_ALL>();
  uint32_t bytes = to.values().size() * sizeof(T);
  DataCopyPad(to.tensor(), from, DataCopyExtParams{1, bytes, 0, 0, 0});
  PipeBarrier<PIPE_ALL>();
}

// dst = op(a, b) in UB on vectors of T.
template <class T, class D = T, class Op>
std::vector<D> Compute(const std::vector<T>& a, const std::vector<T>& b, size_t dst_count, Op op) {
  Gm<T> ga(a), gb(b);
  Gm<D> gd(dst_count);
  OnVector("compute", [&] {
    LocalTensor<T> ta = Ub<T>(0, a.size() + 64), tb = Ub<T>(32 * 1024, b.size() + 64);
    LocalTensor<D> td = Ub<D>(64 * 1024, 8192);
    Load(ta, ga);
    Load(tb, gb);
    // The destination starts as zeros, so that what an operation leaves alone shows.
    if constexpr (sizeof(D) >= 2 && sizeof(D) <= 4) Duplicate(td, D(0), 8192);
    PipeBarrier<PIPE_ALL>();
    op(td, ta, tb);
    Store(gd, td);
  });
  return gd.values();
}
