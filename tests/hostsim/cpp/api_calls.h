// One call of every function and form the simulator supports. It is only compiled: here against the simulator, and by
// whoever has the device headers against those, to see that both agree on names, argument orders and types.
#include "kernel_operator.h"

class ApiCalls {
 public:
  __aicore__ inline void Vector() {
    using namespace AscendC;
    uint64_t bits[2] = {1, 0};
    UnaryRepeatParams u(1, 1, 8, 8);
    BinaryRepeatParams b(1, 1, 1, 8, 8, 8);
    float s = 1.0f;
    int32_t n = 64;
    Add(f0, f1, f2, n);
    Add(f0, f1, f2, 64, 1, b);
    Add(f0, f1, f2, bits, 1, b);
    Add<float, false>(f0, f1, f2, static_cast<uint64_t>(MASK_PLACEHOLDER), 1, b);
    Sub(f0, f1, f2, n);
    Mul(h0, h1, h2, n);
    Div(f0, f1, f2, n);
    Max(i0, i1, i2, n);
    Min(i0, i1, i2, 64, 1, b);
    And(w0, w1, w2, n);
    Or(w0, w1, w2, n);
    Not(w0, w1, n);
    Relu(f0, f1, n);
    Exp(f0, f1, n);
    Exp(f0, f1, 64, 1, u);
    Exp(f0, f1, bits, 1, u);
    Ln(f0, f1, n);
    Abs(f0, f1, n);
    Sqrt(f0, f1, n);
    Rsqrt(f0, f1, n);
    Reciprocal(f0, f1, n);
    Adds(f0, f1, s, n);
    Adds(f0, f1, s, 64, 1, u);
    Adds(f0, f1, s, bits, 1, u);
    Muls(h0, h1, static_cast<half>(2.0f), n);
    Maxs(f0, f1, s, n);
    Mins(f0, f1, s, n);
    LeakyRelu(f0, f1, s, n);
    ShiftLeft(i0, i1, static_cast<int32_t>(3), n);
    ShiftRight(i0, i1, static_cast<int32_t>(3), n);
    ShiftRight(i0, i1, static_cast<int32_t>(3), 64, 1, u, true);
    Axpy(f0, f1, s, n);
    MulAddDst(f0, f1, f2, n);
    FusedMulAdd(f0, f1, f2, n);
    FusedMulAdd(f0, f1, f2, 64, 1, b);
    Duplicate(f0, s, n);
    Duplicate(f0, s, 64, 1, 1, 8);
    Duplicate(f0, s, bits, 1, 1, 8);
    Cast(h0, f1, RoundMode::CAST_RINT, 64);
    Cast(f0, h1, RoundMode::CAST_NONE, 64, 1, u);
    Cast(i0, f1, RoundMode::CAST_FLOOR, bits, 1, u);
    SetDeqScale(static_cast<half>(1.0f));
    Brcb(f0, f1, 1, BrcbRepeatParams(1, 8));
    Copy(f0, f1, 64, 1, CopyRepeatParams(1, 1, 8, 8));
    CreateVecIndex(i0, static_cast<int32_t>(0), 64);
    SetMaskCount();
    SetVectorMask<float, MaskMode::COUNTER>(0, 64);
    SetMaskNorm();
    SetVectorMask<float, MaskMode::NORMAL>(1, 1);
    ResetMask();
  }

