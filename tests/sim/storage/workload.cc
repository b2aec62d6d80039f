// What clients ask for, by the seed.

#include <algorithm>
#include <cstring>
#include <utility>

#include "tests/sim/storage/storage_world.h"

namespace millrace::storage::sim {

/// Shorter than the grace of a slot, so that no read outlives what it reads.
std::chrono::milliseconds StorageWorld::timeout() {
  return std::chrono::milliseconds(pick(5) == 0 ? 1 + pick(50) : 300 + pick(1700));
}

void StorageWorld::next_operation() {
  if (operations_left_ == 0) return;
  --operations_left_;
  do_operation();
  if (pick(static_cast<std::uint64_t>(plan_.operations_per_fault)) == 0) cause_fault();
  std::chrono::nanoseconds pause = std::chrono::microseconds(
      1 + pick(2 * static_cast<std::uint64_t>(plan_.operation_interval.count())));
  if (plan_.has_short_ttl && pick(40) == 0) pause = std::chrono::seconds(20 + pick(120));
  if (!plan_.has_short_ttl && pick(40) == 0) pause = std::chrono::seconds(1 + pick(6));
  loop_.post(pause, [this] { next_operation(); });
}

void StorageWorld::do_operation() {
  const std::size_t client = pick(clients_.size());
  const std::size_t key = pick(keys_.size());
  const std::uint64_t what = pick(100);
  if (what < 30) {
    write(client, key);
    // Another one computes the same block at the same time.
    while (pick(4) == 0) {
      loop_.post(std::chrono::microseconds(pick(3000)),
                 [this, key] { write(pick(clients_.size()), key); });
    }
  } else if (what < 65) {
    clients_[client]->read(keys_[key], timeout());
  } else if (what < 70) {
    if (is_whole(key))
      clients_[client]->read_into_landing(keys_[key], plan_.block_bytes, timeout());
  } else if (what < 80) {
    query(client);
  } else if (what < 87) {
    touch(client);
  } else if (what < 94) {
    fetch(client);
  } else {
    if (is_whole(key)) fetchers_[client]->store(new_block(key));
  }
}

SimulatedClient::NewBlock StorageWorld::new_block(std::size_t key) {
  SimulatedClient::NewBlock block;
  block.key = keys_[key];
  const std::size_t bytes = is_whole(key) ? plan_.block_bytes : 1 + pick(plan_.block_bytes);
  block.bytes.resize(bytes);
  std::mt19937_64 content(++last_content_);
  for (std::byte& byte : block.bytes) byte = static_cast<std::byte>(content());
  block.depth = static_cast<std::uint32_t>(key);
  block.ttl = pick(2) == 0 ? TtlClass::kAgent : TtlClass::kChatbot;
  return block;
}

void StorageWorld::write(std::size_t client, std::size_t key) {
  clients_[client]->write(new_block(key), timeout());
}

void StorageWorld::query(std::size_t client) {
  const std::size_t first = pick(keys_.size());
  const std::size_t count = 1 + pick(keys_.size() - first);
  std::vector<BlockKey> keys(keys_.begin() + static_cast<long>(first),
                             keys_.begin() + static_cast<long>(first + count));
  clients_[client]->query(std::move(keys), std::chrono::milliseconds(pick(7000)), timeout());
}

void StorageWorld::touch(std::size_t client) {
  clients_[client]->touch({keys_[pick(keys_.size())], keys_[pick(keys_.size())]},
                          pick(2) == 0 ? TtlClass::kAgent : TtlClass::kChatbot);
}

void StorageWorld::fetch(std::size_t client) {
  std::vector<BlockKey> keys;
  for (std::size_t key = 0; key < keys_.size() && keys.size() < 4; key += 2)
    keys.push_back(keys_[key]);
  fetchers_[client]->fetch(std::move(keys), timeout());
}

}  // namespace millrace::storage::sim
