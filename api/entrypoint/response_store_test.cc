#include "api/entrypoint/response_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <future>

#include "common/str_cat.h"

namespace millrace::api::entrypoint {
namespace {

using namespace std::chrono_literals;
using common::sqlite::Database;
using testing::HasSubstr;

/// A file name in a folder that goes away with the test.
class StoreFile {
 public:
  StoreFile()
      : folder_(std::filesystem::temp_directory_path() /
                str_cat("millrace-store-", ::getpid(), "-", ++count())) {
    std::filesystem::create_directory(folder_);
  }
  ~StoreFile() { std::filesystem::remove_all(folder_); }
  StoreFile(const StoreFile&) = delete;
  StoreFile& operator=(const StoreFile&) = delete;
  std::string path() const { return folder_ / "responses.sqlite"; }

 private:
  static int& count() {
    static int files = 0;
    return files;
  }
  std::filesystem::path folder_;
};

StoredResponse response(const std::string& id, std::size_t bytes = 10) {
  return {id, std::string(bytes, 'r'), "[1]", "[2]", "", ""};
}

ResponseTable open_table(const std::string& path, const StoreBounds& bounds = {}) {
  auto table = ResponseTable::open(path, bounds);
  EXPECT_TRUE(table.ok()) << table.status();
  return *std::move(table);
}

TEST(ResponseTable, AResponseIsItsAccountsAlone) {
  ResponseTable table = open_table("");
  StoredResponse stored = response("a");
  stored.account = "acme";
  ASSERT_TRUE(table.put(stored, 100).ok());
  for (const char* other : {"", "acm", "other"}) {
    EXPECT_TRUE(absl::IsNotFound(table.get({"a", other}, 101).status())) << other;
    EXPECT_TRUE(absl::IsNotFound(table.erase({"a", other}, 101))) << other;
  }
  EXPECT_EQ(table.get({"a", "acme"}, 101)->account, "acme");
  EXPECT_TRUE(table.erase({"a", "acme"}, 101).ok());
}

TEST(ResponseTable, WhatAnEarlierVersionStoredBelongsToNoAccount) {
  const StoreFile file;
  {
    auto database = Database::open(file.path());
    ASSERT_TRUE(database
                    ->execute("CREATE TABLE responses (number INTEGER PRIMARY KEY "
                              "AUTOINCREMENT, id TEXT NOT NULL UNIQUE, created INTEGER NOT "
                              "NULL, bytes INTEGER NOT NULL, response TEXT NOT NULL, "
                              "input_items TEXT NOT NULL, output_items TEXT NOT NULL, events "
                              "TEXT NOT NULL); INSERT INTO responses (id, created, bytes, "
                              "response, input_items, output_items, events) VALUES ('a', 100, "
                              "10, '{}', '[]', '[]', ''); PRAGMA user_version = 1;")
                    .ok());
  }
  ResponseTable table = open_table(file.path());
  EXPECT_EQ(table.get({"a", ""}, 101)->response, "{}");
  EXPECT_FALSE(table.get({"a", "acme"}, 101).ok());
}

TEST(ResponseTable, KeepsWhatItIsGivenOverARestart) {
  const StoreFile file;
  {
    ResponseTable table = open_table(file.path());
    ASSERT_TRUE(table.put({"a", "{}", "[1]", "[2]", "event", ""}, 100).ok());
  }
  ResponseTable table = open_table(file.path());
  const auto found = table.get({"a", ""}, 101);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->response, "{}");
  EXPECT_EQ(found->input_items, "[1]");
  EXPECT_EQ(found->output_items, "[2]");
  EXPECT_EQ(found->events, "event");
  EXPECT_TRUE(table.erase({"a", ""}, 101).ok());
  EXPECT_TRUE(absl::IsNotFound(table.get({"a", ""}, 101).status()));
  EXPECT_TRUE(absl::IsNotFound(table.erase({"a", ""}, 101)));
}

TEST(ResponseTable, ForgetsWhatIsOlderThanItsTimeToLive) {
  ResponseTable table = open_table("", {.time_to_live = 60s});
  ASSERT_TRUE(table.put(response("a"), 1000).ok());
  EXPECT_TRUE(table.get({"a", ""}, 1059).ok());
  EXPECT_TRUE(absl::IsNotFound(table.get({"a", ""}, 1060).status()));
  EXPECT_TRUE(absl::IsNotFound(table.erase({"a", ""}, 1060)));
  // It also makes room.
  ASSERT_TRUE(table.put(response("b"), 1060).ok());
  EXPECT_TRUE(absl::IsNotFound(table.get({"a", ""}, 1000).status()));
}

TEST(ResponseTable, LetsTheOldestGoWhenItIsFull) {
  const StoreFile file;
  constexpr std::size_t kBound = 1u << 20;
  ResponseTable table = open_table(file.path(), {.bytes = kBound});
  for (int i = 0; i < 200; ++i) {
    ASSERT_TRUE(table.put(response(str_cat("r", i), 20'000), 1000 + i).ok());
  }
  EXPECT_TRUE(absl::IsNotFound(table.get({"r0", ""}, 1200).status()));
  EXPECT_TRUE(table.get({"r199", ""}, 1200).ok());
  EXPECT_TRUE(table.get({"r170", ""}, 1200).ok());
  EXPECT_LT(std::filesystem::file_size(file.path()), kBound + (64u << 10));
  const absl::Status too_large = table.put(response("x", kBound), 1300);
  EXPECT_EQ(too_large.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(too_large.message()), HasSubstr("`store`"));
  EXPECT_TRUE(table.get({"r199", ""}, 1300).ok());
}

TEST(ResponseTable, ALockFailsOneOperationAndNoMore) {
  const StoreFile file;
  ResponseTable table = open_table(file.path());
  auto other = Database::open(file.path());
  ASSERT_TRUE(other.ok());
  ASSERT_TRUE(other->execute("BEGIN IMMEDIATE").ok());
  const absl::Status status = table.put(response("a"), 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("locked"));
  ASSERT_TRUE(other->execute("ROLLBACK").ok());
  EXPECT_TRUE(table.put(response("a"), 1).ok());
}

TEST(ResponseTable, AFullDiskFailsOneOperationAndNoMore) {
  const StoreFile file;
  { open_table(file.path()); }
  ResponseTable table = open_table(file.path());
  ASSERT_TRUE(table.put(response("a"), 1).ok());
  // Another process leaves no room: as with a full disk, SQLite cannot extend the file.
  auto other = Database::open(file.path());
  ASSERT_TRUE(other.ok());
  ASSERT_TRUE(other->execute("PRAGMA max_page_count = 8").ok());
  ASSERT_TRUE(other->execute("BEGIN IMMEDIATE").ok());
  const absl::Status full = other->execute(
      "INSERT INTO responses (id, created, bytes, response, input_items, output_items, events) "
      "VALUES ('x', 1, 1, zeroblob(100000), '', '', '')");
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  static_cast<void>(other->execute("ROLLBACK"));
  EXPECT_TRUE(table.get({"a", ""}, 1).ok());
  EXPECT_TRUE(table.put(response("b"), 1).ok());
}

TEST(ResponseTable, RefusesOtherFilesAndSaysWhich) {
  const StoreFile file;
  std::ofstream(file.path()) << std::string(8192, 'x');
  auto damaged = ResponseTable::open(file.path(), {});
  EXPECT_EQ(damaged.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(damaged.status().message()), HasSubstr(file.path()));

  const StoreFile other;
  { open_table(other.path()); }
  ASSERT_TRUE(Database::open(other.path())->execute("PRAGMA user_version = 7").ok());
  const auto newer = ResponseTable::open(other.path(), {});
  EXPECT_EQ(newer.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(newer.status().message()), HasSubstr("schema version 7"));

  EXPECT_FALSE(ResponseTable::open("/no/such/folder/responses.sqlite", {}).ok());
}

TEST(ResponseStore, AnswersOnItsThreadWithItsClock) {
  std::atomic<std::int64_t> now = 100;
  auto store = ResponseStore::open(
      {.path = "", .bounds = {.time_to_live = 10s}, .now_seconds = [&now] { return now.load(); }});
  ASSERT_TRUE(store.ok()) << store.status();
  const auto get = [&](const std::string& id) {
    std::promise<absl::Status> got;
    (*store)->get({id, ""}, [&](const absl::StatusOr<StoredResponse>& found) {
      got.set_value(found.status());
    });
    return got.get_future().get();
  };
  std::promise<absl::Status> put;
  (*store)->put(response("a"), [&](const absl::Status& status) { put.set_value(status); });
  EXPECT_TRUE(put.get_future().get().ok());
  EXPECT_TRUE(get("a").ok());
  now = 110;
  EXPECT_TRUE(absl::IsNotFound(get("a")));
  std::promise<absl::Status> erased;
  (*store)->erase({"a", ""}, [&](const absl::Status& status) { erased.set_value(status); });
  EXPECT_TRUE(absl::IsNotFound(erased.get_future().get()));
}

TEST(ResponseStore, RefusesWhatItCannotQueue) {
  auto store = ResponseStore::open(
      {.path = "", .bounds = {}, .now_seconds = [] { return std::int64_t{1}; }});
  ASSERT_TRUE(store.ok()) << store.status();
  // Its thread is busy meanwhile.
  std::promise<void> gate;
  (*store)->get({"x", ""}, [opened = gate.get_future().share()](
                               const absl::StatusOr<StoredResponse>&) { opened.wait(); });
  constexpr std::size_t kHalf = 40u << 20;
  std::atomic<int> stored = 0;
  std::atomic<int> refused = 0;
  for (const char* id : {"a", "b", "c"}) {
    (*store)->put(response(id, kHalf),
                  [&](const absl::Status& status) { status.ok() ? ++stored : ++refused; });
  }
  EXPECT_EQ(refused, 2);
  gate.set_value();
  *store = nullptr;  // does what is queued
  EXPECT_EQ(stored, 1);
  EXPECT_EQ(refused, 2);
}

}  // namespace
}  // namespace millrace::api::entrypoint
