#include "api/entrypoint/request_table.h"

#include <algorithm>
#include <utility>

#include "api/entrypoint/engine_messages.h"
#include "api/proto/engine.pb.h"
#include "common/check.h"
#include "common/str_cat.h"
#include "storage/kv/block_key.h"

namespace millrace::api::entrypoint {
namespace {

using admin::WorkerRole;
using Clock = std::chrono::steady_clock;

constexpr auto kBlockTokens = static_cast<std::uint64_t>(storage::kBlockTokens);

Outcome outcome_of(const absl::Status& status) {
  return status.code() == absl::StatusCode::kDeadlineExceeded ? Outcome::kDeadline
                                                              : Outcome::kError;
}

}  // namespace

std::int64_t kv_blocks_needed(std::uint64_t tokens, std::uint64_t max_new_tokens, WorkerRole role) {
  // A prefill worker keeps the prompt's blocks only.
  const std::uint64_t longest = role == WorkerRole::kPrefill ? tokens : tokens + max_new_tokens;
  return static_cast<std::int64_t>((longest + kBlockTokens - 1) / kBlockTokens);
}

/// What the choices of a request share.
struct RequestTable::Request {
  std::string id;
  std::unique_ptr<OutputSink> sink;
  std::vector<Order> open;  // choices that have not ended
};

struct RequestTable::Entry {
  Entry(Order number, Request& owner, std::uint32_t index, EngineChoice what,
        const EngineRequest& how)
      : order(number),
        request(owner),
        choice(index),
        request_id(index == 0 ? owner.id : str_cat(owner.id, ".", index)),
        flow(std::move(what.prompt), what.max_new_tokens),
        sampling(to_sampling_state(how.sampling, what.seed, what.max_new_tokens)),
        kv(std::move(what.kv)),
        arrival(how.arrival),
        deadline(how.deadline) {}

  StartContext start_context() const {
    return {
        .request_id = request_id,
        .flow = flow,
        .sampling = sampling,
        .kv = kv.get(),
        .time_left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()),
        .answered_claim = answering};
  }

  /// Tokens that go to a worker now.
  std::int64_t length() const { return static_cast<std::int64_t>(flow.tokens().size()); }
  /// Of those, that a prefill worker probably finds stored; it runs one at least.
  std::int64_t expected_hit() const {
    return kv == nullptr ? 0 : std::min<std::int64_t>(kv->hit_tokens, length() - 1);
  }
  std::int64_t kv_blocks(WorkerRole role) const {
    return kv_blocks_needed(flow.tokens().size(), flow.max_new_tokens() - flow.delivered(), role);
  }

  const Order order;
  Request& request;
  const std::uint32_t choice;
  const std::string request_id;  // of the choice: the engines' key
  RequestFlow flow;
  const proto::v1::SamplingState sampling;
  const std::shared_ptr<const KvScope> kv;  // the same for every attempt: the prompt is the same
  const TimePoint arrival;
  const TimePoint deadline;
  TimePoint first_token;
  TimePoint last_token;
  bool is_offered = false;      // to prefill workers
  bool was_offered = false;     // at some time: it counted as demand then
  std::uint64_t answering = 0;  // the claim that it is being given for
  /// What is charged for it, and where: the guard that it is released once.
  struct Charged {
    std::string worker_id;
    std::uint32_t attempt = 0;
  };
  std::optional<Charged> charged;
  bool is_counted_waiting = false;
  std::uint64_t counted_pending = 0;  // tokens within pending_tokens_
  common::http::EventLoop::Timer deadline_timer;
};

RequestTable::RequestTable(common::http::EventLoop& loop, Logger log,
                           const EntrypointMetrics& metrics, EnginePool& pool, Balancer& balancer,
                           std::function<void()> on_change)
    : loop_(loop),
      log_(std::move(log)),
      metrics_(metrics),
      pool_(pool),
      balancer_(balancer),
      on_change_(std::move(on_change)) {}

RequestTable::~RequestTable() = default;

