#include "storage/node/scrubber.h"

namespace millrace::storage::node {
namespace {

constexpr std::size_t kMaxReads = 4;  // at a time: readers come first

double place_of(const BlockKey& key) { return (key.bytes[0] * 256.0 + key.bytes[1]) / 65536.0; }

}  // namespace

void Scrubber::start(std::uint64_t request, TimePoint now) {
  if (request <= progress_.request) return;
  progress_.request = request;
  begin(now);
}

void Scrubber::begin(TimePoint now) {
  progress_ = {.request = progress_.request,
               .is_running = true,
               .total = target_.published_count(),
               .passes = progress_.passes};
  after_.reset();
  is_at_end_ = false;
  next_pass_ = now + settings_.scrub_interval;
}

void Scrubber::step(TimePoint now) {
  if (!progress_.is_running && now >= next_pass_) begin(now);
  if (!progress_.is_running || target_.state() == TargetState::kFailed) return;
  while (!is_at_end_ && in_flight_ < kMaxReads && pace_.is_due(now)) {
    const auto entries = target_.index().list(after_, 1);
    if (!entries.ok()) return;
    if (entries->empty()) {
      is_at_end_ = true;
      break;
    }
    const index::ShardEntry& entry = entries->front();
    after_ = entry.key;
    progress_.fraction = place_of(entry.key);
    if (entry.record.state == index::ShardState::kPublished) check(entry, now);
  }
  if (is_at_end_ && in_flight_ == 0) {
    progress_.is_running = false;
    progress_.fraction = 1;
    ++progress_.passes;
  }
}

void Scrubber::check(const index::ShardEntry& entry, TimePoint now) {
  pace_.spend(entry.record.shard_bytes, now);
  ++in_flight_;
  target_.read_own(entry.key, IoPurpose::kScrub, [this](const ShardReply& reply) {
    --in_flight_;
    ++progress_.checked;
    // What was evicted meanwhile, or found no room in the queue, is not bad.
    if (reply.result == ShardResult::kBadShard || reply.result == ShardResult::kIoError)
      ++progress_.bad;
  });
}

}  // namespace millrace::storage::node
