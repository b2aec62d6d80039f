// Every instruction set against the portable kernels, which are the definition: equal bits.
#include "dataplane/engine/cpu/kernels.h"

#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <chrono>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "dataplane/engine/cpu/products.h"
#include "dataplane/engine/cpu/thread_pool.h"
#include "dataplane/engine/test_values.h"
#include "dataplane/model/number_formats.h"

namespace millrace::dataplane::engine::cpu {
namespace {

std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }

TEST(Kernels, AllGiveTheBitsOfThePortableOnes) {
  const Kernels* fast = avx512_kernels();
  if (fast == nullptr) GTEST_SKIP() << "this CPU has no AVX-512";
  for (const int inputs : {1, 7, 15, 16, 17, 31, 32, 96, 129}) {
    for (const int rows : {1, 2, 3, 4, 5, 6, 7, 9, 12}) {
      for (const int outputs : {1, 2, 3, 4, 5, 7, 8, 33}) {
        const auto x = random_values(size(rows) * size(inputs + 3), 1, 3.0f);
        const auto w = random_values(size(outputs) * size(inputs + 5), 2);
        std::vector<float> expected(size(rows * (outputs + 2)), 9.0f), got = expected;
        MatmulShape shape{.x = x.data(),
                          .x_stride = size(inputs + 3),
                          .rows = rows,
                          .w = w.data(),
                          .w_stride = size(inputs + 5),
                          .outputs = outputs,
                          .inputs = inputs,
                          .rounding = rows % 2 == 0 ? Rounding::kNone : Rounding::kBf16,
                          .y = expected.data(),
                          .y_stride = size(outputs + 2)};
        portable_kernels().matmul(shape);
        shape.y = got.data();
        fast->matmul(shape);
        ASSERT_EQ(0, std::memcmp(expected.data(), got.data(), expected.size() * sizeof(float)))
            << rows << " x " << inputs << " x " << outputs;
      }
    }
  }
  for (const int width : {1, 16, 32, 63, 64, 65, 130}) {
    const int heads = 6, count = 21;
    const auto p = random_values(size(heads * 40), 3);
    const auto v = random_values(size(count) * size(width + 1), 4);
    std::vector<float> expected = random_values(size(heads * width), 5), got = expected;
    WeightedSumShape shape{.p = p.data(),
                           .p_stride = 40,
                           .heads = heads,
                           .v = v.data(),
                           .v_stride = size(width + 1),
                           .count = count,
                           .width = width,
                           .out = expected.data()};
    portable_kernels().weighted_sum(shape);
    shape.out = got.data();
    fast->weighted_sum(shape);
    ASSERT_EQ(0, std::memcmp(expected.data(), got.data(), expected.size() * sizeof(float)))
        << width;
  }
}

/// A matrix of random codes in a format, behind one odd byte: checkpoints align nothing.
struct StoredMatrix {
  StoredMatrix(WeightFormat format, int outputs, int inputs) {
    std::mt19937 random(7);
    const auto fill = [&](std::vector<std::uint8_t>& bytes, int count) {
      bytes.resize(size(count) + 1);
      for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random());
    };
    const int blocks = (inputs + 31) / 32;
    switch (format) {
      case WeightFormat::kFloat32: {
        const std::vector<float> values = random_values(size(outputs * inputs), 3);
        codes.resize(values.size() * sizeof(float) + 1);
        std::memcpy(codes.data() + 1, values.data(), values.size() * sizeof(float));
        break;
      }
      case WeightFormat::kBf16:
        codes.resize(1);
        for (const float value : random_values(size(outputs * inputs), 4)) {
          const std::uint16_t bits = model::encode_bf16(value);
          codes.push_back(static_cast<std::uint8_t>(bits));
          codes.push_back(static_cast<std::uint8_t>(bits >> 8));
        }
        break;
      case WeightFormat::kFp8:
        fill(codes, outputs * inputs);
        for (std::uint8_t& code : codes) code = (code & 0x7F) == 0x7F ? 0x80 : code;  // not a NaN
        fill(scales, (outputs + 31) / 32 * blocks);
        break;
      case WeightFormat::kFp4:
        fill(codes, outputs * inputs / 2);
        fill(scales, outputs * blocks);
        break;
    }
    // Around 1, and once the ends of what the loader lets pass.
    for (std::uint8_t& scale : scales) scale = static_cast<std::uint8_t>(120 + scale % 16);
    if (scales.size() > 2) scales[1] = 0;
    if (scales.size() > 3) scales[2] = 1;
    matrix = {.format = format,
              .outputs = outputs,
              .inputs = inputs,
              .codes = codes.data() + 1,
              .scales = scales.empty() ? nullptr : scales.data() + 1};
  }