void RequestTable::add(EngineRequest request, std::unique_ptr<OutputSink> sink) {
  CHECK(!request.choices.empty());
  auto made = std::make_unique<Request>(Request{request.request_id, std::move(sink), {}});
  const auto [place, is_new] = requests_.emplace(request.request_id, std::move(made));
  CHECK(is_new, "request ids are unique");
  Request& owner = *place->second;
  for (std::uint32_t i = 0; i < request.choices.size(); ++i) {
    const Order order = next_order_++;
    metrics_.prompt(request.choices[i].prompt.size());
    auto entry = std::make_unique<Entry>(order, owner, i, std::move(request.choices[i]), request);
    entry->deadline_timer = loop_.after(entry->deadline - Clock::now(), [this, order] {
      apply(order, flow_event::DeadlinePassed{});
    });
    owner.open.push_back(order);
    order_of_.emplace(entry->request_id, order);
    update_counts(*entries_.emplace(order, std::move(entry)).first->second);
    unassigned_.insert(order);
  }
  dispatch();
}

void RequestTable::cancel(const std::string& request_id) {
  const auto it = requests_.find(request_id);
  if (it == requests_.end()) return;
  // A copy: the last one that ends takes the request with it.
  const std::vector<Order> orders = it->second->open;
  for (const Order order : orders) {
    Entry& entry = *entries_.at(order);
    for (const FlowCommand& command : entry.flow.on_event(flow_event::Cancelled{}, Clock::now())) {
      run(entry, command);
    }
    finish(order, Outcome::kCancelled);
  }
}

void RequestTable::on_events(const std::string& worker_id, const proto::v1::EngineEvents& events) {
  for (const proto::v1::EngineEvent& event : events.events()) {
    const auto it = order_of_.find(event.key().request_id());
    if (it != order_of_.end()) {
      apply(it->second, to_flow_event(worker_id, event));
    } else if (event.has_prefilled() && event.prefilled().has_handover()) {
      // The request ended while this was on its way: nobody will fetch its KV.
      pool_.send(worker_id, cancel_command(event.key().request_id(),
                                           {worker_id, event.key().attempt(),
                                            event.prefilled().handover().export_id()}));
    }
  }
  if (events.has_claim()) on_claim(worker_id, events);
}

/// A prefill worker asks for the request of a bucket: it gets it, or hears what there is instead.
void RequestTable::on_claim(const std::string& worker_id, const proto::v1::EngineEvents& events) {
  const proto::v1::Claim& claim = events.claim();
  const int bucket = static_cast<int>(std::min<std::uint32_t>(claim.bucket(), 1 << 20));
  if (const auto order = balancer_.grant(worker_id, bucket)) {
    entries_.at(*order)->answering = claim.number();
    apply(*order, flow_event::Assigned{worker_id});
    metrics_.claimed(ClaimAnswer::kGranted);
    return;
  }
  metrics_.claimed(ClaimAnswer::kGone);
  pool_.send(worker_id, offers_command(balancer_.news_for(worker_id), balancer_.view_version(),
                                       claim.number(), Clock::now()));
}

void RequestTable::on_lost(const std::string& worker_id) {
  std::vector<Order> orders;
  for (const auto& [order, entry] : entries_) orders.push_back(order);
  for (const Order order : orders) apply(order, flow_event::WorkerLost{worker_id});
  dispatch();
}

/// Feeds an event to a request and does what it asks for.
void RequestTable::apply(Order order, const FlowEvent& event) {
  const auto it = entries_.find(order);
  if (it == entries_.end()) return;
  Entry& entry = *it->second;
  for (const FlowCommand& command : entry.flow.on_event(event, Clock::now())) {
    if (const std::optional<Outcome> outcome = run(entry, command)) {
      finish(order, *outcome);
      return;
    }
  }
  settle(entry);
  update_counts(entry);
  // Whoever holds no worker now wants one, at once or later.
  const bool is_waiting = entry.flow.wanted_role(TimePoint::max()).has_value();
  if (is_waiting && !entry.is_offered && unassigned_.insert(order).second) dispatch();
}

