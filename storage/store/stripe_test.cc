#include "storage/store/stripe.h"

#include <gtest/gtest.h>

#include <random>

namespace millrace::storage::store {
namespace {

// The official block, and sizes that fill their shards badly or not at all.
TEST(Stripe, AnyTenOfTwelveShardsGiveTheBlock) {
  const auto codec = *ec::Codec::make(10, 2);
  for (const std::size_t bytes : {113920UL, 113919UL, 6401UL, 65UL, 1UL}) {
    std::mt19937 random(static_cast<std::uint32_t>(bytes));
    std::vector<std::byte> block(bytes);
    for (std::byte& byte : block) byte = static_cast<std::byte>(random());
    ShardHeader header{.key = {}, .generation = 9, .ttl = TtlClass::kChatbot, .depth = 3};
    header.key.bytes.fill(7);
    const auto shards = seal_block(*codec, header, block);
    ASSERT_EQ(shards.size(), 12U);
    for (std::uint8_t i = 0; i < 12; ++i) {
      ShardHeader read;
      ASSERT_EQ(verify_shard(shards[i], header.key, i, 9, read), ShardDefect::kNone);
      EXPECT_EQ(read.block_bytes, bytes);
      EXPECT_EQ(read.depth, 3U);
      EXPECT_EQ(read.ttl, TtlClass::kChatbot);
    }
    for (int a = 0; a < 12; ++a) {
      for (int b = a + 1; b < 12; ++b) {
        std::vector<std::byte> opened(bytes);
        open_block(*codec, shards, 0xfffU & ~(1U << a) & ~(1U << b), opened);
        ASSERT_EQ(opened, block) << bytes << " without " << a << " and " << b;
      }
    }
  }
}

}  // namespace
}  // namespace millrace::storage::store
