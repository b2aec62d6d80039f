#include "storage/wire/shard_format.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "storage/ec/crc32c.h"

namespace millrace::storage {
namespace {

constexpr std::size_t kOfficialBlock = 113920;

std::vector<std::byte> sealed(ShardHeader& header, std::uint32_t seed) {
  std::mt19937 random(seed);
  for (auto& byte : header.key.bytes) byte = static_cast<std::uint8_t>(random());
  header.generation = 0x0123456789abcdefULL + seed;
  header.shard_index = 3;
  header.data_shards = 10;
  header.parity_shards = 2;
  header.ttl = TtlClass::kChatbot;
  header.depth = 77;
  header.block_bytes = 5000;
  header.payload_bytes =
      static_cast<std::uint32_t>(shard_payload_bytes(header.block_bytes, header.data_shards));
  std::vector<std::byte> shard(kShardHeaderBytes + header.payload_bytes);
  for (std::byte& byte : shard) byte = static_cast<std::byte>(random());
  seal_shard(header, shard);
  return shard;
}

// Sizes of the official block: kv-storage facts, 3.2.
TEST(ShardFormat, SizesOfTheOfficialBlock) {
  EXPECT_EQ(shard_payload_bytes(kOfficialBlock, 10), 11392U);
  EXPECT_EQ(sealed_shard_bytes(kOfficialBlock, 10), 11520U);
  EXPECT_EQ(slot_bytes_for(kOfficialBlock, 10), 12288U);
}

TEST(ShardFormat, ASealedShardReadsBack) {
  ShardHeader header;
  std::vector<std::byte> shard = sealed(header, 1);
  shard.resize(slot_bytes_for(header.block_bytes, header.data_shards), std::byte{0x5a});
  ShardHeader read;
  EXPECT_EQ(read_shard(shard, read), ShardDefect::kNone);
  EXPECT_EQ(read, header);
}

TEST(ShardFormat, BytesAreWhereTheDrawingSays) {
  ShardHeader header;
  const std::vector<std::byte> shard = sealed(header, 2);
  EXPECT_EQ(shard[0], std::byte{'M'});
  EXPECT_EQ(shard[3], std::byte{'H'});
  EXPECT_EQ(shard[4], std::byte{1});
  EXPECT_EQ(shard[6], std::byte{3});
  EXPECT_EQ(shard[7], std::byte{10});
  EXPECT_EQ(shard[8], std::byte{2});
  EXPECT_EQ(shard[9], std::byte{1});
  EXPECT_EQ(shard[16], std::byte{5000 & 0xff});
  EXPECT_EQ(shard[17], std::byte{5000 >> 8});
  EXPECT_EQ(shard[20], std::byte{77});
  EXPECT_EQ(shard[24], std::byte{(0xef + 2) & 0xff});
  EXPECT_EQ(shard[32], static_cast<std::byte>(header.key.bytes[0]));
}

TEST(ShardFormat, EveryFlippedBitIsADefect) {
  ShardHeader header;
  const std::vector<std::byte> good = sealed(header, 3);
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::vector<std::byte> bad = good;
    bad[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    ShardHeader read;
    ASSERT_NE(read_shard(bad, read), ShardDefect::kNone) << "bit " << bit;
  }
}

TEST(ShardFormat, EveryTruncationIsADefect) {
  ShardHeader header;
  const std::vector<std::byte> good = sealed(header, 4);
  for (std::size_t size = 0; size < good.size(); ++size) {
    ShardHeader read;
    ASSERT_EQ(read_shard(std::span(good).first(size), read), ShardDefect::kShort) << size;
  }
}

TEST(ShardFormat, ZerosAndForeignBytesAreNoShard) {
  const std::vector<std::byte> zeros(8192);
  ShardHeader read;
  EXPECT_EQ(read_shard(zeros, read), ShardDefect::kMagic);
}

TEST(ShardFormat, AnotherKeyIndexOrGenerationIsNamed) {
  ShardHeader header;
  const std::vector<std::byte> shard = sealed(header, 5);
  ShardHeader read;
  EXPECT_EQ(verify_shard(shard, header.key, 3, 0, read), ShardDefect::kNone);
  EXPECT_EQ(verify_shard(shard, header.key, 3, header.generation, read), ShardDefect::kNone);
  EXPECT_EQ(verify_shard(shard, header.key, 4, 0, read), ShardDefect::kIndex);
  EXPECT_EQ(verify_shard(shard, header.key, 3, header.generation + 1, read),
            ShardDefect::kGeneration);
  BlockKey other = header.key;
  other.bytes[31] ^= 1;
  EXPECT_EQ(verify_shard(shard, other, 3, 0, read), ShardDefect::kKey);
}

// A correct checksum does not excuse lengths that contradict each other.
TEST(ShardFormat, ContradictingLengthsAreALayoutDefect) {
  ShardHeader header;
  std::vector<std::byte> shard = sealed(header, 6);
  shard[16] ^= std::byte{0xff};  // block bytes
  shard[17] ^= std::byte{0x7f};
  std::uint32_t crc = ec::crc32c(std::span(shard).first(124));
  crc = ec::crc32c_extend(crc, std::span(shard).subspan(kShardHeaderBytes));
  for (std::size_t i = 0; i < 4; ++i) shard[124 + i] = static_cast<std::byte>(crc >> (8 * i));
  ShardHeader read;
  EXPECT_EQ(read_shard(shard, read), ShardDefect::kLayout);
}

}  // namespace
}  // namespace millrace::storage
