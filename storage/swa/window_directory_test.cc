#include "storage/swa/window_directory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <vector>

#include "common/str_cat.h"

namespace millrace::storage::swa {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

BlockKey key_of(unsigned number) {
  BlockKey key;
  key.bytes[0] = static_cast<std::uint8_t>(number);
  return key;
}

WindowLocation location(std::string host, std::uint64_t incarnation, std::uint32_t slot = 0) {
  return {.host_id = std::move(host),
          .address = "10.0.0.1:7000",
          .incarnation = incarnation,
          .slot = slot,
          .generation = 1,
          .bytes = 100};
}

TimePoint at(std::chrono::nanoseconds time) { return TimePoint(time); }

TEST(WindowDirectory, TheNewestEntryWinsAndLivesForItsTime) {
  WindowDirectory directory({.ttl = seconds(180)});
  directory.put(key_of(1), location("a", 1), at(seconds(0)));
  directory.put(key_of(1), location("b", 5), at(seconds(100)));
  EXPECT_EQ(directory.get(key_of(1), at(seconds(200))), location("b", 5));
  EXPECT_EQ(directory.get(key_of(1), at(seconds(279))), location("b", 5));
  EXPECT_EQ(directory.get(key_of(1), at(seconds(280))), std::nullopt);
  EXPECT_EQ(directory.size(), 0u);
}

TEST(WindowDirectory, AnotherIncarnationOfAHostDropsWhatTheOldOneHad) {
  WindowDirectory directory({});
  directory.put(key_of(1), location("a", 1), at(seconds(0)));
  directory.put(key_of(2), location("b", 1), at(seconds(0)));
  directory.put(key_of(3), location("a", 2), at(seconds(1)));
  EXPECT_EQ(directory.get(key_of(1), at(seconds(1))), std::nullopt);
  EXPECT_EQ(directory.get(key_of(2), at(seconds(1))), location("b", 1));
  EXPECT_EQ(directory.get(key_of(3), at(seconds(1))), location("a", 2));
  // An entry of the old one that comes late changes nothing.
  EXPECT_EQ(directory.put(key_of(4), location("a", 1), at(seconds(2))), DirectoryPut::kStaleOwner);
  EXPECT_EQ(directory.get(key_of(3), at(seconds(2))), location("a", 2));
}

TEST(WindowDirectory, RefusesTextsWithoutBound) {
  WindowDirectory directory({});
  EXPECT_EQ(directory.put(key_of(1), location("", 1), at({})), DirectoryPut::kInvalid);
  EXPECT_EQ(directory.put(key_of(1), location(std::string(65, 'h'), 1), at({})),
            DirectoryPut::kInvalid);
  WindowLocation far = location("a", 1);
  far.address = std::string(257, 'a');
  EXPECT_EQ(directory.put(key_of(1), far, at({})), DirectoryPut::kInvalid);
  EXPECT_EQ(directory.size(), 0u);
}

/// All puts in a list, searched backwards.
class DirectoryOracle {
 public:
  explicit DirectoryOracle(const WindowDirectoryLimits& limits) : limits_(limits) {}

  DirectoryPut put(const BlockKey& key, const WindowLocation& where, TimePoint now) {
    advance(now);
    // The host's pool is the newest one that has an entry; those before it are gone for a while.
    for (const auto& [until, host, incarnation] : gone_) {
      if (now_ < until && host == where.host_id && incarnation == where.incarnation) {
        return DirectoryPut::kStaleOwner;
      }
    }
    bool had_other = false;
    std::uint64_t old = 0;
    std::erase_if(puts_, [&](const Put& put) {
      const bool is_old =
          put.where.host_id == where.host_id && put.where.incarnation != where.incarnation;
      if (is_old) old = put.where.incarnation;
      had_other = had_other || is_old;
      return is_old;
    });
    if (had_other) gone_.emplace_back(now_ + limits_.ttl, where.host_id, old);
    std::erase_if(puts_, [&](const Put& put) { return put.key == key; });
    puts_.push_back({key, where, now_ + limits_.ttl});
    if (puts_.size() > limits_.max_entries) puts_.erase(puts_.begin());
    return DirectoryPut::kStored;
  }
  std::optional<WindowLocation> get(const BlockKey& key, TimePoint now) {
    advance(now);
    for (const Put& put : puts_) {
      if (put.key == key) return put.where;
    }
    return std::nullopt;
  }
  std::size_t size() const { return puts_.size(); }

 private:
  struct Put {
    BlockKey key;
    WindowLocation where;
    TimePoint expires_at{};
  };
  void advance(TimePoint now) {
    now_ = std::max(now_, now);
    std::erase_if(puts_, [&](const Put& put) { return put.expires_at <= now_; });
  }
  const WindowDirectoryLimits limits_;
  TimePoint now_{};
  std::vector<Put> puts_;
  std::vector<std::tuple<TimePoint, std::string, std::uint64_t>> gone_;
};

TEST(WindowDirectoryProperty, DoesWhatTheOracleDoes) {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(str_cat("seed ", seed));
    std::mt19937_64 random(seed);
    const auto below = [&](std::uint64_t bound) { return random() % bound; };
    const WindowDirectoryLimits limits{.max_entries = 1 + below(12), .ttl = milliseconds(500)};
    WindowDirectory directory(limits);
    DirectoryOracle oracle(limits);
    std::int64_t now_ms = 2000;
    for (int step = 0; step < 300; ++step) {
      now_ms += static_cast<std::int64_t>(below(30));
      if (below(60) == 0) now_ms += 700;                                    // a jump ahead
      if (below(20) == 0) now_ms -= static_cast<std::int64_t>(below(400));  // and one back
      const TimePoint now = at(milliseconds(now_ms));
      const BlockKey key = key_of(static_cast<unsigned>(below(16)));
      if (below(2) == 0) {
        const WindowLocation where = location(str_cat("host-", below(3)), below(8) == 0 ? 2 : 1,
                                              static_cast<std::uint32_t>(below(100)));
        ASSERT_EQ(directory.put(key, where, now), oracle.put(key, where, now));
      } else {
        ASSERT_EQ(directory.get(key, now), oracle.get(key, now));
      }
      ASSERT_EQ(directory.size(), oracle.size());
      ASSERT_LE(directory.size(), limits.max_entries);
    }
  }
}

TEST(WindowDirectory, RemembersABoundedNumberOfOwnersThatAreGone) {
  WindowDirectory directory({.max_gone_owners = 2});
  for (std::uint64_t incarnation = 1; incarnation <= 4; ++incarnation) {
    directory.put(key_of(1), location("a", incarnation), at({}));
  }
  EXPECT_EQ(directory.put(key_of(1), location("a", 3), at({})), DirectoryPut::kStaleOwner);
  EXPECT_EQ(directory.put(key_of(1), location("a", 2), at({})), DirectoryPut::kStaleOwner);
  EXPECT_EQ(directory.put(key_of(1), location("a", 1), at({})), DirectoryPut::kStored);
}

}  // namespace
}  // namespace millrace::storage::swa
