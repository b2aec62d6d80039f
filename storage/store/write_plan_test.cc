#include "storage/store/write_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <random>

namespace millrace::storage::store {
namespace {

constexpr MemberMask bit(int member) { return MemberMask{1} << member; }

Group group_of(int members, MemberMask down = 0) {
  Group group{.id = 1, .members = {}};
  for (int i = 0; i < members; ++i) {
    group.members.push_back(
        {.target_id = std::to_string(i),
         .state = (down >> i & 1) != 0 ? MemberState::kDown : MemberState::kUp});
  }
  return group;
}

const TimePoint kStart{std::chrono::hours(1)};

WriteStep reply(WritePlan& plan, int member, ShardResult result) {
  return plan.on_reply(member, result, 0, false, kStart);
}

TEST(WritePlan, QuorumIsAllButOneUntilTheMapSaysThatMAreDown) {
  EXPECT_EQ(write_quorum(group_of(12), 10, 2), 11);
  EXPECT_EQ(write_quorum(group_of(12, bit(3)), 10, 2), 11);
  EXPECT_EQ(write_quorum(group_of(12, bit(3) | bit(4)), 10, 2), 10);
  EXPECT_EQ(write_quorum(group_of(12, bit(3) | bit(4) | bit(5)), 10, 2), 10);
  EXPECT_EQ(write_quorum(group_of(3), 2, 1), 2);
  EXPECT_EQ(write_quorum(group_of(4), 4, 0), 4);
  EXPECT_EQ(write_quorum(group_of(16), 12, 4), 15);
}

TEST(WritePlan, PublishesAtElevenAndIsStoredAtElevenPublished) {
  WritePlan plan(group_of(12), 10, 2, 5);
  EXPECT_EQ(plan.start().write, 0xfffU);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(reply(plan, i, ShardResult::kOk).publish, 0U);
  EXPECT_EQ(reply(plan, 10, ShardResult::kOk).publish, 0x7ffU);
  for (int i = 0; i < 10; ++i) {
    reply(plan, i, ShardResult::kOk);
    EXPECT_FALSE(plan.outcome().has_value());
  }
  reply(plan, 10, ShardResult::kOk);
  EXPECT_EQ(plan.outcome(), WriteOutcome::kStored);
  EXPECT_FALSE(plan.is_settled());
  EXPECT_EQ(reply(plan, 11, ShardResult::kOk).publish, bit(11)) << "who follows is published too";
  reply(plan, 11, ShardResult::kOk);
  EXPECT_TRUE(plan.is_settled());
}

TEST(WritePlan, WhoFailedIsRepairedOnceTheBlockIsStored) {
  WritePlan plan(group_of(12), 10, 2, 5);
  plan.start();
  EXPECT_EQ(reply(plan, 4, ShardResult::kFull).repair, 0U);
  WriteStep step;
  for (int i = 0; i < 12; ++i)
    if (i != 4) reply(plan, i, ShardResult::kOk);
  for (int i = 0; i < 12; ++i)
    if (i != 4) step = reply(plan, i, ShardResult::kOk);
  EXPECT_EQ(plan.outcome(), WriteOutcome::kStored);
  EXPECT_EQ(step.repair, bit(4));
  EXPECT_TRUE(plan.is_settled());
}

TEST(WritePlan, WithoutAQuorumWhatIsStoredIsDropped) {
  WritePlan plan(group_of(12), 10, 2, 5);
  plan.start();
  for (int i = 0; i < 5; ++i) reply(plan, i, ShardResult::kOk);
  reply(plan, 5, ShardResult::kFull);
  const WriteStep step = reply(plan, 6, ShardResult::kUnavailable);
  EXPECT_EQ(plan.outcome(), WriteOutcome::kTooFewShards);
  EXPECT_EQ(step.drop, 0x1fU | bit(6)) << "and what may be stored";
  EXPECT_EQ(reply(plan, 7, ShardResult::kOk).drop, bit(7));
  EXPECT_EQ(reply(plan, 8, ShardResult::kFull).drop, 0U);
}

TEST(WritePlan, AMapWithTooFewMembersIsRefusedAtOnce) {
  WritePlan plan(group_of(12, bit(0) | bit(1) | bit(2)), 10, 2, 5);
  EXPECT_EQ(plan.start().write, 0U);
  EXPECT_EQ(plan.outcome(), WriteOutcome::kTooFewMembers);
  EXPECT_TRUE(plan.is_settled());
  WritePlan degraded(group_of(12, bit(0) | bit(1)), 10, 2, 5);
  EXPECT_EQ(degraded.start().write, 0xffcU);
}

TEST(WritePlan, ThePublishedBlockOfAnotherIsAlreadyThere) {
  WritePlan plan(group_of(12), 10, 2, 5);
  plan.start();
  plan.on_reply(0, ShardResult::kExists, 9, true, kStart);
  EXPECT_FALSE(plan.outcome().has_value()) << "one may be left over from a dead stripe";
  plan.on_reply(1, ShardResult::kExists, 9, true, kStart);
  EXPECT_EQ(plan.outcome(), WriteOutcome::kAlreadyThere);
}

TEST(WritePlan, OneLeftoverOfADeadStripeDoesNotStopAWrite) {
  WritePlan plan(group_of(12), 10, 2, 5);
  plan.start();
  plan.on_reply(3, ShardResult::kExists, 9, true, kStart);
  WriteStep step;
  for (int round = 0; round < 2; ++round)
    for (int i = 0; i < 12; ++i)
      if (i != 3) step = reply(plan, i, ShardResult::kOk);
  EXPECT_EQ(plan.outcome(), WriteOutcome::kStored);
  EXPECT_EQ(step.repair, bit(3));
}

TEST(WritePlan, TheLowerGenerationGivesUpAtOnceTheHigherTriesAgain) {
  WritePlan lower(group_of(12), 10, 2, 5);
  lower.start();
  reply(lower, 0, ShardResult::kOk);
  EXPECT_EQ(lower.on_reply(1, ShardResult::kExists, 9, false, kStart).drop, bit(0));
  EXPECT_EQ(lower.outcome(), WriteOutcome::kLostRace);

  WritePlan higher(group_of(12), 10, 2, 9);
  higher.start();
  higher.on_reply(0, ShardResult::kExists, 5, false, kStart);
  EXPECT_FALSE(higher.outcome().has_value());
  ASSERT_TRUE(higher.next_retry().has_value());
  EXPECT_EQ(*higher.next_retry(), kStart + std::chrono::milliseconds(5));
  EXPECT_EQ(higher.on_timer(kStart + std::chrono::milliseconds(4)).write, 0U);
  EXPECT_EQ(higher.on_timer(kStart + std::chrono::milliseconds(5)).write, bit(0));
}

TEST(WritePlan, RetriesAreBounded) {
  WritePlan plan(group_of(3), 2, 1, 9);
  plan.start();
  reply(plan, 0, ShardResult::kOk);
  TimePoint now = kStart;
  int tries = 0;
  plan.on_reply(1, ShardResult::kExists, 5, false, now);
  plan.on_reply(2, ShardResult::kFull, 0, false, now);
  while (!plan.outcome()) {
    ASSERT_LT(++tries, 20);
    now = *plan.next_retry();
    ASSERT_EQ(plan.on_timer(now).write, bit(1));
    plan.on_reply(1, ShardResult::kExists, 5, false, now);
  }
  EXPECT_EQ(tries, 5);
  EXPECT_EQ(plan.outcome(), WriteOutcome::kLostRace);
  EXPECT_LT(now - kStart, std::chrono::milliseconds(200));
}

TEST(WritePlan, ADeadlineBeforeTheQuorumDropsAndAfterItIsUnconfirmed) {
  WritePlan early(group_of(3), 2, 1, 9);
  early.start();
  reply(early, 0, ShardResult::kOk);
  EXPECT_EQ(early.on_deadline().drop, bit(0));
  EXPECT_EQ(early.outcome(), WriteOutcome::kDeadline);
  EXPECT_EQ(reply(early, 1, ShardResult::kOk).drop, bit(1));

  WritePlan late(group_of(3), 2, 1, 9);
  late.start();
  reply(late, 0, ShardResult::kOk);
  reply(late, 1, ShardResult::kOk);
  EXPECT_EQ(late.on_deadline().drop, 0U) << "someone may have published";
  EXPECT_EQ(late.outcome(), WriteOutcome::kUnconfirmed);
}

TEST(WritePlan, ALostPublicationIsRepeated) {
  WritePlan plan(group_of(3), 2, 1, 9);
  plan.start();
  for (int i = 0; i < 3; ++i) reply(plan, i, ShardResult::kOk);
  reply(plan, 0, ShardResult::kUnavailable);
  reply(plan, 1, ShardResult::kBusy);
  reply(plan, 2, ShardResult::kOk);
  EXPECT_FALSE(plan.outcome().has_value());
  EXPECT_EQ(plan.on_timer(kStart + std::chrono::milliseconds(5)).publish, bit(0) | bit(1));
  reply(plan, 0, ShardResult::kOk);
  EXPECT_EQ(plan.outcome(), WriteOutcome::kStored);
}

/// Two writers of one block and the members between them. Each message is delivered, processed and
/// answered in one step, so that an order of steps is an interleaving.
class Race {
 public:
  Race(int k, int m, Generation first, Generation second)
      : members_(k + m),
        writers_{Writer(group_of(k + m), k, m, first), Writer(group_of(k + m), k, m, second)} {
    for (Writer& writer : writers_) writer.pending = writer.plan.start();
  }

