#include "dataplane/worker/kv_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>

#include "dataplane/engine/engine.h"

namespace millrace::dataplane::worker {
namespace {

using namespace std::chrono_literals;
using storage::BlockKey;
using storage::fetch::FetchEnd;
using storage::fetch::SessionEvent;
using storage::fetch::SlotRef;
using storage::fetch::StoreEnd;
using storage::swa::WindowLocation;
using storage::swa::WindowMiss;

constexpr std::uint32_t kBlockBytes = 64;

BlockKey key_of(int value) {
  BlockKey key;
  key.bytes[0] = static_cast<std::uint8_t>(value);
  return key;
}

/// What a fetcher was asked, and what it says. Outlives the client that the link owns.
struct Fetcher {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::string> asked;
  std::deque<SessionEvent> events;
  absl::Status health = absl::OkStatus();
  std::atomic<bool> is_there{true};

  void say(SessionEvent event) {
    std::lock_guard lock(mutex);
    events.push_back(std::move(event));
    changed.notify_all();
  }
  void die() {
    std::lock_guard lock(mutex);
    health = absl::UnavailableError("it died");
    changed.notify_all();
  }
  void note(std::string what) {
    std::lock_guard lock(mutex);
    asked.push_back(std::move(what));
    changed.notify_all();
  }
  /// Waits until it was asked that; false after a long time.
  bool was_asked(const std::string& what) {
    std::unique_lock lock(mutex);
    return changed.wait_for(
        lock, 20s, [&] { return std::find(asked.begin(), asked.end(), what) != asked.end(); });
  }
};

class FakeClient final : public storage::fetch::FetchClient {
 public:
  explicit FakeClient(Fetcher& fetcher) : fetcher_(fetcher) {}

  std::uint32_t block_bytes() const override { return kBlockBytes; }
  absl::Status fetch(std::uint64_t request, std::span<const BlockKey> keys, std::uint32_t,
                     std::int64_t, std::chrono::milliseconds) override {
    fetcher_.note(str_cat("fetch ", request, " ", keys.size()));
    return health();
  }
  absl::Status reprioritise(std::uint64_t, std::int64_t) override { return health(); }
  absl::Status cancel(std::uint64_t request) override {
    fetcher_.note(str_cat("cancel ", request));
    return health();
  }
  absl::Status release(std::uint64_t, std::span<const std::uint32_t>) override { return health(); }
  absl::Status copy_out(const SlotRef&, const BlockKey&, std::span<std::byte>) const override {
    return health();
  }
  absl::Status copy_part(const SlotRef& ref, const BlockKey&, std::uint32_t, std::size_t,
                         std::span<std::byte> out, std::uint32_t& crc) const override {
    std::fill(out.begin(), out.end(), static_cast<std::byte>(ref.slot));
    ++crc;
    return absl::OkStatus();
  }
  absl::Status reserve(std::uint64_t, std::uint32_t count) override {
    fetcher_.note(str_cat("reserve ", count));
    return health();
  }
  absl::Status return_slot(const SlotRef& ref) override {
    fetcher_.note(str_cat("return ", ref.slot));
    return health();
  }
  absl::Status store(const SlotRef& ref, const BlockKey& key, std::span<const std::byte> block,
                     std::uint32_t depth, storage::TtlClass) override {
    fetcher_.note(str_cat("store ", ref.slot, " key ", static_cast<int>(key.bytes[0]), " depth ",
                          depth, " bytes ", block.size()));
    return health();
  }
  std::uint32_t window_bytes() const override { return 16; }
  absl::Status put_window(std::uint64_t id, const BlockKey& key,
                          std::span<const std::byte> window) override {
    fetcher_.note(
        str_cat("put ", id, " key ", static_cast<int>(key.bytes[0]), " bytes ", window.size()));
    return health();
  }
  absl::Status get_window(std::uint64_t request, const WindowLocation& from, const BlockKey& key,
                          std::chrono::milliseconds) override {
    fetcher_.note(
        str_cat("get ", request, " slot ", from.slot, " key ", static_cast<int>(key.bytes[0])));
    return health();
  }
  absl::Status copy_window_out(const SlotRef&, const BlockKey&,
                               std::span<std::byte> out) const override {
    std::fill(out.begin(), out.end(), std::byte{7});
    return absl::OkStatus();
  }
  absl::Status release_window(std::uint64_t request) override {
    fetcher_.note(str_cat("release_window ", request));
    return health();
  }
  std::vector<SessionEvent> poll(std::chrono::milliseconds timeout) override {
    std::unique_lock lock(fetcher_.mutex);
    fetcher_.changed.wait_for(lock, timeout,
                              [&] { return !fetcher_.events.empty() || !fetcher_.health.ok(); });
    std::vector<SessionEvent> events(fetcher_.events.begin(), fetcher_.events.end());
    fetcher_.events.clear();
    return events;
  }
  absl::Status health() const override {
    std::lock_guard lock(fetcher_.mutex);
    return fetcher_.health;
  }

