#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/process/shared_region.h"
#include "storage/kv/block_key.h"

namespace millrace::storage::fetch {

/// KV blocks in shared memory, in slots of one size. There are two arenas: blocks that were fetched
/// lie in one that engines map read-only; engines put new blocks in the other. So an engine that
/// goes on writing after its time can spoil only what is checked again before it is stored. A third
/// one, which engines map read-only too, holds sliding windows (storage/swa); all that is said here
/// of blocks is true of them there.
///
/// One region, in the machine's byte order (it never leaves the machine). Version 1:
///
///     0      8   magic "MRARENA\0"
///     8      4   version
///     12     4   kind: 1 = read arena, 2 = write arena, 3 = window arena
///     16     8   incarnation: random, another one after each start of its owner
///     24     4   slot count
///     28     4   block bytes: the largest block
///     32     8   slot bytes: block bytes rounded up to 4096
///     40     8   offset of slot 0
///     48     64  host id, padded with zeros
///     112    4   CRC-32C of bytes 0..111
///     116    -   zero up to 4096
///     4096   64  slot table, one entry a slot, then zero up to a multiple of 4096
///     ...        slot 0, slot 1, ...
///
/// and an entry of the table:
///
///     0      8   generation * 256 + state; one word, so that both change at once
///     8      32  key
///     40     4   block bytes
///     44     4   CRC-32C of the block
///     48     16  zero
///
/// The generation grows before a slot is used anew, and the state becomes kReady only when the
/// whole verified block, its key, size and checksum are in place: at whichever instant the owner
/// dies, a slot is ready with all of its block or not ready.
inline constexpr std::uint32_t kArenaVersion = 1;
inline constexpr std::size_t kArenaPageBytes = 4096;
inline constexpr std::size_t kArenaEntryBytes = 64;

enum class ArenaKind : std::uint32_t { kRead = 1, kWrite = 2, kWindow = 3 };

enum class SlotState : std::uint8_t {
  kFree = 0,
  kFilling = 1,  ///< a read is landing in it
  kReady = 2,    ///< holds a verified block
  kWriting = 3,  ///< an engine fills it
  kSealed = 4,   ///< an engine has filled it; it is being stored
};

/// A use of a slot. Names something else, or nothing, once the slot has been used anew.
struct SlotRef {
  std::uint32_t slot = 0;
  std::uint64_t generation = 0;
  bool operator==(const SlotRef&) const = default;
};

struct ArenaShape {
  std::string host_id;  ///< plain (api/admin/id.h)
  ArenaKind kind = ArenaKind::kRead;
  std::uint64_t incarnation = 0;
  std::uint32_t slot_count = 0;
  std::uint32_t block_bytes = 0;
};

/// What an engine must know to map an arena.
struct ArenaTicket {
  std::string shm_name;
  std::size_t bytes = 0;
  std::uint64_t incarnation = 0;
};

/// How many slots for such blocks fit in an arena of at most that many bytes.
std::uint32_t arena_slots(std::size_t arena_bytes, std::uint32_t block_bytes);

/// The right to have arenas under a host id: one process at a time, given back by its end however
/// it ends. Move-only.
class HostClaim {
 public:
  /// Also removes the arenas that an earlier process left. kFailedPrecondition: another process has
  /// the claim; kInvalidArgument: the id is not plain.
  static absl::StatusOr<HostClaim> take(const std::string& host_id);

  HostClaim(HostClaim&& other) noexcept;
  HostClaim& operator=(HostClaim&& other) noexcept;
  ~HostClaim();

 private:
  explicit HostClaim(int fd) : fd_(fd) {}
  int fd_ = -1;
};

/// The owner's side. One thread at a time, but data() of different slots may be used by several.
class Arena {
 public:
  /// All of its memory is there when it returns. kResourceExhausted: the host's shared memory is
  /// full, with the number of bytes; kInvalidArgument: no slots, no block size, a bad host id.
  static absl::StatusOr<Arena> create(const ArenaShape& shape);

