#include "api/entrypoint/balancer.h"

#include <algorithm>
#include <utility>

#include "common/status_macros.h"
#include "storage/kv/block_key.h"

namespace millrace::api::entrypoint {

namespace routing = dataplane::routing;
using admin::WorkerRole;

namespace {

/// Decode workers with room that are looked at, from a random one on (routing::DecodeLook).
constexpr std::size_t kDecodeLook = 16;
constexpr std::int64_t kBlockTokens = storage::kBlockTokens;

std::array<bool, routing::kBucketCount> all_buckets() {
  std::array<bool, routing::kBucketCount> all{};
  all.fill(true);
  return all;
}

}  // namespace

Balancer::Balancer(const Options& options) : random_(options.seed), board_(options.max_waiting) {
  if (options.policy != routing::Policy::kMillrace) {
    router_.emplace(options.policy, routing::PushSettings{}, options.seed);
  }
}

Balancer::Worker& Balancer::worker(WorkerRole which, const std::string& worker_id) {
  Role& of = role(which);
  const auto [place, is_new] = of.index_of.try_emplace(worker_id, of.workers.size());
  if (is_new) {
    Worker& made = of.workers.emplace_back();
    made.id = worker_id;
    made.state.role = which;
  }
  return of.workers[place->second];
}

void Balancer::apply_view(const admin::RoutingView& view) {
  view_version_ = view.version;
  edges_ = routing::bucket_edges(view.bucket_edges);
  if (view.prefill_cost) cost_ = view.prefill_cost->cost;
  for (Worker& known : role(WorkerRole::kPrefill).workers) known.bucket = admin::kNoBucket;
  bucket_workers_ = {};
  for (const admin::ViewWorker& listed : view.workers) {
    if (listed.role != WorkerRole::kPrefill || listed.bucket == admin::kNoBucket) continue;
    // A newer controller may know more buckets than we do.
    const int bucket = std::clamp(listed.bucket, 0, routing::kBucketCount - 1);
    worker(WorkerRole::kPrefill, listed.worker_id).bucket = bucket;
    if (listed.state == admin::WorkerState::kReady) {
      ++bucket_workers_[static_cast<std::size_t>(bucket)];
    }
  }
  for (std::size_t i = 0; i < role(WorkerRole::kPrefill).workers.size(); ++i) show_prefill(i);
}

/// Every bucket as long as the controller has given none to anybody.
std::array<bool, routing::kBucketCount> Balancer::serves(const Worker& worker) const {
  const bool is_split = std::any_of(bucket_workers_.begin(), bucket_workers_.end(),
                                    [](int workers) { return workers > 0; });
  if (!is_split) return all_buckets();
  if (worker.bucket == admin::kNoBucket) return {};  // it helps where it is needed
  return routing::served_buckets(worker.bucket, bucket_workers_);
}

void Balancer::show_prefill(std::size_t index) {
  const Worker& worker = role(WorkerRole::kPrefill).workers[index];
  board_.set_worker(index, {.is_accepting = worker.state.is_accepting,
                            .wants_more = worker.state.wants_more,
                            .queued_ns = worker.state.load.quota_ns,
                            .serves = serves(worker),
                            .kv_blocks = worker.state.kv_blocks_total});
}

void Balancer::set_worker(const std::string& worker_id, const WorkerState& state) {
  worker(state.role, worker_id).state = state;
  const std::size_t index = role(state.role).index_of.find(worker_id)->second;
  if (state.role == WorkerRole::kPrefill) {
    show_prefill(index);
    return;
  }
  const std::int64_t free_blocks = state.kv_blocks_total - state.load.kv_blocks;
  decode_.set(index,
              {.requests = state.load.requests,
               .kv_tokens = state.load.kv_tokens,
               .free_kv_tokens =
                   state.has_queue ? 0 : std::max<std::int64_t>(free_blocks, 0) * kBlockTokens,
               .is_accepting = state.is_accepting,
               .capacity_kv_tokens = state.kv_blocks_total * kBlockTokens});
}

void Balancer::forget_news(const std::string& worker_id) {
  const Role& prefill = role(WorkerRole::kPrefill);
  const auto found = prefill.index_of.find(worker_id);
  if (found != prefill.index_of.end()) board_.forget_news(found->second);
}

absl::Status Balancer::add(const PrefillNeed& need) {
  const std::int64_t quota = quota_ns(
      dataplane::cost::chunk_at(need.tokens - need.cached, need.cached, need.prompt_tokens));
  const int bucket = routing::bucket_of(need.tokens, edges_);
  // Those that push keep no buckets: first in, first out.
  RETURN_IF_ERROR(board_.push(is_pulling() ? bucket : 0, {.request = need.request,
                                                          .quota_ns = quota,
                                                          .since = need.since,
                                                          .kv_blocks = need.kv_blocks,
                                                          .tokens = need.tokens,
                                                          .cached = need.cached}));
  if (need.is_new) {
    demand_ns_[static_cast<std::size_t>(bucket)] += static_cast<std::uint64_t>(quota);
  }
  return absl::OkStatus();
}

std::optional<routing::RequestNumber> Balancer::grant(const std::string& worker_id, int bucket) {
  const Role& prefill = role(WorkerRole::kPrefill);
  const auto found = prefill.index_of.find(worker_id);
  if (found == prefill.index_of.end() || bucket < 0 || bucket >= routing::kBucketCount) {
    return std::nullopt;
  }
  const auto granted = board_.grant(found->second, bucket);
  if (!granted) return std::nullopt;
  return granted->request;
}

std::optional<Balancer::Push> Balancer::next_push(TimePoint now) {
  const routing::WaitingPrefill* head = is_pulling() ? nullptr : board_.queue().head(0);
  if (head == nullptr) return std::nullopt;
  const std::vector<Worker>& workers = role(WorkerRole::kPrefill).workers;
  std::vector<routing::PushRank> ranks;
  ranks.reserve(workers.size());
  for (const Worker& worker : workers) {
    const WorkerState& state = worker.state;
    ranks.push_back(
        {.requests = state.load.requests,
         .tokens = state.load.rows,
         .prompt_tokens = state.load.kv_tokens,
         .is_accepting = state.is_accepting && head->kv_blocks <= state.kv_blocks_total});
  }
  const auto picked = router_->pick_prefill(
      {.input_tokens = head->tokens, .cached_tokens = head->cached}, ranks, now);
  if (!picked) return std::nullopt;
  const Push push{head->request, workers[*picked].id};
  remove(push.request);
  return push;
}

Balancer::News Balancer::news_for(const std::string& worker_id) {
  const Role& prefill = role(WorkerRole::kPrefill);
  News news{.worker_id = worker_id};
  const auto found = prefill.index_of.find(worker_id);
  if (found == prefill.index_of.end()) return news;
  news.serves = serves(prefill.workers[found->second]);
  if (is_pulling()) news.offers = board_.offers_to(found->second);
  return news;
}

std::vector<Balancer::News> Balancer::take_news(TimePoint now) {
  std::vector<News> news;
  if (!is_pulling()) return news;
  const std::vector<Worker>& workers = role(WorkerRole::kPrefill).workers;
  for (const routing::OfferBoard::News& item : board_.take_news(now)) {
    const Worker& worker = workers[item.worker];
    news.push_back({worker.id, item.offers, serves(worker)});
  }
  return news;
}

std::optional<routing::RequestNumber> Balancer::hopeless() const {
  const bool is_anybody_there = could_hold(WorkerRole::kPrefill, 0);
  for (int bucket = 0; is_anybody_there && bucket < routing::kBucketCount; ++bucket) {
    const routing::WaitingPrefill* head = board_.queue().head(bucket);
    if (head != nullptr && !could_hold(WorkerRole::kPrefill, head->kv_blocks)) {
      return head->request;
    }
  }
  return std::nullopt;
}

bool Balancer::could_hold(WorkerRole which, std::int64_t kv_blocks) const {
  const std::vector<Worker>& workers = role(which).workers;
  return std::any_of(workers.begin(), workers.end(), [&](const Worker& worker) {
    return worker.state.is_accepting && kv_blocks <= worker.state.kv_blocks_total;
  });
}

std::optional<std::string> Balancer::choose_decode(const DecodeNeed& need) {
  const routing::DecodeNeed asked{need.tokens,
                                  std::max(need.tokens, need.kv_blocks * kBlockTokens)};
  const routing::DecodeLook look{random_(), kDecodeLook};
  std::optional<std::size_t> picked =
      is_pulling() ? routing::pick_decode_rank(asked, need.pending_tokens, decode_.totals(),
                                               decode_.ranks(), look)
                   : router_->pick_decode(asked.room_tokens, decode_.ranks());
  if (!picked) {
    picked = routing::pick_decode_rank_to_wait(asked, need.pending_tokens, decode_.totals(),
                                               decode_.ranks(), look);
  }
  if (!picked) return std::nullopt;
  return role(WorkerRole::kDecode).workers[*picked].id;
}

}  // namespace millrace::api::entrypoint
