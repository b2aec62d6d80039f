#include "storage/fetch/fetch_wire.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <string_view>

#include "api/proto/kvfetch.pb.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "storage/swa/location_wire.h"

namespace millrace::storage::fetch {
namespace {

using proto::v1::KvFetchCommand;
using proto::v1::KvFetchEvent;

constexpr std::size_t kKeyBytes = sizeof(BlockKey::bytes);

void write_ref(const SlotRef& ref, proto::v1::KvSlotRef& wire) {
  wire.set_slot(ref.slot);
  wire.set_generation(ref.generation);
}

SlotRef read_ref(const proto::v1::KvSlotRef& wire) { return {wire.slot(), wire.generation()}; }

absl::StatusOr<BlockKey> read_key(const std::string& wire, std::string_view field) {
  if (wire.size() != kKeyBytes) {
    return absl::InvalidArgumentError(
        str_cat(field, " has ", wire.size(), " bytes, not ", kKeyBytes));
  }
  BlockKey key;
  std::memcpy(key.bytes.data(), wire.data(), kKeyBytes);
  return key;
}

std::uint32_t milliseconds_left(TimePoint deadline, TimePoint now) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - now).count();
  return static_cast<std::uint32_t>(
      std::clamp<std::int64_t>(left, 0, std::numeric_limits<std::uint32_t>::max()));
}

/// What an engine may send, one function for each.
struct CommandWriter {
  TimePoint now;
  KvFetchCommand& wire;

  void operator()(const FetchBlocks& value) const {
    auto& fetch = *wire.mutable_fetch();
    fetch.set_request_id(value.request_id);
    std::string& keys = *fetch.mutable_keys();
    keys.reserve(value.keys.size() * kKeyBytes);
    for (const BlockKey& key : value.keys) {
      keys.append(reinterpret_cast<const char*>(key.bytes.data()), kKeyBytes);
    }
    fetch.set_block_bytes(value.block_bytes);
    fetch.set_priority(value.priority);
    fetch.set_deadline_ms(milliseconds_left(value.deadline, now));
  }
  void operator()(const Reprioritise& value) const {
    wire.mutable_reprioritise()->set_request_id(value.request_id);
    wire.mutable_reprioritise()->set_priority(value.priority);
  }
  void operator()(const CancelFetch& value) const { wire.set_cancel(value.request_id); }
  void operator()(const ReleaseBlocks& value) const {
    wire.mutable_release()->set_request_id(value.request_id);
    for (const std::uint32_t index : value.indices) wire.mutable_release()->add_indices(index);
  }
  void operator()(const ReserveSlots& value) const {
    wire.mutable_reserve()->set_request_id(value.request_id);
    wire.mutable_reserve()->set_count(value.count);
  }
  void operator()(const ReturnSlot& value) const {
    write_ref(value.ref, *wire.mutable_return_slot());
  }
  void operator()(const SealSlot& value) const {
    auto& seal = *wire.mutable_seal();
    write_ref(value.ref, *seal.mutable_ref());
    seal.set_key(value.key.bytes.data(), kKeyBytes);
    seal.set_depth(value.depth);
    seal.set_ttl_class(static_cast<std::uint32_t>(value.ttl));
    seal.set_block_bytes(value.block_bytes);
    seal.set_crc(value.crc);
  }
  void operator()(const PutWindow& value) const {
    auto& put = *wire.mutable_put_window();
    put.set_request_id(value.request_id);
    put.set_key(value.key.bytes.data(), kKeyBytes);
    put.set_window(value.window.data(), value.window.size());
    put.set_crc(value.crc);
  }
  void operator()(const GetWindow& value) const {
    auto& get = *wire.mutable_get_window();
    get.set_request_id(value.request_id);
    get.set_key(value.key.bytes.data(), kKeyBytes);
    swa::to_wire(value.from, *get.mutable_from());
    get.set_deadline_ms(milliseconds_left(value.deadline, now));
  }
  void operator()(const ReleaseWindow& value) const { wire.set_release_window(value.request_id); }
  template <typename Other>
  void operator()(const Other&) const {
    CHECK(false, "not an engine's to send");
  }
};

