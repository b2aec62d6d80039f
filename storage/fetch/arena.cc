#include "storage/fetch/arena.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "api/admin/id.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "storage/ec/crc32c.h"

namespace millrace::storage::fetch {
namespace {

constexpr std::array<char, 8> kMagic = {'M', 'R', 'A', 'R', 'E', 'N', 'A', '\0'};
constexpr std::size_t kHostIdBytes = 64;
/// Generations have 56 bits: a slot used anew every microsecond lasts two thousand years.
constexpr int kStateBits = 8;

/// The header as drawn in arena.h.
struct Header {
  std::array<char, 8> magic = kMagic;
  std::uint32_t version = kArenaVersion;
  std::uint32_t kind = 0;
  std::uint64_t incarnation = 0;
  std::uint32_t slot_count = 0;
  std::uint32_t block_bytes = 0;
  std::uint64_t slot_bytes = 0;
  std::uint64_t data_offset = 0;
  std::array<char, kHostIdBytes> host_id{};
  std::uint32_t crc = 0;
  std::uint32_t padding = 0;
};
static_assert(sizeof(Header) == 120);
static_assert(offsetof(Header, crc) == 112);

/// What an entry says of the block in its slot.
struct Description {
  std::array<std::uint8_t, 32> key{};
  std::uint32_t block_bytes = 0;
  std::uint32_t crc = 0;
};
static_assert(sizeof(Description) == 40);
constexpr std::size_t kDescriptionOffset = 8;

using Word = std::atomic<std::uint64_t>;
static_assert(Word::is_always_lock_free && sizeof(Word) == 8);

constexpr std::uint64_t round_up(std::uint64_t bytes) {
  return (bytes + kArenaPageBytes - 1) / kArenaPageBytes * kArenaPageBytes;
}

constexpr std::uint64_t data_offset_of(std::uint32_t slot_count) {
  return kArenaPageBytes + round_up(std::uint64_t{slot_count} * kArenaEntryBytes);
}

constexpr std::uint64_t arena_bytes_of(std::uint32_t slot_count, std::uint32_t block_bytes) {
  return data_offset_of(slot_count) + slot_count * round_up(block_bytes);
}

constexpr std::uint64_t word_of(const SlotRef& ref, SlotState state) {
  return ref.generation << kStateBits | static_cast<std::uint64_t>(state);
}

std::size_t entry_offset(std::uint32_t slot) {
  return kArenaPageBytes + std::size_t{slot} * kArenaEntryBytes;
}

Word& word_at(std::span<std::byte> region, std::uint32_t slot) {
  return *reinterpret_cast<Word*>(region.data() + entry_offset(slot));
}
const Word& word_at(std::span<const std::byte> region, std::uint32_t slot) {
  return *reinterpret_cast<const Word*>(region.data() + entry_offset(slot));
}

Description description_at(std::span<const std::byte> region, std::uint32_t slot) {
  Description description;
  std::memcpy(&description, region.data() + entry_offset(slot) + kDescriptionOffset,
              sizeof(description));
  return description;
}

std::uint32_t header_crc(const Header& header) {
  return ec::crc32c(std::as_bytes(std::span(&header, 1)).first(offsetof(Header, crc)));
}

/// No worker id is empty, so that no worker's prefix covers this one (api/admin/shared_memory.h).
std::string name_prefix(const std::string& host_id) {
  return str_cat("millrace-", host_id, "++kvfetch+");
}

const char* kind_name(ArenaKind kind) {
  switch (kind) {
    case ArenaKind::kRead:
      return "read-";
    case ArenaKind::kWrite:
      return "write-";
    case ArenaKind::kWindow:
      return "window-";
  }
  CHECK(false, "no such kind of arena");
}

absl::Status check_header(const Header& header, const ArenaTicket& ticket, ArenaKind kind) {
  if (header.magic != kMagic) {
    return absl::DataLossError(str_cat(ticket.shm_name, " is no arena of KV blocks"));
  }
  if (header.version != kArenaVersion) {
    return absl::DataLossError(str_cat(ticket.shm_name, " is of arena version ", header.version,
                                       ", this program reads version ", kArenaVersion));
  }
  const bool is_sound = header.crc == header_crc(header) &&
                        header.kind == static_cast<std::uint32_t>(kind) &&
                        header.slot_bytes == round_up(header.block_bytes) &&
                        header.data_offset == data_offset_of(header.slot_count) &&
                        arena_bytes_of(header.slot_count, header.block_bytes) == ticket.bytes;
  if (!is_sound) {
    return absl::DataLossError(str_cat("the header of arena ", ticket.shm_name, " is damaged"));
  }
  if (header.incarnation != ticket.incarnation) {
    return absl::DataLossError(str_cat(ticket.shm_name, " is of incarnation ", header.incarnation,
                                       ", announced was ", ticket.incarnation));
  }
  return absl::OkStatus();
}

Header header_of(std::span<const std::byte> region) {
  Header header;
  std::memcpy(&header, region.data(), sizeof(header));
  return header;
}

absl::StatusOr<SharedRegion> map_arena(const ArenaTicket& ticket, ArenaKind kind) {
  if (ticket.bytes < kArenaPageBytes) {
    return absl::DataLossError(str_cat("no arena has ", ticket.bytes, " bytes"));
  }
  ASSIGN_OR_RETURN(SharedRegion region,
                   kind == ArenaKind::kWrite
                       ? SharedRegion::open_writable(ticket.shm_name, ticket.bytes)
                       : SharedRegion::open(ticket.shm_name, ticket.bytes));
  RETURN_IF_ERROR(check_header(header_of(region.bytes()), ticket, kind));
  return region;
}

absl::Status no_such_slot(std::uint32_t slot, std::uint32_t slot_count) {
  return absl::InvalidArgumentError(
      str_cat("slot ", slot, " is not one of the arena's ", slot_count));
}

}  // namespace

std::uint32_t arena_slots(std::size_t arena_bytes, std::uint32_t block_bytes) {
  if (block_bytes == 0) return 0;
  const std::uint64_t slot_bytes = round_up(block_bytes);
  std::uint64_t slots = arena_bytes / (slot_bytes + kArenaEntryBytes);
  slots = std::min<std::uint64_t>(slots, std::uint32_t{1} << 31);
  while (slots > 0 && arena_bytes_of(static_cast<std::uint32_t>(slots), block_bytes) > arena_bytes)
    --slots;
  return static_cast<std::uint32_t>(slots);
}

// ---- the claim ----------------------------------------------------------------------------------

absl::StatusOr<HostClaim> HostClaim::take(const std::string& host_id) {
  if (!api::admin::is_plain_id(host_id)) return api::admin::plain_id_error(host_id);
  // The file stays: removing a lock that another process may just be taking would give it to two.
  const std::string path = str_cat("/millrace-", host_id, "++kvfetch.lock");
  const int fd = ::shm_open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return absl::ErrnoToStatus(errno, path);
  HostClaim claim(fd);
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    return absl::FailedPreconditionError(
        str_cat("another millrace-kvfetch runs on this machine under host id ", host_id));
  }
  remove_shared_regions(name_prefix(host_id));
  return claim;
}

