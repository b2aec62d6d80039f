#include "storage/swa/directory_client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <utility>

#include "api/proto/swa.grpc.pb.h"
#include "common/types.h"
#include "storage/swa/client_calls.h"
#include "storage/swa/directory_ring.h"
#include "storage/swa/location_wire.h"

namespace millrace::storage::swa {
namespace {

constexpr std::size_t kKeyBytes = sizeof(BlockKey::bytes);
/// An entrypoint that cannot be reached is tried again after so long, doubled up to the second.
constexpr int kFirstBackoffMs = 50;
constexpr int kLongestBackoffMs = 2000;
/// Entries of one message, while more may wait: about 100 KiB.
constexpr std::size_t kBatchEntries = 512;
static_assert(kBatchEntries <= kMaxPutEntries);

const char* failure_name(const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return "deadline";
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::CANCELLED:
      return "unreachable";
    default:
      return "refused";
  }
}

/// Another entrypoint.
struct Peer {
  explicit Peer(DirectoryMember self) : member(std::move(self)) {
    grpc::ChannelArguments arguments;
    // A connection of its own: one to an entrypoint that was started anew does not inherit the
    // failures of the old one.
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kFirstBackoffMs);
    arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kFirstBackoffMs);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kLongestBackoffMs);
    arguments.SetMaxReceiveMessageSize(kMaxDirectoryMessageBytes);
    stub = proto::v1::KvDirectory::NewStub(
        grpc::CreateCustomChannel(member.address, grpc::InsecureChannelCredentials(), arguments));
  }

  const DirectoryMember member;
  std::unique_ptr<proto::v1::KvDirectory::Stub> stub;
  // Guarded by the client's mutex.
  std::deque<DirectoryEntry> waiting;
  bool is_putting = false;
};

/// One get() until all of its parts are answered.
class Lookup {
 public:
  Lookup(std::size_t keys, std::size_t parts, DirectoryClient::Done done)
      : found_(keys), parts_(parts), done_(std::move(done)) {}

  /// An answer to some of the keys. The last one calls back.
  void answer(const std::vector<std::pair<std::size_t, WindowLocation>>& places) {
    std::vector<std::optional<WindowLocation>> found;
    {
      std::lock_guard lock(mutex_);
      for (const auto& [index, at] : places) found_[index] = at;
      if (--parts_ > 0) return;
      found.swap(found_);
    }
    done_(std::move(found));
  }

 private:
  std::mutex mutex_;
  std::vector<std::optional<WindowLocation>> found_;  // guarded by mutex_
  std::size_t parts_;                                 // guarded by mutex_
  const DirectoryClient::Done done_;
};

/// Calls own themselves while gRPC has them.
struct GetCall {
  std::shared_ptr<GetCall> self;
  std::shared_ptr<Peer> peer;
  std::shared_ptr<Lookup> lookup;
  std::vector<std::size_t> indices;  ///< in the lookup
  grpc::ClientContext context;
  proto::v1::GetKvWindows request;
  proto::v1::KvWindowPlaces reply;
};

struct PutCall {
  std::shared_ptr<PutCall> self;
  std::shared_ptr<Peer> peer;
  grpc::ClientContext context;
  proto::v1::PutKvWindows request;
  proto::v1::PutKvWindowsReply reply;
};

void set_timeout(grpc::ClientContext& context, std::chrono::milliseconds timeout) {
  context.set_deadline(gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                                    gpr_time_from_millis(timeout.count(), GPR_TIMESPAN)));
}

class GrpcDirectoryClient final : public DirectoryClient {
 public:
  GrpcDirectoryClient(DirectoryClientOptions options, DirectoryService& own, Registry& registry)
      : options_(std::move(options)),
        own_(own),
        lookups_(registry.counter(
            "millrace_swa_directory_lookups_total",
            "Keys that this entrypoint looked up in the directory, by what "
            "came of it.",
            {{"outcome",
              {"found", "missing", "deadline", "unreachable", "refused", "busy", "no_members"}}})),
        lost_puts_(registry.counter(
            "millrace_swa_directory_lost_puts_total",
            "Windows that did not get into the directory, by why.",
            {{"reason", {"deadline", "unreachable", "refused", "full", "left", "no_members"}}})) {}
  ~GrpcDirectoryClient() override { calls_.end_all(); }

  void set_members(std::vector<DirectoryMember> members) override;
  void put(std::vector<DirectoryEntry> entries) override;
  void get(std::vector<BlockKey> keys, std::chrono::milliseconds timeout, Done done) override;

 private:
  /// What one entrypoint is to be asked for. Without a peer: the own shard.
  struct Part {
    std::shared_ptr<Peer> peer;
    std::vector<std::size_t> indices;
  };

  /// nullopt: there are no members.
  std::optional<std::vector<Part>> split(std::span<const BlockKey> keys);
  bool start_lookup();
  void end_lookup();
  std::vector<std::pair<std::size_t, WindowLocation>> ask_own(const Part& part,
                                                              std::span<const BlockKey> keys);
  void ask(Part part, std::span<const BlockKey> keys, std::chrono::milliseconds timeout,
           const std::shared_ptr<Lookup>& lookup);
  void finish(GetCall& call, const grpc::Status& status);