  std::vector<std::uint8_t> codes, scales;
  WeightMatrix matrix;
};

constexpr WeightFormat kFormats[] = {WeightFormat::kFloat32, WeightFormat::kBf16,
                                     WeightFormat::kFp8, WeightFormat::kFp4};

/// Kernel tables of this machine.
std::vector<const Kernels*> tables() {
  std::vector<const Kernels*> list = {&portable_kernels()};
  if (avx512_kernels() != nullptr) list.push_back(avx512_kernels());
  return list;
}

TEST(Kernels, EveryCodeOfEveryFormatDecodesToItsValue) {
  for (const Kernels* kernels : tables()) {
    for (const int scale : {0, 1, 100, 127, 246}) {
      std::vector<std::uint8_t> codes(256);
      std::iota(codes.begin(), codes.end(), std::uint8_t{0});
      const std::vector<std::uint8_t> scales(16, static_cast<std::uint8_t>(scale));
      std::vector<float> out(512);
      kernels->decode({.format = WeightFormat::kFp8,
                       .outputs = 1,
                       .inputs = 256,
                       .codes = codes.data(),
                       .scales = scales.data()},
                      0, 1, out.data());
      const float factor = model::decode_e8m0(static_cast<std::uint8_t>(scale));
      for (int code = 0; code < 256; ++code) {
        if ((code & 0x7F) == 0x7F) continue;  // NaN: the loader refuses it
        const float expected = model::decode_e4m3(static_cast<std::uint8_t>(code)) * factor;
        ASSERT_EQ(bits_of(out[size(code)]), bits_of(expected))
            << kernels->name << " code " << code << " scale " << scale;
      }
      kernels->decode({.format = WeightFormat::kFp4,
                       .outputs = 1,
                       .inputs = 512,
                       .codes = codes.data(),
                       .scales = scales.data()},
                      0, 1, out.data());
      for (int i = 0; i < 512; ++i) {
        const auto code = static_cast<std::uint8_t>(i % 2 == 0 ? i / 2 & 15 : i / 2 >> 4);
        const float expected = model::decode_e2m1(code) * factor;
        ASSERT_EQ(bits_of(out[size(i)]), bits_of(expected))
            << kernels->name << " nibble " << i << " scale " << scale;
      }
    }
  }
}

TEST(Kernels, PackedProductsEqualThoseOfTheDecodedMatrix) {
  for (const WeightFormat format : kFormats) {
    for (const int inputs : {32, 64, 96, 160, 33, 47, 9}) {
      if (format == WeightFormat::kFp4 && inputs % 32 != 0) continue;
      const int outputs = 71;
      const StoredMatrix stored(format, outputs, inputs);
      std::vector<float> w(size(outputs * inputs));
      portable_kernels().decode(stored.matrix, 0, outputs, w.data());
      for (const Kernels* kernels : tables()) {
        std::vector<float> decoded(w.size());
        kernels->decode(stored.matrix, 0, outputs, decoded.data());
        ASSERT_EQ(0, std::memcmp(decoded.data(), w.data(), w.size() * sizeof(float)))
            << kernels->name << " " << inputs;
        for (const int rows : {1, 2, 5, 6, 7, 13}) {
          for (const auto& [first, count] : {std::pair{0, 71}, {1, 3}, {30, 5}, {62, 9}}) {
            const auto x = random_values(size(rows * inputs), 1);
            std::vector<float> expected(size(rows * count)), got(expected.size());
            portable_kernels().matmul({.x = x.data(),
                                       .x_stride = size(inputs),
                                       .rows = rows,
                                       .w = w.data() + size(first * inputs),
                                       .w_stride = size(inputs),
                                       .outputs = count,
                                       .inputs = inputs,
                                       .rounding = Rounding::kNone,
                                       .y = expected.data(),
                                       .y_stride = size(count)});
            const PackedMatmulShape shape{.x = x.data(),
                                          .x_stride = size(inputs),
                                          .rows = rows,
                                          .weight = &stored.matrix,
                                          .first_output = first,
                                          .outputs = count,
                                          .rounding = Rounding::kNone,
                                          .y = got.data(),
                                          .y_stride = size(count)};
            kernels->packed_matmul(shape);
            ASSERT_EQ(0, std::memcmp(expected.data(), got.data(), got.size() * sizeof(float)))
                << kernels->name << " " << rows << " x " << inputs << " from " << first;
          }
        }
      }
    }
  }
}

