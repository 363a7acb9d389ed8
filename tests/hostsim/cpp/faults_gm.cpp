// Faults between cores and in global memory.
#include "cases.h"

using namespace AscendC;
using hostsim::Mix;
using hostsim::Vector;

namespace {

// Fills 64 floats of UB and stores `count` of them at `offset` of the output.
void StoreOnes(uint32_t offset, uint32_t count) {
  LocalTensor<float> t = Ub(0, 64);
  Duplicate(t, 1.0f, 64);
  Order<HardEvent::V_MTE3>();
  DataCopyPad(Output()[offset], t, DataCopyExtParams{1, count * static_cast<uint32_t>(sizeof(float)), 0, 0, 0});
}

uint32_t Me() { return static_cast<uint32_t>(GetBlockIdx()); }

}  // namespace

FAULT(gm_out_of_bounds_read, kGmOutOfBounds, Vector(), 1) {
  GlobalTensor<float> in;
  in.SetGlobalBuffer(g_in);
  DataCopy(Ub(0, 64), in[kGmCount - (broken ? 56 : 64)], 64);
  Finish();
}

FAULT(gm_out_of_bounds_write, kGmOutOfBounds, Vector(), 1) {
  GlobalTensor<float> out;
  out.SetGlobalBuffer(g_out);
  Duplicate(Ub(0, 64), 1.0f, 64);
  Order<HardEvent::V_MTE3>();
  DataCopy(out[kGmCount - (broken ? 56 : 64)], Ub(0, 64), 64);
  Finish();
}

// A raw pointer runs into the guard page behind the allocation.
FAULT(gm_raw_pointer, kGmOutOfBounds, Vector(), 1) {
  Duplicate(Ub(0, 64), 1.0f, 64);
  volatile float* p = g_in + kGmCount - 1;
  if (broken) p += 1024;
  (void)*p;
  Finish();
}

// Twice the halves of a block. The barrier orders the second round behind the first; the halves need no order.
FAULT(gm_block_written_twice, kWaw, Vector(), 1) {
  LocalTensor<float> t = Ub(0, 64);
  Duplicate(t, 1.0f, 64);
  Order<HardEvent::V_MTE3>();
  const DataCopyExtParams half_block{1, 16, 0, 0, 0};
  for (int32_t round = 0; round < 2; ++round) {
    DataCopyPad(Output(), t, half_block);
    DataCopyPad(Output()[4], t, half_block);
    if (!broken) PipeBarrier<PIPE_MTE3>();
  }
  Finish();
}

FAULT(gm_race_of_writes, kGmRace, Mix(0, 1), 2) {
  if (Me() == 0) StoreOnes(0, 64);
  if (!broken) SyncAll();
  if (Me() == 1) StoreOnes(0, 64);
  Finish();
}

FAULT(gm_race_of_write_and_read, kGmRace, Mix(0, 1), 2) {
  if (Me() == 0) StoreOnes(0, 64);
  if (!broken) SyncAll();
  if (Me() == 1) DataCopy(Ub(0, 64), Output(), 64);
  Finish();
}

FAULT(gm_race_of_read_and_write, kGmRace, Mix(0, 1), 2) {
  if (Me() == 1) DataCopy(Ub(1024, 64), Output(), 64);
  if (!broken) SyncAll();
  if (Me() == 0) StoreOnes(0, 64);
  Finish();
}

// The signal of a pipe says nothing about the other pipes.
FAULT(gm_race_flag_of_wrong_pipe, kGmRace, Mix(0, 1), 2) {
  if (Me() == 0) StoreOnes(0, 64);
  if (broken) {
    CrossCoreSetFlag<0, PIPE_MTE2>(0);
  } else {
    CrossCoreSetFlag<0, PIPE_MTE3>(0);
  }
  CrossCoreWaitFlag(0);
  if (Me() == 1) DataCopy(Ub(0, 64), Output(), 64);
  Finish();
}

FAULT(atomic_add_forgotten, kGmRace, Vector(), 2) {
  if (!broken) SetAtomicAdd<float>();
  StoreOnes(0, 64);
  if (!broken) SetAtomicNone();
  Finish();
}