  enum class Kind { kWrite, kPublish, kDrop };
  struct Message {
    int writer;
    int member;
    Kind kind;
    bool operator==(const Message&) const = default;
  };

  std::vector<Message> deliverable() const {
    std::vector<Message> messages;
    for (int w = 0; w < 2; ++w) {
      const WriteStep& pending = writers_[static_cast<std::size_t>(w)].pending;
      for (int i = 0; i < members_; ++i) {
        if ((pending.write >> i & 1) != 0) messages.push_back({w, i, Kind::kWrite});
        if ((pending.publish >> i & 1) != 0) messages.push_back({w, i, Kind::kPublish});
        if ((pending.drop >> i & 1) != 0) messages.push_back({w, i, Kind::kDrop});
      }
    }
    return messages;
  }

  void deliver(const Message& message) {
    Writer& writer = writers_[static_cast<std::size_t>(message.writer)];
    Shard& shard = shards_[static_cast<std::size_t>(message.member)];
    const Generation generation = writer.plan.generation();
    const MemberMask self = bit(message.member);
    switch (message.kind) {
      case Kind::kWrite: {
        writer.pending.write &= ~self;
        if (shard.generation != 0) {
          writer.take(writer.plan.on_reply(message.member, ShardResult::kExists, shard.generation,
                                           shard.is_published, now_));
          break;
        }
        shard.generation = generation;
        writer.take(writer.plan.on_reply(message.member, ShardResult::kOk, 0, false, now_));
        break;
      }
      case Kind::kPublish: {
        writer.pending.publish &= ~self;
        ASSERT_EQ(shard.generation, generation) << "a shard was replaced or dropped";
        shard.is_published = true;
        writer.take(writer.plan.on_reply(message.member, ShardResult::kOk, 0, false, now_));
        break;
      }
      case Kind::kDrop: {
        writer.pending.drop &= ~self;
        ASSERT_FALSE(shard.generation == generation && shard.is_published);
        if (shard.generation == generation) shard = {};
        break;
      }
    }
    check();
  }

