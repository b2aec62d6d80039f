#include "storage/fetch/store_block_io.h"

#include <utility>

#include "common/check.h"

namespace millrace::storage::fetch {
namespace {

FetchEnd fetch_end_of(store::MissReason reason) {
  switch (reason) {
    case store::MissReason::kNone:
      return FetchEnd::kComplete;
    case store::MissReason::kNotFound:
      return FetchEnd::kNotFound;
    case store::MissReason::kTooFewMembers:
    case store::MissReason::kTooFewShards:
      return FetchEnd::kUnreadable;
    case store::MissReason::kDeadline:
      return FetchEnd::kDeadline;
    case store::MissReason::kBusy:
      return FetchEnd::kBusy;
    case store::MissReason::kNoMap:
      return FetchEnd::kNoMap;
    case store::MissReason::kOtherSize:
      return FetchEnd::kOtherSize;
    case store::MissReason::kShutdown:
      return FetchEnd::kStopping;
  }
  CHECK(false, "no such reason");
}

StoreEnd store_end_of(store::WriteOutcome outcome) {
  switch (outcome) {
    case store::WriteOutcome::kStored:
      return StoreEnd::kStored;
    case store::WriteOutcome::kAlreadyThere:
    case store::WriteOutcome::kLostRace:
      return StoreEnd::kAlreadyThere;
    case store::WriteOutcome::kTooFewMembers:
    case store::WriteOutcome::kTooFewShards:
    case store::WriteOutcome::kUnconfirmed:
      return StoreEnd::kFailed;
    case store::WriteOutcome::kDeadline:
      return StoreEnd::kDeadline;
    case store::WriteOutcome::kBusy:
      return StoreEnd::kBusy;
    case store::WriteOutcome::kNoMap:
      return StoreEnd::kNoMap;
    case store::WriteOutcome::kInvalid:
      return StoreEnd::kInvalid;
    case store::WriteOutcome::kShutdown:
      return StoreEnd::kStopping;
  }
  CHECK(false, "no such outcome");
}

}  // namespace

void StoreBlockIo::read(const BlockKey& key, std::span<std::byte> landing,
                        std::chrono::milliseconds timeout, ReadDone done) {
  store_->blocks().read(key, landing, timeout,
                        [done = std::move(done)](const store::ReadResult& result) {
                          done(fetch_end_of(result.miss));
                        });
}

void StoreBlockIo::store(NewBlock block, std::chrono::milliseconds timeout, StoreDone done) {
  store_->blocks().write(
      {.key = block.key, .bytes = std::move(block.bytes), .depth = block.depth, .ttl = block.ttl},
      timeout,
      [done = std::move(done)](store::WriteOutcome outcome) { done(store_end_of(outcome)); });
}

}  // namespace millrace::storage::fetch
