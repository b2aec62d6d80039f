#include "storage/node/peers.h"

#include <utility>

namespace millrace::storage::node {

std::vector<std::uint8_t> GroupView::live_others() const {
  std::vector<std::uint8_t> live;
  live.reserve(group.members.size());
  for (std::size_t i = 0; i < group.members.size(); ++i) {
    if (i != own_index && group.members[i].state != MemberState::kDown)
      live.push_back(static_cast<std::uint8_t>(i));
  }
  return live;
}

std::optional<GroupView> group_view(const StorageMap& map, std::string_view target_id) {
  const std::optional<StorageMap::Place> place = map.place_of(target_id);
  if (!place) return std::nullopt;
  for (const Group& group : map.groups) {
    if (group.id != place->group_id) continue;
    return GroupView{.epoch = map.epoch,
                     .group = group,
                     .own_index = place->shard_index,
                     .data_shards = map.data_shards,
                     .parity_shards = map.parity_shards};
  }
  return std::nullopt;
}

void PeerCalls::ask(const std::string& target_id, ShardOperation operation, ShardReplyCallback done,
                    TimePoint now) {
  if (calls_.size() >= capacity_) {
    refused_.push_back(std::move(done));
    return;
  }
  const std::uint64_t id = next_id_++;
  calls_.emplace(id, std::move(done));
  deadlines_.push_back({now + timeout_, id});
  link_.send(target_id, std::move(operation), id);
}

void PeerCalls::on_reply(std::uint64_t call_id, ShardReply reply) {
  const auto found = calls_.find(call_id);
  if (found == calls_.end()) return;
  const ShardReplyCallback done = std::move(found->second);
  calls_.erase(found);
  done(std::move(reply));
}

void PeerCalls::expire(TimePoint now) {
  for (const ShardReplyCallback& done : std::exchange(refused_, {})) {
    ShardReply reply;
    reply.result = ShardResult::kBusy;
    done(std::move(reply));
  }
  while (!deadlines_.empty() && deadlines_.front().at <= now) {
    const std::uint64_t id = deadlines_.front().call_id;
    deadlines_.pop_front();
    on_reply(id, ShardReply{});
  }
}

}  // namespace millrace::storage::node
