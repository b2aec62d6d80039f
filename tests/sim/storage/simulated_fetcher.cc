#include "tests/sim/storage/simulated_fetcher.h"

#include <algorithm>
#include <utility>

#include "common/str_cat.h"

namespace millrace::storage::sim {
namespace {

constexpr fetch::SessionId kSession = 1;
constexpr std::uint32_t kReadSlots = 6;
constexpr std::uint32_t kWriteSlots = 3;

fetch::FetchLimits limits() {
  fetch::FetchLimits limits;
  limits.max_reads_in_flight = 4;
  limits.longest_read = std::chrono::milliseconds(1500);
  limits.longest_write = std::chrono::milliseconds(2000);
  limits.lease = std::chrono::milliseconds(20'000);  // longer than our engine holds anything
  return limits;
}

fetch::FetchEnd end_of(store::MissReason miss) {
  switch (miss) {
    case store::MissReason::kNone:
      return fetch::FetchEnd::kComplete;
    case store::MissReason::kNotFound:
      return fetch::FetchEnd::kNotFound;
    case store::MissReason::kDeadline:
      return fetch::FetchEnd::kDeadline;
    case store::MissReason::kBusy:
      return fetch::FetchEnd::kBusy;
    case store::MissReason::kNoMap:
      return fetch::FetchEnd::kNoMap;
    case store::MissReason::kOtherSize:
      return fetch::FetchEnd::kOtherSize;
    case store::MissReason::kShutdown:
      return fetch::FetchEnd::kStopping;
    case store::MissReason::kTooFewMembers:
    case store::MissReason::kTooFewShards:
      break;
  }
  return fetch::FetchEnd::kUnreadable;
}

}  // namespace

SimulatedFetcher::SimulatedFetcher(ClientSurroundings& surroundings, SimulatedClient& client,
                                   std::uint32_t block_bytes)
    : surroundings_(surroundings), client_(client), block_bytes_(block_bytes) {}

void SimulatedFetcher::start() {
  read_slots_.assign(kReadSlots, std::vector<std::byte>(block_bytes_));
  write_slots_.assign(kWriteSlots, std::vector<std::byte>(block_bytes_));
  fetches_.clear();
  reservations_.clear();
  storing_.clear();
  timer_at_ = TimePoint::max();
  core_ = std::make_unique<fetch::FetchCore>(
      limits(), fetch::ArenaCapacity{kReadSlots, kWriteSlots, block_bytes_});
  feed(fetch::SessionOpened{kSession});
}

void SimulatedFetcher::fetch(std::vector<BlockKey> keys, std::chrono::milliseconds timeout) {
  const fetch::RequestId request = ++last_request_;
  fetches_[request].keys = keys;
  feed(fetch::FetchBlocks{.session = kSession,
                          .request_id = request,
                          .keys = std::move(keys),
                          .block_bytes = block_bytes_,
                          .priority = static_cast<std::int64_t>(surroundings_.random() % 4),
                          .deadline = client_.clock() + timeout});
  if (surroundings_.random() % 8 == 0)
    later(std::chrono::milliseconds(surroundings_.random() % 50), [this, request] {
      feed(fetch::Reprioritise{kSession, request, 0});
    });
}

void SimulatedFetcher::store(SimulatedClient::NewBlock block) {
  const fetch::RequestId request = ++last_request_;
  reservations_[request] = std::move(block);
  feed(fetch::ReserveSlots{kSession, request, 1});
}

void SimulatedFetcher::later(std::chrono::nanoseconds delay, std::function<void()> job) {
  surroundings_.loop.post(delay, [this, life = client_.life(), job = std::move(job)] {
    if (life == client_.life()) job();
  });
}

void SimulatedFetcher::feed(fetch::FetchEvent event) {
  for (const fetch::FetchAction& action : core_->on_event(std::move(event), client_.clock()))
    std::visit([this](const auto& what) { perform(what); }, action);
  want_timer();
}

void SimulatedFetcher::want_timer() {
  const auto timer = core_->next_timer();
  if (!timer) return;
  const TimePoint now = surroundings_.loop.now();
  const TimePoint at = now + std::max(*timer - client_.clock(), TimePoint::duration(0));
  if (at >= timer_at_) return;
  timer_at_ = at;
  later(at - now, [this, at] {
    if (at != timer_at_) return;
    timer_at_ = TimePoint::max();
    feed(fetch::TimerDue{});
  });
}

std::chrono::nanoseconds SimulatedFetcher::time_left(TimePoint deadline) const {
  return std::max<std::chrono::nanoseconds>(std::chrono::milliseconds(1),
                                            deadline - client_.clock());
}

bool SimulatedFetcher::is_held(std::uint32_t slot) const {
  return std::any_of(fetches_.begin(), fetches_.end(), [&](const auto& entry) {
    const std::vector<Held>& held = entry.second.held;
    return std::any_of(held.begin(), held.end(),
                       [&](const Held& each) { return each.ref.slot == slot; });
  });
}

void SimulatedFetcher::perform(const fetch::StartRead& action) {
  if (is_held(action.ref.slot))
    surroundings_.oracle.fail("a fetch reads into a slot that an engine holds");
  client_.read(action.key, time_left(action.deadline),
               std::span(read_slots_[action.ref.slot]).first(action.block_bytes),
               [this, ref = action.ref](const store::ReadResult& result) {
                 later(std::chrono::nanoseconds(0), [this, ref, end = end_of(result.miss)] {
                   feed(fetch::ReadFinished{ref, end});
                 });
               });
}

void SimulatedFetcher::perform(const fetch::PublishSlot& action) {
  surroundings_.oracle.on_fetched(
      action.key, std::span(read_slots_[action.ref.slot]).first(action.block_bytes));
}

void SimulatedFetcher::perform(const fetch::RetireSlot& action) {
  if (action.arena == fetch::ArenaKind::kRead && is_held(action.ref.slot))
    surroundings_.oracle.fail("a slot that an engine holds is retired");
}

void SimulatedFetcher::perform(const fetch::StartStore& action) {
  std::vector<std::byte> block = write_slots_[action.ref.slot];
  block.resize(action.block_bytes);
  client_.write({action.key, std::move(block), action.depth, action.ttl},
                time_left(action.deadline), [this, ref = action.ref](store::WriteOutcome) {
                  later(std::chrono::nanoseconds(0), [this, ref] {
                    feed(fetch::StoreFinished{ref, fetch::StoreEnd::kStored});
                  });
                });
}

void SimulatedFetcher::perform(const fetch::Tell& action) {
  std::visit([this](const auto& event) { hear(event); }, action.event);
}

void SimulatedFetcher::perform(const fetch::RefuseSession& action) {
  surroundings_.oracle.fail(str_cat("an engine is refused: ", action.reason));
}

void SimulatedFetcher::hear(const fetch::BlockReady& event) {
  Fetch& fetch = fetches_[event.request_id];
  if (fetch.is_done || event.index != fetch.held.size() || event.index >= fetch.keys.size())
    return surroundings_.oracle.fail("a block is ready out of its order");
  const std::vector<std::byte>& content = read_slots_[event.ref.slot];
  surroundings_.oracle.on_fetched(fetch.keys[event.index], content);
  fetch.held.push_back({event.ref, content});
}

void SimulatedFetcher::hear(const fetch::FetchDone& event) {
  Fetch& fetch = fetches_[event.request_id];
  if (fetch.is_done || event.ready_blocks != fetch.held.size())
    surroundings_.oracle.fail("a fetch is done twice, or with another number of blocks");
  fetch.is_done = true;
  later(std::chrono::milliseconds(surroundings_.random() % 3000),
        [this, request = event.request_id] { give_back(request); });
}

void SimulatedFetcher::give_back(fetch::RequestId request) {
  const auto found = fetches_.find(request);
  std::vector<std::uint32_t> indices;
  for (const Held& held : found->second.held) {
    if (read_slots_[held.ref.slot] != held.content)
      surroundings_.oracle.fail("a block changes while an engine holds it");
    indices.push_back(static_cast<std::uint32_t>(indices.size()));
  }
  fetches_.erase(found);
  if (surroundings_.random() % 2 == 0) {
    feed(fetch::CancelFetch{kSession, request});
  } else {
    feed(fetch::ReleaseBlocks{kSession, request, std::move(indices)});
  }
}

void SimulatedFetcher::hear(const fetch::WriteSlots& event) {
  const auto found = reservations_.find(event.request_id);
  if (found == reservations_.end())
    return surroundings_.oracle.fail("slots are reserved that nobody asked for");
  const SimulatedClient::NewBlock block = std::move(found->second);
  reservations_.erase(found);
  for (const fetch::SlotRef& ref : event.slots) {
    if (!storing_.emplace(ref.slot, ref.generation).second)
      surroundings_.oracle.fail("a slot is reserved that is being stored");
    std::copy(block.bytes.begin(), block.bytes.end(), write_slots_[ref.slot].begin());
    later(std::chrono::microseconds(surroundings_.random() % 2000), [this, ref, block] {
      feed(fetch::SealSlot{.session = kSession,
                           .ref = ref,
                           .key = block.key,
                           .depth = block.depth,
                           .ttl = block.ttl,
                           .block_bytes = static_cast<std::uint32_t>(block.bytes.size())});
    });
  }
}

void SimulatedFetcher::hear(const fetch::BlockStored& event) {
  const auto found = storing_.find(event.ref.slot);
  if (found == storing_.end() || found->second != event.ref.generation)
    return surroundings_.oracle.fail("a block is stored twice");
  storing_.erase(found);
}

void SimulatedFetcher::check_leaks() const {
  const fetch::FetchCounters counters = core_->counters();
  const std::uint64_t left = counters.open_fetches + counters.queued_blocks +
                             counters.filling_slots + counters.ready_slots +
                             counters.leased_blocks + counters.writing_slots +
                             counters.sealed_slots + storing_.size() + fetches_.size();
  if (left != 0) surroundings_.oracle.fail(str_cat("a fetcher at rest holds ", left, " things"));
}

}  // namespace millrace::storage::sim