  /// Call with the mutex held. Null: nothing waits, or a batch is under way.
  std::shared_ptr<PutCall> next_batch(const std::shared_ptr<Peer>& peer);
  void start(std::shared_ptr<PutCall> call);
  void finish(std::shared_ptr<PutCall> call, const grpc::Status& status);
  void lose(const char* reason, std::size_t entries) {
    if (entries > 0) lost_puts_.with({reason}).add(static_cast<double>(entries));
  }
  void count(const char* outcome, std::size_t keys) {
    if (keys > 0) lookups_.with({outcome}).add(static_cast<double>(keys));
  }

  const DirectoryClientOptions options_;
  DirectoryService& own_;
  const MetricFamily<Counter> lookups_;
  const MetricFamily<Counter> lost_puts_;

  std::mutex mutex_;  // guards all below, and what peers wait with
  DirectoryRing ring_{{}};
  std::map<std::string, std::shared_ptr<Peer>> peers_;  ///< but this entrypoint
  std::size_t lookups_under_way_ = 0;

  ClientCalls calls_;
};

// ---- members ------------------------------------------------------------------------------------

void GrpcDirectoryClient::set_members(std::vector<DirectoryMember> members) {
  std::map<std::string, DirectoryMember> by_id;
  for (DirectoryMember& member : members) by_id[member.id] = std::move(member);
  std::vector<std::string> ids;
  ids.reserve(by_id.size());
  std::size_t lost = 0;
  {
    std::lock_guard lock(mutex_);
    std::map<std::string, std::shared_ptr<Peer>> before = std::exchange(peers_, {});
    for (auto& [id, member] : by_id) {
      ids.push_back(id);
      if (id == options_.own_id) continue;
      const auto known = before.find(id);
      const bool is_same = known != before.end() &&
                           known->second->member.address == member.address &&
                           known->second->member.incarnation == member.incarnation;
      peers_[id] = is_same ? known->second : std::make_shared<Peer>(std::move(member));
      if (is_same) before.erase(known);
    }
    for (const auto& [id, peer] : before) {
      lost += peer->waiting.size();
      peer->waiting.clear();
    }
    ring_ = DirectoryRing(std::move(ids));
  }
  lose("left", lost);
}

std::optional<std::vector<GrpcDirectoryClient::Part>> GrpcDirectoryClient::split(
    std::span<const BlockKey> keys) {
  std::map<std::string, Part> parts;
  {
    std::lock_guard lock(mutex_);
    if (ring_.is_empty()) return std::nullopt;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const std::string& owner = ring_.owner_of(keys[i]);
      Part& part = parts[owner];
      part.indices.push_back(i);
      if (owner != options_.own_id) part.peer = peers_.at(owner);
    }
  }
  std::vector<Part> list;
  list.reserve(parts.size());
  for (auto& [owner, part] : parts) list.push_back(std::move(part));
  return list;
}

// ---- getting ------------------------------------------------------------------------------------

void GrpcDirectoryClient::get(std::vector<BlockKey> keys, std::chrono::milliseconds timeout,
                              Done done) {
  std::optional<std::vector<Part>> parts = split(keys);
  if (!parts || parts->empty()) {
    count("no_members", keys.size());
    return done(std::vector<std::optional<WindowLocation>>(keys.size()));
  }
  const auto lookup = std::make_shared<Lookup>(keys.size(), parts->size(), std::move(done));
  for (Part& part : *parts) {
    if (part.peer == nullptr) {
      lookup->answer(ask_own(part, keys));
    } else if (part.indices.size() > kMaxGetKeys || !start_lookup()) {
      count("busy", part.indices.size());
      lookup->answer({});
    } else {
      ask(std::move(part), keys, timeout, lookup);
    }
  }
}

std::vector<std::pair<std::size_t, WindowLocation>> GrpcDirectoryClient::ask_own(
    const Part& part, std::span<const BlockKey> keys) {
  std::vector<BlockKey> own;
  own.reserve(part.indices.size());
  for (const std::size_t index : part.indices) own.push_back(keys[index]);
  auto found = own_.get(own);
  std::vector<std::pair<std::size_t, WindowLocation>> places;
  places.reserve(found.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found[i]) places.emplace_back(part.indices[i], *std::move(found[i]));
  }
  count("found", places.size());
  count("missing", own.size() - places.size());
  return places;
}

bool GrpcDirectoryClient::start_lookup() {
  std::lock_guard lock(mutex_);
  if (lookups_under_way_ >= options_.max_lookups) return false;
  ++lookups_under_way_;
  return true;
}

void GrpcDirectoryClient::end_lookup() {
  std::lock_guard lock(mutex_);
  --lookups_under_way_;
}