  /// Lets time pass for who waits. False: nobody does.
  bool pass_time() {
    std::optional<TimePoint> next;
    for (const Writer& writer : writers_) {
      const auto retry = writer.plan.next_retry();
      if (retry && (!next || *retry < *next)) next = retry;
    }
    if (!next) return false;
    now_ = *next;
    for (Writer& writer : writers_) writer.take(writer.plan.on_timer(now_));
    return true;
  }

  /// Everything, in an order drawn from a seed.
  void finish(std::mt19937& random) {
    for (int step = 0; step < 1000; ++step) {
      const std::vector<Message> messages = deliverable();
      if (messages.empty() && !pass_time()) return;
      if (!messages.empty()) deliver(messages[random() % messages.size()]);
    }
    FAIL() << "no end";
  }

  void expect_one_winner() const {
    int stored = 0;
    for (const Writer& writer : writers_) {
      ASSERT_TRUE(writer.plan.is_settled());
      if (writer.plan.outcome() != WriteOutcome::kStored) continue;
      ++stored;
      int published = 0;
      for (int i = 0; i < members_; ++i) {
        const Shard& shard = shards_[static_cast<std::size_t>(i)];
        if (shard.generation == writer.plan.generation() && shard.is_published) ++published;
      }
      EXPECT_GE(published, members_ - 1);
    }
    EXPECT_EQ(stored, 1);
  }

