// Comparison, selection, gathering and reduction.
#include "functions.h"

CHECK_FUNCTIONS(compare_select) {
  auto a = Random<float>(256, -2, 2, 2), b = Random<float>(256, -2, 2, 3);
  for (int i = 0; i < 256; i += 5) b[i] = a[i];
  const std::pair<CMPMODE, bool (*)(float, float)> modes[] = {
      {CMPMODE::LT, [](float x, float y) { return x < y; }},  {CMPMODE::GT, [](float x, float y) { return x > y; }},
      {CMPMODE::EQ, [](float x, float y) { return x == y; }}, {CMPMODE::LE, [](float x, float y) { return x <= y; }},
      {CMPMODE::GE, [](float x, float y) { return x >= y; }}, {CMPMODE::NE, [](float x, float y) { return x != y; }}};
  for (auto& [mode, reference] : modes) {
    std::vector<uint8_t> want(32, 0), scalar(32, 0);
    for (int i = 0; i < 256; ++i) {
      want[i / 8] |= static_cast<uint8_t>(reference(a[i], b[i]) << (i % 8));
      scalar[i / 8] |= static_cast<uint8_t>(reference(a[i], a[7]) << (i % 8));
    }
    CMPMODE m = mode;
    Same(Compute<float, uint8_t>(a, b, 32, [m](auto d, auto p, auto q) { Compare(d, p, q, m, 256); }), want, "Compare");
    Same(Compute<float, uint8_t>(a, b, 32,
                                 [m](auto d, auto p, auto q) { Compare(d, p, q, m, 64, 4, {1, 1, 1, 8, 8, 8}); }),
         want, "Compare by repeats");
    float pivot = a[7];
    Same(Compute<float, uint8_t>(a, b, 32, [m, pivot](auto d, auto p, auto) { CompareScalar(d, p, pivot, m, 256); }),
         scalar, "CompareScalar");
  }
  std::vector<float> chosen, against_scalar, first_bits;
  for (int i = 0; i < 200; ++i) {
    chosen.push_back(a[i] < b[i] ? a[i] : b[i]);
    against_scalar.push_back(a[i] < b[i] ? a[i] : 9.0f);
  }
  for (int i = 0; i < 256; ++i) first_bits.push_back(a[i % 64] < b[i % 64] ? a[i] : b[i]);
  auto with_bits = [](auto select) {
    return [select](LocalTensor<float> d, LocalTensor<float> p, LocalTensor<float> q) {
      LocalTensor<uint8_t> bits = Ub<uint8_t>(128 * 1024, 32);
      Compare(bits, p, q, CMPMODE::LT, 256);
      PipeBarrier<PIPE_V>();
      select(d, bits, p, q);
    };
  };
  Same(Compute<float>(a, b, 200, with_bits([](auto d, auto bits, auto p, auto q) {
                        Select(d, bits, p, q, SELMODE::VSEL_TENSOR_TENSOR_MODE, 200);
                      })),
       chosen, "Select of tensors");
  Same(Compute<float>(a, b, 200, with_bits([](auto d, auto bits, auto p, auto) {
                        Select(d, bits, p, 9.0f, SELMODE::VSEL_TENSOR_SCALAR_MODE, 200);
                      })),
       against_scalar, "Select of tensor and scalar");
  Same(Compute<float>(a, b, 256, with_bits([](auto d, auto bits, auto p, auto q) {
                        Select(d, bits, p, q, SELMODE::VSEL_CMPMASK_SPR, 64, 4, {1, 1, 1, 8, 8, 8});
                      })),
       first_bits, "Select with one mask for all repeats");
}

