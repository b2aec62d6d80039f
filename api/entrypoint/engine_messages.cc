#include "api/entrypoint/engine_messages.h"

#include <algorithm>
#include <utility>

#include "api/proto/engine.pb.h"

namespace millrace::api::entrypoint {
namespace {

void set_key(const std::string& request_id, std::uint32_t attempt, proto::v1::RequestKey& key) {
  key.set_request_id(request_id);
  key.set_attempt(attempt);
}

std::uint64_t milliseconds_left(std::chrono::milliseconds time_left) {
  return time_left.count() > 0 ? static_cast<std::uint64_t>(time_left.count()) : 1;
}

void set_ref(const storage::swa::WindowLocation& at, proto::v1::KvWindowRef& ref) {
  ref.set_host_id(at.host_id);
  ref.set_address(at.address);
  ref.set_incarnation(at.incarnation);
  ref.set_slot(at.slot);
  ref.set_generation(at.generation);
  ref.set_bytes(at.bytes);
}

/// What StartPrefill and StartDecode have in common.
template <typename Message>
void set_start(const StartContext& context, std::uint32_t attempt, Message& message) {
  const RequestFlow& flow = context.flow;
  set_key(context.request_id, attempt, *message.mutable_key());
  message.mutable_tokens()->Assign(flow.tokens().begin(), flow.tokens().end());
  message.set_prompt_tokens(flow.prompt_tokens());
  *message.mutable_sampling() = context.sampling;
  message.set_deadline_ms(milliseconds_left(context.time_left));
  if (context.kv == nullptr) return;
  message.mutable_kv()->set_salt(context.kv->salt.data(), context.kv->salt.size());
  message.mutable_kv()->set_ttl_class(static_cast<std::uint32_t>(context.kv->ttl));
}

recipe::GeneratedToken to_token(const proto::v1::SampledToken& token) {
  recipe::GeneratedToken result{token.token(), token.logprob(), {}};
  result.top.reserve(static_cast<std::size_t>(token.top_size()));
  for (const auto& entry : token.top()) result.top.emplace_back(entry.token(), entry.logprob());
  return result;
}

EngineFinish to_finish(proto::v1::FinishReason reason) {
  switch (reason) {
    case proto::v1::FINISH_REASON_STOP:
      return EngineFinish::kStop;
    case proto::v1::FINISH_REASON_LENGTH:
      return EngineFinish::kLength;
    default:
      return EngineFinish::kNone;
  }
}

FlowEvent to_prefilled(const std::string& worker_id, std::uint32_t attempt,
                       const proto::v1::Prefilled& prefilled) {
  flow_event::Prefilled event{.worker_id = worker_id,
                              .attempt = attempt,
                              .token = to_token(prefilled.token()),
                              .finish = to_finish(prefilled.finish()),
                              .cached_tokens = prefilled.cached_tokens(),
                              .handover = {}};
  if (prefilled.has_handover()) {
    event.handover.export_id = prefilled.handover().export_id();
    event.handover.message = prefilled.handover().SerializeAsString();
  }
  return event;
}

FlowEvent to_sampled(const std::string& worker_id, std::uint32_t attempt,
                     const proto::v1::Sampled& sampled) {
  flow_event::Sampled event{.worker_id = worker_id,
                            .attempt = attempt,
                            .tokens = {},
                            .finish = to_finish(sampled.finish())};
  for (const auto& token : sampled.tokens()) event.tokens.push_back(to_token(token));
  return event;
}

}  // namespace

proto::v1::SamplingState to_sampling_state(const recipe::Sampling& sampling, std::uint64_t seed,
                                           std::uint32_t max_new_tokens) {
  proto::v1::SamplingState state;
  state.set_temperature(sampling.temperature);
  state.set_top_p(sampling.top_p);
  state.set_top_k(sampling.top_k);
  state.set_min_p(sampling.min_p);
  state.set_presence_penalty(sampling.presence_penalty);
  state.set_frequency_penalty(sampling.frequency_penalty);
  state.set_repetition_penalty(sampling.repetition_penalty);
  for (const auto& [token, bias] : sampling.logit_bias) (*state.mutable_logit_bias())[token] = bias;
  state.set_seed(seed);
  state.mutable_stop_token_ids()->Assign(sampling.stop_tokens.begin(), sampling.stop_tokens.end());
  state.set_ignore_eos(sampling.ignore_eos);
  state.set_min_new_tokens(std::min(sampling.min_tokens, max_new_tokens));
  state.set_max_new_tokens(max_new_tokens);
  state.set_return_logprobs(sampling.return_logprobs);
  state.set_top_logprobs(sampling.top_logprobs);
  return state;
}

proto::v1::EngineCommand start_prefill_command(const StartContext& context,
                                               const flow_command::StartPrefill& start) {
  proto::v1::EngineCommand command;
  auto& message = *command.mutable_start_prefill();
  set_start(context, start.attempt, message);
  message.set_answered_claim(context.answered_claim);
  if (context.kv == nullptr) return command;
  message.mutable_kv()->set_hit_tokens(context.kv->hit_tokens);
  for (const KvWindow& window : context.kv->windows) {
    proto::v1::WindowSource& source = *message.mutable_kv()->add_windows();
    source.set_anchor(window.anchor);
    set_ref(window.at, *source.mutable_ref());
  }
  return command;
}

proto::v1::EngineCommand start_decode_command(const StartContext& context,
                                              const flow_command::StartDecode& start) {
  proto::v1::EngineCommand command;
  auto& message = *command.mutable_start_decode();
  set_start(context, start.attempt, message);
  // It came as a valid message; what is wrong with its content is for the worker to say.
  if (!message.mutable_handover()->ParseFromString(start.handover.message)) {
    message.clear_handover();
  }
  return command;
}

proto::v1::EngineCommand cancel_command(const std::string& request_id,
                                        const flow_command::Cancel& cancel) {
  proto::v1::EngineCommand command;
  set_key(request_id, cancel.attempt, *command.mutable_cancel()->mutable_key());
  command.mutable_cancel()->set_export_id(cancel.export_id);
  return command;
}

proto::v1::EngineCommand offers_command(const Balancer::News& news, std::uint64_t view_version,
                                        std::uint64_t answered_claim, TimePoint now) {
  proto::v1::EngineCommand command;
  proto::v1::Offers& message = *command.mutable_offers();
  message.set_view_version(view_version);
  message.set_answered_claim(answered_claim);
  std::uint32_t served = 0;
  for (std::size_t b = 0; b < news.offers.size(); ++b) {
    if (news.serves[b]) served |= 1U << b;
    const dataplane::routing::Advertisement& offer = news.offers[b];
    if (offer.waiting <= 0) continue;
    proto::v1::BucketOffer& bucket = *message.add_buckets();
    bucket.set_bucket(static_cast<std::uint32_t>(b));
    bucket.set_waiting(static_cast<std::uint32_t>(offer.waiting));
    bucket.set_oldest_quota_ns(static_cast<std::uint64_t>(offer.quota_ns));
    const auto waited =
        std::chrono::duration_cast<std::chrono::microseconds>(now - offer.oldest_since);
    bucket.set_oldest_waited_us(
        static_cast<std::uint64_t>(std::max<std::int64_t>(waited.count(), 0)));
  }
  message.set_served_buckets(served);
  return command;
}

const std::string& kv_layout_of(const proto::v1::EngineEvents& events) {
  return events.kv_layout_id();
}

std::vector<storage::swa::DirectoryEntry> to_directory_entries(
    const proto::v1::EngineEvents& events) {
  std::vector<storage::swa::DirectoryEntry> entries;
  entries.reserve(static_cast<std::size_t>(events.windows_size()));
  for (const proto::v1::StoredWindow& window : events.windows()) {
    storage::swa::DirectoryEntry entry;
    if (window.key().size() != entry.key.bytes.size()) continue;
    std::copy(window.key().begin(), window.key().end(), entry.key.bytes.begin());
    const proto::v1::KvWindowRef& ref = window.ref();
    entry.at.host_id = ref.host_id();
    entry.at.address = ref.address();
    entry.at.incarnation = ref.incarnation();
    entry.at.slot = ref.slot();
    entry.at.generation = ref.generation();
    entry.at.bytes = ref.bytes();
    entries.push_back(std::move(entry));
  }
  return entries;
}

FlowEvent to_flow_event(const std::string& worker_id, const proto::v1::EngineEvent& event) {
  const std::uint32_t attempt = event.key().attempt();
  switch (event.event_case()) {
    case proto::v1::EngineEvent::kPrefilled:
      return to_prefilled(worker_id, attempt, event.prefilled());
    case proto::v1::EngineEvent::kSampled:
      return to_sampled(worker_id, attempt, event.sampled());
    case proto::v1::EngineEvent::kFailed:
      return flow_event::Failed{worker_id, attempt,
                                absl::Status(static_cast<absl::StatusCode>(event.failed().code()),
                                             event.failed().message())};
    default:
      return flow_event::Failed{worker_id, attempt,
                                absl::InternalError("the engine sent an unknown event")};
  }
}

}  // namespace millrace::api::entrypoint