/// How the request ended, when it is over.
std::optional<Outcome> RequestTable::run(Entry& entry, const FlowCommand& command) {
  using namespace flow_command;
  if (const auto* prefill = std::get_if<StartPrefill>(&command)) {
    const std::int64_t cached = entry.expected_hit();
    start(entry, prefill->worker_id, prefill->attempt,
          start_prefill_command(entry.start_context(), *prefill),
          {.requests = 1,
           .quota_ns = balancer_.quota_ns(dataplane::cost::chunk_at(entry.length() - cached, cached,
                                                                    entry.flow.prompt_tokens())),
           .kv_tokens = entry.length(),
           .rows = entry.length() - cached,
           .kv_blocks = entry.kv_blocks(WorkerRole::kPrefill)});
    entry.answering = 0;
  } else if (const auto* decode = std::get_if<StartDecode>(&command)) {
    start(entry, decode->worker_id, decode->attempt,
          start_decode_command(entry.start_context(), *decode),
          {.requests = 1,
           .kv_tokens = entry.length(),
           .kv_blocks = entry.kv_blocks(WorkerRole::kDecode)});
  } else if (const auto* stop = std::get_if<Cancel>(&command)) {
    pool_.send(stop->worker_id, cancel_command(entry.request_id, *stop));
  } else if (const auto* cached = std::get_if<Cached>(&command)) {
    if (entry.kv != nullptr) metrics_.prefix(entry.flow.prompt_tokens(), cached->tokens);
    entry.request.sink->cached(entry.choice, cached->tokens);
  } else if (const auto* output = std::get_if<Deliver>(&command)) {
    entry.last_token = Clock::now();
    if (entry.first_token == TimePoint()) {
      entry.first_token = entry.last_token;
      metrics_.first_token(entry.first_token - entry.arrival);
    }
    metrics_.generated(output->tokens.size());
    const std::optional<Outcome> outcome =
        entry.request.sink->deliver(entry.choice, output->tokens);
    if (!outcome) return std::nullopt;
    for (const FlowCommand& last : entry.flow.on_event(flow_event::Cancelled{}, Clock::now())) {
      run(entry, last);
    }
    return outcome;
  } else if (const auto* complete = std::get_if<Complete>(&command)) {
    return entry.request.sink->complete(entry.choice, complete->reason);
  } else if (const auto* failure = std::get_if<Fail>(&command)) {
    log_.warn("request_failed",
              {{"request_id", entry.request_id}, {"status", failure->status.ToString()}});
    entry.request.sink->fail(failure->status);
    return outcome_of(failure->status);
  } else if (const auto* reroute = std::get_if<Rerouted>(&command)) {
    metrics_.rerouted(reroute->reason);
    log_.info("request_rerouted", {{"request_id", entry.request_id},
                                   {"delivered_tokens", entry.flow.delivered()},
                                   {"cause", reroute->cause.ToString()}});
  }
  return std::nullopt;
}

void RequestTable::start(Entry& entry, const std::string& worker_id, std::uint32_t attempt,
                         proto::v1::EngineCommand command,
                         const dataplane::routing::Charge& charge) {
  settle(entry);
  entry.is_offered = false;
  entry.charged = Entry::Charged{worker_id, attempt};
  pool_.start(worker_id, std::move(command), {entry.order, attempt}, charge);
}

/// Releases what is charged for an attempt that runs no more.
void RequestTable::settle(Entry& entry) {
  if (!entry.charged || entry.flow.running_attempt() == entry.charged->attempt) return;
  pool_.release(entry.charged->worker_id, {entry.order, entry.charged->attempt});
  entry.charged.reset();
}

/// A choice is over; a failure takes its siblings along.
void RequestTable::finish(Order order, Outcome outcome) {
  const auto it = entries_.find(order);
  // Out of the table before anything else: what follows may look at it.
  const std::unique_ptr<Entry> entry = std::move(it->second);
  entries_.erase(it);
  order_of_.erase(entry->request_id);
  unassigned_.erase(order);
  balancer_.remove(order);
  settle(*entry);
  Request& request = entry->request;
  std::erase(request.open, order);
  if (entry->is_counted_waiting) --waiting_for_first_token_;
  pending_tokens_ -= entry->counted_pending;
  metrics_.ended(outcome);
  metrics_.set_requests(waiting_for_first_token_, entries_.size() - waiting_for_first_token_);
  const std::uint32_t count = entry->flow.delivered();
  if (count > 1) metrics_.per_token((entry->last_token - entry->first_token) / (count - 1));
  if (request.open.empty()) {
    requests_.erase(requests_.find(request.id));
  } else if (outcome == Outcome::kError || outcome == Outcome::kDeadline) {
    cancel(request.id);
  }
  on_change_();
}