CHECK_FUNCTIONS(gathers) {
  auto a = Random<float>(256, -9, 9, 2);
  for (int pattern = 1; pattern <= 7; ++pattern) {
    std::vector<float> want;
    for (int i = 0; i < 192; ++i) {
      bool keep = pattern == 7 || (pattern <= 2 ? i % 2 == pattern - 1 : i % 4 == pattern - 3);
      if (keep) want.push_back(a[i]);
    }
    size_t kept_want = want.size();
    uint64_t kept = 0;
    auto got = Compute<float>(a, a, want.size(), [&](auto d, auto p, auto) {
      GatherMask(d, p, static_cast<uint8_t>(pattern), false, 0, {1, 3, 8, 0}, kept);
    });
    Same(got, want, "GatherMask pattern");
    Expect(kept == kept_want, "GatherMask count");
  }
  // Counter mode: 70 elements of each of 2 repeats, user pattern 1001 repeated.
  std::vector<float> want;
  for (int r = 0; r < 2; ++r) {
    for (int i = 0; i < 70; ++i) {
      if (0x99999999u >> (i % 32) & 1) want.push_back(a[r * 80 + i]);
    }
  }
  uint64_t kept = 0;
  auto got = Compute<float>(a, a, want.size(), [&](auto d, auto p, auto) {
    LocalTensor<uint32_t> pattern = Ub<uint32_t>(128 * 1024, 8);
    Duplicate(pattern, 0x99999999u, 8);
    PipeBarrier<PIPE_V>();
    GatherMask(d, p, pattern, true, 70, {1, 2, 10, 0}, kept);
  });
  Same(got, want, "GatherMask of a tensor pattern");

  std::vector<uint32_t> offsets;
  std::vector<float> picked;
  for (int i = 0; i < 100; ++i) {
    offsets.push_back(static_cast<uint32_t>((i * 37 + 5) % 200 * 4));
    picked.push_back(a[(i * 37 + 5) % 200 + 3]);
  }
  Gm<uint32_t> go(offsets);
  Same(Compute<float>(a, a, 100,
                      [&](auto d, auto p, auto) {
                        LocalTensor<uint32_t> o = Ub<uint32_t>(128 * 1024, 128);
                        Load(o, go);
                        PipeBarrier<PIPE_ALL>();
                        Gather(d, p, o, 12, 100);
                      }),
       picked, "Gather");

  std::vector<float> spread;
  for (int i = 0; i < 16; ++i) spread.insert(spread.end(), 8, a[i]);
  Same(Compute<float>(a, a, 128, [](auto d, auto p, auto) { Brcb(d, p, 2, {1, 8}); }), spread, "Brcb");
  std::vector<int32_t> index;
  for (int i = 0; i < 100; ++i) index.push_back(i + 5);
  Same(Compute<int32_t>(index, index, 100,
                        [](auto d, auto, auto) {
                          TPipe pipe;
                          PipeBarrier<PIPE_ALL>();
                          CreateVecIndex(d, 5, 100);
                        }),
       index, "CreateVecIndex");
  std::vector<float> copied(128);
  for (int r = 0; r < 2; ++r) std::copy_n(a.begin() + r * 128, 64, copied.begin() + r * 64);
  Same(Compute<float>(a, a, 128, [](auto d, auto p, auto) { Copy(d, p, 64, 2, {1, 1, 8, 16}); }), copied, "Copy");
}

static uint32_t BitsOf(float v) { return hostsim::BitCast<uint32_t>(v); }

