#include "storage/node/target_runner.h"

#include <chrono>
#include <filesystem>
#include <utility>

#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::storage::node {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kTick = std::chrono::milliseconds(50);
constexpr auto kReportInterval = std::chrono::milliseconds(250);
constexpr std::size_t kMaxRequestsPerTurn = 256;
constexpr int kLongestRetry = 32;  // times the first

ShardReply refusal(ShardResult result, std::string_view message) {
  ShardReply reply;
  reply.result = result;
  reply.message = message;
  return reply;
}

}  // namespace

struct TargetRunner::Link final : PeerLink {
  Link(const PeerSender& sender_, std::shared_ptr<EventQueue> queue_, std::uint64_t opening_)
      : sender(sender_), queue(std::move(queue_)), opening(opening_) {}
  void send(const std::string& target_id, ShardOperation operation,
            std::uint64_t call_id) override {
    sender(target_id, std::move(operation),
           [queue = queue, opening = opening, call_id](ShardReply reply) {
             queue->push(OwedEvent(PeerReply{opening, call_id, std::move(reply)}));
           });
  }
  const PeerSender& sender;
  const std::shared_ptr<EventQueue> queue;
  const std::uint64_t opening;
};

/// In the order in which they are made; they end in the opposite one.
struct TargetRunner::Opened {
  std::unique_ptr<disk::SlotIo> io;
  std::unique_ptr<index::ShardIndex> index;
  std::unique_ptr<Link> link;
  std::unique_ptr<TargetHost> host;
};

TargetRunner::TargetRunner(TargetRunnerOptions options, const MapCell& maps, PeerSender peers,
                           const NodeMetrics& metrics, Logger log)
    : options_(std::move(options)),
      maps_(maps),
      peers_(std::move(peers)),
      metrics_(metrics),
      log_(std::move(log)),
      queue_(std::make_shared<EventQueue>(options_.mailbox_requests)) {
  thread_ = std::thread([this] { run(); });
}

TargetRunner::~TargetRunner() { stop(); }

void TargetRunner::stop() {
  queue_->close();
  if (thread_.joinable()) thread_.join();
}

absl::Status TargetRunner::wait_opened() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return opened_.has_value(); });
  return *opened_;
}

TargetStatus TargetRunner::status() const {
  std::lock_guard lock(mutex_);
  return status_;
}

void TargetRunner::publish(TargetStatus status) {
  std::lock_guard lock(mutex_);
  status_ = std::move(status);
}

void TargetRunner::run() {
  const std::chrono::nanoseconds first_retry = options_.settings.full_retry;
  std::chrono::nanoseconds retry = first_retry;
  TimePoint opened_at = TimePoint::min();
  Ending ending = Ending::kOpenAgain;
  while (ending == Ending::kOpenAgain) {
    // Full again soon: nothing has changed yet.
    const bool is_soon = openings_ > 0 && Clock::now() - opened_at < 4 * retry;
    retry = is_soon ? std::min(2 * retry, kLongestRetry * first_retry) : first_retry;
    const absl::StatusOr<std::unique_ptr<Opened>> opened = open();
    report_opening(opened);
    opened_at = Clock::now();
    ending = opened.ok() ? serve(**opened, retry) : serve_nothing(opened.status(), retry);
  }
}

void TargetRunner::report_opening(const absl::StatusOr<std::unique_ptr<Opened>>& opened) {
  {
    std::lock_guard lock(mutex_);
    status_.target_id = options_.folder.target_id;
    if (opened.ok()) {
      status_ = (*opened)->host->status(Clock::now());
    } else {
      status_.state = TargetState::kFailed;
      status_.reason = message_of(opened.status());
    }
    opened_ = opened.status();
  }
  changed_.notify_all();
  if (!opened.ok())
    log_.error("target_failed",
               {{"target_id", options_.folder.target_id}, {"reason", message_of(opened.status())}});
}

