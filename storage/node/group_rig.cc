#include "storage/node/group_rig.h"

#include <algorithm>

#include "common/str_cat.h"

namespace millrace::storage::node {
namespace {

constexpr int kMaxTurnsPerRequest = 4000;  // longer than a peer's timeout

std::vector<std::string> target_ids(std::size_t count) {
  std::vector<std::string> ids;
  ids.reserve(count);
  for (std::size_t i = 0; i < count; ++i) ids.push_back(str_cat("t", i));
  return ids;
}

}  // namespace

struct GroupRig::Link final : PeerLink {
  Link(GroupRig& rig_, std::size_t from_) : rig(rig_), from(from_) {}
  void send(const std::string& target_id, ShardOperation operation, std::uint64_t call_id) override;
  GroupRig& rig;
  const std::size_t from;
};

struct GroupRig::Node {
  std::size_t number = 0;
  std::uint64_t life = 0;
  std::unique_ptr<disk::SimulatedDisk> disk;
  std::unique_ptr<Link> link;
  std::unique_ptr<disk::SimulatedSlotIo> io;
  std::unique_ptr<index::ShardIndex> index;
  std::unique_ptr<TargetHost> host;
};

void GroupRig::Link::send(const std::string& target_id, ShardOperation operation,
                          std::uint64_t call_id) {
  if (const auto* drop = std::get_if<DropShard>(&operation)) rig.dropped_.insert(drop->key);
  const std::uint64_t life = rig.nodes_[from]->life;
  rig.send(rig.index_of(target_id), std::move(operation), [this, life, call_id](ShardReply reply) {
    rig.messages_.push_back({from, life, [call_id, reply = std::move(reply)](Node& node) {
                               node.host->on_peer_reply(call_id, reply);
                             }});
  });
}

GroupRig::GroupRig(const Options& options)
    : options_(options),
      random_(options.seed),
      metrics_(registry_, target_ids(kMembers + options.spares)),
      codec_(ec::Codec::make(kTestDataShards, kTestParityShards).value()) {
  map_.cluster_id = std::string("c");
  map_.epoch = 1;
  map_.data_shards = kTestDataShards;
  map_.parity_shards = kTestParityShards;
  map_.block_bytes = kTestBlockBytes;
  Group group;
  for (const std::string& id : target_ids(kMembers + options.spares)) {
    map_.nodes.push_back({.id = str_cat("n-", id), .address = str_cat(id, ":1")});
    map_.targets.push_back({.id = id, .node_id = str_cat("n-", id)});
    if (group.members.size() < kMembers) group.members.push_back({.target_id = id});
  }
  map_.groups.push_back(group);
  for (std::size_t i = 0; i < map_.targets.size(); ++i) {
    auto node = std::make_unique<Node>();
    node->number = i;
    node->link = std::make_unique<Link>(*this, i);
    nodes_.push_back(std::move(node));
    start(i, true);
  }
}

GroupRig::~GroupRig() = default;

TargetHost& GroupRig::host(std::size_t member) { return *nodes_[member]->host; }

bool GroupRig::is_running(std::size_t member) const { return nodes_[member]->host != nullptr; }

disk::SimulatedDisk& GroupRig::disk(std::size_t member) { return *nodes_[member]->disk; }

index::ShardIndex& GroupRig::index(std::size_t member) { return *nodes_[member]->index; }

void GroupRig::close(Node& node) {
  ++node.life;
  node.host.reset();
  node.io.reset();
  if (options_.on_rocks) node.index.reset();
}

void GroupRig::open(Node& node) {
  while (!try_open(node)) {
    if (!node.disk->is_cut()) return;  // `wrong_` says why
    ++power_cuts_;                     // again, while it was starting
    close(node);
    node.disk->restart();
  }
}

bool GroupRig::try_open(Node& node) {
  const index::TargetIdentity identity = {
      .cluster_id = "c",
      .target_id = map_.targets[node.number].id,
      .slot_bytes = static_cast<std::uint32_t>(slot_bytes_for(kTestBlockBytes, kTestDataShards)),
      .slot_count = options_.slots};
  node.io = std::make_unique<disk::SimulatedSlotIo>(*node.disk, "/disk/slots",
                                                    identity.slot_count * identity.slot_bytes,
                                                    options_.settings.queue_depth, random_());
  if (options_.on_rocks) {
    auto opened =
        index::open_rocks_index({.path = "/disk/index",
                                 .identity = identity,
                                 .write_buffer_bytes = 64 << 10,
                                 .file_system = index::make_simulated_file_system(*node.disk)});
    if (!opened.ok()) {
      if (!node.disk->is_cut())
        wrong_.push_back(str_cat("index does not open: ", message_of(opened.status())));
      return false;
    }
    node.index = std::move(*opened);
  } else if (node.index == nullptr) {
    node.index = index::make_memory_index(identity);
  }
  auto target = Target::open(options_.settings, *node.io, *node.index, metrics_, now_);
  if (!target.ok()) {
    if (!node.disk->is_cut())
      wrong_.push_back(str_cat("target does not open: ", message_of(target.status())));
    return false;
  }
  node.host = std::make_unique<TargetHost>(std::move(*target), options_.settings, *node.link,
                                           metrics_, now_);
  node.host->set_map(map_);
  return true;
}

void GroupRig::stop(std::size_t member) { close(*nodes_[member]); }

void GroupRig::start(std::size_t member, bool on_empty_disk) {
  Node& node = *nodes_[member];
  if (on_empty_disk) {
    node.index.reset();
    node.disk = std::make_unique<disk::SimulatedDisk>(random_());
  }
  open(node);
}

void GroupRig::change_map(const std::function<void(StorageMap&)>& change) {
  change(map_);
  ++map_.epoch;
  for (const auto& node : nodes_) {
    if (node->host != nullptr) node->host->set_map(map_);
  }
}

void GroupRig::set_state(std::size_t member, MemberState state) {
  change_map([&](StorageMap& map) {
    for (Member& place : map.groups[0].members) {
      if (place.target_id == map.targets[member].id) place.state = state;
    }
  });
}

std::size_t GroupRig::index_of(const std::string& target_id) const {
  for (std::size_t i = 0; i < map_.targets.size(); ++i) {
    if (map_.targets[i].id == target_id) return i;
  }
  CHECK(false, "a target that the map does not know");
}

std::size_t GroupRig::member_at(std::size_t place) const {
  return index_of(map_.groups[0].members[place].target_id);
}

void GroupRig::send(std::size_t to, ShardOperation operation, const ShardReplyCallback& done) {
  messages_.push_back(
      {to, nodes_[to]->life, [this, operation = std::move(operation), done](Node& node) {
         node.host->on_request(operation, done, now_);
       }});
}

void GroupRig::turn(std::chrono::nanoseconds time) {
  now_ += time;
  std::shuffle(messages_.begin(), messages_.end(), random_);
  const std::size_t held_back = random_() % (messages_.size() / 2 + 1);
  std::vector<Message> due(
      std::make_move_iterator(messages_.begin() + static_cast<long>(held_back)),
      std::make_move_iterator(messages_.end()));
  messages_.resize(held_back);
  for (const Message& message : due) {
    Node& node = *nodes_[message.to];
    if (node.host != nullptr && node.life == message.life) message.deliver(node);
  }
  for (const auto& node : nodes_) {
    if (node->host == nullptr) continue;
    node->host->on_completions(node->io->run(random_() % 8), now_);
    node->host->turn(now_);
    if (!node->disk->is_cut()) continue;
    ++power_cuts_;
    close(*node);
    node->disk->restart();
    open(*node);
  }
}

void GroupRig::turns(int count, std::chrono::nanoseconds time) {
  for (int i = 0; i < count; ++i) turn(time);
}

std::optional<ShardReply> GroupRig::ask(std::size_t member, ShardOperation operation) {
  auto answer = std::make_shared<std::optional<ShardReply>>();
  send(member, std::move(operation), [answer](ShardReply reply) { *answer = std::move(reply); });
  const std::uint64_t life = nodes_[member]->life;
  for (int i = 0; i < kMaxTurnsPerRequest && !*answer && nodes_[member]->life == life &&
                  nodes_[member]->host != nullptr;
       ++i)
    turn();
  return *answer;
}

std::map<std::size_t, ShardReply> GroupRig::ask_group(
    const std::function<std::optional<ShardOperation>(std::size_t)>& operation) {
  auto answers = std::make_shared<std::map<std::size_t, ShardReply>>();
  std::vector<std::pair<std::size_t, std::uint64_t>> asked;  // member and its life
  for (std::size_t place = 0; place < kMembers; ++place) {
    std::optional<ShardOperation> what = operation(place);
    const std::size_t member = member_at(place);
    if (!what || nodes_[member]->host == nullptr ||
        map_.groups[0].members[place].state == MemberState::kDown)
      continue;
    asked.emplace_back(member, nodes_[member]->life);
    send(member, *std::move(what),
         [answers, place](ShardReply reply) { answers->emplace(place, std::move(reply)); });
  }
  const auto is_waiting = [&] {
    std::size_t alive = 0;
    for (const auto& [member, life] : asked) alive += nodes_[member]->life == life ? 1 : 0;
    return answers->size() < alive;
  };
  for (int i = 0; i < 200 && is_waiting(); ++i) turn();
  return *answers;
}

std::vector<std::vector<std::byte>> GroupRig::shards_for(std::uint64_t key, Generation generation,
                                                         TtlClass ttl, std::uint32_t depth) const {
  const std::size_t payload = shard_payload_bytes(kTestBlockBytes, kTestDataShards);
  std::vector<std::vector<std::byte>> shards(kMembers,
                                             std::vector<std::byte>(kShardHeaderBytes + payload));
  std::mt19937_64 random(key * 7919 + generation);
  std::vector<std::span<const std::byte>> data;
  std::vector<std::span<std::byte>> parity;
  for (std::size_t i = 0; i < kMembers; ++i) {
    const std::span<std::byte> bytes = std::span(shards[i]).subspan(kShardHeaderBytes);
    if (i < kTestDataShards) {
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
      data.emplace_back(bytes);
    } else {
      parity.push_back(bytes);
    }
  }
  CHECK(codec_->encode(data, parity).ok());
  for (std::size_t i = 0; i < kMembers; ++i)
    seal_shard({.key = test_key(key),
                .generation = generation,
                .shard_index = static_cast<std::uint8_t>(i),
                .data_shards = kTestDataShards,
                .parity_shards = kTestParityShards,
                .ttl = ttl,
                .depth = depth,
                .block_bytes = kTestBlockBytes,
                .payload_bytes = static_cast<std::uint32_t>(payload)},
               shards[i]);
  return shards;
}

bool GroupRig::write_block(std::uint64_t key, Generation generation, TtlClass ttl,
                           std::uint32_t depth) {
  const auto shards = shards_for(key, generation, ttl, depth);
  written_[{key, generation}] = {ttl, depth};
  const auto down = static_cast<std::size_t>(
      std::count_if(map_.groups[0].members.begin(), map_.groups[0].members.end(),
                    [](const Member& member) { return member.state == MemberState::kDown; }));
  const std::size_t quorum = down >= kTestParityShards ? kTestDataShards : kMembers - 1;
  const auto count_ok = [](const std::map<std::size_t, ShardReply>& answers) {
    return static_cast<std::size_t>(
        std::count_if(answers.begin(), answers.end(),
                      [](const auto& answer) { return answer.second.result == ShardResult::kOk; }));
  };
  const auto written =
      ask_group([&](std::size_t place) { return ShardOperation(WriteShard{shards[place]}); });
  const bool is_durable = count_ok(written) >= quorum;
  if (is_durable) publications_.insert({key, generation});
  const auto finished = ask_group([&](std::size_t place) -> std::optional<ShardOperation> {
    const auto answer = written.find(place);
    if (answer == written.end() || answer->second.result != ShardResult::kOk) return std::nullopt;
    if (is_durable) return PublishShard{test_key(key), generation};
    return DropShard{test_key(key), generation};
  });
  return is_durable && count_ok(finished) >= quorum;
}

void GroupRig::judge_shard(std::uint64_t key, std::size_t place, const ShardReply& reply) {
  const auto found = written_.find({key, reply.generation});
  if (publications_.count({key, reply.generation}) == 0 || found == written_.end()) {
    wrong_.push_back(str_cat("block ", key, ": generation ", reply.generation,
                             " was never published, yet member ", place, " serves it"));
    return;
  }
  const auto& [ttl, depth] = found->second;
  if (reply.shard != shards_for(key, reply.generation, ttl, depth)[place])
    wrong_.push_back(str_cat("block ", key, ": member ", place, " serves wrong bytes"));
}

GroupRig::Read GroupRig::read_block(std::uint64_t key) {
  const auto answers =
      ask_group([&](std::size_t) { return ShardOperation(ReadShard{test_key(key)}); });
  std::map<Generation, std::size_t> good;
  for (const auto& [place, reply] : answers) {
    if (reply.result != ShardResult::kOk) continue;
    judge_shard(key, place, reply);
    ++good[reply.generation];
  }
  for (const auto& [generation, count] : good) {
    if (count >= kTestDataShards) return Read::kGood;
  }
  return Read::kMiss;
}

std::size_t GroupRig::shards_of(std::uint64_t key) {
  const auto answers =
      ask_group([&](std::size_t) { return ShardOperation(ReadShard{test_key(key)}); });
  std::size_t count = 0;
  for (const auto& [place, reply] : answers) {
    if (reply.result != ShardResult::kOk) continue;
    judge_shard(key, place, reply);
    ++count;
  }
  return count;
}

}  // namespace millrace::storage::node