// 8 floats are a 32-byte block; 4 of each core are not.
FAULT(shared_block, kSharedLine, Vector(), 2) {
  uint32_t share = broken ? 4 : 8;
  StoreOnes(Me() * share, share);
  Finish();
}

FAULT(shared_cache_line, kSharedLine, Vector(), 2) {
  Ints().SetValue(Me() * (broken ? 8 : 16), 1);
  DataCacheCleanAndInvalid<int32_t, CacheLine::SINGLE_CACHE_LINE, DcciDst::CACHELINE_OUT>(
      Ints()[Me() * (broken ? 8 : 16)]);
  Finish();
}

FAULT(stale_cache, kStaleCache, Mix(0, 1), 2) {
  GlobalTensor<int32_t> ints = Ints();
  LocalTensor<int32_t> t(TPosition::VECCALC, 0, 8);
  if (Me() == 1) ints.GetValue(8);  // loads the line of element 0 too
  SyncAll();
  if (Me() == 0) {
    Duplicate(t, 7, 8);
    Order<HardEvent::V_MTE3>();
    DataCopy(ints, t, 8);
  }
  SyncAll();
  if (Me() == 1) {
    if (!broken) DataCacheCleanAndInvalid<int32_t, CacheLine::SINGLE_CACHE_LINE, DcciDst::CACHELINE_OUT>(ints);
    ints.GetValue(0);
  }
  Finish();
}

FAULT(store_left_in_cache, kStaleCache, Vector(), 1) {
  GlobalTensor<int32_t> ints = Ints();
  ints.SetValue(0, 7);
  if (!broken) DataCacheCleanAndInvalid<int32_t, CacheLine::SINGLE_CACHE_LINE, DcciDst::CACHELINE_OUT>(ints);
  Order<HardEvent::S_MTE2>();
  DataCopy(LocalTensor<int32_t>(TPosition::VECCALC, 0, 8), ints, 8);
  Finish();
}

FAULT(deadlock_of_sync_all, kDeadlock, Mix(0, 1), 4) {
  if (!broken || Me() != 2) SyncAll();
  Finish();
}

FAULT(deadlock_of_cube_and_vector, kDeadlock, Mix(1, 2), 1) {
  if ASCEND_IS_AIC {
    CrossCoreWaitFlag(1);
    CrossCoreSetFlag<2, PIPE_FIX>(0);
  }
  if ASCEND_IS_AIV {
    if (!broken) CrossCoreSetFlag<2, PIPE_MTE3>(1);
    CrossCoreWaitFlag(0);
    if (broken) CrossCoreSetFlag<2, PIPE_MTE3>(1);
  }
  Finish();
}

FAULT(cross_core_flag_left, kCrossCore, Mix(1, 2), 1) {
  if ASCEND_IS_AIC {
    CrossCoreSetFlag<2, PIPE_FIX>(0);
  }
  if ASCEND_IS_AIV {
    if (!broken) CrossCoreWaitFlag(0);
  }
  Finish();
}

FAULT(cross_core_counter, kCrossCore, Mix(1, 2), 1) {
  int n = broken ? 16 : 15;
  if ASCEND_IS_AIC {
    for (int i = 0; i < n; ++i) CrossCoreSetFlag<2, PIPE_FIX>(0);
    CrossCoreSetFlag<2, PIPE_FIX>(1);
  }
  if ASCEND_IS_AIV {
    CrossCoreWaitFlag(1);
    for (int i = 0; i < 15; ++i) CrossCoreWaitFlag(0);
  }
  Finish();
}

FAULT(cross_core_ids_of_sync_all, kCrossCore, Mix(0, 1), 2) {
  SyncAll();
  CrossCoreSetFlag<0, PIPE_MTE3>(broken ? 11 : 10);
  CrossCoreWaitFlag(broken ? 11 : 10);
  Finish();
}

// More blocks than cores: those that wait keep the others from starting.
FAULT(cross_core_too_many_blocks, kCrossCore, Mix(0, 1), 41) {
  if (broken) SyncAll();
  Finish();
}

static void sync_without_mix(bool broken) {
  if (broken) SyncAll();
  Finish();
}
static Register register_sync_without_mix({"cross_core_without_mix", hostsim::Fault::kCrossCore, Vector(), 2,
                                           sync_without_mix});