absl::StatusOr<std::unique_ptr<TargetRunner::Opened>> TargetRunner::open() {
  const auto began = Clock::now();
  ++openings_;
  const TargetFolder& folder = options_.folder;
  auto opened = std::make_unique<Opened>();
  ASSIGN_OR_RETURN(
      opened->io,
      disk::open_slot_file({.path = folder.slot_path,
                            .bytes = options_.identity.slot_count * options_.identity.slot_bytes,
                            .backend = folder.backend,
                            .queue_depth = options_.settings.queue_depth,
                            .max_operation_bytes = options_.identity.slot_bytes},
                           [queue = queue_](std::vector<disk::SlotCompletion> completions) {
                             queue->push(OwedEvent(std::move(completions)));
                           }));
  ASSIGN_OR_RETURN(opened->index,
                   index::open_rocks_index({.path = folder.index_path,
                                            .identity = options_.identity,
                                            .cache_bytes = options_.index_cache_bytes}));
  ASSIGN_OR_RETURN(
      std::unique_ptr<Target> target,
      Target::open(options_.settings, *opened->io, *opened->index, metrics_, Clock::now()));
  opened->link = std::make_unique<Link>(peers_, queue_, openings_);
  opened->host = std::make_unique<TargetHost>(std::move(target), options_.settings, *opened->link,
                                              metrics_, Clock::now());
  const TargetStatus status = opened->host->status(Clock::now());
  log_.info("target_open",
            {{"target_id", status.target_id},
             {"io", status.io_kind},
             {"slots", status.slot_count},
             {"free_slots", status.free_slots},
             {"seconds", std::chrono::duration<double>(Clock::now() - began).count()}});
  return opened;
}

TargetRunner::Ending TargetRunner::serve(Opened& opened, std::chrono::nanoseconds retry) {
  TargetHost& host = *opened.host;
  std::shared_ptr<const StorageMap> map;
  TargetState state = TargetState::kServing;
  TimePoint next_report = Clock::now();
  TimePoint open_again = TimePoint::max();
  bool is_ending = false;
  while (!is_ending || !host.is_idle()) {
    EventQueue::Batch batch = queue_->take(kMaxRequestsPerTurn, kTick);
    if (std::shared_ptr<const StorageMap> newest = maps_.current(); newest != map) {
      map = std::move(newest);
      host.set_map(*map);
    }
    is_ending = batch.is_last;
    apply(host, std::move(batch));
    const TimePoint now = Clock::now();
    host.turn(now);
    if (host.target().state() != state) {
      state = host.target().state();
      log_.error("target_failed", {{"target_id", options_.folder.target_id},
                                   {"state", target_state_name(state)},
                                   {"reason", host.target().reason()}});
      next_report = now;
      open_again = host.target().is_full() ? now + retry : TimePoint::max();
    }
    if (now < next_report) continue;
    next_report = now + kReportInterval;
    host.report(now);
    publish(host.status(now));
    // Idle, it owes no answer to anybody.
    if (!is_ending && now >= open_again && host.is_idle()) return Ending::kOpenAgain;
  }
  return Ending::kStopped;
}

void TargetRunner::apply(TargetHost& host, EventQueue::Batch batch) {
  const TimePoint now = Clock::now();
  for (OwedEvent& event : batch.owed) {
    if (auto* completions = std::get_if<std::vector<disk::SlotCompletion>>(&event)) {
      host.on_completions(std::move(*completions), now);
    } else if (auto* answer = std::get_if<PeerReply>(&event)) {
      if (answer->opening == openings_)
        host.on_peer_reply(answer->call_id, std::move(answer->reply));
    } else if (const auto* scrub = std::get_if<ScrubWish>(&event)) {
      host.start_scrub(scrub->request, now);
    } else {
      const EvictWish& wish = std::get<EvictWish>(event);
      host.evict_to(wish.request, wish.fraction, now);
    }
  }
  for (QueuedRequest& request : batch.requests) {
    if (batch.is_closed) {
      request.done(refusal(ShardResult::kBusy, "this node is stopping"));
    } else if (now >= request.overdue_at) {
      request.done(
          refusal(ShardResult::kOverdue, "its deadline passed in the queue of its target"));
    } else {
      host.on_request(std::move(request.operation), std::move(request.done), now);
    }
  }
}

TargetRunner::Ending TargetRunner::serve_nothing(const absl::Status& reason,
                                                 std::chrono::nanoseconds retry) {
  const bool is_full = reason.code() == absl::StatusCode::kResourceExhausted;
  const TimePoint open_again = is_full ? Clock::now() + retry : TimePoint::max();
  bool is_ending = false;
  while (!is_ending) {
    if (Clock::now() >= open_again) return Ending::kOpenAgain;
    EventQueue::Batch batch = queue_->take(kMaxRequestsPerTurn, kTick);
    is_ending = batch.is_last;
    for (const QueuedRequest& request : batch.requests)
      request.done(refusal(ShardResult::kIoError, message_of(reason)));
  }
  return Ending::kStopped;
}

}  // namespace millrace::storage::node
