// Missing and mispaired synchronisation between the pipes of one core.
#include "cases.h"

using namespace AscendC;
using hostsim::Cube;
using hostsim::Vector;

FAULT(mte2_to_v, kRaw, Vector(), 1) {
  LocalTensor<float> t = Ub(0, 64);
  DataCopy(t, Input(), 64);
  Order<HardEvent::MTE2_V>(!broken);
  Adds(t, t, 1.0f, 64);
  Finish();
}

FAULT(v_to_mte3, kRaw, Vector(), 1) {
  LocalTensor<float> t = Ub(0, 64);
  Duplicate(t, 1.0f, 64);
  Order<HardEvent::V_MTE3>(!broken);
  DataCopy(Output(), t, 64);
  Finish();
}

FAULT(v_to_v, kRaw, Vector(), 1) {
  LocalTensor<float> t = Ub(0, 64);
  Duplicate(t, 1.0f, 64);
  if (!broken) PipeBarrier<PIPE_V>();
  Adds(t, t, 1.0f, 64);
  Finish();
}

// The next load must not overtake the store of the same buffer.
FAULT(mte3_to_mte2, kWar, Vector(), 1) {
  LocalTensor<float> t = Ub(0, 64);
  Duplicate(t, 1.0f, 64);
  Order<HardEvent::V_MTE3>();
  DataCopy(Output(), t, 64);
  if (broken) Order<HardEvent::V_MTE2>();  // not the pipe that reads
  Order<HardEvent::MTE3_MTE2>(!broken);
  DataCopy(t, Input(), 64);
  Finish();
}

// What MTE3 wrote to global memory is read back.
FAULT(mte3_to_mte2_through_gm, kRaw, Vector(), 1) {
  LocalTensor<float> t = Ub(0, 64), u = Ub(256, 64);
  Duplicate(t, 1.0f, 64);
  Order<HardEvent::V_MTE3>();
  DataCopy(Output(), t, 64);
  Order<HardEvent::MTE3_MTE2>(!broken);
  DataCopy(u, Output(), 64);
  Finish();
}

FAULT(v_to_s, kRaw, Vector(), 1) {
  LocalTensor<float> t = Ub(0, 64);
  Duplicate(t, 1.0f, 64);
  Order<HardEvent::V_S>(!broken);
  t.GetValue(0);
  Finish();
}

FAULT(s_to_mte3, kRaw, Vector(), 1) {
  LocalTensor<float> t = Ub(0, 8);
  for (uint32_t i = 0; i < 8; ++i) t.SetValue(i, 1.0f);
  Order<HardEvent::S_MTE3>(!broken);
  DataCopy(Output(), t, 8);
  Finish();
}

FAULT(s_to_mte2, kWaw, Vector(), 1) {
  LocalTensor<float> t = Ub(0, 8);
  t.SetValue(0, 1.0f);
  Order<HardEvent::S_MTE2>(!broken);
  DataCopy(t, Input(), 8);
  Finish();
}

FAULT(write_after_read, kWar, Vector(), 1) {
  LocalTensor<float> t = Ub(0, 64), u = Ub(256, 64);
  Duplicate(t, 1.0f, 64);
  PipeBarrier<PIPE_V>();
  Order<HardEvent::V_MTE2>();  // orders the write, not the read that follows
  Adds(u, t, 1.0f, 64);
  Order<HardEvent::V_MTE2>(!broken);
  DataCopy(t, Input(), 64);
  Finish();
}

FAULT(write_after_write, kWaw, Vector(), 1) {
  LocalTensor<float> t = Ub(0, 64);
  DataCopy(t, Input(), 64);
  Order<HardEvent::MTE2_V>(!broken);
  Duplicate(t, 1.0f, 64);
  Finish();
}

FAULT(write_after_write_in_one_pipe, kWaw, Vector(), 1) {
  LocalTensor<float> t = Ub(0, 64);
  DataCopy(t, Input(), 64);
  if (!broken) PipeBarrier<PIPE_MTE2>();
  DataCopy(t, Input()[64], 64);
  Finish();
}

FAULT(orphan_wait, kOrphanWait, Vector(), 1) {
  if (!broken) SetFlag<HardEvent::MTE2_V>(1);
  WaitFlag<HardEvent::MTE2_V>(1);
  Finish();
}

FAULT(double_set, kDoubleSet, Vector(), 1) {
  SetFlag<HardEvent::MTE2_V>(1);
  if (broken) SetFlag<HardEvent::MTE2_V>(1);
  WaitFlag<HardEvent::MTE2_V>(1);
  Finish();
}

FAULT(flag_left_set, kFlagLeft, Vector(), 1) {
  SetFlag<HardEvent::MTE2_V>(1);
  if (!broken) WaitFlag<HardEvent::MTE2_V>(1);
  Finish();
}

FAULT(reserved_event_id, kEventId, Vector(), 1) {
  int32_t id = broken ? 6 : 5;
  SetFlag<HardEvent::MTE2_V>(id);
  WaitFlag<HardEvent::MTE2_V>(id);
  Finish();
}

// Without strict mode the compiler's own synchronisation is assumed: V-V, V-S, S-MTE, and nothing else.
static void automatic(bool broken) {
  LocalTensor<float> t = Ub(0, 64);
  DataCopy(t, Input(), 64);
  Order<HardEvent::MTE2_V>(!broken);
  Adds(t, t, 1.0f, 64);
  Adds(t, t, 1.0f, 64);
  t.SetValue(0, t.GetValue(1));
  Order<HardEvent::V_MTE3>();
  DataCopy(Output(), t, 64);
  Finish();
}
static Register register_automatic({"mte2_to_v_without_strict", hostsim::Fault::kRaw, Vector(), 1, automatic, false});

// Cube pipes. The broken step is chosen by the template argument.
template <int kStep>
static void Multiply(bool broken) {
  LocalTensor<half> a1(TPosition::A1, 0, 256), b1(TPosition::B1, 512, 256);
  LocalTensor<half> a2(TPosition::A2, 0, 256), b2(TPosition::B2, 0, 256);
  LocalTensor<float> c(TPosition::CO1, 0, 256);
  Fill(a1, InitConstValueParams<half>(1, 16, 0, half(1.0f)));
  Fill(b1, InitConstValueParams<half>(1, 16, 0, half(2.0f)));
  Order<HardEvent::MTE2_MTE1>(kStep != 0 || !broken);
  LoadData(a2, a1, LoadData2DParams{0, 1, 1, 0, 0, false, 0});
  LoadData(b2, b1, LoadData2DParams{0, 1, 1, 0, 0, true, 0});
  Order<HardEvent::MTE1_M>(kStep != 1 || !broken);
  Mmad(c, a2, b2, MmadParams{16, 16, 16, 0, false, true});
  if (kStep != 2 || !broken) PipeBarrier<PIPE_M>();
  Mmad(c, a2, b2, MmadParams{16, 16, 16, 0, false, false});
  Order<HardEvent::M_FIX>(kStep != 3 || !broken);
  Fixpipe(Output(), c, FixpipeParamsV220(16, 16, 16, 16, false));
  Finish();
}
FAULT(mte2_to_mte1, kRaw, Cube(), 1) { Multiply<0>(broken); }
FAULT(mte1_to_m, kRaw, Cube(), 1) { Multiply<1>(broken); }
FAULT(small_product_to_m, kRaw, Cube(), 1) { Multiply<2>(broken); }
FAULT(m_to_fix, kRaw, Cube(), 1) { Multiply<3>(broken); }