  ArenaTicket ticket() const;
  std::uint32_t slot_count() const { return shape_.slot_count; }

  /// Starts a use: `ref.generation` is greater than that of the use before (CHECK), `state` is
  /// kFilling or kWriting.
  void begin(const SlotRef& ref, SlotState state);
  /// Where the block of this use goes.
  std::span<std::byte> data(const SlotRef& ref, std::uint32_t block_bytes);
  /// The block is there, whole and verified: engines may read it from now on.
  void publish(const SlotRef& ref, const BlockKey& key, std::uint32_t block_bytes);
  /// An engine has filled the slot. Returns a copy of the block, so that nothing can change it any
  /// more; kDataLoss when the copy's checksum is not `crc`.
  absl::StatusOr<std::vector<std::byte>> take_sealed(const SlotRef& ref, std::uint32_t block_bytes,
                                                     std::uint32_t crc);
  /// Ends a use: nobody may read it any more.
  void retire(const SlotRef& ref);

 private:
  Arena(ArenaShape shape, std::string name, SharedRegion region);
  void set_state(const SlotRef& ref, SlotState state);

  ArenaShape shape_;
  std::string name_;
  /// Of each slot. The table is for engines; those of a write arena could scribble over it.
  std::vector<std::uint64_t> generations_;
  SharedRegion region_;
};

/// The side of those who read an arena of blocks or windows. Any thread.
class ArenaReader {
 public:
  /// `kind`: kRead or kWindow. kNotFound: there is no such arena (any more); kDataLoss: it is not
  /// what the ticket says, or of another version (both named).
  static absl::StatusOr<ArenaReader> open(const ArenaTicket& ticket,
                                          ArenaKind kind = ArenaKind::kRead);

  /// Copies a block that a fetch said is ready; `out` has exactly its size. OK means that `out`
  /// holds the block of that key, verified after it was copied. Otherwise `out` is worth nothing:
  /// kAborted: the slot was taken back or used anew (the lease was over);
  /// kInvalidArgument: no such slot, or a block of another key or size;
  /// kDataLoss: the bytes do not match their checksum.
  absl::Status copy_out(const SlotRef& ref, const BlockKey& key, std::span<std::byte> out) const;
  /// The generation of the slot's last use, perhaps over already; 0: none, or no such slot.
  std::uint64_t generation_of(std::uint32_t slot) const;

  /// The same for bytes [offset, offset + out.size()) of a block of block_bytes. The parts of a
  /// block are asked for in order; `crc` is the checksum of those before, 0 for the first, and
  /// becomes that of all so far. The block is verified with its last part: before that none of it
  /// counts.
  absl::Status copy_part(const SlotRef& ref, const BlockKey& key, std::uint32_t block_bytes,
                         std::size_t offset, std::span<std::byte> out, std::uint32_t& crc) const;

 private:
  explicit ArenaReader(SharedRegion region);

  SharedRegion region_;
  std::uint32_t slot_count_ = 0;
  std::uint64_t slot_bytes_ = 0;
  std::uint64_t data_offset_ = 0;
};

/// An engine's side of the write arena. Any thread; a slot by one at a time.
class ArenaWriter {
 public:
  /// Errors as of ArenaReader.
  static absl::StatusOr<ArenaWriter> open(const ArenaTicket& ticket);

  /// Copies a block into a slot that was reserved, and returns its CRC-32C, taken from `block`
  /// itself: whatever else happens to the slot is found out when it is taken. kAborted: the
  /// reservation is over; kInvalidArgument: no such slot, an empty block or one too large.
  absl::StatusOr<std::uint32_t> fill(const SlotRef& ref, std::span<const std::byte> block);

 private:
  explicit ArenaWriter(SharedRegion region);

  SharedRegion region_;
  std::uint32_t slot_count_ = 0;
  std::uint32_t block_bytes_ = 0;
  std::uint64_t slot_bytes_ = 0;
  std::uint64_t data_offset_ = 0;
};

}  // namespace millrace::storage::fetch
