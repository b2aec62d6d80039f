#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/time_point.h"
#include "storage/fetch/arena.h"
#include "storage/kv/block_key.h"
#include "storage/kv/ttl_class.h"
#include "storage/swa/window_location.h"
#include "storage/swa/window_miss.h"

namespace millrace::storage::fetch {

/// What goes into the core of the fetcher and comes out of it (storage/fetch/fetch_core.h).

/// One engine process, for as long as its stream lasts.
using SessionId = std::uint64_t;
/// Chosen by the engine; unique in its session among fetches that it has not given back.
using RequestId = std::uint64_t;

/// Why a fetch ended. Closed set, for metrics.
enum class FetchEnd : std::uint8_t {
  kComplete,    ///< every block is ready
  kNotFound,    ///< the next block is not stored
  kUnreadable,  ///< the next block is stored, but fewer than k good shards of it could be had
  kDeadline,    ///< the fetch's time was over
  kBusy,        ///< a queue, or the arena, is full
  kNoMap,       ///< the storage map is not known yet
  kOtherSize,   ///< the next block is not of the size that was asked for
  kInvalid,     ///< no keys, too many, or a block size that no slot holds
  kCancelled,   ///< the engine no longer wants it
  kStopping,    ///< this process is stopping
};
inline constexpr int kFetchEnds = 10;
/// "complete", "not_found", ...
const char* fetch_end_name(FetchEnd end);

/// What became of a block that an engine sealed. Closed set, for metrics.
enum class StoreEnd : std::uint8_t {
  kStored,        ///< any reader finds it
  kAlreadyThere,  ///< it was stored before, or another writer is just storing it: as good
  kFailed,        ///< too few nodes took it
  kDeadline,      ///< its time was over
  kBusy,          ///< a queue is full
  kNoMap,         ///< the storage map is not known yet
  kBadChecksum,   ///< the slot does not hold what its writer announced
  kLeaseLost,     ///< the reservation was over
  kInvalid,       ///< empty, or larger than a slot or than the map's blocks
  kStopping,      ///< this process is stopping
};
inline constexpr int kStoreEnds = 10;
/// "stored", "already_there", ...
const char* store_end_name(StoreEnd end);

struct FetchLimits {
  /// Fetches of a session that have not ended or not been given back.
  std::size_t max_fetches_per_session = 1024;
  /// Blocks of one fetch: a prompt of two million tokens.
  std::size_t max_keys_per_fetch = 16384;
  /// Blocks of all fetches together.
  std::size_t max_keys = std::size_t{1} << 20;
  std::size_t max_reads_in_flight = 256;
  /// How long the first fetch of the queue waits for engines to give a slot back before it ends
  /// short. No time in which reads are under way counts.
  std::chrono::milliseconds slot_wait{100};
  /// Time of one block read, if the fetch's deadline is not nearer. A read cannot be taken back:
  /// its slot is lost for so long.
  std::chrono::milliseconds longest_read{5000};
  /// How long an engine may keep a ready block, and a reserved slot before it is sealed.
  std::chrono::milliseconds lease{60000};
  /// Time that storing a block may take.
  std::chrono::milliseconds longest_write{10000};
};

// Events.

struct SessionOpened {
  SessionId session = 0;
};
/// Everything of it is given back.
struct SessionEnded {
  SessionId session = 0;
};
/// Blocks of a prefix, in its order. Lower `priority` first: the position in the engine's queue.
struct FetchBlocks {
  SessionId session = 0;
  RequestId request_id = 0;
  std::vector<BlockKey> keys;
  std::uint32_t block_bytes = 0;
  std::int64_t priority = 0;
  TimePoint deadline{};
};
/// Of a fetch that is not there (any more): no error.
struct Reprioritise {
  SessionId session = 0;
  RequestId request_id = 0;
  std::int64_t priority = 0;
};
/// Ends the fetch if it has not ended, and gives all of its blocks back.
struct CancelFetch {
  SessionId session = 0;
  RequestId request_id = 0;
};
/// Gives ready blocks back, by their indices in the fetch. Those that are not leased: no error.
struct ReleaseBlocks {
  SessionId session = 0;
  RequestId request_id = 0;
  std::vector<std::uint32_t> indices;
};
/// Answered by WriteSlots with as many as there are, perhaps none.
struct ReserveSlots {
  SessionId session = 0;
  RequestId request_id = 0;
  std::uint32_t count = 0;
};
/// Gives a reserved slot back unused. If it is not reserved by the session: no error.
struct ReturnSlot {
  SessionId session = 0;
  SlotRef ref;
};
/// The slot holds a block: store it. Answered by BlockStored; the slot is the core's from now on.
struct SealSlot {
  SessionId session = 0;
  SlotRef ref;
  BlockKey key;
  std::uint32_t depth = 0;  ///< of the block in its chain
  TtlClass ttl = TtlClass::kAgent;
  std::uint32_t block_bytes = 0;
  std::uint32_t crc = 0;  ///< CRC-32C of the block
};
/// A StartRead is over: kComplete when the block is in the slot, else why it is not.
struct ReadFinished {
  SlotRef ref;
  FetchEnd end = FetchEnd::kComplete;
};
/// A StartStore is over.
struct StoreFinished {
  SlotRef ref;
  StoreEnd end = StoreEnd::kStored;
};
struct TimerDue {};
/// New fetches and reservations are refused from now on.
struct BeginDrain {};

using FetchEvent = std::variant<SessionOpened, SessionEnded, FetchBlocks, Reprioritise, CancelFetch,
                                ReleaseBlocks, ReserveSlots, ReturnSlot, SealSlot, ReadFinished,
                                StoreFinished, TimerDue, BeginDrain>;

// Actions, to be done in their order.

/// Begin this use of a read slot and read the block into it. Comes back as ReadFinished, once.
struct StartRead {
  SlotRef ref;
  BlockKey key;
  std::uint32_t block_bytes = 0;
  TimePoint deadline{};
};
/// The block in the read slot counts from now on.
struct PublishSlot {
  SlotRef ref;
  BlockKey key;
  std::uint32_t block_bytes = 0;
};
struct RetireSlot {
  ArenaKind arena = ArenaKind::kRead;
  SlotRef ref;
};
/// Begin this use of a write slot.
struct OpenSlot {
  SlotRef ref;
};
/// Take the block out of the write slot and store it. Comes back as StoreFinished, once.
struct StartStore {
  SlotRef ref;
  BlockKey key;
  std::uint32_t depth = 0;
  TtlClass ttl = TtlClass::kAgent;
  std::uint32_t block_bytes = 0;
  std::uint32_t crc = 0;
  TimePoint deadline{};
};

/// To an engine: block `index` of the fetch is ready. In the order of indices, without holes.
struct BlockReady {
  RequestId request_id = 0;
  std::uint32_t index = 0;
  SlotRef ref;
};
/// The fetch has ended; its first `ready_blocks` blocks are ready, and leased still.
struct FetchDone {
  RequestId request_id = 0;
  std::uint32_t ready_blocks = 0;
  FetchEnd end = FetchEnd::kComplete;
};
struct WriteSlots {
  RequestId request_id = 0;
  std::vector<SlotRef> slots;
};
struct BlockStored {
  SlotRef ref;
  StoreEnd end = StoreEnd::kStored;
};
/// The window of a put is at `at`, or is not kept.
struct WindowStored {
  RequestId request_id = 0;
  std::optional<swa::WindowLocation> at;
};
/// The window lies in this slot of the window arena, leased until it is released, the session ends
/// or the lease is over.
struct WindowReady {
  RequestId request_id = 0;
  SlotRef ref;
};
struct WindowMissed {
  RequestId request_id = 0;
  swa::WindowMiss reason = swa::WindowMiss::kExpired;
};
using SessionEvent = std::variant<BlockReady, FetchDone, WriteSlots, BlockStored, WindowStored,
                                  WindowReady, WindowMissed>;

struct Tell {
  SessionId session = 0;
  SessionEvent event;
};
/// The engine broke the rules of its session: end it, and tell it why. SessionEnded follows.
struct RefuseSession {
  SessionId session = 0;
  std::string reason;
};

/// For metrics: a fetch has ended, so long after it was asked for.
struct MeasureFetch {
  std::chrono::nanoseconds time{0};
};

using FetchAction = std::variant<StartRead, PublishSlot, RetireSlot, OpenSlot, StartStore, Tell,
                                 RefuseSession, MeasureFetch>;
using FetchActions = std::vector<FetchAction>;

/// Sums since the start, and at the end what is there now.
struct FetchCounters {
  std::uint64_t fetches = 0;
  std::array<std::uint64_t, kFetchEnds> ends{};
  std::uint64_t asked_blocks = 0;
  std::uint64_t ready_blocks = 0;   ///< told to an engine
  std::uint64_t shared_blocks = 0;  ///< of fetches, that another one had read or was reading
  std::uint64_t reads = 0;
  std::uint64_t unwanted_reads = 0;  ///< nobody wanted the block any more when it came
  std::uint64_t slot_waits =
      0;  ///< times that the first fetch of the queue found every slot leased
  std::uint64_t leases_lost = 0;  ///< read and write slots taken back at the end of the lease
  std::array<std::uint64_t, kStoreEnds> stores{};

  std::uint64_t sessions = 0;
  std::uint64_t open_fetches = 0;  ///< not ended
  std::uint64_t queued_blocks = 0;
  std::uint64_t filling_slots = 0;
  std::uint64_t ready_slots = 0;
  std::uint64_t leased_blocks = 0;  ///< of all sessions; a shared slot counts for each
  std::uint64_t writing_slots = 0;
  std::uint64_t sealed_slots = 0;
};

}  // namespace millrace::storage::fetch
