#include "dataplane/worker/kv_link.h"

#include <algorithm>
#include <string>
#include <utility>

#include "dataplane/engine/engine.h"
#include "storage/swa/window_miss.h"

namespace millrace::dataplane::worker {
namespace {

using storage::fetch::FetchClient;
using storage::fetch::SlotRef;
using Clock = std::chrono::steady_clock;

/// How long a poll waits before it looks whether the link is to stop.
constexpr std::chrono::milliseconds kPoll{100};
/// Slots that are asked for at one time.
constexpr std::size_t kSlotsAtOnce = 32;
/// With no slot free, the next try is so much later.
constexpr std::chrono::milliseconds kSlotPause{20};

/// Blocks of a fetch in the slots of the fetcher. Gives them back with its end.
class LeasedBlocks final : public engine::BlockSource {
 public:
  LeasedBlocks(std::shared_ptr<FetchClient> client, std::uint64_t request,
               std::vector<storage::BlockKey> keys, std::vector<SlotRef> slots,
               std::uint32_t block_bytes)
      : client_(std::move(client)),
        request_(request),
        keys_(std::move(keys)),
        slots_(std::move(slots)),
        block_bytes_(block_bytes),
        checksums_(slots_.size(), 0) {}
  ~LeasedBlocks() override {
    // A connection that is broken has given everything back.
    (void)client_->cancel(request_);
  }
  LeasedBlocks(const LeasedBlocks&) = delete;
  LeasedBlocks& operator=(const LeasedBlocks&) = delete;

  absl::Status copy(int block, std::size_t offset, std::span<std::byte> out) override {
    const auto index = static_cast<std::size_t>(block);
    return client_->copy_part(slots_[index], keys_[index], block_bytes_, offset, out,
                              checksums_[index]);
  }

