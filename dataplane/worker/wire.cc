#include "dataplane/worker/wire.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <span>
#include <utility>

#include "api/proto/engine.pb.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "storage/kv/hash_chain.h"

namespace millrace::dataplane::worker {
namespace {

/// Longest time a request may ask for, or may have waited. Keeps sums of time points in range.
constexpr std::uint64_t kMaxDeadlineMs = 7ull * 24 * 3600 * 1000;
/// Predicted compute of a request at most: sums of many stay in range.
constexpr std::uint64_t kMaxQuotaNs = std::uint64_t{1} << 52;

absl::StatusOr<int> small_int(std::string_view name, std::uint64_t value) {
  if (value <= static_cast<std::uint64_t>(std::numeric_limits<int>::max())) {
    return static_cast<int>(value);
  }
  return absl::InvalidArgumentError(str_cat(name, " is ", value, ", which is too large"));
}

absl::StatusOr<RequestKey> key_of(const proto::v1::RequestKey& key) {
  if (key.request_id().empty() || key.request_id().size() > kMaxRequestIdBytes) {
    return absl::InvalidArgumentError(str_cat("key.request_id has ", key.request_id().size(),
                                              " bytes; it needs 1 to ", kMaxRequestIdBytes));
  }
  return RequestKey{key.request_id(), key.attempt()};
}

absl::StatusOr<sampling::SamplingParams> sampling_of(const proto::v1::SamplingState& state) {
  sampling::SamplingParams params;
  params.temperature = state.temperature();
  params.top_p = state.top_p();
  ASSIGN_OR_RETURN(params.top_k, small_int("top_k", state.top_k()));
  params.min_p = state.min_p();
  params.presence_penalty = state.presence_penalty();
  params.frequency_penalty = state.frequency_penalty();
  params.repetition_penalty = state.repetition_penalty();
  params.logit_bias.assign(state.logit_bias().begin(), state.logit_bias().end());
  std::sort(params.logit_bias.begin(), params.logit_bias.end());
  params.seed = state.seed();
  params.stop_token_ids.assign(state.stop_token_ids().begin(), state.stop_token_ids().end());
  params.ignore_eos = state.ignore_eos();
  ASSIGN_OR_RETURN(params.max_new_tokens, small_int("max_new_tokens", state.max_new_tokens()));
  ASSIGN_OR_RETURN(params.min_new_tokens, small_int("min_new_tokens", state.min_new_tokens()));
  params.return_logprobs = state.return_logprobs();
  ASSIGN_OR_RETURN(params.top_logprobs, small_int("top_logprobs", state.top_logprobs()));
  return params;
}

absl::StatusOr<WindowSource> window_of(const proto::v1::WindowSource& wire) {
  WindowSource source;
  ASSIGN_OR_RETURN(source.anchor, small_int("kv.windows.anchor", wire.anchor()));
  if (source.anchor == 0 || source.anchor % storage::kBlockTokens != 0) {
    return absl::InvalidArgumentError(str_cat("kv.windows.anchor is ", source.anchor,
                                              "; it must be a multiple of ",
                                              storage::kBlockTokens));
  }
  source.location = {.host_id = wire.ref().host_id(),
                     .address = wire.ref().address(),
                     .incarnation = wire.ref().incarnation(),
                     .slot = wire.ref().slot(),
                     .generation = wire.ref().generation(),
                     .bytes = wire.ref().bytes()};
  return source;
}

absl::StatusOr<KvScope> scope_of(const proto::v1::KvScope& wire, const KvNaming& naming,
                                 std::span<const TokenId> tokens) {
  storage::kv::RootInputs root{
      .artifact_digest = naming.artifact_digest, .layout_id = naming.layout_id, .salt = {}};
  if (wire.salt().size() != root.salt.size()) {
    return absl::InvalidArgumentError(
        str_cat("kv.salt has ", wire.salt().size(), " bytes; it needs ", root.salt.size()));
  }
  std::copy(wire.salt().begin(), wire.salt().end(), root.salt.begin());
  KvScope scope;
  scope.root = storage::kv::chain_root(root);
  scope.keys = storage::kv::chain_keys(scope.root, tokens);
  ASSIGN_OR_RETURN(scope.hit_tokens, small_int("kv.hit_tokens", wire.hit_tokens()));
  if (scope.hit_tokens % storage::kBlockTokens != 0) {
    return absl::InvalidArgumentError(str_cat("kv.hit_tokens is ", scope.hit_tokens,
                                              "; it must be a multiple of ",
                                              storage::kBlockTokens));
  }
  scope.ttl = wire.ttl_class() == static_cast<std::uint32_t>(storage::TtlClass::kChatbot)
                  ? storage::TtlClass::kChatbot
                  : storage::TtlClass::kAgent;
  if (wire.windows_size() > kMaxWindowSources) {
    return absl::InvalidArgumentError(str_cat("kv.windows has ", wire.windows_size(),
                                              " entries; at most ", kMaxWindowSources,
                                              " are allowed"));
  }
  for (const proto::v1::WindowSource& window : wire.windows()) {
    ASSIGN_OR_RETURN(scope.windows.emplace_back(), window_of(window));
  }
  return scope;
}

/// Of StartPrefill and StartDecode, which share these fields.
template <typename Message>
absl::StatusOr<RequestSpec> spec_of(StreamId stream, const Message& message, TimePoint now,
                                    const std::optional<KvNaming>& naming) {
  RequestSpec spec;
  spec.stream = stream;
  ASSIGN_OR_RETURN(spec.key, key_of(message.key()));
  spec.tokens.assign(message.tokens().begin(), message.tokens().end());
  ASSIGN_OR_RETURN(spec.prompt_tokens, small_int("prompt_tokens", message.prompt_tokens()));
  ASSIGN_OR_RETURN(spec.sampling, sampling_of(message.sampling()));
  spec.deadline = now + std::chrono::milliseconds(
                            std::min<std::uint64_t>(message.deadline_ms(), kMaxDeadlineMs));
  if (naming && message.has_kv()) {
    ASSIGN_OR_RETURN(spec.kv, scope_of(message.kv(), *naming, spec.tokens));
  }
  return spec;
}

absl::StatusOr<transfer::Handover> handover_of(const proto::v1::KvHandover& wire) {
  transfer::Handover handover;
  handover.source_worker = wire.source_worker();
  handover.source_address = wire.source_address();
  handover.host_id = wire.host_id();
  handover.export_id = wire.export_id();
  handover.shm_name = wire.shm_name();
  handover.bytes = wire.bytes();
  if (wire.checksum() > std::numeric_limits<std::uint32_t>::max()) {
    return absl::InvalidArgumentError("handover.checksum is no CRC-32C");
  }
  handover.checksum = static_cast<std::uint32_t>(wire.checksum());
  ASSIGN_OR_RETURN(handover.computed_tokens,
                   small_int("handover.computed_tokens", wire.computed_tokens()));
  handover.layout_id = wire.layout_id();
  return handover;
}

void to_wire(const transfer::Handover& handover, proto::v1::KvHandover& wire) {
  wire.set_source_worker(handover.source_worker);
  wire.set_source_address(handover.source_address);
  wire.set_host_id(handover.host_id);
  wire.set_export_id(handover.export_id);
  wire.set_shm_name(handover.shm_name);
  wire.set_bytes(handover.bytes);
  wire.set_checksum(handover.checksum);
  wire.set_computed_tokens(static_cast<std::uint32_t>(handover.computed_tokens));
  wire.set_layout_id(handover.layout_id);
}

void to_wire(const sampling::Sample& sample, proto::v1::SampledToken& wire) {
  wire.set_token(sample.token);
  wire.set_logprob(sample.logprob);
  for (const sampling::TokenLogprob& entry : sample.top) {
    proto::v1::TokenLogprob& top = *wire.add_top();
    top.set_token(entry.token);
    top.set_logprob(entry.logprob);
  }
}

proto::v1::FinishReason to_wire(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return proto::v1::FINISH_REASON_STOP;
    case FinishReason::kLength:
      return proto::v1::FINISH_REASON_LENGTH;
    case FinishReason::kNone:
      break;
  }
  return proto::v1::FINISH_REASON_NONE;
}

}  // namespace