  __aicore__ inline void Lanes() {
    using namespace AscendC;
    uint64_t bits[2] = {1, 0};
    UnaryRepeatParams u(1, 1, 8, 8);
    BinaryRepeatParams b(1, 1, 1, 8, 8, 8);
    uint64_t kept = 0;
    Compare(m0, f1, f2, CMPMODE::LT, 64);
    Compare(m0, f1, f2, CMPMODE::LT, 64, 1, b);
    Compares(m0, f1, 1.0f, CMPMODE::GE, 64);
    CompareScalar(m0, f1, 1.0f, CMPMODE::GE, 64);
    CompareScalar(m0, f1, 1.0f, CMPMODE::GE, 64, 1, u);
    Select(f0, m0, f1, f2, SELMODE::VSEL_TENSOR_TENSOR_MODE, 64);
    Select(f0, m0, f1, 1.0f, SELMODE::VSEL_TENSOR_SCALAR_MODE, 64);
    Select(f0, m0, f1, f2, SELMODE::VSEL_CMPMASK_SPR, 64, 1, b);
    Select(f0, m0, f1, 1.0f, SELMODE::VSEL_TENSOR_SCALAR_MODE, bits, 1, b);
    GatherMask(f0, f1, u0, true, 64, GatherMaskParams(1, 1, 8, 0), kept);
    GatherMask(f0, f1, static_cast<uint8_t>(1), false, 0, GatherMaskParams(1, 1, 8, 0), kept);
    Gather(f0, f1, u0, 0u, 64);
    Gather(f0, f1, u0, 0u, 64, 1, 8);
    WholeReduceMax(f0, f1, 64, 1, 1, 1, 8);
    WholeReduceMin(f0, f1, bits, 1, 1, 1, 8, ReduceOrder::ORDER_ONLY_VALUE);
    WholeReduceSum(f0, f1, 64, 1, 1, 1, 8);
    ReduceRepeat<ReduceType::MAX, float, float>(f0, f1, 64, 1, 1, 1, 8);
    BlockReduceMax(f0, f1, 1, 64, 1, 1, 8);
    BlockReduceMin(f0, f1, 1, 64, 1, 1, 8);
    BlockReduceSum(f0, f1, 1, bits, 1, 1, 8);
    ReduceDataBlock<ReduceType::SUM, float, float>(f0, f1, 64, 1, 1, 1, 8);
    PairReduceSum(f0, f1, 1, 64, 1, 1, 8);
    ReducePairElem<ReduceType::SUM, float, float>(f0, f1, 64, 1, 1, 1, 8);
    RepeatReduceSum(f0, f1, 1, 64, 1, 1, 1, 8);
    ReduceMax(f0, f1, f2, 64, true);
    ReduceMin(f0, f1, f2, 64);
    ReduceSum(f0, f1, f2, 64);
    ReduceMax(f0, f1, f2, 64, 1, 8);
    ReduceSum(f0, f1, f2, 64, 1, 8);
  }

  __aicore__ inline void Move() {
    using namespace AscendC;
    DataCopy(f0, g, 64);
    DataCopy(g, f0, 64);
    DataCopy(f0, g, DataCopyParams(1, 1, 0, 0));
    DataCopy(g, f0, DataCopyParams(1, 1, 0, 0));
    DataCopy(f0, f1, 64);
    DataCopy(f0, f1, DataCopyParams(1, 1, 0, 0));
    DataCopyPad(f0, g, DataCopyExtParams(1, 4, 0, 0, 0), DataCopyPadExtParams<float>(true, 0, 1, 0.0f));
    DataCopyPad(f0, g, DataCopyParams(1, 4, 0, 0), DataCopyPadParams(true, 0, 1, 0));
    DataCopyPad(g, f0, DataCopyExtParams(1, 4, 0, 0, 0));
    DataCopyPad(g, f0, DataCopyParams(1, 4, 0, 0));
    SetPadValue<float>(1.0f);
    SetAtomicAdd<float>();
    SetAtomicMax<float>();
    SetAtomicMin<float>();
    SetAtomicNone();
    DisableDmaAtomic();
    DataCacheCleanAndInvalid<float, CacheLine::SINGLE_CACHE_LINE, DcciDst::CACHELINE_OUT>(g);
    g.SetValue(0, g.GetValue(1));
    f0.SetValue(0, f0.GetValue(1));
    f0(1) = f0(0);
    bool free = f0.ReinterpretCast<int32_t>().GetSize() > 0 && g.GetSize() > 0;
    (void)free;
  }