 private:
  Fetcher& fetcher_;
};

class KvLinkTest : public testing::Test {
 protected:
  void open(const KvLink::Limits& limits = {.reconnect = 10ms}) {
    link_ = std::make_unique<KvLink>(
        [this]() -> absl::StatusOr<std::unique_ptr<storage::fetch::FetchClient>> {
          if (!fetcher_.is_there) return absl::UnavailableError("nobody listens");
          return std::make_unique<FakeClient>(fetcher_);
        },
        kBlockBytes, commands_, registry_,
        Logger::to_sink("test", LogLevel::kError, [](std::string_view) {}), limits);
    if (fetcher_.is_there) await("millrace_kv_fetcher_connected 1");
  }

  /// Waits until the metrics show that line.
  void await(const std::string& line) {
    for (int i = 0; i < 20000; ++i) {
      if (registry_.exposition().find("\n" + line + "\n") != std::string::npos) return;
      std::this_thread::sleep_for(1ms);
    }
    FAIL() << "never seen: " << line << "\n" << registry_.exposition();
  }

  template <typename What>
  What next_command() {
    for (int i = 0; i < 200; ++i) {
      if (waiting_.empty()) {
        for (Command& command : commands_.pop_all(100ms)) waiting_.push_back(std::move(command));
        continue;
      }
      Command command = std::move(waiting_.front());
      waiting_.pop_front();
      return std::get<What>(std::move(command));
    }
    ADD_FAILURE() << "no command came";
    return {};
  }

  static KvFetchJob job(std::uint64_t request, int blocks, const std::vector<int>& anchors = {}) {
    KvFetchJob job{.request = request, .keys = {}, .windows = {}, .timeout = 1s};
    for (int i = 1; i <= blocks; ++i) job.keys.push_back(key_of(i));
    for (const int anchor : anchors) {
      WindowLocation location{
          .host_id = "h", .address = "", .slot = static_cast<std::uint32_t>(anchor), .bytes = 16};
      job.windows.push_back({.anchor = anchor, .location = location});
    }
    return job;
  }

  void take(KvFetchJob fetch) {
    KvJobs jobs;
    jobs.fetches.push_back(std::move(fetch));
    link_->take(std::move(jobs));
  }

