#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "storage/fetch/fetch_core.h"
#include "tests/sim/storage/simulated_client.h"

namespace millrace::storage::sim {

/// A fetch daemon with the production core over a client of the store, an arena in plain memory,
/// and one engine that fetches prefixes, holds blocks for a while, and stores new ones. What an
/// engine is given goes to the oracle, and must stay as it is until the engine gives it back.
class SimulatedFetcher {
 public:
  SimulatedFetcher(ClientSurroundings& surroundings, SimulatedClient& client,
                   std::uint32_t block_bytes);

  /// With the client's process.
  void start();
  void crash() { core_.reset(); }

  /// Blocks of exactly `block_bytes`, in the order of a prefix.
  void fetch(std::vector<BlockKey> keys, std::chrono::milliseconds timeout);
  void store(SimulatedClient::NewBlock block);

  bool is_idle() const { return core_->is_idle() && fetches_.empty(); }
  void check_leaks() const;

 private:
  struct Held {
    fetch::SlotRef ref;
    std::vector<std::byte> content;
  };
  struct Fetch {
    std::vector<BlockKey> keys;
    std::vector<Held> held;  // by index
    bool is_done = false;
  };

  void feed(fetch::FetchEvent event);
  void want_timer();
  void perform(const fetch::StartRead& action);
  void perform(const fetch::PublishSlot& action);
  void perform(const fetch::RetireSlot& action);
  void perform(const fetch::OpenSlot&) {}
  void perform(const fetch::MeasureFetch&) {}
  void perform(const fetch::StartStore& action);
  void perform(const fetch::Tell& action);
  void perform(const fetch::RefuseSession& action);
  void hear(const fetch::BlockReady& event);
  void hear(const fetch::FetchDone& event);
  void hear(const fetch::WriteSlots& event);
  void hear(const fetch::BlockStored& event);
  void hear(const fetch::WindowStored&) {}  // no engine here has windows
  void hear(const fetch::WindowReady&) {}
  void hear(const fetch::WindowMissed&) {}
  void give_back(fetch::RequestId request);
  bool is_held(std::uint32_t slot) const;
  std::chrono::nanoseconds time_left(TimePoint deadline) const;
  void later(std::chrono::nanoseconds delay, std::function<void()> job);

  ClientSurroundings& surroundings_;
  SimulatedClient& client_;
  const std::uint32_t block_bytes_;
  std::unique_ptr<fetch::FetchCore> core_;
  TimePoint timer_at_ = TimePoint::max();
  fetch::RequestId last_request_ = 0;
  std::vector<std::vector<std::byte>> read_slots_;
  std::vector<std::vector<std::byte>> write_slots_;
  std::map<fetch::RequestId, Fetch> fetches_;
  std::map<fetch::RequestId, SimulatedClient::NewBlock> reservations_;
  std::map<std::uint32_t, std::uint64_t> storing_;  // slot and generation
};

}  // namespace millrace::storage::sim
