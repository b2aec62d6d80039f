#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/fetch/arena.h"
#include "storage/fetch/fetch_types.h"

namespace millrace::storage::fetch {

struct FetchClientOptions {
  std::string address;    ///< "unix:/path" of the machine's fetcher
  std::string client_id;  ///< for its log
  std::chrono::milliseconds connect_timeout{2000};
  /// Events that may wait for poll(), and commands that may wait for the stream; one more breaks
  /// the connection, which gives everything back.
  std::size_t max_waiting = 65536;
};

/// An engine's line to the fetcher: asks for blocks, is told which are ready, copies them out of
/// shared memory; hands over new ones. Any thread; nothing blocks but connect() and poll().
///
/// When the connection breaks (the fetcher died, or stops), every call fails with kUnavailable and
/// says why; what the fetcher had leased and reserved is void, though blocks that it said were
/// ready can be copied still, unless their lease was over before. Connect anew: with a new object,
/// because slots of the old fetcher mean nothing to the new one.
class FetchClient {
 public:
  /// kUnavailable: nobody listens there; kFailedPrecondition: other versions, both named;
  /// kResourceExhausted: too many engines; kDeadlineExceeded.
  static absl::StatusOr<std::unique_ptr<FetchClient>> connect(const FetchClientOptions& options);
  /// Gives everything back.
  virtual ~FetchClient() = default;

  /// Of the largest block.
  virtual std::uint32_t block_bytes() const = 0;

  /// Asks for blocks of a prefix, in its order. Comes back as BlockReady for each that is ready, in
  /// order, then FetchDone. `request_id` is free again when all of its blocks were given back.
  virtual absl::Status fetch(RequestId request_id, std::span<const BlockKey> keys,
                             std::uint32_t block_bytes, std::int64_t priority,
                             std::chrono::milliseconds timeout) = 0;
  virtual absl::Status reprioritise(RequestId request_id, std::int64_t priority) = 0;
  /// Ends the fetch, if it has not ended (then FetchDone comes still), and gives its blocks back.
  virtual absl::Status cancel(RequestId request_id) = 0;
  /// Gives ready blocks back, by their indices in the fetch.
  virtual absl::Status release(RequestId request_id, std::span<const std::uint32_t> indices) = 0;

  /// See ArenaReader::copy_out.
  virtual absl::Status copy_out(const SlotRef& ref, const BlockKey& key,
                                std::span<std::byte> out) const = 0;

  /// Asks for slots for new blocks. Comes back as WriteSlots, with as many as there are.
  virtual absl::Status reserve(RequestId request_id, std::uint32_t count) = 0;
  /// Gives a reserved slot back unused.
  virtual absl::Status return_slot(const SlotRef& ref) = 0;
  /// Copies the block into a reserved slot and has it stored. Comes back as BlockStored. Errors as
  /// of ArenaWriter::fill, too.
  virtual absl::Status store(const SlotRef& ref, const BlockKey& key,
                             std::span<const std::byte> block, std::uint32_t depth,
                             TtlClass ttl) = 0;

  /// What has come; waits at most that long for something. Empty at the timeout, or when the
  /// connection is broken and everything has been taken.
  virtual std::vector<SessionEvent> poll(std::chrono::milliseconds timeout) = 0;
  /// OK while connected.
  virtual absl::Status health() const = 0;
};

}  // namespace millrace::storage::fetch