  Fetcher fetcher_;
  CommandQueue commands_{CommandQueueLimits{}};
  Registry registry_;
  std::deque<Command> waiting_;
  std::unique_ptr<KvLink> link_;  // last: ends first
};

TEST_F(KvLinkTest, BringsBlocksAndGivesThemBackWithTheirLastHolder) {
  open();
  take(job(5, 3));
  EXPECT_TRUE(fetcher_.was_asked("fetch 5 3"));
  fetcher_.say(storage::fetch::BlockReady{.request_id = 5, .index = 0, .ref = {11, 1}});
  fetcher_.say(storage::fetch::BlockReady{.request_id = 5, .index = 1, .ref = {12, 1}});
  fetcher_.say(
      storage::fetch::FetchDone{.request_id = 5, .ready_blocks = 2, .end = FetchEnd::kNotFound});
  KvFetched fetched = next_command<KvFetched>();
  EXPECT_EQ(fetched.request, 5u);
  EXPECT_EQ(fetched.blocks, 2);
  EXPECT_FALSE(fetched.window.has_value());
  std::vector<std::byte> part(8);
  EXPECT_TRUE(fetched.source->copy(1, 0, part).ok());
  EXPECT_EQ(part[0], std::byte{12}) << "out of its own slot";
  fetched.source.reset();
  EXPECT_TRUE(fetcher_.was_asked("cancel 5"));
  await("millrace_kv_fetches_total{result=\"not_found\"} 1");
}

TEST_F(KvLinkTest, TriesWindowsInTurnUntilOneCanBeHad) {
  open();
  take(job(6, 3, {384, 256}));
  EXPECT_TRUE(fetcher_.was_asked("get 6 slot 384 key 3"));
  fetcher_.say(
      storage::fetch::FetchDone{.request_id = 6, .ready_blocks = 0, .end = FetchEnd::kNotFound});
  fetcher_.say(storage::fetch::WindowMissed{.request_id = 6, .reason = WindowMiss::kRecycled});
  EXPECT_TRUE(fetcher_.was_asked("get 6 slot 256 key 2"));
  fetcher_.say(storage::fetch::WindowReady{.request_id = 6, .ref = {3, 9}});
  const KvFetched fetched = next_command<KvFetched>();
  ASSERT_TRUE(fetched.window.has_value());
  EXPECT_EQ(fetched.window->anchor, 256);
  EXPECT_EQ(fetched.window->bytes, std::vector<std::byte>(16, std::byte{7}));
  EXPECT_TRUE(fetcher_.was_asked("release_window 6"));
  await("millrace_kv_windows_read_total{result=\"recycled\"} 1");
  await("millrace_kv_windows_read_total{result=\"found\"} 1");
}

TEST_F(KvLinkTest, AnswersAtOnceWithoutAFetcher) {
  fetcher_.is_there = false;
  open();
  take(job(7, 3));
  const KvFetched fetched = next_command<KvFetched>();
  EXPECT_EQ(fetched.request, 7u);
  EXPECT_EQ(fetched.blocks, 0);
  EXPECT_EQ(fetched.source, nullptr);
  KvJobs jobs;
  jobs.seals.push_back({.key = key_of(1), .bytes = std::vector<std::byte>(kBlockBytes)});
  jobs.windows.push_back({.key = key_of(1), .anchor = 128, .bytes = std::vector<std::byte>(16)});
  link_->take(std::move(jobs));
  await("millrace_kv_sealed_blocks_total{result=\"no_fetcher\"} 1");
  await("millrace_kv_windows_kept_total{result=\"no_fetcher\"} 1");
  // It is found when it comes.
  fetcher_.is_there = true;
  await("millrace_kv_fetcher_connected 1");
}

TEST_F(KvLinkTest, AFetcherThatDiesEndsWhatItWasAskedAndIsConnectedAnew) {
  open();
  take(job(8, 3));
  EXPECT_TRUE(fetcher_.was_asked("fetch 8 3"));
  fetcher_.say(storage::fetch::BlockReady{.request_id = 8, .index = 0, .ref = {1, 1}});
  fetcher_.is_there = false;
  fetcher_.die();
  const KvFetched fetched = next_command<KvFetched>();
  EXPECT_EQ(fetched.blocks, 0) << "slots of a fetcher that is gone are nobody's promise";
  await("millrace_kv_fetcher_connected 0");
  {
    std::lock_guard lock(fetcher_.mutex);
    fetcher_.health = absl::OkStatus();
  }
  fetcher_.is_there = true;
  await("millrace_kv_fetcher_connected 1");
  take(job(9, 1));
  EXPECT_TRUE(fetcher_.was_asked("fetch 9 1"));
}

TEST_F(KvLinkTest, ACancelledFetchIsNotAnswered) {
  open();
  take(job(10, 2));
  KvJobs jobs;
  jobs.cancels.push_back(10);
  link_->take(std::move(jobs));
  EXPECT_TRUE(fetcher_.was_asked("cancel 10"));
  fetcher_.say(
      storage::fetch::FetchDone{.request_id = 10, .ready_blocks = 0, .end = FetchEnd::kCancelled});
  take(job(11, 1));
  fetcher_.say(
      storage::fetch::FetchDone{.request_id = 11, .ready_blocks = 0, .end = FetchEnd::kNotFound});
  EXPECT_EQ(next_command<KvFetched>().request, 11u);
}

TEST_F(KvLinkTest, StoresBlocksInSlotsAndDropsWhatDoesNotFit) {
  open({.max_seals = 3, .reconnect = 10ms});
  KvJobs jobs;
  for (int i = 1; i <= 5; ++i) {
    jobs.seals.push_back({.key = key_of(i),
                          .depth = static_cast<std::uint32_t>(i),
                          .bytes = std::vector<std::byte>(kBlockBytes)});
  }
  link_->take(std::move(jobs));
  EXPECT_TRUE(fetcher_.was_asked("reserve 3"));
  await("millrace_kv_sealed_blocks_total{result=\"dropped\"} 2");
  // None is free: asked again. Then more than are needed: given back.
  fetcher_.say(storage::fetch::WriteSlots{.request_id = 0, .slots = {}});
  fetcher_.say(
      storage::fetch::WriteSlots{.request_id = 0, .slots = {{21, 1}, {22, 1}, {23, 1}, {24, 1}}});
  EXPECT_TRUE(fetcher_.was_asked("store 21 key 1 depth 1 bytes 64"));
  EXPECT_TRUE(fetcher_.was_asked("store 23 key 3 depth 3 bytes 64"));
  EXPECT_TRUE(fetcher_.was_asked("return 24"));
  fetcher_.say(storage::fetch::BlockStored{.ref = {21, 1}, .end = StoreEnd::kAlreadyThere});
  await("millrace_kv_sealed_blocks_total{result=\"already_there\"} 1");
  await("millrace_kv_seal_backlog 0");
}

TEST_F(KvLinkTest, TellsWhereAWindowIsKept) {
  open();
  KvJobs jobs;
  for (const int anchor : {128, 256}) {
    jobs.windows.push_back({.stream = 4,
                            .key = key_of(anchor / 128),
                            .anchor = anchor,
                            .bytes = std::vector<std::byte>(16)});
  }
  link_->take(std::move(jobs));
  EXPECT_TRUE(fetcher_.was_asked("put 1 key 1 bytes 16"));
  EXPECT_TRUE(fetcher_.was_asked("put 2 key 2 bytes 16"));
  fetcher_.say(storage::fetch::WindowStored{.request_id = 1, .at = std::nullopt});
  fetcher_.say(storage::fetch::WindowStored{
      .request_id = 2, .at = WindowLocation{.host_id = "h", .address = "a:1", .slot = 5}});
  const WindowStored stored = next_command<WindowStored>();
  EXPECT_EQ(stored.stream, 4u);
  EXPECT_EQ(stored.anchor, 256);
  EXPECT_EQ(stored.key, key_of(2));
  EXPECT_EQ(stored.location.slot, 5u);
  await("millrace_kv_windows_kept_total{result=\"not_kept\"} 1");
}

}  // namespace
}  // namespace millrace::dataplane::worker