  __aicore__ inline void Matrix() {
    using namespace AscendC;
    DataCopy(h0, gh, Nd2NzParams(1, 16, 16, 0, 16, 16, 1, 0));
    LoadData(h0, h1, LoadData2DParams(0, 1, 1, 0, 0, false, 0));
    LoadDataWithTranspose(h0, h1, LoadData2dTransposeParams(0, 1, 1, 0, 0));
    Fill(h0, InitConstValueParams<half>(1, 1, 0, static_cast<half>(0.0f)));
    InitConstValue(h0, InitConstValueParams<half>(1, static_cast<half>(0.0f)));
    Mmad(f0, h0, h1, MmadParams(16, 16, 16, 0, false, true));
    Mmad(f0, h0, h1, f1, MmadParams(16, 16, 16, 0, false, true));
    Fixpipe(g, f0, FixpipeParamsV220(16, 16, 16, 16, false));
    Fixpipe<half, float, CFG_NZ>(gh, f0, FixpipeParamsV220(16, 16, 16, 16, false, F322F16, 0, 1, 0, 0, 0));
    Fixpipe<half, float, CFG_NZ>(h0, f0, FixpipeParamsV220(16, 16, 16, 16, false, F322F16, 0, 1, 0, 0, 0));
  }

  __aicore__ inline void Synchronise() {
    using namespace AscendC;
    SetFlag<HardEvent::MTE2_V>(EVENT_ID0);
    WaitFlag<HardEvent::MTE2_V>(EVENT_ID0);
    PipeBarrier<PIPE_V>();
    PipeBarrier<PIPE_ALL>();
    CrossCoreSetFlag<2, PIPE_FIX>(0);
    CrossCoreWaitFlag(0);
    SyncAll();
    SyncAll<false>();
    int64_t index = GetBlockIdx() + GetBlockNum() + GetSubBlockIdx() + GetSubBlockNum() + GetTaskRatio();
    index += GetBitCount<1>(1) + CountLeadingZero(1) + GetSFFValue<1>(1) + CountBitsCntSameAsSignBit(1);
    index += Cast<float, int32_t, RoundMode::CAST_RINT>(1.0f);
    (void)index;
    InitSocState();
  }

  __aicore__ inline void Queues() {
    using namespace AscendC;
    TPipe pipe;
    TQue<TPosition::VECIN, 1> in;
    TQue<TPosition::VECOUT, 2> out;
    TQueBind<TPosition::VECIN, TPosition::VECOUT, 1> through;
    TQue<TPosition::VECIN, 0> in_place;
    TBuf<TPosition::VECCALC> buffer;
    pipe.InitBuffer(in, 2, 256);
    pipe.InitBuffer(out, 2, 256);
    pipe.InitBuffer(through, 1, 256);
    pipe.InitBuffer(in_place, 1, 256);
    pipe.InitBuffer(buffer, 256);
    LocalTensor<float> t = in.AllocTensor<float>();
    in.EnQue(t);
    t = in.DeQue<float>();
    in.FreeTensor(t);
    in_place.AllocTensor<float>(t);
    in_place.EnQue(t);
    in_place.DeQue<float>(t);
    in_place.FreeTensor(t);
    t = buffer.Get<float>();
    t = buffer.Get<float>(8);
    TEventID id = pipe.AllocEventID<HardEvent::MTE2_V>();
    pipe.ReleaseEventID<HardEvent::MTE2_V>(id);
    id = GetTPipePtr()->FetchEventID(HardEvent::MTE2_V);
    LocalMemAllocator<Hardware::UB> ub;
    f0 = ub.Alloc<float>(64);
    f1 = ub.Alloc<float, 64>();
    f2 = ub.Alloc<TPosition::VECCALC, float>(64);
    h0 = LocalTensor<half>(TPosition::A1, 0, 256);
  }

 private:
  AscendC::GlobalTensor<float> g;
  AscendC::GlobalTensor<half> gh;
  AscendC::LocalTensor<float> f0, f1, f2;
  AscendC::LocalTensor<half> h0, h1, h2;
  AscendC::LocalTensor<int32_t> i0, i1, i2;
  AscendC::LocalTensor<uint32_t> u0;
  AscendC::LocalTensor<uint16_t> w0, w1, w2;
  AscendC::LocalTensor<uint8_t> m0;
};

__global__ __mix__(1, 2) void api_calls(GM_ADDR) {
  ApiCalls calls;
  calls.Vector();
  calls.Lanes();
  calls.Move();
  calls.Matrix();
  calls.Synchronise();
  calls.Queues();
}