CHECK_FUNCTIONS(reductions) {
  auto a = Random<float>(512, -9, 9, 2);
  a[70] = a[90] = 50;  // a tie: the lower index wins
  auto repeat = [&](int r, int n) { return std::vector<float>(a.begin() + r * 64, a.begin() + r * 64 + n); };
  auto whole = Compute<float>(a, a, 16, [](auto d, auto p, auto) { WholeReduceMax(d, p, 60, 8, 1, 1, 8); });
  auto values = Compute<float>(
      a, a, 8, [](auto d, auto p, auto) { WholeReduceMin(d, p, 60, 8, 1, 1, 8, ReduceOrder::ORDER_ONLY_VALUE); });
  auto reversed = Compute<float>(a, a, 16, [](auto d, auto p, auto) {
    ReduceRepeat<ReduceType::MAX>(d, p, 60, 8, 1, 1, 8, ReduceOrder::ORDER_INDEX_VALUE);
  });
  auto sums = Compute<float>(a, a, 8, [](auto d, auto p, auto) { WholeReduceSum(d, p, 64, 8, 1, 1, 8); });
  auto blocks = Compute<float>(a, a, 64, [](auto d, auto p, auto) { BlockReduceMax(d, p, 8, 64, 1, 1, 8); });
  auto block_sums = Compute<float>(a, a, 64, [](auto d, auto p, auto) { BlockReduceSum(d, p, 8, 64, 1, 1, 8); });
  auto pairs = Compute<float>(a, a, 64, [](auto d, auto p, auto) { PairReduceSum(d, p, 2, 64, 1, 1, 8); });
  for (int r = 0; r < 8; ++r) {
    auto part = repeat(r, 60);
    auto top = std::max_element(part.begin(), part.end());
    uint32_t where = static_cast<uint32_t>(top - part.begin());
    Expect(whole[2 * r] == *top && BitsOf(whole[2 * r + 1]) == where, "WholeReduceMax");
    Expect(reversed[2 * r + 1] == *top && BitsOf(reversed[2 * r]) == where, "index before value");
    Expect(values[r] == *std::min_element(part.begin(), part.end()), "WholeReduceMin");
    auto all = repeat(r, 64);
    for (size_t n = 64; n > 1; n /= 2) {
      for (size_t i = 0; i < n / 2; ++i) all[i] = all[2 * i] + all[2 * i + 1];
    }
    Expect(sums[r] == all[0], "WholeReduceSum");
    for (int b = 0; b < 8; ++b) {
      float* block = &a[r * 64 + b * 8];
      Expect(blocks[r * 8 + b] == *std::max_element(block, block + 8), "BlockReduceMax");
      float sum = ((block[0] + block[1]) + (block[2] + block[3])) + ((block[4] + block[5]) + (block[6] + block[7]));
      Expect(block_sums[r * 8 + b] == sum, "BlockReduceSum");
    }
  }
  for (int i = 0; i < 64; ++i) Expect(pairs[i] == a[2 * i] + a[2 * i + 1], "PairReduceSum");

  auto tensor = [&](auto op) {
    return Compute<float>(a, a, 8, [&](auto d, auto p, auto q) {
      TPipe pipe;
      PipeBarrier<PIPE_ALL>();
      op(d, p, q);
    });
  };
  auto maximum = tensor([](auto d, auto p, auto work) { ReduceMax(d, p, work, 500, true); });
  Expect(maximum[0] == 50 && BitsOf(maximum[1]) == 70 && maximum[2] == 0, "ReduceMax with index");
  auto minimum = tensor([](auto d, auto p, auto work) { ReduceMin(d, p, work, 500); });
  Expect(minimum[0] == *std::min_element(a.begin(), a.begin() + 500) && minimum[1] == 0, "ReduceMin");
  auto total = tensor([](auto d, auto p, auto work) { ReduceSum(d, p, work, 500); });
  double exact = 0;
  for (int i = 0; i < 500; ++i) exact += a[i];
  Expect(std::fabs(total[0] - exact) < 1e-4 * std::fabs(exact), "ReduceSum");
  auto h = Random<half>(256, -9, 9, 4);
  auto half_max = Compute<half>(h, h, 4, [](auto d, auto p, auto) { WholeReduceMax(d, p, 128, 2, 1, 1, 8); });
  for (int r = 0; r < 2; ++r) {
    auto top = std::max_element(h.begin() + r * 128, h.begin() + r * 128 + 128,
                                [](half x, half y) { return float(x) < float(y); });
    Expect(float(half_max[2 * r]) == float(*top) && half_max[2 * r + 1].bits == top - (h.begin() + r * 128),
           "half WholeReduceMax");
  }
}
