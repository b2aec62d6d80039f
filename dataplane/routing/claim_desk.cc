#include "dataplane/routing/claim_desk.h"

#include <utility>
#include <vector>

namespace millrace::dataplane::routing {

void ClaimDesk::serve(const std::array<bool, kBucketCount>& serves, std::uint64_t version) {
  if (version < serves_version_) return;
  serves_ = serves;
  serves_version_ = version;
}

void ClaimDesk::offer(Stream stream, const Offers& offers) { entrypoints_[stream].offers = offers; }

/// The open claim of that number, which is open no more.
std::optional<ClaimDesk::OpenClaim> ClaimDesk::take_claim(Stream stream, std::uint64_t number) {
  const auto found = entrypoints_.find(stream);
  if (found == entrypoints_.end()) return std::nullopt;
  std::optional<OpenClaim>& claim = found->second.claim;
  if (!claim || claim->number != number) return std::nullopt;
  return std::exchange(claim, std::nullopt);
}

void ClaimDesk::grant(Stream stream, std::uint64_t number) {
  const std::optional<OpenClaim> claim = take_claim(stream, number);
  if (!claim) return;
  // One less waits there now, as far as we know.
  Advertisement& offer = entrypoints_.at(stream).offers[static_cast<std::size_t>(claim->bucket)];
  if (offer.waiting > 0) --offer.waiting;
}

void ClaimDesk::gone(Stream stream, std::uint64_t number) { take_claim(stream, number); }

void ClaimDesk::close(Stream stream) {
  const auto found = entrypoints_.find(stream);
  if (found == entrypoints_.end()) return;
  for (const std::int64_t quota_ns : found->second.coming) coming_ns_ -= quota_ns;
  coming_requests_ -= static_cast<std::int64_t>(found->second.coming.size());
  entrypoints_.erase(found);
}

void ClaimDesk::coming(Stream stream, std::int64_t quota_ns) {
  entrypoints_[stream].coming.push_back(quota_ns);
  coming_ns_ += quota_ns;
  ++coming_requests_;
}

void ClaimDesk::not_coming(Stream stream) {
  const auto found = entrypoints_.find(stream);
  if (found == entrypoints_.end() || found->second.coming.empty()) return;
  coming_ns_ -= found->second.coming.back();
  --coming_requests_;
  found->second.coming.pop_back();
}

void ClaimDesk::taken_up(Stream stream, std::uint64_t starts) {
  const auto found = entrypoints_.find(stream);
  if (found == entrypoints_.end()) return;
  Entrypoint& entrypoint = found->second;
  for (; entrypoint.taken_up < starts && !entrypoint.coming.empty(); ++entrypoint.taken_up) {
    coming_ns_ -= entrypoint.coming.front();
    --coming_requests_;
    entrypoint.coming.pop_front();
  }
}

void ClaimDesk::set_queued(std::int64_t queued_ns, std::int64_t waiting_requests) {
  queued_ns_ = queued_ns;
  waiting_requests_ = waiting_requests;
}

bool ClaimDesk::wants_more() const {
  const std::array<std::int64_t, 1> queued = {queued_ns_ + coming_ns_};
  return !is_stopped_ && !is_held_up_ &&
         waiting_requests_ + coming_requests_ < limits_.max_requests &&
         routing::wants_more(queued, limits_);
}

std::optional<ClaimDesk::Claim> ClaimDesk::next_claim(TimePoint now) {
  if (!wants_more()) return std::nullopt;
  std::vector<Offers> offers;
  std::vector<Stream> streams;
  offers.reserve(entrypoints_.size());
  streams.reserve(entrypoints_.size());
  for (const auto& [stream, entrypoint] : entrypoints_) {
    if (entrypoint.claim && now - entrypoint.claim->since < limits_.answer_time) {
      return std::nullopt;
    }
    if (entrypoint.claim) continue;  // it does not answer
    offers.push_back(entrypoint.offers);
    streams.push_back(stream);
  }
  const std::array<std::int64_t, 1> queued = {queued_ns_ + coming_ns_};
  const auto target =
      choose_claim(offers, claimable_buckets(offers, serves_, queued, now, limits_));
  if (!target) return std::nullopt;
  const Stream stream = streams[target->entrypoint];
  Entrypoint& entrypoint = entrypoints_.at(stream);
  entrypoint.claim = OpenClaim{++entrypoint.last_number, target->bucket, now};
  return Claim{stream, entrypoint.last_number, target->bucket};
}

}  // namespace millrace::dataplane::routing
