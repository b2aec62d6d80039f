#pragma once

#include "absl/status/statusor.h"
#include "storage/fetch/window_types.h"

namespace millrace::proto::v1 {
class KvArena;
class KvFetchCommand;
class KvFetchEvent;
}  // namespace millrace::proto::v1

namespace millrace::storage::fetch {

/// The values of fetch_types.h and window_types.h as messages of api/proto/kvfetch.proto, and back.
/// What cannot be read is kInvalidArgument and names the field.

/// Only of what an engine sends; another event is a bug (CHECK). Deadlines become the time left at
/// `now`.
void to_wire(const LoopEvent& command, TimePoint now, proto::v1::KvFetchCommand& wire);
absl::StatusOr<LoopEvent> from_wire(SessionId session, const proto::v1::KvFetchCommand& wire,
                                    TimePoint now);

void to_wire(const SessionEvent& event, proto::v1::KvFetchEvent& wire);
absl::StatusOr<SessionEvent> from_wire(const proto::v1::KvFetchEvent& wire);

void to_wire(const ArenaTicket& ticket, proto::v1::KvArena& wire);
ArenaTicket from_wire(const proto::v1::KvArena& wire);

}  // namespace millrace::storage::fetch
