#include "storage/fetch/arena.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "common/str_cat.h"
#include "storage/ec/crc32c.h"

namespace millrace::storage::fetch {
namespace {

using ::testing::HasSubstr;

constexpr std::uint32_t kBlockBytes = 5000;  // no multiple of a page

std::string test_host() { return str_cat("arena-test-", ::getpid()); }

BlockKey key_of(std::uint8_t value) {
  BlockKey key;
  key.bytes.fill(value);
  return key;
}

std::vector<std::byte> block_of(std::uint8_t value, std::size_t bytes = kBlockBytes) {
  std::vector<std::byte> block(bytes);
  for (std::size_t i = 0; i < bytes; ++i) block[i] = static_cast<std::byte>(value * 31 + i);
  return block;
}

Arena make_arena(ArenaKind kind, std::uint32_t slots = 4, std::uint64_t incarnation = 7) {
  auto arena = Arena::create({.host_id = test_host(),
                              .kind = kind,
                              .incarnation = incarnation,
                              .slot_count = slots,
                              .block_bytes = kBlockBytes});
  EXPECT_TRUE(arena.ok()) << arena.status();
  return *std::move(arena);
}

void fill_and_publish(Arena& arena, const SlotRef& ref, std::uint8_t value) {
  arena.begin(ref, SlotState::kFilling);
  const std::vector<std::byte> block = block_of(value);
  std::memcpy(arena.data(ref, kBlockBytes).data(), block.data(), block.size());
  arena.publish(ref, key_of(value), kBlockBytes);
}

absl::StatusCode copy_code(const ArenaReader& reader, const SlotRef& ref, std::uint8_t value,
                           std::size_t bytes = kBlockBytes) {
  std::vector<std::byte> out(bytes);
  const absl::Status status = reader.copy_out(ref, key_of(value), out);
  if (status.ok()) {
    EXPECT_EQ(out, block_of(value, bytes));
  }
  return status.code();
}

TEST(Arena, WhatWasPublishedIsRead) {
  Arena arena = make_arena(ArenaKind::kRead);
  const auto reader = ArenaReader::open(arena.ticket());
  ASSERT_TRUE(reader.ok()) << reader.status();
  fill_and_publish(arena, {2, 1}, 9);
  EXPECT_EQ(copy_code(*reader, {2, 1}, 9), absl::StatusCode::kOk);
}

TEST(Arena, OnlyReadySlotsAreRead) {
  Arena arena = make_arena(ArenaKind::kRead);
  const auto reader = ArenaReader::open(arena.ticket());
  EXPECT_EQ(copy_code(*reader, {0, 0}, 0), absl::StatusCode::kAborted);  // never used
  arena.begin({0, 1}, SlotState::kFilling);
  EXPECT_EQ(copy_code(*reader, {0, 1}, 1), absl::StatusCode::kAborted);
  arena.publish({0, 1}, key_of(1), kBlockBytes);
  arena.retire({0, 1});
  EXPECT_EQ(copy_code(*reader, {0, 1}, 1), absl::StatusCode::kAborted);
}

TEST(Arena, ALeaseOfTheUseBeforeReadsNothing) {
  Arena arena = make_arena(ArenaKind::kRead);
  const auto reader = ArenaReader::open(arena.ticket());
  fill_and_publish(arena, {1, 1}, 5);
  arena.retire({1, 1});
  fill_and_publish(arena, {1, 2}, 5);  // even the same block
  EXPECT_EQ(copy_code(*reader, {1, 1}, 5), absl::StatusCode::kAborted);
  EXPECT_EQ(copy_code(*reader, {1, 2}, 5), absl::StatusCode::kOk);
}

TEST(Arena, AnotherKeySizeOrSlotIsRefused) {
  Arena arena = make_arena(ArenaKind::kRead);
  const auto reader = ArenaReader::open(arena.ticket());
  fill_and_publish(arena, {3, 1}, 5);
  EXPECT_EQ(copy_code(*reader, {3, 1}, 6), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(copy_code(*reader, {3, 1}, 5, kBlockBytes - 1), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(copy_code(*reader, {3, 1}, 5, 1 << 20), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(copy_code(*reader, {4, 1}, 5), absl::StatusCode::kInvalidArgument);
}

TEST(Arena, EveryFlippedBitOfABlockIsFound) {
  Arena arena = make_arena(ArenaKind::kRead);
  const auto reader = ArenaReader::open(arena.ticket());
  fill_and_publish(arena, {0, 1}, 5);
  const auto data = arena.data({0, 1}, kBlockBytes);
  for (std::size_t i = 0; i < data.size(); i += 97) {
    data[i] ^= std::byte{0x10};
    EXPECT_EQ(copy_code(*reader, {0, 1}, 5), absl::StatusCode::kDataLoss);
    data[i] ^= std::byte{0x10};
  }
  EXPECT_EQ(copy_code(*reader, {0, 1}, 5), absl::StatusCode::kOk);
}

TEST(Arena, AnOldMappingReadsOnAfterItsOwnerIsGone) {
  std::optional<Arena> arena(make_arena(ArenaKind::kRead));
  const ArenaTicket ticket = arena->ticket();
  const auto reader = ArenaReader::open(ticket);
  fill_and_publish(*arena, {0, 1}, 5);
  arena.reset();
  EXPECT_EQ(copy_code(*reader, {0, 1}, 5), absl::StatusCode::kOk);
  EXPECT_EQ(ArenaReader::open(ticket).status().code(), absl::StatusCode::kNotFound);
}

TEST(Arena, LiesInMemoryAsDrawn) {
  Arena arena = make_arena(ArenaKind::kRead);
  fill_and_publish(arena, {1, 3}, 5);
  const auto region = SharedRegion::open(arena.ticket().shm_name, arena.ticket().bytes);
  ASSERT_TRUE(region.ok()) << region.status();
  const std::byte* bytes = region->bytes().data();
  const auto u32 = [&](std::size_t at) {
    std::uint32_t value = 0;
    std::memcpy(&value, bytes + at, sizeof(value));
    return value;
  };
  const auto u64 = [&](std::size_t at) {
    std::uint64_t value = 0;
    std::memcpy(&value, bytes + at, sizeof(value));
    return value;
  };
  EXPECT_EQ(std::memcmp(bytes, "MRARENA", 8), 0);
  EXPECT_EQ(u32(8), kArenaVersion);
  EXPECT_EQ(u32(12), 1u);
  EXPECT_EQ(u64(16), 7u);
  EXPECT_EQ(u32(24), 4u);
  EXPECT_EQ(u32(28), kBlockBytes);
  EXPECT_EQ(u64(32), 8192u);
  EXPECT_EQ(u64(40), 8192u);
  EXPECT_STREQ(reinterpret_cast<const char*>(bytes + 48), test_host().c_str());
  EXPECT_EQ(u32(112), ec::crc32c(region->bytes().first(112)));
  const std::size_t entry = 4096 + 64;
  EXPECT_EQ(u64(entry), 3u * 256 + 2);
  EXPECT_EQ(std::memcmp(bytes + entry + 8, key_of(5).bytes.data(), 32), 0);
  EXPECT_EQ(u32(entry + 40), kBlockBytes);
  EXPECT_EQ(u32(entry + 44), ec::crc32c(block_of(5)));
  EXPECT_EQ(std::memcmp(bytes + 8192 + 8192, block_of(5).data(), kBlockBytes), 0);
  EXPECT_EQ(region->bytes().size(), 8192u + 4 * 8192);
}

TEST(Arena, RefusesATicketOfSomethingElse) {
  Arena arena = make_arena(ArenaKind::kRead);
  const ArenaTicket ticket = arena.ticket();
  EXPECT_EQ(ArenaWriter::open(ticket).status().code(), absl::StatusCode::kDataLoss);  // its kind
  ArenaTicket other = ticket;
  other.incarnation = 8;
  EXPECT_THAT(ArenaReader::open(other).status().ToString(), HasSubstr("incarnation 7"));
  other = ticket;
  other.bytes += 4096;
  EXPECT_EQ(ArenaReader::open(other).status().code(), absl::StatusCode::kDataLoss);

  auto region = SharedRegion::open_writable(ticket.shm_name, ticket.bytes);
  ASSERT_TRUE(region.ok()) << region.status();
  region->writable_bytes()[28] ^= std::byte{1};
  EXPECT_THAT(ArenaReader::open(ticket).status().ToString(), HasSubstr("is damaged"));
  region->writable_bytes()[28] ^= std::byte{1};
  region->writable_bytes()[8] = std::byte{2};
  EXPECT_THAT(ArenaReader::open(ticket).status().ToString(), HasSubstr("version 2"));
  region->writable_bytes()[0] = std::byte{0};
  EXPECT_THAT(ArenaReader::open(ticket).status().ToString(), HasSubstr("is no arena"));
}

TEST(Arena, SaysWhenSharedMemoryIsExhausted) {
  const auto arena = Arena::create({.host_id = test_host(),
                                    .kind = ArenaKind::kRead,
                                    .incarnation = 1,
                                    .slot_count = std::uint32_t{1} << 30,
                                    .block_bytes = 1 << 20});
  EXPECT_EQ(arena.status().code(), absl::StatusCode::kResourceExhausted) << arena.status();
  EXPECT_THAT(arena.status().ToString(), HasSubstr("bytes of shared memory"));
}

TEST(Arena, HoldsAsManySlotsAsFit) {
  EXPECT_EQ(arena_slots(0, kBlockBytes), 0u);
  EXPECT_EQ(arena_slots(4096 + 4096 + 8191, kBlockBytes), 0u);
  EXPECT_EQ(arena_slots(4096 + 4096 + 8192, kBlockBytes), 1u);
  EXPECT_EQ(arena_slots(4096 + 4096 + 64 * 8192, kBlockBytes), 64u);
  EXPECT_EQ(arena_slots(4096 + 4096 + 65 * 8192, kBlockBytes), 64u);  // the table takes a page more
  EXPECT_EQ(arena_slots(4096 + 8192 + 65 * 8192, kBlockBytes), 65u);
}

TEST(WriteArena, WhatAnEngineFillsIsTakenWhole) {
  Arena arena = make_arena(ArenaKind::kWrite);
  auto writer = ArenaWriter::open(arena.ticket());
  ASSERT_TRUE(writer.ok()) << writer.status();
  arena.begin({0, 1}, SlotState::kWriting);
  const auto crc = writer->fill({0, 1}, block_of(3));
  ASSERT_TRUE(crc.ok()) << crc.status();
  const auto block = arena.take_sealed({0, 1}, kBlockBytes, *crc);
  ASSERT_TRUE(block.ok()) << block.status();
  EXPECT_EQ(*block, block_of(3));
}

TEST(WriteArena, TwoWritersInOneSlotAreFoundOut) {
  Arena arena = make_arena(ArenaKind::kWrite);
  auto late = ArenaWriter::open(arena.ticket());
  auto now = ArenaWriter::open(arena.ticket());
  arena.begin({0, 1}, SlotState::kWriting);
  ASSERT_TRUE(late->fill({0, 1}, block_of(3)).ok());
  arena.retire({0, 1});
  arena.begin({0, 2}, SlotState::kWriting);
  EXPECT_EQ(late->fill({0, 1}, block_of(3)).status().code(), absl::StatusCode::kAborted);
  const auto crc = now->fill({0, 2}, block_of(4));
  ASSERT_TRUE(crc.ok());
  // One that was in the middle of its copy when its reservation ended.
  arena.data({0, 2}, kBlockBytes)[100] = block_of(3)[100];
  EXPECT_EQ(arena.take_sealed({0, 2}, kBlockBytes, *crc).status().code(),
            absl::StatusCode::kDataLoss);
}

TEST(WriteArena, AnEngineThatScribblesOverTheTableHarmsNobodyElse) {
  Arena arena = make_arena(ArenaKind::kWrite);
  const ArenaTicket ticket = arena.ticket();
  auto region = SharedRegion::open_writable(ticket.shm_name, ticket.bytes);
  ASSERT_TRUE(region.ok()) << region.status();
  arena.begin({0, 1}, SlotState::kWriting);
  std::memset(region->writable_bytes().data(), 0xFF, 8192);  // header and table
  EXPECT_EQ(arena.take_sealed({0, 1}, kBlockBytes, 5).status().code(), absl::StatusCode::kDataLoss);
  arena.retire({0, 1});
  arena.begin({0, 2}, SlotState::kWriting);
  const std::vector<std::byte> block = block_of(3);
  std::memcpy(arena.data({0, 2}, kBlockBytes).data(), block.data(), block.size());
  EXPECT_TRUE(arena.take_sealed({0, 2}, kBlockBytes, ec::crc32c(block)).ok());
}

TEST(WriteArena, RefusesBlocksThatDoNotFit) {
  Arena arena = make_arena(ArenaKind::kWrite);
  auto writer = ArenaWriter::open(arena.ticket());
  arena.begin({0, 1}, SlotState::kWriting);
  EXPECT_EQ(writer->fill({0, 1}, block_of(1, kBlockBytes + 1)).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(writer->fill({0, 1}, {}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(writer->fill({4, 1}, block_of(1)).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(HostClaim, IsForOneProcessAndCleansUp) {
  EXPECT_EQ(HostClaim::take("no/id").status().code(), absl::StatusCode::kInvalidArgument);
  std::optional<Arena> stale(make_arena(ArenaKind::kRead, 4, 99));
  const ArenaTicket ticket = stale->ticket();
  auto claim = HostClaim::take(test_host());
  ASSERT_TRUE(claim.ok()) << claim.status();
  EXPECT_EQ(ArenaReader::open(ticket).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(HostClaim::take(test_host()).status().code(), absl::StatusCode::kFailedPrecondition);
  // A host whose id goes on where ours ends keeps what it has.
  const std::string longer = test_host() + "-2";
  auto neighbour = Arena::create({.host_id = longer,
                                  .kind = ArenaKind::kRead,
                                  .incarnation = 1,
                                  .slot_count = 1,
                                  .block_bytes = 1});
  ASSERT_TRUE(neighbour.ok()) << neighbour.status();
  { const HostClaim dropped = *std::move(claim); }
  ASSERT_TRUE(HostClaim::take(test_host()).ok());
  EXPECT_TRUE(ArenaReader::open(neighbour->ticket()).ok());
  std::filesystem::remove(str_cat("/dev/shm/millrace-", test_host(), "++kvfetch.lock"));
}

}  // namespace
}  // namespace millrace::storage::fetch