absl::StatusOr<LoopEvent> read_fetch(SessionId session, const proto::v1::FetchKvBlocks& wire,
                                     TimePoint now) {
  if (wire.keys().size() % kKeyBytes != 0) {
    return absl::InvalidArgumentError(
        str_cat("fetch.keys has ", wire.keys().size(), " bytes, not a multiple of ", kKeyBytes));
  }
  FetchBlocks fetch{.session = session,
                    .request_id = wire.request_id(),
                    .keys = std::vector<BlockKey>(wire.keys().size() / kKeyBytes),
                    .block_bytes = wire.block_bytes(),
                    .priority = wire.priority(),
                    .deadline = now + std::chrono::milliseconds(wire.deadline_ms())};
  for (std::size_t i = 0; i < fetch.keys.size(); ++i) {
    std::memcpy(fetch.keys[i].bytes.data(), wire.keys().data() + i * kKeyBytes, kKeyBytes);
  }
  return FetchEvent(std::move(fetch));
}

absl::StatusOr<LoopEvent> read_seal(SessionId session, const proto::v1::SealKvSlot& wire) {
  ASSIGN_OR_RETURN(const BlockKey key, read_key(wire.key(), "seal.key"));
  if (wire.ttl_class() > static_cast<std::uint32_t>(TtlClass::kChatbot)) {
    return absl::InvalidArgumentError(
        str_cat("seal.ttl_class is ", wire.ttl_class(), "; 0 and 1 are allowed"));
  }
  return SealSlot{.session = session,
                  .ref = read_ref(wire.ref()),
                  .key = key,
                  .depth = wire.depth(),
                  .ttl = static_cast<TtlClass>(wire.ttl_class()),
                  .block_bytes = wire.block_bytes(),
                  .crc = wire.crc()};
}

absl::StatusOr<LoopEvent> read_put(SessionId session, const proto::v1::PutKvWindow& wire) {
  ASSIGN_OR_RETURN(const BlockKey key, read_key(wire.key(), "put_window.key"));
  const auto window = std::as_bytes(std::span(wire.window()));
  return PutWindow{.session = session,
                   .request_id = wire.request_id(),
                   .key = key,
                   .window = {window.begin(), window.end()},
                   .crc = wire.crc()};
}

absl::StatusOr<LoopEvent> read_get(SessionId session, const proto::v1::GetKvWindow& wire,
                                   TimePoint now) {
  ASSIGN_OR_RETURN(const BlockKey key, read_key(wire.key(), "get_window.key"));
  return GetWindow{.session = session,
                   .request_id = wire.request_id(),
                   .from = swa::from_wire(wire.from()),
                   .key = key,
                   .deadline = now + std::chrono::milliseconds(wire.deadline_ms())};
}

struct EventWriter {
  KvFetchEvent& wire;

  void operator()(const BlockReady& value) const {
    wire.mutable_ready()->set_request_id(value.request_id);
    wire.mutable_ready()->set_index(value.index);
    write_ref(value.ref, *wire.mutable_ready()->mutable_ref());
  }
  void operator()(const FetchDone& value) const {
    wire.mutable_done()->set_request_id(value.request_id);
    wire.mutable_done()->set_ready_blocks(value.ready_blocks);
    wire.mutable_done()->set_end(static_cast<std::uint32_t>(value.end));
  }
  void operator()(const WriteSlots& value) const {
    wire.mutable_slots()->set_request_id(value.request_id);
    for (const SlotRef& ref : value.slots) write_ref(ref, *wire.mutable_slots()->add_slots());
  }
  void operator()(const BlockStored& value) const {
    write_ref(value.ref, *wire.mutable_stored()->mutable_ref());
    wire.mutable_stored()->set_end(static_cast<std::uint32_t>(value.end));
  }
  void operator()(const WindowStored& value) const {
    wire.mutable_window_stored()->set_request_id(value.request_id);
    if (value.at) swa::to_wire(*value.at, *wire.mutable_window_stored()->mutable_ref());
  }
  void operator()(const WindowReady& value) const {
    wire.mutable_window_ready()->set_request_id(value.request_id);
    write_ref(value.ref, *wire.mutable_window_ready()->mutable_ref());
  }
  void operator()(const WindowMissed& value) const {
    wire.mutable_window_missed()->set_request_id(value.request_id);
    wire.mutable_window_missed()->set_reason(static_cast<std::uint32_t>(value.reason));
  }
};

}  // namespace