 private:
  const std::shared_ptr<FetchClient> client_;
  const std::uint64_t request_;
  const std::vector<storage::BlockKey> keys_;
  const std::vector<SlotRef> slots_;
  const std::uint32_t block_bytes_;
  std::vector<std::uint32_t> checksums_;  // of the parts copied so far
};

constexpr std::string_view kNoFetcher = "no_fetcher";
constexpr std::string_view kDropped = "dropped";
constexpr std::string_view kFound = "found";
constexpr std::string_view kKept = "kept";
constexpr std::string_view kNotKept = "not_kept";

std::vector<std::string> fetch_results() {
  std::vector<std::string> names{std::string(kNoFetcher)};
  for (int i = 0; i < storage::fetch::kFetchEnds; ++i) {
    names.emplace_back(storage::fetch::fetch_end_name(static_cast<storage::fetch::FetchEnd>(i)));
  }
  return names;
}

std::vector<std::string> seal_results() {
  std::vector<std::string> names{std::string(kNoFetcher), std::string(kDropped)};
  for (int i = 0; i < storage::fetch::kStoreEnds; ++i) {
    names.emplace_back(storage::fetch::store_end_name(static_cast<storage::fetch::StoreEnd>(i)));
  }
  return names;
}

std::vector<std::string> window_results() {
  std::vector<std::string> names{std::string(kNoFetcher), std::string(kFound)};
  for (int i = 0; i < storage::swa::kWindowMisses; ++i) {
    names.emplace_back(storage::swa::window_miss_name(static_cast<storage::swa::WindowMiss>(i)));
  }
  return names;
}

}  // namespace

KvLink::Metrics::Metrics(Registry& r)
    : connected(r.gauge("millrace_kv_fetcher_connected",
                        "1 while this worker is connected to its machine's KV fetcher.")),
      backlog(r.gauge("millrace_kv_seal_backlog", "Full blocks that wait to be stored.")),
      wait_seconds(r.histogram("millrace_kv_fetch_wait_seconds",
                               "Time from asking for stored KV until all that came was there.",
                               latency_buckets_seconds())),
      fetches(r.counter("millrace_kv_fetches_total", "Fetches of stored blocks by their end.",
                        {{"result", fetch_results()}})),
      seals(r.counter("millrace_kv_sealed_blocks_total", "Full blocks by what became of them.",
                      {{"result", seal_results()}})),
      windows_read(r.counter("millrace_kv_windows_read_total",
                             "Stored windows that were tried, by result.",
                             {{"result", window_results()}})),
      windows_kept(r.counter("millrace_kv_windows_kept_total",
                             "Windows passed on for later turns, by result.",
                             {{"result",
                               {std::string(kNoFetcher), std::string(kDropped), std::string(kKept),
                                std::string(kNotKept)}}})) {}

KvLink::KvLink(Connect connect, std::uint32_t block_bytes, CommandQueue& commands,
               Registry& metrics, const Logger& log, const Limits& limits)
    : connect_(std::move(connect)),
      block_bytes_(block_bytes),
      commands_(commands),
      metrics_(metrics),
      log_(log),
      limits_(limits),
      thread_([this] { run(); }) {}

KvLink::~KvLink() {
  {
    std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

// ---- the engine's thread ------------------------------------------------------------------------

void KvLink::take(KvJobs jobs) {
  std::lock_guard lock(mutex_);
  for (KvFetchJob& job : jobs.fetches) begin(std::move(job));
  for (const std::uint64_t request : jobs.cancels) cancel(request);
  for (KvSealJob& job : jobs.seals) {
    if (client_ == nullptr) {
      metrics_.seals.with({kNoFetcher}).add();
    } else if (seals_.size() >= limits_.max_seals) {
      metrics_.seals.with({kDropped}).add();
    } else {
      seals_.push_back(std::move(job));
    }
  }
  if (!is_reserving_) reserve_slots();
  metrics_.backlog.set(static_cast<double>(seals_.size()));
  for (KvWindowJob& job : jobs.windows) {
    if (client_ == nullptr) {
      metrics_.windows_kept.with({kNoFetcher}).add();
      continue;
    }
    const bool has_room = storing_windows_.size() < limits_.max_windows;
    const std::uint64_t id = next_window_++;
    if (!has_room || !client_->put_window(id, job.key, job.bytes).ok()) {
      metrics_.windows_kept.with({kDropped}).add();
      continue;
    }
    job.bytes = {};
    storing_windows_.emplace(id, std::move(job));
  }
}

/// The mutex is held here, and in all that follows of this section.
void KvLink::begin(KvFetchJob job) {
  const std::uint64_t request = job.request;
  Pending pending{.job = std::move(job), .begun = Clock::now()};
  if (client_ == nullptr || !client_
                                 ->fetch(request, pending.job.keys, block_bytes_,
                                         static_cast<std::int64_t>(request), pending.job.timeout)
                                 .ok()) {
    metrics_.fetches.with({kNoFetcher}).add();
    pending.ready.clear();
    answer(std::move(pending));
    return;
  }
  Pending& kept = pending_.emplace(request, std::move(pending)).first->second;
  ask_for_window(kept);
}

void KvLink::cancel(std::uint64_t request) {
  if (pending_.erase(request) == 0 || client_ == nullptr) return;
  // A connection that breaks gives everything back.
  (void)client_->cancel(request);
  (void)client_->release_window(request);
}

/// Tries the next of the windows; the last one failed, or there was none yet.
void KvLink::ask_for_window(Pending& pending) {
  while (pending.next_window < pending.job.windows.size()) {
    const WindowSource& source = pending.job.windows[pending.next_window++];
    const absl::Status asked =
        client_->get_window(pending.job.request, source.location, pending.job.key_at(source.anchor),
                            pending.job.timeout);
    if (asked.ok()) return;
    metrics_.windows_read.with({kNoFetcher}).add();
  }
  pending.has_windows = true;
}

void KvLink::answer_if_done(std::uint64_t request) {
  const auto found = pending_.find(request);
  if (found == pending_.end()) return;
  if (!found->second.has_blocks || !found->second.has_windows) return;
  Pending done = std::move(found->second);
  pending_.erase(found);
  answer(std::move(done));
}

void KvLink::answer(Pending pending) {
  metrics_.wait_seconds.observe(
      std::chrono::duration<double>(Clock::now() - pending.begun).count());
  KvFetched fetched{.request = pending.job.request,
                    .blocks = static_cast<int>(pending.ready.size()),
                    .source = nullptr,
                    .window = std::move(pending.window)};
  if (!pending.ready.empty()) {
    fetched.source =
        std::make_shared<LeasedBlocks>(client_, pending.job.request, std::move(pending.job.keys),
                                       std::move(pending.ready), block_bytes_);
  }
  commands_.push_control(std::move(fetched));
}

void KvLink::reserve_slots() {
  is_reserving_ = false;
  if (seals_.empty() || client_ == nullptr) return;
  const std::size_t count = std::min(seals_.size(), kSlotsAtOnce);
  is_reserving_ = client_->reserve(0, static_cast<std::uint32_t>(count)).ok();
}

// ---- the link's thread --------------------------------------------------------------------------

void KvLink::run() {
  while (true) {
    std::shared_ptr<FetchClient> client;
    {
      std::lock_guard lock(mutex_);
      if (is_stopping_) break;
      client = client_;
    }
    if (client == nullptr) {
      if (connect()) continue;
      std::unique_lock lock(mutex_);
      wake_.wait_for(lock, limits_.reconnect, [&] { return is_stopping_; });
      continue;
    }
    const std::vector<storage::fetch::SessionEvent> events = client->poll(kPoll);
    for (const storage::fetch::SessionEvent& event : events) handle(event);
    if (const absl::Status health = client->health(); events.empty() && !health.ok()) {
      disconnect(health);
    }
  }
}

bool KvLink::connect() {
  absl::StatusOr<std::unique_ptr<FetchClient>> client = connect_();
  if (!client.ok()) {
    log_.debug("kv_fetcher_unreachable", {{"reason", std::string(client.status().message())}});
    return false;
  }
  if ((*client)->block_bytes() < block_bytes_) {
    log_.error("kv_fetcher_of_other_blocks",
               {{"fetcher_bytes", (*client)->block_bytes()}, {"our_bytes", block_bytes_}});
    return false;
  }
  log_.info("kv_fetcher_connected", {{"window_bytes", (*client)->window_bytes()}});
  std::lock_guard lock(mutex_);
  client_ = *std::move(client);
  metrics_.connected.set(1);
  return true;
}

void KvLink::disconnect(const absl::Status& reason) {
  log_.warn("kv_fetcher_lost", {{"reason", std::string(reason.message())}});
  std::lock_guard lock(mutex_);
  metrics_.connected.set(0);
  client_.reset();
  // What is in the slots of a fetcher that is gone is nobody's promise any more.
  for (auto& [request, pending] : std::exchange(pending_, {})) {
    metrics_.fetches.with({kNoFetcher}).add();
    pending.ready.clear();
    answer(std::move(pending));
  }
  metrics_.seals.with({kNoFetcher}).add(static_cast<double>(seals_.size()));
  seals_.clear();
  is_reserving_ = false;
  metrics_.backlog.set(0);
  metrics_.windows_kept.with({kNoFetcher}).add(static_cast<double>(storing_windows_.size()));
  storing_windows_.clear();
}

void KvLink::handle(const storage::fetch::SessionEvent& event) {
  std::visit([&](const auto& alternative) { handle(alternative); }, event);
}

void KvLink::handle(const storage::fetch::BlockReady& event) {
  std::lock_guard lock(mutex_);
  const auto found = pending_.find(event.request_id);
  if (found != pending_.end()) found->second.ready.push_back(event.ref);
}

void KvLink::handle(const storage::fetch::FetchDone& event) {
  metrics_.fetches.with({storage::fetch::fetch_end_name(event.end)}).add();
  std::lock_guard lock(mutex_);
  const auto found = pending_.find(event.request_id);
  if (found == pending_.end()) return;
  found->second.has_blocks = true;
  answer_if_done(event.request_id);
}

void KvLink::handle(const storage::fetch::WindowReady& event) {
  std::lock_guard lock(mutex_);
  const auto found = pending_.find(event.request_id);
  if (found == pending_.end()) return;
  Pending& pending = found->second;
  const WindowSource& source = pending.job.windows[pending.next_window - 1];
  ReadyWindow window{.anchor = source.anchor,
                     .bytes = std::vector<std::byte>(source.location.bytes)};
  const absl::Status copied =
      client_->copy_window_out(event.ref, pending.job.key_at(source.anchor), window.bytes);
  (void)client_->release_window(event.request_id);
  const auto lost = storage::swa::WindowMiss::kCorrupt;
  metrics_.windows_read.with({copied.ok() ? kFound : storage::swa::window_miss_name(lost)}).add();
  if (copied.ok()) {
    pending.window = std::move(window);
    pending.has_windows = true;
  } else {
    ask_for_window(pending);
  }
  answer_if_done(event.request_id);
}

void KvLink::handle(const storage::fetch::WindowMissed& event) {
  metrics_.windows_read.with({storage::swa::window_miss_name(event.reason)}).add();
  std::lock_guard lock(mutex_);
  const auto found = pending_.find(event.request_id);
  if (found == pending_.end()) return;
  ask_for_window(found->second);
  answer_if_done(event.request_id);
}

void KvLink::handle(const storage::fetch::WriteSlots& event) {
  std::vector<KvSealJob> jobs;
  std::shared_ptr<FetchClient> client;
  {
    std::lock_guard lock(mutex_);
    client = client_;
    while (!seals_.empty() && jobs.size() < event.slots.size()) {
      jobs.push_back(std::move(seals_.front()));
      seals_.pop_front();
    }
    metrics_.backlog.set(static_cast<double>(seals_.size()));
  }
  // Outside the mutex: it copies the blocks.
  for (std::size_t i = 0; i < event.slots.size(); ++i) {
    if (i >= jobs.size()) {
      (void)client->return_slot(event.slots[i]);
      continue;
    }
    const KvSealJob& job = jobs[i];
    if (!client->store(event.slots[i], job.key, job.bytes, job.depth, job.ttl).ok()) {
      metrics_.seals.with({kDropped}).add();
    }
  }
  std::unique_lock lock(mutex_);
  if (event.slots.empty()) {
    wake_.wait_for(lock, kSlotPause, [&] { return is_stopping_; });
  }
  reserve_slots();
}

void KvLink::handle(const storage::fetch::BlockStored& event) {
  metrics_.seals.with({storage::fetch::store_end_name(event.end)}).add();
}

void KvLink::handle(const storage::fetch::WindowStored& event) {
  std::lock_guard lock(mutex_);
  const auto found = storing_windows_.find(event.request_id);
  if (found == storing_windows_.end()) return;
  const KvWindowJob job = std::move(found->second);
  storing_windows_.erase(found);
  metrics_.windows_kept.with({event.at ? kKept : kNotKept}).add();
  if (!event.at) return;
  commands_.push_control(WindowStored{
      .stream = job.stream, .key = job.key, .anchor = job.anchor, .location = *event.at});
}

}  // namespace millrace::dataplane::worker
