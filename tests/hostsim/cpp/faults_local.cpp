// Faults of one core's memory and of instruction arguments.
#include "cases.h"

using namespace AscendC;
using hostsim::Cube;
using hostsim::Vector;

FAULT(ub_overflow, kLocalOverflow, Vector(), 1) {
  LocalTensor<float> t = Ub(TMP_UB_OFFSET - 256, broken ? 72 : 64);
  Duplicate(t, 1.0f, 64);
  Finish();
}

FAULT(ub_overflow_of_queues, kLocalOverflow, Vector(), 1) {
  TPipe pipe;
  TQue<TPosition::VECIN, 2> queue;
  pipe.InitBuffer(queue, 2, broken ? 93 * 1024 : 92 * 1024);
}

FAULT(misaligned, kMisaligned, Vector(), 1) {
  LocalTensor<float> t = Ub(0, 128);
  Duplicate(t[broken ? 4 : 8], 1.0f, 64);
  Finish();
}

FAULT(misaligned_l0a, kMisaligned, Cube(), 1) {
  LocalTensor<half> l1(TPosition::A1, 0, 256);
  LocalTensor<half> l0(TPosition::A2, broken ? 256 : 512, 256);
  Fill(l1, InitConstValueParams<half>(1, 16, 0, half(1.0f)));
  Order<HardEvent::MTE2_MTE1>();
  LoadData(l0, l1, LoadData2DParams{0, 1, 1, 0, 0, false, 0});
  Finish();
}

FAULT(tensor_overrun, kOverrun, Vector(), 1) {
  LocalTensor<float> t = Ub(0, 64);
  Duplicate(t, 1.0f, broken ? 72 : 64);
  Finish();
}

FAULT(global_tensor_overrun, kOverrun, Vector(), 1) {
  GlobalTensor<float> in;
  in.SetGlobalBuffer(g_in, 64);
  DataCopy(Ub(0, 128), in, broken ? 128 : 64);
  Finish();
}

FAULT(queue_leak, kQueueLeak, Vector(), 1) {
  TPipe pipe;
  TQue<TPosition::VECIN, 1> queue;
  pipe.InitBuffer(queue, 1, 256);
  LocalTensor<float> t = queue.AllocTensor<float>();
  if (!broken) queue.FreeTensor(t);
}

FAULT(queue_double_free, kQueueDoubleFree, Vector(), 1) {
  TPipe pipe;
  TQue<TPosition::VECIN, 1> queue;
  pipe.InitBuffer(queue, 1, 256);
  LocalTensor<float> t = queue.AllocTensor<float>();
  queue.FreeTensor(t);
  if (broken) queue.FreeTensor(t);
}

FAULT(queue_depth, kQueueDepth, Vector(), 1) {
  TPipe pipe;
  TQue<TPosition::VECIN, 1> queue;
  pipe.InitBuffer(queue, 1, 256);
  LocalTensor<float> t = queue.AllocTensor<float>();
  if (broken) queue.AllocTensor<float>();
  queue.FreeTensor(t);
}

FAULT(dequeue_from_empty, kQueueDepth, Vector(), 1) {
  TPipe pipe;
  TQue<TPosition::VECIN, 1> queue;
  pipe.InitBuffer(queue, 1, 256);
  LocalTensor<float> t = queue.AllocTensor<float>();
  if (!broken) queue.EnQue(t);
  t = queue.DeQue<float>();
  queue.FreeTensor(t);
}

FAULT(uninitialised_read, kUninitialised, Vector(), 1) {
  LocalTensor<float> t = Ub(0, 64);
  Duplicate(t, 1.0f, broken ? 63 : 64);
  PipeBarrier<PIPE_V>();
  Adds(t, t, 1.0f, 64);
  Finish();
}

FAULT(padding_read, kPaddingRead, Vector(), 1) {
  LocalTensor<float> t = Ub(0, 8);
  DataCopyExtParams copy{1, 5 * sizeof(float), 0, 0, 0};
  uint8_t right = 3;
  DataCopyPad(t, Input(), copy, DataCopyPadExtParams<float>{!broken, 0, right, 0.0f});
  Order<HardEvent::MTE2_V>();
  Adds(t, t, 1.0f, 8);
  Finish();
}