 private:
  struct Writer {
    Writer(const Group& group, int k, int m, Generation generation)
        : plan(group, k, m, generation) {}
    void take(const WriteStep& step) {
      pending.write |= step.write;
      pending.publish |= step.publish;
      pending.drop |= step.drop;
    }
    WritePlan plan;
    WriteStep pending;
  };
  struct Shard {
    Generation generation = 0;
    bool is_published = false;
  };

  void check() const {
    Generation published = 0;
    for (const Shard& shard : shards_) {
      if (!shard.is_published) continue;
      ASSERT_TRUE(published == 0 || published == shard.generation) << "two blocks of one name";
      published = shard.generation;
    }
  }

  const int members_;
  std::array<Writer, 2> writers_;
  std::array<Shard, 8> shards_{};
  TimePoint now_ = kStart;
};

/// All orders in which the first messages of both writers can arrive; what follows from them in
/// orders drawn from seeds.
void race_in_all_orders(int k, int m, int seeds) {
  const int n = k + m;
  std::vector<int> order(static_cast<std::size_t>(2 * n));
  std::iota(order.begin(), order.end(), 0);
  std::uint32_t seed = 0;
  do {
    for (int round = 0; round < seeds; ++round) {
      std::mt19937 random(++seed);
      Race race(k, m, round % 2 == 0 ? 5 : 9, round % 2 == 0 ? 9 : 5);
      for (const int number : order) {
        const Race::Message first{number / n, number % n, Race::Kind::kWrite};
        // Whoever has given up or been answered meanwhile has sent it nevertheless.
        race.deliver(first);
        if (random() % 3 != 0) continue;
        // Now and then what follows overtakes.
        for (const Race::Message& message : race.deliverable()) {
          if (message.kind == Race::Kind::kWrite || random() % 2 == 0) continue;
          race.deliver(message);
          break;
        }
      }
      race.finish(random);
      race.expect_one_winner();
      if (::testing::Test::HasFailure()) FAIL() << "seed " << seed;
    }
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(WritePlan, TwoWritersOfTwoPlusOneInEveryOrderHaveOneWinner) { race_in_all_orders(2, 1, 60); }

TEST(WritePlan, TwoWritersOfTwoPlusTwoInEveryOrderHaveOneWinner) { race_in_all_orders(2, 2, 1); }

TEST(WritePlan, TwoWritersOfThreePlusOneInEveryOrderHaveOneWinner) { race_in_all_orders(3, 1, 2); }

}  // namespace
}  // namespace millrace::storage::store