transfer::PeerIdentity from_wire(const proto::v1::Identity& identity) {
  return {.protocol_version = identity.protocol_version(),
          .model_id = identity.model_id(),
          .artifact_digest = identity.artifact_digest()};
}

absl::StatusOr<Command> from_wire(StreamId stream, proto::v1::EngineCommand& command, TimePoint now,
                                  const std::optional<KvNaming>& naming) {
  switch (command.command_case()) {
    case proto::v1::EngineCommand::kStartPrefill: {
      StartPrefill start;
      ASSIGN_OR_RETURN(start.spec, spec_of(stream, command.start_prefill(), now, naming));
      start.answered_claim = command.start_prefill().answered_claim();
      return Command(std::move(start));
    }
    case proto::v1::EngineCommand::kStartDecode: {
      StartDecode start;
      ASSIGN_OR_RETURN(start.spec, spec_of(stream, command.start_decode(), now, naming));
      ASSIGN_OR_RETURN(start.handover, handover_of(command.start_decode().handover()));
      return Command(std::move(start));
    }
    case proto::v1::EngineCommand::kCancel: {
      Cancel cancel{.stream = stream, .key = {}, .export_id = command.cancel().export_id()};
      ASSIGN_OR_RETURN(cancel.key, key_of(command.cancel().key()));
      return Command(std::move(cancel));
    }
    case proto::v1::EngineCommand::kHello:
      return absl::InvalidArgumentError("hello is the first message of a stream, and only that");
    case proto::v1::EngineCommand::kOffers:  // no command for the engine: the session's
    case proto::v1::EngineCommand::COMMAND_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("a message without a command, or with one we do not know");
}

absl::StatusOr<StreamOffers> from_wire(const proto::v1::Offers& offers, TimePoint now) {
  StreamOffers result{.view_version = offers.view_version(),
                      .answered_claim = offers.answered_claim()};
  for (std::size_t b = 0; b < result.serves.size(); ++b) {
    result.serves[b] = (offers.served_buckets() >> b & 1) != 0;
  }
  for (const proto::v1::BucketOffer& offer : offers.buckets()) {
    if (offer.bucket() >= result.offers.size()) {
      return absl::InvalidArgumentError(str_cat("offers.buckets.bucket is ", offer.bucket(),
                                                "; there are ", result.offers.size()));
    }
    routing::Advertisement& place = result.offers[offer.bucket()];
    if (place.waiting > 0) {
      return absl::InvalidArgumentError(
          str_cat("offers.buckets has bucket ", offer.bucket(), " twice"));
    }
    const auto waited =
        std::chrono::microseconds(std::min(offer.oldest_waited_us(), kMaxDeadlineMs * 1000));
    place = {.oldest_since = now - waited,
             .quota_ns = static_cast<std::int64_t>(std::min(offer.oldest_quota_ns(), kMaxQuotaNs)),
             .waiting = offer.waiting()};
  }
  return result;
}

std::optional<RequestKey> start_key(const proto::v1::EngineCommand& command) {
  absl::StatusOr<RequestKey> key = absl::InvalidArgumentError("not a start");
  if (command.has_start_prefill()) key = key_of(command.start_prefill().key());
  if (command.has_start_decode()) key = key_of(command.start_decode().key());
  if (!key.ok()) return std::nullopt;
  return *std::move(key);
}

void to_wire(const Event& event, proto::v1::EngineEvents& events) {
  proto::v1::EngineEvent& wire = *events.add_events();
  wire.mutable_key()->set_request_id(event.key.request_id);
  wire.mutable_key()->set_attempt(event.key.attempt);
  if (const auto* prefilled = std::get_if<Prefilled>(&event.what)) {
    proto::v1::Prefilled& message = *wire.mutable_prefilled();
    to_wire(prefilled->token, *message.mutable_token());
    message.set_finish(to_wire(prefilled->finish));
    message.set_cached_tokens(static_cast<std::uint32_t>(prefilled->cached_tokens));
    if (prefilled->handover) to_wire(*prefilled->handover, *message.mutable_handover());
  } else if (const auto* sampled = std::get_if<Sampled>(&event.what)) {
    to_wire(sampled->token, *wire.mutable_sampled()->add_tokens());
    wire.mutable_sampled()->set_finish(to_wire(sampled->finish));
  } else {
    const absl::Status& status = std::get<Failed>(event.what).status;
    wire.mutable_failed()->set_code(static_cast<int>(status.code()));
    wire.mutable_failed()->set_message(std::string(status.message()));
  }
}

void to_wire(const WindowStored& window, proto::v1::EngineEvents& events) {
  proto::v1::StoredWindow& wire = *events.add_windows();
  wire.set_key(window.key.bytes.data(), window.key.bytes.size());
  wire.set_anchor(static_cast<std::uint32_t>(window.anchor));
  proto::v1::KvWindowRef& ref = *wire.mutable_ref();
  ref.set_host_id(window.location.host_id);
  ref.set_address(window.location.address);
  ref.set_incarnation(window.location.incarnation);
  ref.set_slot(window.location.slot);
  ref.set_generation(window.location.generation);
  ref.set_bytes(window.location.bytes);
}

void to_wire(const routing::ClaimDesk::Claim& claim, proto::v1::EngineEvents& events) {
  events.mutable_claim()->set_number(claim.number);
  events.mutable_claim()->set_bucket(static_cast<std::uint32_t>(claim.bucket));
}

void to_wire(const Load& load, std::uint64_t started_requests, proto::v1::EngineEvents& events) {
  proto::v1::EngineLoad& wire = *events.mutable_load();
  wire.set_running(static_cast<std::uint32_t>(load.running));
  wire.set_waiting(static_cast<std::uint32_t>(load.waiting));
  wire.set_waiting_tokens(static_cast<std::uint64_t>(load.waiting_tokens));
  wire.set_kv_tokens(static_cast<std::uint64_t>(load.kv_tokens));
  wire.set_kv_blocks_used(static_cast<std::uint64_t>(load.kv_blocks_used));
  wire.set_kv_blocks_total(static_cast<std::uint64_t>(load.kv_blocks_total));
  wire.set_draining(load.is_draining);
  wire.set_queued_ns(static_cast<std::uint64_t>(load.queued_ns));
  wire.set_wants_more(load.wants_more);
  wire.set_started_requests(started_requests);
}

}  // namespace millrace::dataplane::worker
