#include "dataplane/routing/offer_board.h"

#include <algorithm>

namespace millrace::dataplane::routing {

void OfferBoard::list(std::size_t index, const PullWorker& worker, bool is_listed) {
  if (!worker.is_accepting || !worker.wants_more) return;
  const std::pair<std::int64_t, std::size_t> place{worker.queued_ns, index};
  const auto change = [&](Wanting& wanting) {
    is_listed ? static_cast<void>(wanting.insert(place)) : static_cast<void>(wanting.erase(place));
  };
  change(wanting_);
  for (std::size_t b = 0; b < serving_.size(); ++b) {
    if (worker.serves[b]) change(serving_[b]);
  }
}

void OfferBoard::set_worker(std::size_t index, const PullWorker& worker) {
  if (index >= workers_.size()) workers_.resize(index + 1);
  Known& known = workers_[index];
  if (known.worker == worker) return;
  list(index, known.worker, false);
  known.worker = worker;
  list(index, worker, true);
}

void OfferBoard::forget_news(std::size_t index) {
  if (index < workers_.size()) workers_[index].told = {};
}

const WaitingPrefill* OfferBoard::head_for(const PullWorker& worker, int bucket) const {
  const WaitingPrefill* head = queue_.head(bucket);
  return head != nullptr && head->kv_blocks <= worker.kv_blocks ? head : nullptr;
}

std::optional<WaitingPrefill> OfferBoard::grant(std::size_t index, int bucket) {
  if (index >= workers_.size() || !workers_[index].worker.is_accepting) return std::nullopt;
  if (head_for(workers_[index].worker, bucket) == nullptr) return std::nullopt;
  return queue_.grant(bucket);
}

Offers OfferBoard::offers_to(std::size_t index) {
  Offers offers{};
  if (index >= workers_.size()) return offers;
  Known& known = workers_[index];
  for (int bucket = 0; bucket < kBucketCount; ++bucket) {
    const WaitingPrefill* head = head_for(known.worker, bucket);
    const auto b = static_cast<std::size_t>(bucket);
    known.told[b] = head == nullptr ? 0 : head->request;
    if (head == nullptr) continue;
    offers[b] = {.oldest_since = head->since,
                 .quota_ns = head->quota_ns,
                 .waiting = static_cast<std::int64_t>(queue_.size(bucket))};
  }
  return offers;
}

/// How many are to hear of a bucket's first request by now.
std::size_t OfferBoard::fan_out(int bucket, const WaitingPrefill& head, TimePoint now) {
  Fan& fan = fans_[static_cast<std::size_t>(bucket)];
  if (fan.head != head.request) fan = {head.request, now};
  constexpr std::int64_t kMostDoublings = 20;
  const std::int64_t doublings = std::min((now - fan.since) / kWidenEvery, kMostDoublings);
  return kFanOut << doublings;
}

/// Adds those who are to hear of the bucket.
void OfferBoard::choose_listeners(int bucket, std::size_t most, std::int64_t kv_blocks,
                                  std::set<std::size_t>& chosen) const {
  std::size_t found = 0;
  const std::size_t b = static_cast<std::size_t>(bucket);
  for (const auto& [queued, index] : serving_[b]) {
    if (found == most) return;
    if (workers_[index].worker.kv_blocks < kv_blocks) continue;
    chosen.insert(index);
    ++found;
  }
  for (const auto& [queued, index] : wanting_) {
    if (found == most) return;
    const PullWorker& worker = workers_[index].worker;
    if (worker.serves[b] || worker.kv_blocks < kv_blocks) continue;
    chosen.insert(index);
    ++found;
  }
}

std::vector<OfferBoard::News> OfferBoard::take_news(TimePoint now) {
  next_news_.reset();
  std::set<std::size_t> listeners;
  for (int bucket = 0; bucket < kBucketCount; ++bucket) {
    const WaitingPrefill* head = queue_.head(bucket);
    if (head == nullptr) continue;
    const std::size_t most = fan_out(bucket, *head, now);
    choose_listeners(bucket, most, head->kv_blocks, listeners);
    if (most < wanting_.size()) next_news_ = now + kWidenEvery;
  }
  std::vector<News> news;
  for (const std::size_t index : listeners) {
    const Heads told = workers_[index].told;
    const Offers offers = offers_to(index);
    if (workers_[index].told != told) news.push_back({index, offers});
  }
  return news;
}

}  // namespace millrace::dataplane::routing
