// Power cuts at every kind of moment. What was not synced is lost, kept or torn, page by page, in
// the slots and in RocksDB's own files. A failure prints its seed, which replays it:
// storage_node_test --gtest_filter='Crash*'

#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <set>

#include "common/str_cat.h"
#include "storage/node/group_rig.h"

namespace millrace::storage::node {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// What may be known of one key of one target.
struct Known {
  std::optional<Generation> acknowledged;  ///< its publication was
  std::set<Generation> tried;              ///< publications that were asked for
  bool may_be_gone = false;                ///< a drop was asked for, or a replacement
};

/// Random work on one target until its power goes.
class TargetWork {
 public:
  TargetWork(TargetRig& rig, std::uint64_t seed)
      : rig_(rig), random_(seed), next_generation_(random_() >> 20) {}

  void run_until_power_cut() {
    while (!rig_.disk().is_cut()) {
      for (std::uint64_t i = 0; i < random_() % 4; ++i) act();
      rig_.advance(milliseconds(random_() % 40));
      rig_.turn(random_() % 6);
    }
  }

  /// After the restart: nothing torn or unpublished shows, nothing acknowledged is missing.
  void check() {
    for (std::uint64_t key = 0; key < kKeys; ++key) {
      Known& known = known_[key];
      const ShardReply read = rig_.ask(ReadShard{test_key(key)});
      if (read.result == ShardResult::kOk) {
        EXPECT_TRUE(known.tried.count(read.generation) > 0 || known.acknowledged == read.generation)
            << "key " << key << " shows generation " << read.generation;
        EXPECT_EQ(read.shard, sealed_shard({.key = key, .generation = read.generation}));
        known = {};
        known.acknowledged = read.generation;
      } else {
        EXPECT_EQ(read.result, ShardResult::kNotFound) << shard_result_name(read.result);
        EXPECT_TRUE(!known.acknowledged || known.may_be_gone) << "key " << key << " is missing";
        known = {};
      }
    }
  }

 private:
  static constexpr std::uint64_t kKeys = 12;

  void act() {
    const std::uint64_t key = random_() % kKeys;
    switch (random_() % 8) {
      case 0:
      case 1:
      case 2:
        write(key);
        break;
      case 3:
        drop(key);
        break;
      case 4:
        rebuild(key);
        break;
      case 5:
        rig_.target().handle(
            TouchKeys{{test_key(key)}, TtlClass::kAgent}, [](const ShardReply&) {}, rig_.now());
        break;
      default:
        read(key);
    }
  }

  void write(std::uint64_t key) {
    const Generation generation = ++next_generation_;
    rig_.target().handle(
        WriteShard{sealed_shard({.key = key, .generation = generation})},
        [this, key, generation](const ShardReply& written) {
          if (written.result != ShardResult::kOk || rig_.disk().is_cut()) return;
          if (random_() % 4 == 0) return;  // the writer dies: stays pending
          known_[key].tried.insert(generation);
          rig_.target().handle(
              PublishShard{test_key(key), generation},
              [this, key, generation](const ShardReply& published) {
                if (published.result == ShardResult::kOk) acknowledge(key, generation);
              },
              rig_.now());
        },
        rig_.now());
  }

  void acknowledge(std::uint64_t key, Generation generation) {
    Known& known = known_[key];
    known.acknowledged = generation;
    known.may_be_gone = drops_in_flight_[key] > 0;
  }

  void drop(std::uint64_t key) {
    known_[key].may_be_gone = true;
    ++drops_in_flight_[key];
    rig_.target().handle(
        DropShard{test_key(key), 0}, [this, key](const ShardReply&) { --drops_in_flight_[key]; },
        rig_.now());
  }

  void rebuild(std::uint64_t key) {
    const Generation generation = ++next_generation_;
    if (!rig_.target().begin_rebuild(test_key(key), generation)) return;
    known_[key].tried.insert(generation);
    rig_.target().store_rebuilt(
        sealed_shard({.key = key, .generation = generation}), 0,
        [this, key, generation](const ShardReply& stored) {
          if (stored.result == ShardResult::kOk) acknowledge(key, generation);
        },
        rig_.now());
  }

  void read(std::uint64_t key) {
    rig_.target().handle(
        ReadShard{test_key(key)},
        [key](const ShardReply& reply) {
          if (reply.result == ShardResult::kOk) {
            EXPECT_EQ(reply.shard, sealed_shard({.key = key, .generation = reply.generation}));
          }
          EXPECT_NE(reply.result, ShardResult::kBadShard);
        },
        rig_.now());
  }