FAULT(bad_repeat, kBadRepeat, Vector(), 1) {
  LocalTensor<float> t = Ub(0, 256 * 64);
  Duplicate(t, 1.0f, 256 * 64);
  PipeBarrier<PIPE_V>();
  Adds(t, t, 1.0f, 64, broken ? 256 : 255, {1, 1, 8, 8});
  Finish();
}

FAULT(bad_mask, kBadMask, Vector(), 1) {
  LocalTensor<float> t = Ub(0, 128);
  Duplicate(t, 1.0f, 128);
  PipeBarrier<PIPE_V>();
  Adds(t, t, 1.0f, broken ? 65 : 64, 1, {1, 1, 8, 8});
  Finish();
}

FAULT(bad_mask_bits, kBadMask, Vector(), 1) {
  LocalTensor<float> t = Ub(0, 128);
  uint64_t mask[2] = {~uint64_t{0}, broken ? uint64_t{1} : uint64_t{0}};
  Duplicate(t, 1.0f, mask, 1, 1, 8);
  Finish();
}

FAULT(bad_stride, kBadStride, Vector(), 1) {
  LocalTensor<float> src = Ub(0, 8), dst = Ub(256, 64);
  Duplicate(src, 1.0f, 8);
  PipeBarrier<PIPE_V>();
  Brcb(dst, src, 1, {static_cast<uint16_t>(broken ? 0 : 1), 8});
  Finish();
}

FAULT(partial_overlap, kOverlap, Vector(), 1) {
  LocalTensor<float> t = Ub(0, 136);
  Duplicate(t, 1.0f, 136);
  PipeBarrier<PIPE_V>();
  Adds(t[broken ? 8 : 0], t, 1.0f, 128);
  Finish();
}

FAULT(compare_of_partial_repeat, kBadArgument, Vector(), 1) {
  LocalTensor<float> t = Ub(0, 64);
  LocalTensor<uint8_t> bits(TPosition::VECCALC, 1024, 32);
  Duplicate(t, 1.0f, 64);
  PipeBarrier<PIPE_V>();
  CompareScalar(bits, t, 0.5f, CMPMODE::GT, broken ? 60 : 64);
  Finish();
}

FAULT(data_copy_of_partial_block, kBadArgument, Vector(), 1) {
  DataCopy(Ub(0, 64), Input(), broken ? 12 : 16);
  Finish();
}

FAULT(pad_block_count, kBadArgument, Vector(), 1) {
  DataCopyExtParams copy{static_cast<uint16_t>(broken ? 4096 : 2), 32, 0, 0, 0};
  DataCopyPad(Ub(0, 64), Input(), copy, DataCopyPadExtParams<float>{});
  Finish();
}

FAULT(cast_mode, kUnsupported, Vector(), 1) {
  LocalTensor<float> f = Ub(0, 64);
  LocalTensor<half> h(TPosition::VECCALC, 1024, 64);
  Duplicate(f, 1.0f, 64);
  PipeBarrier<PIPE_V>();
  Cast(h, f, RoundMode::CAST_RINT, 64);
  PipeBarrier<PIPE_V>();
  Cast(f, h, broken ? RoundMode::CAST_RINT : RoundMode::CAST_NONE, 64);
  Finish();
}

// ReduceMax takes its event ids from TPipe.
FAULT(needs_tpipe, kNeedsTPipe, Vector(), 1) {
  LocalTensor<float> src = Ub(0, 128), work = Ub(1024, 64), dst = Ub(2048, 8);
  Duplicate(src, 1.0f, 128);
  PipeBarrier<PIPE_V>();
  if (broken) {
    ReduceMax(dst, src, work, 128);
  } else {
    WholeReduceMax(dst, src, 64, 2, 1, 1, 8);
  }
  Finish();
}
