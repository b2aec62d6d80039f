#include "storage/ec/codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>
#include <vector>

namespace millrace::storage::ec {
namespace {

using Bytes = std::vector<std::byte>;

/// A code and a stripe of random data with the parity that the code gave it.
class Stripe {
 public:
  Stripe(int k, int m, std::size_t shard_bytes, std::uint32_t seed, Kernel kernel = Kernel::kIsal)
      : codec_(*Codec::make(k, m, kernel)), shards_(static_cast<std::size_t>(k + m)) {
    std::mt19937 random(seed);
    for (Bytes& shard : shards_) {
      shard.resize(shard_bytes);
      for (std::byte& byte : shard) byte = static_cast<std::byte>(random());
    }
    std::vector<std::span<const std::byte>> data(shards_.begin(), shards_.begin() + k);
    std::vector<std::span<std::byte>> parity(shards_.begin() + k, shards_.end());
    EXPECT_TRUE(codec_->encode(data, parity).ok());
  }

  /// Loses some and expects them back, data and parity alike.
  void lose(std::uint32_t lost) const {
    std::vector<ShardInput> present;
    std::vector<ShardOutput> wanted;
    std::vector<Bytes> restored(shards_.size());
    for (std::size_t i = 0; i < shards_.size(); ++i) {
      if ((lost >> i & 1) == 0) {
        present.push_back({static_cast<int>(i), shards_[i]});
      } else {
        restored[i].resize(shards_[i].size());
        wanted.push_back({static_cast<int>(i), restored[i]});
      }
    }
    // No order of arrival matters.
    std::mt19937 random(lost);
    std::shuffle(present.begin(), present.end(), random);
    std::shuffle(wanted.begin(), wanted.end(), random);
    ASSERT_TRUE(codec_->reconstruct(present, wanted).ok()) << lost;
    for (const ShardOutput& shard : wanted) {
      const auto index = static_cast<std::size_t>(shard.index);
      ASSERT_EQ(restored[index], shards_[index]) << "shard " << index << " of pattern " << lost;
    }
  }

  const Codec& codec() const { return *codec_; }
  const std::vector<Bytes>& shards() const { return shards_; }

 private:
  std::unique_ptr<const Codec> codec_;
  std::vector<Bytes> shards_;
};

TEST(Codec, AllTwelveSingleAndAllSixtySixDoubleLossesComeBack) {
  for (const Kernel kernel : {Kernel::kIsal, Kernel::kPortable}) {
    const Stripe stripe(10, 2, 1408, 1, kernel);
    int patterns = 0;
    for (int a = 0; a < 12; ++a) {
      for (int b = a; b < 12; ++b, ++patterns)
        stripe.lose(std::uint32_t{1} << a | std::uint32_t{1} << b);
    }
    EXPECT_EQ(patterns, 12 + 66);
  }
}

TEST(Codec, ThreeLossesAreAnError) {
  const Stripe stripe(10, 2, 64, 2);
  std::vector<ShardInput> present;
  for (int i = 3; i < 12; ++i) present.push_back({i, stripe.shards()[static_cast<std::size_t>(i)]});
  Bytes out(64, std::byte{0x5a});
  const std::vector<ShardOutput> wanted = {{0, out}};
  const absl::Status status = stripe.codec().reconstruct(present, wanted);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(status.message(), "9 shards are left of 12, 10 are needed");
  EXPECT_EQ(out, Bytes(64, std::byte{0x5a}));
}

TEST(Codec, KernelsAgreeOnEveryShapeAndLength) {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    const int k = 1 + static_cast<int>(random() % 31);
    const int m = static_cast<int>(random() % static_cast<unsigned>(33 - k));
    const std::size_t bytes = 1 + random() % 700;
    const auto seed = static_cast<std::uint32_t>(random());
    const Stripe fast(k, m, bytes, seed, Kernel::kIsal);
    const Stripe portable(k, m, bytes, seed, Kernel::kPortable);
    ASSERT_EQ(fast.shards(), portable.shards()) << k << "+" << m << ", " << bytes;
    // Any pattern of up to m losses.
    std::uint32_t lost = 0;
    for (int i = 0; i < m; ++i)
      lost |= std::uint32_t{1} << (random() % static_cast<unsigned>(k + m));
    fast.lose(lost);
    portable.lose(lost);
  }
}

TEST(Codec, AShardThatIsThereCanBeWantedToo) {
  const Stripe stripe(4, 2, 100, 5);
  std::vector<ShardInput> present;
  for (int i = 1; i < 6; ++i) present.push_back({i, stripe.shards()[static_cast<std::size_t>(i)]});
  Bytes second(100);
  Bytes first(100);
  const std::vector<ShardOutput> wanted = {{2, second}, {0, first}};
  ASSERT_TRUE(stripe.codec().reconstruct(present, wanted).ok());
  EXPECT_EQ(first, stripe.shards()[0]);
  EXPECT_EQ(second, stripe.shards()[2]);
}

TEST(Codec, NamesWhatIsWrongWithACall) {
  for (const auto& [k, m] : {std::pair{0, 2}, {10, -1}, {31, 2}, {-1, 3}}) {
    const auto codec = Codec::make(k, m);
    ASSERT_FALSE(codec.ok());
    EXPECT_EQ(codec.status().code(), absl::StatusCode::kInvalidArgument);
  }
  const Stripe stripe(3, 1, 32, 6);
  const Bytes& good = stripe.shards()[0];
  Bytes out(32);
  Bytes longer(33);
  const auto reconstruct = [&](std::vector<ShardInput> present, std::vector<ShardOutput> wanted) {
    return stripe.codec().reconstruct(present, wanted).code();
  };
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(reconstruct({{0, good}, {0, good}, {1, good}}, {{3, out}}), kInvalid);
  EXPECT_EQ(reconstruct({{0, good}, {4, good}, {1, good}}, {{3, out}}), kInvalid);
  EXPECT_EQ(reconstruct({{0, good}, {-1, good}, {1, good}}, {{3, out}}), kInvalid);
  EXPECT_EQ(reconstruct({{0, good}, {1, good}, {2, longer}}, {{3, out}}), kInvalid);
  EXPECT_EQ(reconstruct({{0, good}, {1, good}, {2, good}}, {{4, out}}), kInvalid);
  EXPECT_EQ(reconstruct({{0, good}, {1, good}, {2, good}}, {{3, out}, {3, longer}}), kInvalid);
  const std::vector<std::span<const std::byte>> two = {good, good};
  const std::vector<std::span<std::byte>> parity = {out};
  EXPECT_EQ(stripe.codec().encode(two, parity).code(), kInvalid);
}

TEST(Codec, ThreadsShareItsTables) {
  const Stripe stripe(10, 2, 256, 7);
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&stripe, t] {
      for (std::uint32_t i = 0; i < 400; ++i) {
        const std::uint32_t a = (i + static_cast<std::uint32_t>(t)) % 12;
        stripe.lose(std::uint32_t{1} << a | std::uint32_t{1} << (i / 12 % 12));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// More patterns than are kept: the oldest tables go, results stay right.
TEST(Codec, TablesAreBounded) {
  const Stripe stripe(6, 8, 64, 8);
  std::mt19937 random(9);
  for (int round = 0; round < 2500; ++round) {
    std::uint32_t lost = 0;
    for (int i = 0; i < 8; ++i) lost |= std::uint32_t{1} << (random() % 14);
    stripe.lose(lost);
  }
}

}  // namespace
}  // namespace millrace::storage::ec