void RequestTable::update_counts(Entry& entry) {
  const bool is_waiting = entry.flow.is_first_token_due();
  if (is_waiting != entry.is_counted_waiting) {
    entry.is_counted_waiting = is_waiting;
    is_waiting ? ++waiting_for_first_token_ : --waiting_for_first_token_;
  }
  pending_tokens_ -= entry.counted_pending;
  entry.counted_pending = entry.flow.is_decode_due() ? entry.flow.tokens().size() : 0;
  pending_tokens_ += entry.counted_pending;
  metrics_.set_requests(waiting_for_first_token_, entries_.size() - waiting_for_first_token_);
}

void RequestTable::dispatch() {
  metrics_.set_workers(pool_.accepting(WorkerRole::kPrefill), pool_.accepting(WorkerRole::kDecode));
  metrics_.set_open_charges(pool_.open_charges());
  // A copy: a request that cannot be served is taken out while we look.
  const std::vector<Order> orders(unassigned_.begin(), unassigned_.end());
  for (const Order order : orders) {
    if (try_assign(order)) unassigned_.erase(order);
  }
  serve_prefills();
  arm_retry();
}

/// True when the request has a worker, is offered to some, or is over.
bool RequestTable::try_assign(Order order) {
  const auto it = entries_.find(order);
  if (it == entries_.end()) return true;
  Entry& entry = *it->second;
  if (entry.is_offered) return true;
  const auto role = entry.flow.wanted_role(Clock::now());
  if (!role) return false;
  if (*role == WorkerRole::kDecode) return seek_decode(order, entry);
  seek_prefill(order, entry);
  return true;
}

/// From now on it waits for a prefill worker.
void RequestTable::seek_prefill(Order order, Entry& entry) {
  const absl::Status status = balancer_.add({.request = order,
                                             .tokens = entry.length(),
                                             .cached = entry.expected_hit(),
                                             .prompt_tokens = entry.flow.prompt_tokens(),
                                             .kv_blocks = entry.kv_blocks(WorkerRole::kPrefill),
                                             .since = entry.arrival,
                                             .is_new = !std::exchange(entry.was_offered, true)});
  entry.is_offered = status.ok();
  if (!status.ok()) fail(order, status);
}

bool RequestTable::seek_decode(Order order, Entry& entry) {
  if (pool_.accepting(WorkerRole::kDecode) == 0) return false;
  const auto worker_id =
      balancer_.choose_decode({.tokens = entry.length(),
                               .kv_blocks = entry.kv_blocks(WorkerRole::kDecode),
                               .pending_tokens = static_cast<std::int64_t>(pending_tokens_)});
  if (worker_id) {
    apply(order, flow_event::Assigned{*worker_id});
  } else {
    refuse_too_long(order);
  }
  return true;
}

void RequestTable::refuse_too_long(Order order) {
  const RequestFlow& flow = entries_.at(order)->flow;
  fail(order, absl::InvalidArgumentError(str_cat("a prompt of ", flow.prompt_tokens(),
                                                 " tokens and up to ", flow.max_new_tokens(),
                                                 " new ones do not fit the engines' KV memory")));
}

/// The choice has no worker, and gets none.
void RequestTable::fail(Order order, const absl::Status& status) {
  entries_.at(order)->request.sink->fail(status);
  finish(order, outcome_of(status));
}

/// Pushes waiting prefills, or tells workers of them.
void RequestTable::serve_prefills() {
  while (const auto order = balancer_.hopeless()) refuse_too_long(*order);
  while (const auto push = balancer_.next_push(Clock::now())) {
    apply(push->request, flow_event::Assigned{push->worker_id});
  }
  const TimePoint now = Clock::now();
  for (const Balancer::News& news : balancer_.take_news(now)) {
    pool_.send(news.worker_id, offers_command(news, balancer_.view_version(), 0, now));
  }
  if (const auto next = balancer_.next_news()) {
    news_ = loop_.after(*next - now, [this] { serve_prefills(); });
  } else {
    news_ = {};
  }
}

/// Looks again when the first back-off ends.
void RequestTable::arm_retry() {
  std::optional<TimePoint> next;
  const TimePoint now = Clock::now();
  for (const Order order : unassigned_) {
    const auto until = entries_.at(order)->flow.not_before();
    if (until && *until > now && (!next || *until < *next)) next = until;
  }
  if (next) {
    retry_ = loop_.after(*next - now, [this] { dispatch(); });
  } else {
    retry_ = {};
  }
}

}  // namespace millrace::api::entrypoint
