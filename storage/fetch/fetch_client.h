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
#include "storage/swa/window_location.h"

namespace millrace::storage::fetch {

struct FetchClientOptions {
  std::string address;    ///< "unix:/path" of the machine's fetcher
  std::string client_id;  ///< for its log
  std::chrono::milliseconds connect_timeout{2000};
  /// Events that may wait for poll(), and commands that may wait for the stream; one more breaks
  /// the connection, which gives everything back.
  std::size_t max_waiting = 65536;
  /// Bytes of windows that may wait for the stream; further ones are refused.
  std::size_t max_waiting_window_bytes = std::size_t{64} << 20;
};

/// An engine's line to the fetcher: asks for blocks, is told which are ready, copies them out of
/// shared memory; hands over new ones. The same for sliding windows. Any thread; nothing blocks but
/// connect() and poll().
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
  /// See ArenaReader::copy_part.
  virtual absl::Status copy_part(const SlotRef& ref, const BlockKey& key, std::uint32_t block_bytes,
                                 std::size_t offset, std::span<std::byte> out,
                                 std::uint32_t& crc) const = 0;

  /// Asks for slots for new blocks. Comes back as WriteSlots, with as many as there are.
  virtual absl::Status reserve(RequestId request_id, std::uint32_t count) = 0;
  /// Gives a reserved slot back unused.
  virtual absl::Status return_slot(const SlotRef& ref) = 0;
  /// Copies the block into a reserved slot and has it stored. Comes back as BlockStored. Errors as
  /// of ArenaWriter::fill, too.
  virtual absl::Status store(const SlotRef& ref, const BlockKey& key,
                             std::span<const std::byte> block, std::uint32_t depth,
                             TtlClass ttl) = 0;

  /// Of the largest window; 0: this fetcher keeps none.
  virtual std::uint32_t window_bytes() const = 0;

  /// Has a copy of the window kept, under the key of the block that it ends with. Comes back as
  /// WindowStored. Any number may be under way, also under one `request_id`; ids of windows and of
  /// fetches have nothing to do with each other. kFailedPrecondition: this fetcher keeps no
  /// windows; kInvalidArgument: an empty window, or one too large; kResourceExhausted: too many
  /// wait for the stream, which goes on.
  virtual absl::Status put_window(RequestId request_id, const BlockKey& key,
                                  std::span<const std::byte> window) = 0;
  /// Asks for a window of `from.bytes` bytes that is said to be there; it is taken from wherever it
  /// is near. Comes back as WindowReady or WindowMissed: exactly one of both, always.
  /// `request_id` is free again when it was missed, or released. One get of an id at a time.
  virtual absl::Status get_window(RequestId request_id, const swa::WindowLocation& from,
                                  const BlockKey& key, std::chrono::milliseconds timeout) = 0;
  /// Copies a window that is ready. Errors as of ArenaReader::copy_out; kFailedPrecondition: this
  /// fetcher keeps no windows.
  virtual absl::Status copy_window_out(const SlotRef& ref, const BlockKey& key,
                                       std::span<std::byte> out) const = 0;
  /// Gives a ready window back, or ends a get that was not answered (WindowMissed comes still).
  /// Of neither: no error.
  virtual absl::Status release_window(RequestId request_id) = 0;

  /// What has come; waits at most that long for something. Empty at the timeout, or when the
  /// connection is broken and everything has been taken.
  virtual std::vector<SessionEvent> poll(std::chrono::milliseconds timeout) = 0;
  /// OK while connected.
  virtual absl::Status health() const = 0;
};

}  // namespace millrace::storage::fetch