  TargetRig& rig_;
  std::mt19937_64 random_;
  Generation next_generation_;  // no two lives have the same
  std::map<std::uint64_t, Known> known_;
  std::map<std::uint64_t, int> drops_in_flight_;
};

TEST(CrashSweep, OfOneTargetOverWritesPublicationsDropsReplacementsAndSlotReuse) {
  int points = 0;
  for (std::uint64_t seed = 1; seed <= 70; ++seed) {
    SCOPED_TRACE(str_cat("seed ", seed));
    TargetRig rig({.seed = seed,
                   .slots = 10,
                   .on_rocks = true,
                   .settings = {.slot_grace = milliseconds(50)}});
    std::mt19937_64 random(seed);
    for (int life = 0; life < 4; ++life) {
      TargetWork work(rig, random());
      // What earlier lives left is read back first, so that it is known.
      for (std::uint64_t key = 0; key < 12; ++key) rig.ask(DropShard{test_key(key), 0});
      rig.disk().cut_power_after(1 + random() % 250);
      work.run_until_power_cut();
      ++points;
      rig.disk().restart();
      const absl::Status opened = rig.open();
      ASSERT_TRUE(opened.ok()) << opened;
      work.check();
      if (testing::Test::HasFailure()) return;
    }
  }
  std::printf("crash points of one target: %d\n", points);
  EXPECT_GE(points, 200);
}

/// The whole group: blocks are written, evicted and read while members lose power, leave, come
/// back, and come back empty.
class GroupWork {
 public:
  explicit GroupWork(std::uint64_t seed)
      : rig_({.seed = seed,
              .slots = 24,
              .on_rocks = true,
              .settings = {.slot_grace = milliseconds(60),
                           .pending_timeout = milliseconds(500),
                           .watermarks = {.start = 0.8, .stop = 0.6, .emergency = 1.0},
                           .gc_interval = milliseconds(20),
                           .list_page = 5,
                           .peer_timeout = milliseconds(100)}}),
        random_(seed) {}

  void run(int steps) {
    for (int i = 0; i < steps; ++i) step();
    settle();
  }

  /// Every block whose write was acknowledged can be read, unless somebody was told to drop it.
  void check() {
    for (const std::uint64_t key : acknowledged_) {
      const bool is_good = rig_.read_block(key) == GroupRig::Read::kGood;
      EXPECT_TRUE(is_good || rig_.dropped().count(test_key(key)) > 0) << "block " << key;
    }
    EXPECT_EQ(rig_.wrong(), std::vector<std::string>());
  }

  std::uint64_t power_cuts() const { return rig_.power_cuts(); }
  std::uint64_t rebuilt() const {
    return static_cast<std::uint64_t>(rig_.metrics().rebuilds.with({"rebuilt"}).value());
  }
  std::size_t evicted() const { return rig_.dropped().size(); }

 private:
  void step() {
    const std::size_t member = random_() % GroupRig::kMembers;
    switch (random_() % 9) {
      case 0:
        rig_.disk(member).cut_power_after(1 + random_() % 60);
        break;
      case 1:
        if (!away_) leave(member);
        break;
      case 2:
        if (away_ && !is_back_) come_back();
        break;
      case 3:
        rig_.read_block(1 + random_() % (next_key_ + 1));
        break;
      default:
        if (const std::uint64_t key = ++next_key_; rig_.write_block(key, 1000 + key))
          acknowledged_.push_back(key);
    }
    rig_.turns(static_cast<int>(random_() % 20), milliseconds(5));
    if (away_ && is_back_ && is_rebuilt(*away_)) arrive();
  }

  void leave(std::size_t member) {
    away_ = member;
    is_back_ = false;
    rig_.stop(member);
    if (random_() % 4 != 0) rig_.set_state(member, MemberState::kDown);
  }

  void come_back() {
    is_back_ = true;
    rig_.set_state(*away_, MemberState::kRebuilding);
    rig_.start(*away_, random_() % 2 == 0);
  }

  bool is_rebuilt(std::size_t member) {
    return rig_.is_running(member) &&
           rig_.host(member).status(rig_.now()).rebuild.complete_at_epoch == rig_.map().epoch;
  }

  void arrive() {
    rig_.set_state(*away_, MemberState::kUp);
    away_.reset();
  }

  void settle() {
    if (away_ && !is_back_) come_back();
    for (int i = 0; i < 5000 && away_; ++i) {
      rig_.turn(milliseconds(10));
      if (is_rebuilt(*away_)) arrive();
    }
    EXPECT_FALSE(away_) << "the rebuild ends";
    rig_.turns(400, milliseconds(10));
  }

  GroupRig rig_;
  std::mt19937_64 random_;
  std::uint64_t next_key_ = 0;
  std::vector<std::uint64_t> acknowledged_;
  std::optional<std::size_t> away_;
  bool is_back_ = false;
};

TEST(CrashSweep, OfAGroupOverGcRebuildAndChangesOfTheMap) {
  std::uint64_t power_cuts = 0;
  std::uint64_t rebuilt = 0;
  std::size_t evicted = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(str_cat("seed ", seed));
    GroupWork work(seed);
    work.run(60);
    work.check();
    power_cuts += work.power_cuts();
    rebuilt += work.rebuilt();
    evicted += work.evicted();
    if (testing::Test::HasFailure()) return;
  }
  std::printf("crash points of a group: %llu, shards rebuilt: %llu, blocks dropped: %zu\n",
              static_cast<unsigned long long>(power_cuts), static_cast<unsigned long long>(rebuilt),
              evicted);
  EXPECT_GE(power_cuts, 100U);
  EXPECT_GE(rebuilt, 100U);
}

}  // namespace
}  // namespace millrace::storage::node
