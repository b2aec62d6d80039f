// What goes wrong, by the seed.

#include <utility>

#include "tests/sim/storage/storage_world.h"

namespace millrace::storage::sim {

/// Mostly short, sometimes longer than all that waits for it.
std::chrono::milliseconds StorageWorld::some_time() {
  return std::chrono::milliseconds(pick(3) == 0 ? 200 + pick(6000) : 5 + pick(400));
}

void StorageWorld::cause_fault() {
  const std::size_t node = pick(nodes_.size());
  switch (pick(17)) {
    case 0:
    case 1:
      return stop_node(node, Loss::kProcess);
    case 2:
    case 3:
      return stop_node(node, Loss::kPower);
    case 4:
      if (nodes_[node]->is_running()) nodes_[node]->disk().cut_power_after(pick(20));
      return;
    case 5:
      return wipe_disk(node);
    case 6:
    case 7:
      return freeze(node);
    case 8:
    case 9:
      return cut_network();
    case 10:
      return slow_down(node);
    case 11:
      if (rots_left_-- > 0) nodes_[node]->rot();
      return;
    case 12:
      return crash_client(pick(clients_.size()));
    case 13:
      return break_disk(node);
    case 14:
      return replace_any();
    case 15:
      return wish(node);
    default:
      drop_fraction_ = 0.2;
      loop_.post(some_time(), [this] { drop_fraction_ = has_faults_ ? plan_.drop_fraction : 0; });
  }
}

void StorageWorld::stop_node(std::size_t node, Loss loss) {
  if (!nodes_[node]->is_running()) return;
  nodes_[node]->stop(loss);
  start_later(node, some_time());
}

void StorageWorld::start_later(std::size_t node, std::chrono::nanoseconds delay) {
  loop_.post(delay, [this, node] {
    if (nodes_[node]->is_running()) return;
    ++counts_.restarts;
    nodes_[node]->start();
  });
}

void StorageWorld::wipe_disk(std::size_t node) {
  if (wipes_left_ == 0) return;
  --wipes_left_;
  ++counts_.wipes;
  if (nodes_[node]->is_running()) nodes_[node]->stop(Loss::kPower);
  nodes_[node]->wipe();
  start_later(node, some_time());
}

void StorageWorld::freeze(std::size_t node) {
  if (!nodes_[node]->is_running() || nodes_[node]->is_frozen()) return;
  nodes_[node]->freeze();
  loop_.post(some_time(), [this, node, life = nodes_[node]->life()] {
    if (nodes_[node]->life() == life) nodes_[node]->thaw();
  });
}

void StorageWorld::slow_down(std::size_t node) {
  nodes_[node]->set_slowness(5 + static_cast<int>(pick(60)));
  loop_.post(some_time(), [this, node] { nodes_[node]->set_slowness(1); });
}

void StorageWorld::cut_network() {
  Endpoints apart = 0;
  for (std::size_t i = 0; i < nodes_.size(); ++i)
    if (pick(4) == 0) apart |= node_endpoint(i);
  for (std::size_t i = 0; i < clients_.size(); ++i)
    if (pick(4) == 0) apart |= client_endpoint(i);
  if (pick(4) == 0) apart |= kController;
  std::erase_if(partitions_, [&](const Partition& old) { return old.until <= loop_.now(); });
  partitions_.push_back({apart, loop_.now() + some_time()});
}

void StorageWorld::break_disk(std::size_t node) {
  if (!nodes_[node]->is_running()) return;
  using Fault = disk::SimulatedDisk::Fault;
  constexpr Fault kFaults[] = {Fault::kFull, Fault::kReadOnly, Fault::kGone, Fault::kSyncFails};
  nodes_[node]->disk().set_fault(kFaults[pick(std::size(kFaults))]);
  // Somebody repairs it, and starts the process again.
  loop_.post(some_time(), [this, node] {
    nodes_[node]->disk().set_fault(Fault::kNone);
    if (nodes_[node]->is_running()) stop_node(node, Loss::kProcess);
  });
}

void StorageWorld::crash_client(std::size_t client) {
  clients_[client]->crash();
  fetchers_[client]->crash();
  clients_[client]->start();
  fetchers_[client]->start();
  clients_[client]->offer_map(map_snapshot_);
}

void StorageWorld::replace_any() {
  const Group& group = map_.groups[pick(map_.groups.size())];
  replace(std::string(group.members[pick(group.members.size())].target_id));
}

void StorageWorld::wish(std::size_t node) {
  if (pick(2) == 0 || !plan_.has_pressure) {
    nodes_[node]->scrub();
  } else {
    nodes_[node]->evict_to(0.3);
  }
}

}  // namespace millrace::storage::sim
