#include "storage/node/pending_resolver.h"

#include <memory>

namespace millrace::storage::node {
namespace {

constexpr std::size_t kMaxInquiries = 64;
constexpr auto kLookInterval = std::chrono::milliseconds(100);

}  // namespace

struct PendingResolver::Inquiry {
  BlockKey key;
  Generation generation = 0;
  int others = 0;
  int asked = 0;
  int parity_shards = 0;
  int outstanding = 0;
  int answered = 0;
  int published = 0;
};

PendingVerdict judge_pending(int others, int asked, int answered, int published,
                             int parity_shards) {
  if (published > 0) return PendingVerdict::kPublish;
  if (answered == asked && others - answered <= parity_shards) return PendingVerdict::kDrop;
  return PendingVerdict::kWait;
}

const ListedShard* listed_as(const ShardReply& reply, const BlockKey& key) {
  if (reply.listed.empty() || reply.listed.front().key != key) return nullptr;
  return &reply.listed.front();
}

ListShards list_exactly(const BlockKey& key) {
  const std::optional<BlockKey> before = key_before(key);
  return {.after = before.value_or(BlockKey()), .from_start = !before.has_value(), .limit = 1};
}

void PendingResolver::step(const GroupView& view, TimePoint now) {
  if (now < next_look_) return;
  next_look_ = now + kLookInterval;
  for (const auto& [key, pending] : target_.pending()) {
    if (asked_.size() >= kMaxInquiries) return;
    if (now - pending.since >= settings_.pending_timeout && asked_.count(key) == 0)
      ask(view, key, pending.generation, now);
  }
}

void PendingResolver::ask(const GroupView& view, const BlockKey& key, Generation generation,
                          TimePoint now) {
  const std::vector<std::uint8_t> live = view.live_others();
  asked_.insert(key);
  auto inquiry = std::make_shared<Inquiry>();
  inquiry->key = key;
  inquiry->generation = generation;
  inquiry->others = static_cast<int>(view.group.members.size()) - 1;
  inquiry->asked = static_cast<int>(live.size());
  inquiry->parity_shards = view.parity_shards;
  inquiry->outstanding = inquiry->asked;
  for (const std::uint8_t member : live) {
    peers_.ask(
        view.group.members[member].target_id, list_exactly(key),
        [this, inquiry, now](const ShardReply& reply) {
          if (reply.result == ShardResult::kOk) {
            ++inquiry->answered;
            const ListedShard* const listed = listed_as(reply, inquiry->key);
            if (listed != nullptr && listed->is_published &&
                listed->generation == inquiry->generation)
              ++inquiry->published;
          }
          if (--inquiry->outstanding == 0) conclude(*inquiry, now);
        },
        now);
  }
  if (live.empty()) conclude(*inquiry, now);
}

void PendingResolver::conclude(const Inquiry& inquiry, TimePoint now) {
  asked_.erase(inquiry.key);
  // Not again at once: the verdict is committed at the end of this turn, if that succeeds.
  target_.postpone_pending(inquiry.key);
  const auto nothing = [](const ShardReply&) {};
  switch (judge_pending(inquiry.others, inquiry.asked, inquiry.answered, inquiry.published,
                        inquiry.parity_shards)) {
    case PendingVerdict::kPublish:
      metrics_.pending.with({"publish"}).add();
      target_.handle(PublishShard{inquiry.key, inquiry.generation}, nothing, now);
      break;
    case PendingVerdict::kDrop:
      metrics_.pending.with({"drop"}).add();
      target_.handle(DropShard{inquiry.key, inquiry.generation}, nothing, now);
      break;
    case PendingVerdict::kWait:
      break;
  }
}

}  // namespace millrace::storage::node