void GrpcDirectoryClient::ask(Part part, std::span<const BlockKey> keys,
                              std::chrono::milliseconds timeout,
                              const std::shared_ptr<Lookup>& lookup) {
  auto call = std::make_shared<GetCall>();
  call->peer = std::move(part.peer);
  call->lookup = lookup;
  call->indices = std::move(part.indices);
  set_timeout(call->context, timeout);
  call->request.set_protocol_version(kProtocolVersion);
  std::string& wire = *call->request.mutable_keys();
  wire.reserve(call->indices.size() * kKeyBytes);
  for (const std::size_t index : call->indices) {
    wire.append(reinterpret_cast<const char*>(keys[index].bytes.data()), kKeyBytes);
  }
  if (!calls_.begin({call, &call->context})) return finish(*call, grpc::Status::CANCELLED);
  GetCall* const started = call.get();
  started->self = std::move(call);
  started->peer->stub->async()->Get(&started->context, &started->request, &started->reply,
                                    [this, started](const grpc::Status& status) {
                                      calls_.forget(started->context);
                                      auto owned = std::move(started->self);
                                      finish(*owned, status);
                                      owned.reset();
                                      calls_.end_one();
                                    });
}

void GrpcDirectoryClient::finish(GetCall& call, const grpc::Status& status) {
  end_lookup();
  std::vector<std::pair<std::size_t, WindowLocation>> places;
  if (status.ok()) {
    places.reserve(static_cast<std::size_t>(call.reply.places_size()));
    for (const auto& place : call.reply.places()) {
      if (place.index() >= call.indices.size()) continue;  // an answer to nothing that was asked
      places.emplace_back(call.indices[place.index()], from_wire(place.ref()));
    }
    const std::size_t found = std::min(places.size(), call.indices.size());
    count("found", found);
    count("missing", call.indices.size() - found);
  } else {
    count(failure_name(status), call.indices.size());
  }
  call.lookup->answer(places);
}

// ---- putting ------------------------------------------------------------------------------------

void GrpcDirectoryClient::put(std::vector<DirectoryEntry> entries) {
  std::vector<DirectoryEntry> own;
  std::vector<std::shared_ptr<PutCall>> calls;
  std::size_t refused = 0;
  {
    std::lock_guard lock(mutex_);
    if (ring_.is_empty()) {
      lose("no_members", entries.size());
      return;
    }
    for (DirectoryEntry& entry : entries) {
      const std::string& owner = ring_.owner_of(entry.key);
      if (owner == options_.own_id) {
        own.push_back(std::move(entry));
        continue;
      }
      std::deque<DirectoryEntry>& waiting = peers_.at(owner)->waiting;
      if (waiting.size() < options_.max_waiting_entries) {
        waiting.push_back(std::move(entry));
      } else {
        ++refused;
      }
    }
    for (const auto& [id, peer] : peers_) {
      if (auto call = next_batch(peer)) calls.push_back(std::move(call));
    }
  }
  lose("full", refused);
  if (!own.empty()) own_.put(own);
  for (auto& call : calls) start(std::move(call));
}

std::shared_ptr<PutCall> GrpcDirectoryClient::next_batch(const std::shared_ptr<Peer>& peer) {
  if (peer->is_putting || peer->waiting.empty()) return nullptr;
  peer->is_putting = true;
  auto call = std::make_shared<PutCall>();
  call->peer = peer;
  call->request.set_protocol_version(kProtocolVersion);
  for (std::size_t count = std::min(peer->waiting.size(), kBatchEntries); count > 0; --count) {
    const DirectoryEntry& entry = peer->waiting.front();
    auto& wire = *call->request.add_entries();
    wire.set_key(entry.key.bytes.data(), kKeyBytes);
    to_wire(entry.at, *wire.mutable_ref());
    peer->waiting.pop_front();
  }
  return call;
}

void GrpcDirectoryClient::start(std::shared_ptr<PutCall> call) {
  set_timeout(call->context, options_.put_timeout);
  if (!calls_.begin({call, &call->context})) {
    return lose("unreachable", static_cast<std::size_t>(call->request.entries_size()));
  }
  PutCall* const started = call.get();
  started->self = std::move(call);
  started->peer->stub->async()->Put(&started->context, &started->request, &started->reply,
                                    [this, started](const grpc::Status& status) {
                                      calls_.forget(started->context);
                                      finish(std::move(started->self), status);
                                      calls_.end_one();
                                    });
}

void GrpcDirectoryClient::finish(std::shared_ptr<PutCall> call, const grpc::Status& status) {
  if (!status.ok()) {
    lose(failure_name(status), static_cast<std::size_t>(call->request.entries_size()));
  }
  std::shared_ptr<PutCall> next;
  {
    std::lock_guard lock(mutex_);
    call->peer->is_putting = false;
    next = next_batch(call->peer);
  }
  call.reset();
  if (next != nullptr) start(std::move(next));
}

}  // namespace

std::unique_ptr<DirectoryClient> DirectoryClient::create(const DirectoryClientOptions& options,
                                                         DirectoryService& own,
                                                         Registry& registry) {
  return std::make_unique<GrpcDirectoryClient>(options, own, registry);
}

}  // namespace millrace::storage::swa
