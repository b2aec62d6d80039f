#include "dataplane/worker/core.h"

#include <algorithm>
#include <utility>

#include "common/annotate.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "dataplane/kv/layout.h"

namespace millrace::dataplane::worker {

static_assert(cost::kTailRows == kv::kWindowTokens);
namespace {

/// A refit costs well under a millisecond; 64 steps of prefill are seconds.
constexpr int kStepsBetweenFits = 64;
/// Until costs are known they are looked for more often.
constexpr int kStepsBeforeFirstFit = 16;

/// After these a hand-over is still good for another worker, so its source keeps it.
bool leaves_handover_valid(absl::StatusCode code) {
  return code == absl::StatusCode::kResourceExhausted || code == absl::StatusCode::kUnavailable;
}

/// Positions that the whole request may come to run: all but its last token.
int positions_of(const RequestSpec& spec) {
  return spec.prompt_tokens + spec.sampling.max_new_tokens - 1;
}

int generated_tokens(const RequestSpec& spec) {
  return static_cast<int>(spec.tokens.size()) - spec.prompt_tokens;
}

transfer::ExportOwner owner_of(const RequestSpec& spec) {
  return {.stream = spec.stream, .request = str_cat(spec.key.request_id, "#", spec.key.attempt)};
}

transfer::ExportOwner owner_of(const Cancel& cancel) {
  return {.stream = cancel.stream,
          .request = str_cat(cancel.key.request_id, "#", cancel.key.attempt)};
}

}  // namespace

absl::StatusOr<std::unique_ptr<Core>> Core::create(const CoreConfig& config, engine::Engine& engine,
                                                   transfer::ExportTable& exports) {
  ASSIGN_OR_RETURN(scheduler::Scheduler scheduler, scheduler::Scheduler::create(config.limits));
  return std::unique_ptr<Core>(new Core(config, engine, exports, std::move(scheduler)));
}

Core::Core(const CoreConfig& config, engine::Engine& engine, transfer::ExportTable& exports,
           scheduler::Scheduler scheduler)
    : config_(config), engine_(engine), exports_(exports), scheduler_(std::move(scheduler)) {
  if (!config.prefill_cost) return;
  is_cost_known_ = true;
  prefill_cost_ = *config.prefill_cost;
  scheduler_.set_cost(prefill_cost_);
}

// ---- commands -----------------------------------------------------------------------------------

void Core::on_command(Command command) {
  if (auto* open = std::get_if<OpenStream>(&command)) {
    streams_[open->stream].stream = open->stream;
  } else if (auto* prefill = std::get_if<StartPrefill>(&command)) {
    start(std::move(prefill->spec), scheduler::Work::kPrefill, nullptr);
  } else if (auto* decode = std::get_if<StartDecode>(&command)) {
    start(std::move(decode->spec), scheduler::Work::kDecode, &decode->handover);
  } else if (auto* cancelled = std::get_if<Cancel>(&command)) {
    const auto found = by_key_.find({cancelled->stream, cancelled->key});
    if (found != by_key_.end()) cancel(found->second);
    exports_.release_owner(owner_of(*cancelled));
    if (cancelled->export_id != 0) exports_.release(cancelled->export_id);
  } else if (auto* close = std::get_if<CloseStream>(&command)) {
    const auto first = by_key_.lower_bound({close->stream, RequestKey{}});
    std::vector<RequestId> ended;
    for (auto it = first; it != by_key_.end() && it->first.first == close->stream; ++it) {
      ended.push_back(it->second);
    }
    for (const RequestId id : ended) cancel(id);
    exports_.release_stream(close->stream);
    streams_.erase(close->stream);
  } else if (auto* done = std::get_if<ImportDone>(&command)) {
    on_import_done(std::move(*done));
  } else if (auto* fetched = std::get_if<KvFetched>(&command)) {
    on_kv_fetched(std::move(*fetched));
  } else if (auto* stored = std::get_if<WindowStored>(&command)) {
    const auto stream = streams_.find(stored->stream);
    if (stream != streams_.end()) stream->second.windows.push_back(std::move(*stored));
  } else if (const auto* published = std::get_if<PublishedCost>(&command)) {
    if (!is_cost_known_) scheduler_.set_cost(published->model);
  } else {
    is_draining_ = true;
  }
}

void Core::start(RequestSpec spec, scheduler::Work work, const transfer::Handover* handover) {
  const auto stream = streams_.find(spec.stream);
  if (stream == streams_.end()) return;  // closed before it was taken up
  ++stream->second.started_requests;

  Request request;
  request.work = work;
  if (handover != nullptr) {
    request.handover = *handover;
    request.owes_release = true;
  }
  absl::Status status = is_draining_ ? absl::UnavailableError("this worker is draining")
                                     : check(spec, work, handover);
  const RequestId id = next_id_++;
  const bool is_prefill = work == scheduler::Work::kPrefill;
  const int stored_tokens = status.ok() && is_prefill ? fetchable_tokens(spec) : 0;
  if (status.ok()) {
    const int token_count = static_cast<int>(spec.tokens.size());
    status = scheduler_.enqueue({.id = id,
                                 .work = work,
                                 .rows = is_prefill ? token_count : 0,
                                 .prompt_tokens = spec.prompt_tokens,
                                 .capacity_tokens = is_prefill ? token_count : positions_of(spec),
                                 .deadline = spec.deadline,
                                 .awaits_kv = stored_tokens > 0,
                                 .expected_hit = stored_tokens});
  }
  if (!status.ok()) {
    if (handover != nullptr && !leaves_handover_valid(status.code())) {
      output_.releases.push_back({handover->source_address, handover->export_id});
    }
    refuse(spec, status);
    return;
  }
  if (spec.sampling.has_penalties()) {
    request.counts = sampling::TokenCounts(spec.tokens, spec.prompt_tokens);
  }
  by_key_.emplace(std::pair(spec.stream, spec.key), id);
  request.spec = std::move(spec);
  requests_.emplace(id, std::move(request));
  if (stored_tokens > 0) begin_fetch(id, stored_tokens);
}

absl::Status Core::check(const RequestSpec& spec, scheduler::Work work,
                         const transfer::Handover* handover) const {
  const bool is_prefill = work == scheduler::Work::kPrefill;
  if (is_prefill != (config_.role == Role::kPrefill)) {
    return absl::FailedPreconditionError(
        str_cat("worker ", config_.worker_id, " does not ", is_prefill ? "prefill" : "decode"));
  }
  if (by_key_.contains({spec.stream, spec.key})) {
    return absl::AlreadyExistsError("this attempt of the request is running already");
  }
  const auto token_count = static_cast<std::int64_t>(spec.tokens.size());
  if (spec.prompt_tokens < 1 || spec.prompt_tokens > token_count) {
    return absl::InvalidArgumentError(
        str_cat("prompt_tokens is ", spec.prompt_tokens, " of ", token_count, " tokens"));
  }
  for (const TokenId token : spec.tokens) {
    if (token < 0 || token >= engine_.vocab_size()) {
      return absl::InvalidArgumentError(
          str_cat("token ", token, " is outside the vocabulary of ", engine_.vocab_size()));
    }
  }
  RETURN_IF_ERROR(sampling::validate(spec.sampling, engine_.vocab_size()));
  if (token_count - spec.prompt_tokens >= spec.sampling.max_new_tokens) {
    return absl::InvalidArgumentError("max_new_tokens have been delivered already");
  }
  if (std::int64_t{spec.prompt_tokens} + spec.sampling.max_new_tokens - 1 >
      engine_.max_position()) {
    return absl::InvalidArgumentError(
        str_cat("prompt (", spec.prompt_tokens, " tokens) and max_new_tokens (",
                spec.sampling.max_new_tokens, ") exceed the context of ", engine_.max_position()));
  }
  if (handover == nullptr) return absl::OkStatus();
  if (token_count == spec.prompt_tokens || handover->computed_tokens != token_count - 1) {
    return absl::InvalidArgumentError(str_cat("the hand-over holds ", handover->computed_tokens,
                                              " positions; ", token_count,
                                              " tokens need all but the last one"));
  }
  if (handover->layout_id != engine_.kv_layout_id()) {
    return absl::FailedPreconditionError(str_cat("KV layout \"", handover->layout_id,
                                                 "\" of the hand-over is not ours, \"",
                                                 engine_.kv_layout_id(), "\""));
  }
  return absl::OkStatus();
}

void Core::on_import_done(ImportDone done) {
  const auto found = requests_.find(done.request);
  if (found == requests_.end()) return;  // cancelled meanwhile
  found->second.import_cancel.reset();
  const absl::Status status = take_in(found->second, std::move(done.bytes));
  if (!status.ok()) {
    fail(done.request, status);
    return;
  }
  output_.releases.push_back(
      {found->second.handover.source_address, found->second.handover.export_id});
  found->second.owes_release = false;
  scheduler_.start_decoding(done.request);
}

absl::Status Core::take_in(Request& request, absl::StatusOr<transfer::KvBytes> bytes) {
  RETURN_IF_ERROR(bytes.status());
  ASSIGN_OR_RETURN(request.sequence,
                   engine_.import_from(bytes->bytes(), positions_of(request.spec)));
  const int expected = static_cast<int>(request.spec.tokens.size()) - 1;
  if (const int length = engine_.length(request.sequence); length != expected) {
    return absl::DataLossError(
        str_cat("the hand-over holds ", length, " positions, announced were ", expected));
  }
  // Full blocks were the prefill's to store.
  request.sealed_blocks = expected / kv::kBlockTokens;
  ++(bytes->path() == transfer::FetchPath::kStream ? output_.counts.imports_streamed
                                                   : output_.counts.imports_mapped);
  return absl::OkStatus();
}

// ---- a turn -------------------------------------------------------------------------------------

TurnOutput Core::run_turn(TimePoint now) {
  output_.counts.expired_exports += exports_.expire(now);
  end_late_fetches(now);
  const scheduler::Turn turn = scheduler_.begin_turn(now);
  for (const RequestId id : turn.expired) {
    fail(id, absl::DeadlineExceededError("the request's time is over"));
  }
  for (const RequestId id : turn.admitted) admit(id);
  for (const RequestId id : std::exchange(held_, {})) {
    if (!try_hand_over(id, now)) held_.push_back(id);
  }
  run_step(now);

  TurnOutput output = std::exchange(output_, {});
  for (auto& [stream, batch] : streams_) {
    output.batches.push_back({.stream = stream,
                              .events = std::exchange(batch.events, {}),
                              .windows = std::exchange(batch.windows, {}),
                              .started_requests = batch.started_requests});
  }
  return output;
}

void Core::admit(RequestId id) {
  Request& admitted = request(id);
  if (admitted.work == scheduler::Work::kDecode) {
    admitted.import_cancel = std::make_shared<transfer::CancelFlag>(false);
    output_.imports.push_back({.request = id,
                               .handover = admitted.handover,
                               .deadline = admitted.spec.deadline,
                               .cancel = admitted.import_cancel});
    return;
  }
  ++output_.counts.replays[static_cast<std::size_t>(admitted.hit.kind)];
  absl::Status status = create_sequence(admitted);
  if (status.ok() && admitted.hit.write_floor > 0) status = bring_in_stored(admitted);
  if (!status.ok()) fail(id, status);
}

absl::Status Core::create_sequence(Request& request) {
  const int token_count = static_cast<int>(request.spec.tokens.size());
  const std::span<const TokenId> tokens(request.spec.tokens);
  const kv::HitPlan& hit = request.hit;
  ASSIGN_OR_RETURN(
      request.sequence,
      engine_.create(
          {.prompt_tokens = request.spec.prompt_tokens,
           .capacity_tokens = token_count,
           .compute_start = hit.compute_start,
           .write_floor = hit.write_floor,
           .prefix_tokens = tokens.first(static_cast<std::size_t>(hit.compute_start)),
           .has_window = hit.window_anchor > 0,
           .window_anchor = request.spec.kv.has_value() ? kv::anchor_after(token_count) : 0}));
  return absl::OkStatus();
}

void Core::run_step(TimePoint now) {
  const std::vector<scheduler::StepSlice> slices = scheduler_.plan_step();
  if (slices.empty()) return;
  std::vector<engine::StepItem> items;
  for (const scheduler::StepSlice& slice : slices) {
    const Request& running = request(slice.id);
    const std::span<const TokenId> tokens(running.spec.tokens);
    const bool is_decode = slice.work == scheduler::Work::kDecode;
    const std::size_t first =
        is_decode ? tokens.size() - 1 : static_cast<std::size_t>(slice.first_row);
    items.push_back({.sequence = running.sequence,
                     .tokens = tokens.subspan(first, static_cast<std::size_t>(slice.row_count)),
                     .logits_rows = slice.is_last ? 1 : 0});
    (is_decode ? output_.counts.decode_rows : output_.counts.prefill_rows) += slice.row_count;
    if (!is_decode) {
      output_.counts.prefill_step.add({slice.row_count, slice.first_row, slice.tail_rows});
    }
  }
  const absl::Status status = engine_.step(items, logits_);
  if (!status.ok()) {
    // Everything the engine could refuse was checked when the requests came in, so this is a broken
    // engine; who is to blame cannot be told.
    for (const scheduler::StepSlice& slice : slices) {
      fail(slice.id, absl::InternalError(str_cat("step failed: ", message_of(status))));
    }
    return;
  }
  scheduler_.step_done(slices);
  std::vector<RequestId> wasted;
  for (const scheduler::StepSlice& slice : slices) {
    if (settle_swap_in(slice.id)) {
      seal_full_blocks(request(slice.id));
    } else {
      wasted.push_back(slice.id);
    }
  }
  const auto vocab = static_cast<std::size_t>(engine_.vocab_size());
  std::size_t row = 0;
  for (const scheduler::StepSlice& slice : slices) {
    if (!slice.is_last) continue;
    const std::size_t logits_row = row++;
    if (std::find(wasted.begin(), wasted.end(), slice.id) != wasted.end()) continue;
    const Request& running = request(slice.id);
    absl::StatusOr<sampling::Sample> token = sampling::sample(
        std::span<const float>(logits_).subspan(logits_row * vocab, vocab), running.spec.sampling,
        running.counts, running.spec.tokens.size(), scratch_, too_early(running));
    if (token.ok()) {
      ++output_.counts.sampled_tokens;
      on_sampled(slice.id, *std::move(token), now);
    } else {
      fail(slice.id, token.status());
    }
  }
}

void Core::on_sampled(RequestId id, sampling::Sample token, TimePoint now) {
  Request& running = request(id);
  const FinishReason finish = finish_reason(running, token.token);
  running.spec.tokens.push_back(token.token);
  if (running.spec.sampling.has_penalties()) running.counts.add_generated(token.token);
  const bool is_done = running.work == scheduler::Work::kPrefill || finish != FinishReason::kNone;
  if (is_done) leave_window(running);
  if (running.work == scheduler::Work::kDecode) {
    emit(running.spec.stream, {.key = running.spec.key, .what = Sampled{std::move(token), finish}});
  } else if (finish != FinishReason::kNone) {
    emit(running.spec.stream,
         {.key = running.spec.key,
          .what = Prefilled{std::move(token), finish, std::nullopt, running.hit.compute_start}});
  } else {
    running.first_token = std::move(token);
    if (!try_hand_over(id, now)) held_.push_back(id);
    return;
  }
  if (finish != FinishReason::kNone) forget(id);
}

/// True when the request is over: handed over or failed. False: no room, try again later.
bool Core::try_hand_over(RequestId id, TimePoint now) {
  Request& running = request(id);
  const absl::StatusOr<transfer::ExportTicket> ticket = exports_.add(
      owner_of(running.spec), engine_.export_bytes(running.sequence),
      [&](std::span<std::byte> out) { return engine_.export_to(running.sequence, out); }, now);
  if (absl::IsResourceExhausted(ticket.status())) return false;
  if (!ticket.ok()) {
    fail(id, annotate(ticket.status(), "hand-over"));
    return true;
  }
  ++output_.counts.exports;
  const transfer::Handover handover{
      .source_worker = config_.worker_id,
      .source_address = config_.transfer_address,
      .host_id = config_.host_id,
      .export_id = ticket->export_id,
      .shm_name = ticket->shm_name,
      .bytes = ticket->bytes,
      .checksum = ticket->checksum,
      .computed_tokens = static_cast<int>(running.spec.tokens.size()) - 1,
      .layout_id = engine_.kv_layout_id()};
  emit(running.spec.stream, {.key = running.spec.key,
                             .what = Prefilled{std::move(running.first_token), FinishReason::kNone,
                                               handover, running.hit.compute_start}});
  forget(id);
  return true;
}

/// Tokens that would end the text before it is as long as was asked for.
std::span<const TokenId> Core::too_early(const Request& running) {
  const sampling::SamplingParams& sampling = running.spec.sampling;
  too_early_.clear();
  if (generated_tokens(running.spec) >= sampling.min_new_tokens) return too_early_;
  too_early_ = sampling.stop_token_ids;
  if (!sampling.ignore_eos) {
    too_early_.insert(too_early_.end(), config_.eos_tokens.begin(), config_.eos_tokens.end());
  }
  return too_early_;
}

FinishReason Core::finish_reason(const Request& running, TokenId token) const {
  const sampling::SamplingParams& sampling = running.spec.sampling;
  const auto names = [&](const std::vector<TokenId>& tokens) {
    return std::find(tokens.begin(), tokens.end(), token) != tokens.end();
  };
  if (names(sampling.stop_token_ids) || (!sampling.ignore_eos && names(config_.eos_tokens))) {
    return FinishReason::kStop;
  }
  return generated_tokens(running.spec) + 1 >= sampling.max_new_tokens ? FinishReason::kLength
                                                                       : FinishReason::kNone;
}

// ---- endings ------------------------------------------------------------------------------------

void Core::emit(StreamId stream, Event event) {
  const auto found = streams_.find(stream);
  CHECK(found != streams_.end(), "a request ends before its stream");
  found->second.events.push_back(std::move(event));
}

void Core::refuse(const RequestSpec& spec, const absl::Status& status) {
  output_.counts.failures.push_back(status.code());
  if (absl::IsInternal(status)) output_.counts.internal_error = std::string(status.message());
  emit(spec.stream, {.key = spec.key, .what = Failed{status}});
}

void Core::fail(RequestId id, const absl::Status& status) {
  Request& failed = request(id);
  if (leaves_handover_valid(status.code())) failed.owes_release = false;
  refuse(failed.spec, status);
  forget(id);
}

void Core::cancel(RequestId id) {
  ++output_.counts.cancelled_requests;
  // A stop string ends a text this way, too: what it leaves is as good.
  if (request(id).work == scheduler::Work::kDecode) leave_window(request(id));
  forget(id);
}

void Core::forget(RequestId id) {
  const auto found = requests_.find(id);
  Request& gone = found->second;
  if (gone.import_cancel != nullptr) gone.import_cancel->store(true);
  if (gone.owes_release) {
    output_.releases.push_back({gone.handover.source_address, gone.handover.export_id});
  }
  if (fetching_.erase(id) > 0) kv_jobs_.cancels.push_back(id);
  if (gone.sequence >= 0) engine_.release(gone.sequence);
  scheduler_.remove(id);
  std::erase(held_, id);
  by_key_.erase({gone.spec.stream, gone.spec.key});
  requests_.erase(found);
}

Core::Request& Core::request(RequestId id) {
  const auto found = requests_.find(id);
  CHECK(found != requests_.end(), "the request is known");
  return found->second;
}

bool Core::has_rows() const { return !scheduler_.plan_step().empty(); }

bool Core::is_idle() const { return requests_.empty() && exports_.usage().exports == 0; }

bool Core::on_step_measured(cost::PrefillSample step) {
  if (!fit_window_.add(step)) return false;
  if (++steps_since_fit_ < (is_cost_known_ ? kStepsBetweenFits : kStepsBeforeFirstFit)) {
    return false;
  }
  steps_since_fit_ = 0;
  const absl::StatusOr<cost::PrefillFit> fit = fit_window_.refit();
  if (!fit.ok()) return false;  // too few kinds of steps so far
  if (is_cost_known_ && !fit_window_.is_better(prefill_cost_, fit->model)) return false;
  is_cost_known_ = true;
  prefill_cost_ = fit->model;
  scheduler_.set_cost(prefill_cost_);
  return true;
}

Load Core::load() const {
  const scheduler::SchedulerLoad load = scheduler_.load();
  std::int64_t kv_tokens = 0;
  for (const auto& [id, request] : requests_) {
    kv_tokens += static_cast<std::int64_t>(request.spec.tokens.size());
  }
  return {.running = load.running,
          .waiting = load.waiting,
          .waiting_tokens = load.waiting_tokens,
          .kv_tokens = kv_tokens,
          .queued_ns = load.queued_ns,
          .wants_more = false,
          .is_holding = is_holding(),
          .kv_blocks_used = load.kv_blocks_used,
          .kv_blocks_total = config_.limits.kv_blocks,
          .is_draining = is_draining_,
          .prefill_cost = is_cost_known_ ? std::optional(prefill_cost_) : std::nullopt};
}

}  // namespace millrace::dataplane::worker
