// The part of Core that has to do with stored KV.
#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/status_macros.h"
#include "dataplane/worker/core.h"
#include "storage/kv/hash_chain.h"

namespace millrace::dataplane::worker {
namespace {

/// The fetcher ends a fetch at its deadline by itself, with what it has; this much later it does
/// not answer any more.
constexpr auto kFetchGrace = std::chrono::milliseconds(100);

bool offers(const KvScope& scope, int anchor) {
  return std::any_of(scope.windows.begin(), scope.windows.end(),
                     [&](const WindowSource& source) { return source.anchor == anchor; });
}

}  // namespace

KvJobs Core::take_kv_jobs() { return std::exchange(kv_jobs_, {}); }

/// How many leading tokens a prefill would use if all of them came.
int Core::fetchable_tokens(const RequestSpec& spec) const {
  if (!spec.kv) return 0;
  const int named = static_cast<int>(spec.kv->keys.size()) * kv::kBlockTokens;
  const int stored = std::min(spec.kv->hit_tokens, named);
  const int hit = kv::usable_hit(spec.prompt_tokens, stored);
  const kv::HitPlan best = kv::plan_hit(spec.prompt_tokens, stored, offers(*spec.kv, hit),
                                        offers(*spec.kv, hit - kv::kBlockTokens));
  return best.write_floor;
}

void Core::begin_fetch(RequestId id, int tokens) {
  const KvScope& scope = *request(id).spec.kv;
  const auto blocks = tokens / kv::kBlockTokens;
  KvFetchJob job{.request = id,
                 .keys = {scope.keys.begin(), scope.keys.begin() + blocks},
                 .windows = {},
                 .timeout = config_.kv_fetch_timeout};
  for (const int anchor : {tokens, tokens - kv::kBlockTokens}) {
    for (const WindowSource& source : scope.windows) {
      if (source.anchor == anchor && anchor > 0) job.windows.push_back(source);
    }
  }
  fetching_.insert(id);
  kv_jobs_.fetches.push_back(std::move(job));
}

void Core::end_late_fetches(TimePoint now) {
  std::vector<RequestId> late;
  for (const RequestId id : fetching_) {
    TimePoint& until = request(id).fetch_until;
    if (until == TimePoint{}) until = now + config_.kv_fetch_timeout + kFetchGrace;
    if (now >= until) late.push_back(id);
  }
  for (const RequestId id : late) {
    ++output_.counts.late_fetches;
    kv_jobs_.cancels.push_back(id);
    on_kv_fetched({.request = id, .blocks = 0, .source = nullptr, .window = std::nullopt});
  }
}

/// What has come decides where the prefill begins.
void Core::on_kv_fetched(KvFetched fetched) {
  if (fetching_.erase(fetched.request) == 0) return;  // late, or cancelled
  Request& waiting = request(fetched.request);
  const int prompt = waiting.spec.prompt_tokens;
  const int ready =
      std::min(fetched.blocks, static_cast<int>(waiting.spec.kv->keys.size())) * kv::kBlockTokens;
  const int hit = kv::usable_hit(prompt, ready);
  const auto has_window = [&](int anchor) {
    return anchor > 0 && fetched.window && fetched.window->anchor == anchor;
  };
  waiting.hit = kv::plan_hit(prompt, ready, has_window(hit), has_window(hit - kv::kBlockTokens));
  if (waiting.hit.write_floor > 0) waiting.stored = std::move(fetched.source);
  if (waiting.hit.window_anchor > 0) waiting.window = std::move(fetched.window->bytes);
  scheduler_.begin_at(fetched.request, waiting.hit.compute_start);
}

/// Puts the stored window and blocks into a sequence that was just created.
absl::Status Core::bring_in_stored(Request& admitted) {
  const kv::HitPlan& hit = admitted.hit;
  if (hit.window_anchor > 0) {
    RETURN_IF_ERROR(engine_.restore_window(admitted.sequence, admitted.window));
    admitted.window = {};
  }
  admitted.sealed_blocks = hit.write_floor / kv::kBlockTokens;
  engine_.swap_in(admitted.sequence, admitted.sealed_blocks, admitted.stored);
  return absl::OkStatus();
}

/// After the first step with stored blocks: whether they were what they should be. If not, the
/// request begins again without them, and its rows of the step count for nothing: false.
bool Core::settle_swap_in(RequestId id) {
  Request& running = request(id);
  if (running.stored == nullptr) return true;
  running.stored = nullptr;
  if (engine_.swap_in_status(running.sequence).ok()) {
    output_.counts.cached_tokens += running.hit.compute_start;
    output_.counts.replayed_tokens += running.hit.write_floor - running.hit.compute_start;
    return true;
  }
  ++output_.counts.failed_swap_ins;
  engine_.release(std::exchange(running.sequence, -1));
  running.hit = {};
  running.sealed_blocks = 0;
  scheduler_.restart(id);
  const absl::Status status = create_sequence(running);
  if (!status.ok()) fail(id, status);
  return false;
}

void Core::seal_full_blocks(Request& running) {
  if (!running.spec.kv) return;
  KvScope& scope = *running.spec.kv;
  const int full = engine_.length(running.sequence) / kv::kBlockTokens;
  for (; running.sealed_blocks < full; ++running.sealed_blocks) {
    const auto index = static_cast<std::size_t>(running.sealed_blocks);
    if (scope.keys.size() == index) {
      storage::kv::HashChain chain(index == 0 ? scope.root : scope.keys.back());
      scope.keys.push_back(chain.append(std::span<const TokenId>(running.spec.tokens)
                                            .subspan(index * kv::kBlockTokens, kv::kBlockTokens)));
    }
    CHECK(index < scope.keys.size(), "blocks are named in their order");
    const std::span<std::byte> block = engine_.block(running.sequence, running.sealed_blocks);
    kv_jobs_.seals.push_back({.key = scope.keys[index],
                              .depth = static_cast<std::uint32_t>(index),
                              .ttl = scope.ttl,
                              .bytes = {block.begin(), block.end()}});
  }
}

/// Passes on the newest window that the engine kept of a request, for whoever continues its text.
void Core::leave_window(const Request& running) {
  if (!running.spec.kv || running.sequence < 0) return;
  const int anchor = engine_.kept_anchor(running.sequence);
  if (anchor == 0) return;
  const std::vector<storage::BlockKey>& keys = running.spec.kv->keys;
  const auto block = static_cast<std::size_t>(anchor / kv::kBlockTokens) - 1;
  CHECK(block < keys.size(), "a block whose end was passed has a name");
  KvWindowJob job{.stream = running.spec.stream,
                  .key = keys[block],
                  .anchor = anchor,
                  .bytes = std::vector<std::byte>(engine_.window_bytes())};
  engine_.export_window(running.sequence, job.bytes);
  kv_jobs_.windows.push_back(std::move(job));
}

}  // namespace millrace::dataplane::worker
