// kv_append on the simulator, twelve tokens of one request; says what the simulator found. tests/ascendc/test_faults.py
// compiles it against sources with and without a planted fault.
#include <cstdio>

#include "hostsim/launch.h"
#include "kernels/ascendc/kv_cache/kv_cache.h"

int main() {
  using namespace specdec::ascendc;
  constexpr uint64_t kNodes = 12, kBlocks = 4, kBlockSize = 4, kBytes = 8192;
  uint8_t* k = hostsim::GmAlloc<uint8_t>(kNodes * kBytes);
  uint8_t* cache = hostsim::GmAlloc<uint8_t>(kBlocks * kBlockSize * kBytes);
  uint8_t* values = hostsim::GmAlloc<uint8_t>(kBlocks * kBlockSize * kBytes);
  int32_t* table = hostsim::GmAlloc<int32_t>(kBlocks);
  int32_t* context = hostsim::GmAlloc<int32_t>(1);
  int32_t* cu_nodes = hostsim::GmAlloc<int32_t>(2);
  for (uint64_t i = 0; i < kNodes * kBytes; ++i) k[i] = static_cast<uint8_t>(i / 7);
  for (int32_t i = 0; i < static_cast<int32_t>(kBlocks); ++i) table[i] = i;
  context[0] = 1;
  cu_nodes[0] = 0;
  cu_nodes[1] = kNodes;

  const AppendSide side{kBytes, 0, kBlockSize * kBytes, kBytes, 0, kBytes, 1};
  const KvAppendTiling tiling = kv_append_tiling(side, side, {1, kBlocks, kBlocks, kBlockSize}, kNodes, Split::kNot, 8);
  const hostsim::LaunchConfig config("kv_append", hostsim::Vector(), tiling.cores);
  const hostsim::Report report = hostsim::Launch(config, [=] {
    KvAppend op;
    op.Init(k, k, cache, values, reinterpret_cast<GM_ADDR>(table), reinterpret_cast<GM_ADDR>(context),
            reinterpret_cast<GM_ADDR>(cu_nodes), tiling);
    op.Process();
  });
  std::puts(report.ok() ? "clean" : report.Text().c_str());
  return 0;
}
