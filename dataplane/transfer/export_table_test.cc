#include "dataplane/transfer/export_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <random>

#include "common/str_cat.h"
#include "storage/ec/crc32c.h"

namespace millrace::dataplane::transfer {
namespace {

using namespace std::chrono_literals;
using api::admin::shared_memory_prefix;
using api::admin::SharedMemoryOwner;

constexpr TimePoint kStart{};

/// A worker that no other test process has.
SharedMemoryOwner unique_worker(const std::string& name) {
  return {.host_id = "host", .worker_id = str_cat(name, "-", ::getpid())};
}

int regions_of(const SharedMemoryOwner& worker) {
  int count = 0;
  for (const auto& file : std::filesystem::directory_iterator("/dev/shm")) {
    if (file.path().filename().string().starts_with(shared_memory_prefix(worker))) ++count;
  }
  return count;
}

std::function<absl::Status(std::span<std::byte>)> fill_with(char value) {
  return [value](std::span<std::byte> bytes) {
    std::memset(bytes.data(), value, bytes.size());
    return absl::OkStatus();
  };
}

TEST(ExportTable, KeepsBytesUntilReleasedAndThenLeavesNothing) {
  const SharedMemoryOwner worker = unique_worker("keeps");
  auto table = *ExportTable::open(worker, 7, {});
  const auto ticket = table->add({1, "r"}, 1000, fill_with('x'), kStart);
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  EXPECT_EQ(ticket->export_id >> 32, 7u);
  EXPECT_EQ(regions_of(worker), 1);
  const auto region = SharedRegion::open(ticket->shm_name, 1000);
  ASSERT_TRUE(region.ok()) << region.status();
  EXPECT_EQ(storage::ec::crc32c(region->bytes()), ticket->checksum);
  EXPECT_EQ(region->bytes()[999], std::byte{'x'});

  const auto held = table->find(ticket->export_id);
  ASSERT_TRUE(held.ok());
  EXPECT_TRUE(table->release(ticket->export_id));
  EXPECT_FALSE(table->release(ticket->export_id));
  EXPECT_EQ(table->usage().exports, 0);
  EXPECT_EQ(table->usage().bytes, 0u);
  // Who holds it keeps the bytes; nobody new finds it.
  EXPECT_EQ((*held)->bytes()[0], std::byte{'x'});
  EXPECT_EQ(table->find(ticket->export_id).status().code(), absl::StatusCode::kNotFound);
}

TEST(ExportTable, DestructionRemovesEveryRegion) {
  const SharedMemoryOwner worker = unique_worker("destroys");
  {
    auto table = *ExportTable::open(worker, 1, {});
    for (int i = 0; i < 5; ++i) ASSERT_TRUE(table->add({1, "r"}, 100, fill_with(1), kStart).ok());
    EXPECT_EQ(regions_of(worker), 5);
  }
  EXPECT_EQ(regions_of(worker), 0);
}

TEST(ExportTable, AnEarlierProcessLeftoversGoAndOthersStay) {
  const SharedMemoryOwner worker = unique_worker("stale");
  SharedMemoryOwner longer_name = worker;
  longer_name.worker_id += "-2";
  // Another cluster on this machine: its workers have the same ids, its host id is another.
  SharedMemoryOwner other_cluster = worker;
  other_cluster.host_id = "host-2";
  std::vector<SharedRegion> regions;
  for (const SharedMemoryOwner& owner : {worker, longer_name, other_cluster}) {
    auto region = SharedRegion::create(str_cat(shared_memory_prefix(owner), 99), 10);
    ASSERT_TRUE(region.ok()) << region.status();
    regions.push_back(*std::move(region));
  }
  auto table = ExportTable::open(worker, 1, {});
  EXPECT_EQ(regions_of(worker), 0);
  EXPECT_EQ(regions_of(longer_name), 1);
  EXPECT_EQ(regions_of(other_cluster), 1);
}

TEST(ExportTable, TwoClustersOnOneMachineDoNotTouchEachOthersExports) {
  const SharedMemoryOwner first = unique_worker("twin");
  const SharedMemoryOwner second = {.host_id = "host-2", .worker_id = first.worker_id};
  auto table = *ExportTable::open(first, 1, {});
  const auto ticket = table->add({1, "r"}, 100, fill_with('a'), kStart);
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  // The same incarnation, so that the export ids are equal too.
  auto other_table = *ExportTable::open(second, 1, {});
  const auto other_ticket = other_table->add({1, "r"}, 100, fill_with('b'), kStart);
  ASSERT_TRUE(other_ticket.ok()) << other_ticket.status();
  const auto region = SharedRegion::open(ticket->shm_name, 100);
  ASSERT_TRUE(region.ok()) << region.status();
  EXPECT_EQ(region->bytes()[0], std::byte{'a'});
}

TEST(ExportTable, RefusesWhatIsOverItsLimits) {
  auto table = *ExportTable::open(unique_worker("limits"), 1, {.max_bytes = 250, .max_exports = 2});
  EXPECT_EQ(table->add({1, "r"}, 251, fill_with(1), kStart).status().code(),
            absl::StatusCode::kInvalidArgument);
  const auto first = table->add({1, "r"}, 200, fill_with(1), kStart);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(table->add({1, "r"}, 51, fill_with(1), kStart).status().code(),
            absl::StatusCode::kResourceExhausted);
  ASSERT_TRUE(table->add({1, "r"}, 25, fill_with(1), kStart).ok());
  EXPECT_EQ(table->add({1, "r"}, 25, fill_with(1), kStart).status().code(),
            absl::StatusCode::kResourceExhausted);
  table->release(first->export_id);
  EXPECT_TRUE(table->add({1, "r"}, 200, fill_with(1), kStart).ok());
}

TEST(ExportTable, AFailedFillGivesItsRoomBack) {
  const SharedMemoryOwner worker = unique_worker("fill");
  auto table = *ExportTable::open(worker, 1, {.max_bytes = 100});
  EXPECT_EQ(table
                ->add(
                    {1, "r"}, 100, [](auto) { return absl::InternalError("no"); }, kStart)
                .status()
                .code(),
            absl::StatusCode::kInternal);
  EXPECT_EQ(table->usage().bytes, 0u);
  EXPECT_EQ(regions_of(worker), 0);
  EXPECT_TRUE(table->add({1, "r"}, 100, fill_with(1), kStart).ok());
}

TEST(ExportTable, DropsByOwnerStreamAndAge) {
  auto table = *ExportTable::open(unique_worker("owner"), 1, {.time_to_live = 10s});
  ASSERT_TRUE(table->add({1, "a"}, 1, fill_with(1), kStart).ok());
  ASSERT_TRUE(table->add({1, "b"}, 1, fill_with(1), kStart).ok());
  ASSERT_TRUE(table->add({2, "a"}, 1, fill_with(1), kStart + 5s).ok());
  ASSERT_TRUE(table->add({3, "a"}, 1, fill_with(1), kStart).ok());
  EXPECT_EQ(table->release_owner({1, "a"}), 1);
  EXPECT_EQ(table->release_owner({1, "a"}), 0);
  EXPECT_EQ(table->release_stream(1), 1);
  EXPECT_EQ(table->expire(kStart + 9s), 0);
  EXPECT_EQ(table->expire(kStart + 10s), 1);
  EXPECT_EQ(table->usage().exports, 1);
  EXPECT_EQ(table->expire(kStart + 15s), 1);
  EXPECT_EQ(table->usage().exports, 0);
}

TEST(ExportTable, AnIdThatIsNoFileNameIsRefused) {
  for (const std::string& id : {std::string("a/b"), std::string(), std::string(65, 'a'),
                                std::string("a b"), std::string("a+b"), std::string(".a")}) {
    EXPECT_EQ(ExportTable::open({.host_id = "h", .worker_id = id}, 1, {}).status().code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(ExportTable::open({.host_id = id, .worker_id = "w"}, 1, {}).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST(ExportTable, TheLongestIdsMakeANameThatAPeerOpens) {
  const std::string pid = str_cat(::getpid());
  auto table = *ExportTable::open(
      {.host_id = std::string(64, 'h'), .worker_id = pid + std::string(64 - pid.size(), 'w')},
      0xffffffff, {});
  const auto ticket = table->add({1, "r"}, 10, fill_with(1), kStart);
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  EXPECT_TRUE(SharedRegion::open(ticket->shm_name, 10).ok());
}

TEST(SharedRegion, ForeignNamesAndSizesAreRefused) {
  EXPECT_EQ(SharedRegion::open("../etc/passwd", 1).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SharedRegion::open("millrace-a/../b", 1).status().code(),
            absl::StatusCode::kInvalidArgument);
  const std::string name = str_cat("millrace-test-", ::getpid());
  EXPECT_EQ(SharedRegion::open(name, 1).status().code(), absl::StatusCode::kNotFound);
  const auto region = SharedRegion::create(name, 5000);
  ASSERT_TRUE(region.ok()) << region.status();
  EXPECT_EQ(SharedRegion::create(name, 5000).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(SharedRegion::open(name, 5001).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(SharedRegion::open(name, 5000).ok());
}

TEST(SharedRegion, MoreThanTheHostHasIsAnErrorAndNoFault) {
  const auto region =
      SharedRegion::create(str_cat("millrace-huge-", ::getpid()), std::size_t{1} << 45);
  EXPECT_EQ(region.status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace millrace::dataplane::transfer