HostClaim::HostClaim(HostClaim&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

HostClaim& HostClaim::operator=(HostClaim&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

HostClaim::~HostClaim() {
  if (fd_ >= 0) ::close(fd_);
}

// ---- the owner ----------------------------------------------------------------------------------

absl::StatusOr<Arena> Arena::create(const ArenaShape& shape) {
  if (!api::admin::is_plain_id(shape.host_id)) return api::admin::plain_id_error(shape.host_id);
  if (shape.slot_count == 0 || shape.block_bytes == 0) {
    return absl::InvalidArgumentError(str_cat("an arena of ", shape.slot_count,
                                              " slots for blocks of ", shape.block_bytes,
                                              " bytes holds nothing"));
  }
  std::string name = str_cat(name_prefix(shape.host_id), kind_name(shape.kind), shape.incarnation);
  const std::uint64_t bytes = arena_bytes_of(shape.slot_count, shape.block_bytes);
  ASSIGN_OR_RETURN(SharedRegion region, SharedRegion::create(name, bytes));

  Header header;
  header.kind = static_cast<std::uint32_t>(shape.kind);
  header.incarnation = shape.incarnation;
  header.slot_count = shape.slot_count;
  header.block_bytes = shape.block_bytes;
  header.slot_bytes = round_up(shape.block_bytes);
  header.data_offset = data_offset_of(shape.slot_count);
  std::memcpy(header.host_id.data(), shape.host_id.data(), shape.host_id.size());
  header.crc = header_crc(header);
  std::memcpy(region.writable_bytes().data(), &header, sizeof(header));
  // New shared memory is zero: every slot is free, of generation 0.
  return Arena(shape, std::move(name), std::move(region));
}

Arena::Arena(ArenaShape shape, std::string name, SharedRegion region)
    : shape_(std::move(shape)),
      name_(std::move(name)),
      generations_(shape_.slot_count),
      region_(std::move(region)) {}

ArenaTicket Arena::ticket() const {
  return {.shm_name = name_, .bytes = region_.bytes().size(), .incarnation = shape_.incarnation};
}

void Arena::begin(const SlotRef& ref, SlotState state) {
  CHECK(ref.slot < shape_.slot_count);
  CHECK(state == SlotState::kFilling || state == SlotState::kWriting);
  CHECK(ref.generation > generations_[ref.slot], "a slot is used anew under a new generation");
  generations_[ref.slot] = ref.generation;
  word_at(region_.writable_bytes(), ref.slot).store(word_of(ref, state), std::memory_order_relaxed);
  // No byte of the new use may be seen before the new generation: pairs with copy_out's fence.
  std::atomic_thread_fence(std::memory_order_release);
}

std::span<std::byte> Arena::data(const SlotRef& ref, std::uint32_t block_bytes) {
  CHECK(ref.slot < shape_.slot_count && block_bytes <= shape_.block_bytes);
  const std::uint64_t offset =
      data_offset_of(shape_.slot_count) + ref.slot * round_up(shape_.block_bytes);
  return region_.writable_bytes().subspan(offset, block_bytes);
}

void Arena::publish(const SlotRef& ref, const BlockKey& key, std::uint32_t block_bytes) {
  const Description description{
      .key = key.bytes, .block_bytes = block_bytes, .crc = ec::crc32c(data(ref, block_bytes))};
  std::memcpy(region_.writable_bytes().data() + entry_offset(ref.slot) + kDescriptionOffset,
              &description, sizeof(description));
  set_state(ref, SlotState::kReady);
}

absl::StatusOr<std::vector<std::byte>> Arena::take_sealed(const SlotRef& ref,
                                                          std::uint32_t block_bytes,
                                                          std::uint32_t crc) {
  set_state(ref, SlotState::kSealed);
  const std::span<const std::byte> bytes = data(ref, block_bytes);
  std::vector<std::byte> block(bytes.begin(), bytes.end());
  if (ec::crc32c(block) == crc) return block;
  return absl::DataLossError(str_cat("the block in write slot ", ref.slot,
                                     " does not have the checksum that its writer gave"));
}

void Arena::retire(const SlotRef& ref) { set_state(ref, SlotState::kFree); }

void Arena::set_state(const SlotRef& ref, SlotState state) {
  CHECK(ref.slot < shape_.slot_count);
  CHECK(ref.generation == generations_[ref.slot], "a use of a slot ends before the next begins");
  word_at(region_.writable_bytes(), ref.slot).store(word_of(ref, state), std::memory_order_release);
}

// ---- engines ------------------------------------------------------------------------------------

absl::StatusOr<ArenaReader> ArenaReader::open(const ArenaTicket& ticket, ArenaKind kind) {
  CHECK(kind != ArenaKind::kWrite);
  ASSIGN_OR_RETURN(SharedRegion region, map_arena(ticket, kind));
  return ArenaReader(std::move(region));
}

ArenaReader::ArenaReader(SharedRegion region) : region_(std::move(region)) {
  const Header header = header_of(region_.bytes());
  slot_count_ = header.slot_count;
  slot_bytes_ = header.slot_bytes;
  data_offset_ = header.data_offset;
}

absl::Status ArenaReader::copy_out(const SlotRef& ref, const BlockKey& key,
                                   std::span<std::byte> out) const {
  std::uint32_t crc = 0;
  return copy_part(ref, key, static_cast<std::uint32_t>(out.size()), 0, out, crc);
}

absl::Status ArenaReader::copy_part(const SlotRef& ref, const BlockKey& key,
                                    std::uint32_t block_bytes, std::size_t offset,
                                    std::span<std::byte> out, std::uint32_t& crc) const {
  CHECK(offset + out.size() <= block_bytes);
  if (ref.slot >= slot_count_) return no_such_slot(ref.slot, slot_count_);
  const Word& word = word_at(region_.bytes(), ref.slot);
  const std::uint64_t expected = word_of(ref, SlotState::kReady);
  const auto is_lost = [&] {
    return absl::AbortedError(str_cat("slot ", ref.slot, " no longer holds generation ",
                                      ref.generation, ": the lease was over"));
  };
  if (word.load(std::memory_order_acquire) != expected) return is_lost();
  const Description description = description_at(region_.bytes(), ref.slot);
  const bool is_asked = description.key == key.bytes && description.block_bytes == block_bytes &&
                        block_bytes <= slot_bytes_;
  if (is_asked) {
    std::memcpy(out.data(), region_.bytes().data() + data_offset_ + ref.slot * slot_bytes_ + offset,
                out.size());
  }
  // What was read above was read before the word is looked at again: pairs with begin's fence.
  std::atomic_thread_fence(std::memory_order_acquire);
  if (word.load(std::memory_order_relaxed) != expected) return is_lost();
  if (!is_asked) {
    return absl::InvalidArgumentError(str_cat("slot ", ref.slot, " holds another block, of ",
                                              description.block_bytes, " bytes; asked for were ",
                                              block_bytes));
  }
  crc = ec::crc32c_extend(crc, out);
  if (offset + out.size() == block_bytes && crc != description.crc) {
    return absl::DataLossError(str_cat("the block in slot ", ref.slot, " is damaged"));
  }
  return absl::OkStatus();
}

std::uint64_t ArenaReader::generation_of(std::uint32_t slot) const {
  if (slot >= slot_count_) return 0;
  return word_at(region_.bytes(), slot).load(std::memory_order_acquire) >> kStateBits;
}

absl::StatusOr<ArenaWriter> ArenaWriter::open(const ArenaTicket& ticket) {
  ASSIGN_OR_RETURN(SharedRegion region, map_arena(ticket, ArenaKind::kWrite));
  return ArenaWriter(std::move(region));
}

ArenaWriter::ArenaWriter(SharedRegion region) : region_(std::move(region)) {
  const Header header = header_of(region_.bytes());
  slot_count_ = header.slot_count;
  block_bytes_ = header.block_bytes;
  slot_bytes_ = header.slot_bytes;
  data_offset_ = header.data_offset;
}

absl::StatusOr<std::uint32_t> ArenaWriter::fill(const SlotRef& ref,
                                                std::span<const std::byte> block) {
  if (ref.slot >= slot_count_) return no_such_slot(ref.slot, slot_count_);
  if (block.empty() || block.size() > block_bytes_) {
    return absl::InvalidArgumentError(
        str_cat("a block has 1 to ", block_bytes_, " bytes, not ", block.size()));
  }
  const Word& word = word_at(region_.bytes(), ref.slot);
  if (word.load(std::memory_order_acquire) != word_of(ref, SlotState::kWriting)) {
    return absl::AbortedError(
        str_cat("the reservation of write slot ", ref.slot, " was over before it was filled"));
  }
  std::memcpy(region_.writable_bytes().data() + data_offset_ + ref.slot * slot_bytes_, block.data(),
              block.size());
  return ec::crc32c(block);
}

}  // namespace millrace::storage::fetch
