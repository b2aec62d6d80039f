// What goes between clients and nodes: late, twice where that is allowed, or not at all.

#include <algorithm>
#include <utility>

#include "tests/sim/storage/storage_world.h"

namespace millrace::storage::sim {
namespace {

/// A connection that says nothing for so long is given up.
constexpr auto kGiveUp = std::chrono::seconds(6);

/// A stream never repeats a write; what is harmless twice may come twice by way of a retry.
bool may_be_repeated(const ShardOperation& operation) {
  return !std::holds_alternative<WriteShard>(operation);
}

}  // namespace

/// A request of a client on its way. Whoever holds it last decides: an answer, or none.
struct StorageWorld::Call {
  Call(StorageWorld& world_, std::size_t client_, std::uint64_t life_, store::RequestId id_)
      : world(world_), client(client_), life(life_), id(id_) {}
  ~Call() {
    if (is_answered || world.is_ending_) return;
    world.loop_.post(std::chrono::microseconds(world.pick(200'000)),
                     [&w = world, c = client, l = life, i = id] {
                       ShardReply reply;
                       reply.result = ShardResult::kUnavailable;
                       w.clients_[c]->on_answer(l, i, std::move(reply));
                     });
  }
  void answer(ShardReply reply) {
    if (std::exchange(is_answered, true)) return;
    world.clients_[client]->on_answer(life, id, std::move(reply));
  }

  StorageWorld& world;
  const std::size_t client;
  const std::uint64_t life;
  const store::RequestId id;
  bool is_answered = false;
};

bool StorageWorld::is_cut(Endpoints a, Endpoints b) const {
  return std::any_of(partitions_.begin(), partitions_.end(), [&](const Partition& partition) {
    return partition.until > loop_.now() &&
           ((partition.apart & a) != 0) != ((partition.apart & b) != 0);
  });
}

bool StorageWorld::is_lost(Endpoints from, Endpoints to) {
  if (is_cut(from, to)) return true;
  return drop_fraction_ > 0 && static_cast<double>(pick(1'000'000)) < drop_fraction_ * 1e6;
}

std::chrono::nanoseconds StorageWorld::way() {
  return std::chrono::microseconds(1 + pick(plan_.network_us));
}

void StorageWorld::send_shard(std::size_t client, std::uint64_t life, store::SendShard send) {
  const auto call = std::make_shared<Call>(*this, client, life, send.request_id);
  if (send.node_address.empty()) return;
  const std::size_t node = std::stoul(send.node_address);
  if (!nodes_[node]->is_running() || is_lost(client_endpoint(client), node_endpoint(node))) return;
  loop_.post(kGiveUp, [weak = std::weak_ptr<Call>(call)] {
    ShardReply reply;
    reply.result = ShardResult::kUnavailable;
    if (const auto late = weak.lock()) late->answer(std::move(reply));
  });
  const std::uint64_t node_life = nodes_[node]->life();
  if (has_faults_ && may_be_repeated(send.request.operation) && pick(50) == 0) {
    loop_.post(way(), [this, node, node_life, request = send.request] {
      if (nodes_[node]->life() == node_life)
        nodes_[node]->handle(request, [](const ShardReply&) {});
    });
  }
  loop_.post(way(), [this, node, node_life, call, request = std::move(send.request)]() mutable {
    deliver(node, node_life, std::move(request), call);
  });
}

void StorageWorld::deliver(std::size_t node, std::uint64_t life, ShardRequest request,
                           const std::shared_ptr<Call>& call) {
  if (nodes_[node]->life() != life) return;
  nodes_[node]->handle(std::move(request), [this, node, call](ShardReply reply) {
    if (is_lost(node_endpoint(node), client_endpoint(call->client))) return;
    loop_.post(way(),
               [call, reply = std::move(reply)]() mutable { call->answer(std::move(reply)); });
  });
}

void StorageWorld::ask_peer(std::size_t from, const std::string& target_id, ShardRequest request,
                            std::uint64_t call_id) {
  const std::size_t to = target_number(target_id);
  if (is_lost(node_endpoint(from), node_endpoint(to))) return;
  const std::uint64_t from_life = nodes_[from]->life();
  const std::uint64_t to_life = nodes_[to]->life();
  loop_.post(way(), [this, from, to, from_life, to_life, call_id, request = std::move(request)] {
    if (nodes_[to]->life() != to_life) return;
    nodes_[to]->handle(request, [this, from, to, from_life, call_id](ShardReply reply) {
      if (is_lost(node_endpoint(to), node_endpoint(from))) return;
      loop_.post(way(), [this, from, from_life, call_id, reply = std::move(reply)] {
        if (nodes_[from]->life() == from_life) nodes_[from]->on_peer_reply(call_id, reply);
      });
    });
  });
}

}  // namespace millrace::storage::sim