TEST(Products, NeitherThreadsNorCutsChangeBits) {
  for (const WeightFormat format : kFormats) {
    const int inputs = 320, outputs = 1100;
    const StoredMatrix stored(format, outputs, inputs);
    for (const int rows : {1, 6, 7, 100}) {
      const auto x = random_values(size(rows * inputs), 1);
      std::vector<float> expected;
      for (const Kernels* kernels : tables()) {
        for (const int threads : {1, 2, 5}) {
          ThreadPool pool(threads);
          Products products(*kernels, pool);
          std::vector<float> got(size(rows * outputs));
          products.run({.x = x.data(),
                        .x_stride = size(inputs),
                        .rows = rows,
                        .weight = &stored.matrix,
                        .first_output = 0,
                        .outputs = outputs,
                        .rounding = Rounding::kBf16,
                        .y = got.data(),
                        .y_stride = size(outputs)});
          if (expected.empty()) expected = got;
          ASSERT_EQ(0, std::memcmp(expected.data(), got.data(), got.size() * sizeof(float)))
              << kernels->name << " " << rows << " rows, " << threads << " threads";
        }
      }
    }
  }
}

TEST(ThreadPool, RunsEveryTaskOnceWhateverItsSize) {
  for (const int threads : {1, 2, 4}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (int loop = 0; loop < 2000; ++loop) {
      const int count = loop % 17;
      std::vector<std::atomic<int>> runs(size(count));
      std::atomic<bool> sane = true;
      pool.run(count, [&](int index, int thread) {
        ++runs[size(index)];
        if (thread < 0 || thread >= threads) sane = false;
      });
      EXPECT_TRUE(sane);
      for (const std::atomic<int>& run : runs) ASSERT_EQ(run, 1) << "loop " << loop;
    }
  }
}

TEST(ThreadPool, ALateThreadTakesNothingOfALoopThatIsOver) {
  // A thread that wakes when its loop is over meets the next one, of another size, being set up.
  // The window is a few instructions wide, hence the number of loops.
  constexpr int kMost = 64;
  ThreadPool pool(3);
  std::vector<std::atomic<int>> runs(kMost);
  for (int loop = 0; loop < 1'000'000; ++loop) {
    const int count = loop % 2 == 0 ? kMost : 2;
    for (std::atomic<int>& run : runs) run.store(0, std::memory_order_relaxed);
    pool.run(count, [&runs](int index, int) {
      runs[size(index)].fetch_add(1, std::memory_order_relaxed);
    });
    for (int index = 0; index < kMost; ++index) {
      ASSERT_EQ(runs[size(index)], index < count ? 1 : 0) << "loop " << loop << " task " << index;
    }
  }
}

TEST(ThreadPool, WakesThreadsThatSleep) {
  ThreadPool pool(3);
  for (int loop = 0; loop < 5; ++loop) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    std::atomic<int> sum = 0;
    pool.run(100, [&](int index, int) { sum += index; });
    ASSERT_EQ(sum, 4950);
  }
}

}  // namespace
}  // namespace millrace::dataplane::engine::cpu