void to_wire(const LoopEvent& command, TimePoint now, KvFetchCommand& wire) {
  std::visit([&](const auto& events) { std::visit(CommandWriter{now, wire}, events); }, command);
}

absl::StatusOr<LoopEvent> from_wire(SessionId session, const KvFetchCommand& wire, TimePoint now) {
  switch (wire.command_case()) {
    case KvFetchCommand::kFetch:
      return read_fetch(session, wire.fetch(), now);
    case KvFetchCommand::kReprioritise:
      return Reprioritise{session, wire.reprioritise().request_id(),
                          wire.reprioritise().priority()};
    case KvFetchCommand::kCancel:
      return CancelFetch{session, wire.cancel()};
    case KvFetchCommand::kRelease:
      return ReleaseBlocks{session,
                           wire.release().request_id(),
                           {wire.release().indices().begin(), wire.release().indices().end()}};
    case KvFetchCommand::kReserve:
      return ReserveSlots{session, wire.reserve().request_id(), wire.reserve().count()};
    case KvFetchCommand::kReturnSlot:
      return ReturnSlot{session, read_ref(wire.return_slot())};
    case KvFetchCommand::kSeal:
      return read_seal(session, wire.seal());
    case KvFetchCommand::kPutWindow:
      return read_put(session, wire.put_window());
    case KvFetchCommand::kGetWindow:
      return read_get(session, wire.get_window(), now);
    case KvFetchCommand::kReleaseWindow:
      return ReleaseWindow{session, wire.release_window()};
    case KvFetchCommand::COMMAND_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("a command without content, or of a newer version");
}

void to_wire(const SessionEvent& event, KvFetchEvent& wire) {
  std::visit(EventWriter{wire}, event);
}

absl::StatusOr<SessionEvent> from_wire(const KvFetchEvent& wire) {
  switch (wire.event_case()) {
    case KvFetchEvent::kReady:
      return BlockReady{wire.ready().request_id(), wire.ready().index(),
                        read_ref(wire.ready().ref())};
    case KvFetchEvent::kDone:
      if (wire.done().end() >= kFetchEnds) {
        return absl::InvalidArgumentError(str_cat("done.end is ", wire.done().end()));
      }
      return FetchDone{wire.done().request_id(), wire.done().ready_blocks(),
                       static_cast<FetchEnd>(wire.done().end())};
    case KvFetchEvent::kSlots: {
      WriteSlots slots{.request_id = wire.slots().request_id(), .slots = {}};
      slots.slots.reserve(static_cast<std::size_t>(wire.slots().slots_size()));
      for (const auto& ref : wire.slots().slots()) slots.slots.push_back(read_ref(ref));
      return SessionEvent(std::move(slots));
    }
    case KvFetchEvent::kStored:
      if (wire.stored().end() >= kStoreEnds) {
        return absl::InvalidArgumentError(str_cat("stored.end is ", wire.stored().end()));
      }
      return BlockStored{read_ref(wire.stored().ref()), static_cast<StoreEnd>(wire.stored().end())};
    case KvFetchEvent::kWindowStored: {
      WindowStored stored{.request_id = wire.window_stored().request_id(), .at = {}};
      if (wire.window_stored().has_ref()) stored.at = swa::from_wire(wire.window_stored().ref());
      return SessionEvent(std::move(stored));
    }
    case KvFetchEvent::kWindowReady:
      return WindowReady{wire.window_ready().request_id(), read_ref(wire.window_ready().ref())};
    case KvFetchEvent::kWindowMissed:
      if (wire.window_missed().reason() >= swa::kWindowMisses) {
        return absl::InvalidArgumentError(
            str_cat("window_missed.reason is ", wire.window_missed().reason()));
      }
      return WindowMissed{wire.window_missed().request_id(),
                          static_cast<swa::WindowMiss>(wire.window_missed().reason())};
    case KvFetchEvent::EVENT_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("an event without content, or of a newer version");
}

void to_wire(const ArenaTicket& ticket, proto::v1::KvArena& wire) {
  wire.set_shm_name(ticket.shm_name);
  wire.set_bytes(ticket.bytes);
  wire.set_incarnation(ticket.incarnation);
}

ArenaTicket from_wire(const proto::v1::KvArena& wire) {
  return {.shm_name = wire.shm_name(), .bytes = wire.bytes(), .incarnation = wire.incarnation()};
}

}  // namespace millrace::storage::fetch
