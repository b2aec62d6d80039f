#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "storage/kv/block_key.h"
#include "storage/wire/shard_format.h"

namespace millrace::storage {

/// The values that storage clients and nodes exchange. They travel in batches on one stream per
/// client and node (api/proto/storage.proto); simulations pass them by hand.

/// Most keys in one request, so that no message and no turn of a node grows without bound.
inline constexpr std::size_t kMaxKeysPerRequest = 4096;

/// A sealed shard (storage/wire/shard_format.h) to be made durable, invisible until published. It
/// waits for its publication for a bounded time; after that the node asks its peers what became of
/// it.
struct WriteShard {
  std::vector<std::byte> shard;
};
/// The write has its quorum: the shard counts from now on.
struct PublishShard {
  BlockKey key;
  Generation generation = 0;
};
/// Forget the shard: a write given up, an evicted block, a shard found to be bad. Dropping what is
/// not there is no error. A leased shard is dropped when its lease ends.
struct DropShard {
  BlockKey key;
  Generation generation = 0;  ///< 0 = any
};
/// Published shards only.
struct ReadShard {
  BlockKey key;
};
/// Which of the keys have a published shard here; metadata only. `lease` keeps those that have from
/// being evicted for so long (bounded by the node), so that a fetch finds what a CHECK saw.
struct QueryKeys {
  std::vector<BlockKey> keys;
  std::chrono::milliseconds lease{0};
};
/// The blocks were used. The longer TTL class wins. Idempotent; at most one a minute a key counts.
struct TouchKeys {
  std::vector<BlockKey> keys;
  TtlClass ttl = TtlClass::kAgent;
};
/// What the target holds behind `after`, in order of keys: for rebuild and for people.
struct ListShards {
  BlockKey after;
  bool from_start = false;  ///< `after` itself is not excluded
  std::uint32_t limit = 1024;
};
/// Says that this target's shard of the block is missing or bad: rebuild it from the others.
struct RepairShard {
  BlockKey key;
};

using ShardOperation = std::variant<WriteShard, PublishShard, DropShard, ReadShard, QueryKeys,
                                    TouchKeys, ListShards, RepairShard>;

struct ShardRequest {
  std::string cluster_id;
  std::uint64_t map_epoch = 0;
  std::string target_id;
  ShardOperation operation;
  /// Left to the sender. A node drops what is overdue before it starts, never while it runs.
  std::chrono::milliseconds deadline{0};
};

/// Closed set. What a caller does about each: storage/store.
enum class ShardResult : std::uint8_t {
  kOk,
  kNotFound,      ///< nothing published (or, to a publication, nothing pending) under that key
  kExists,        ///< a write: another generation is here, see generation and is_published
  kBadShard,      ///< the stored shard is damaged, see defect; the node has queued its repair
  kStaleMap,      ///< the request's map is older than the node's: see map_epoch
  kWrongCluster,  ///< node and request belong to different clusters
  kWrongTarget,   ///< that target is not on this node
  kInvalid,       ///< see message
  kFull,          ///< no slot is free
  kBusy,          ///< a queue is full: a miss, never a stall
  kOverdue,       ///< the deadline passed in a queue here
  kIoError,       ///< the medium failed or is gone
  kUnavailable,   ///< made by the client: no connection, or it broke before the answer
};
/// Closed set, for metrics and messages: "ok", "not_found", ...
const char* shard_result_name(ShardResult result);

struct ListedShard {
  BlockKey key;
  Generation generation = 0;
  bool is_published = false;
  TtlClass ttl = TtlClass::kAgent;
  std::uint32_t depth = 0;
  std::uint32_t touch_minute = 0;  ///< on the clock of that target
  bool operator==(const ListedShard&) const = default;
};

struct ShardReply {
  ShardResult result = ShardResult::kUnavailable;
  std::string message;          ///< names what is wrong, when something is
  std::uint64_t map_epoch = 0;  ///< the node's
  ShardDefect defect = ShardDefect::kNone;
  Generation generation = 0;
  bool is_published = false;
  std::vector<std::byte> shard;     ///< ReadShard: sealed, as stored
  std::vector<bool> present;        ///< QueryKeys: one for each key
  std::vector<ListedShard> listed;  ///< ListShards
  bool is_end = false;              ///< ListShards: nothing behind the last one
  std::uint32_t minute = 0;         ///< ListShards: now, on the clock that touch_minute is of
};

using ShardReplyCallback = std::function<void(ShardReply)>;

/// A storage node as seen by whoever has a request in hand. handle() never blocks on I/O and calls
/// back exactly once, from any thread, perhaps before it returns.
class ShardEndpoint {
 public:
  virtual ~ShardEndpoint() = default;
  virtual void handle(ShardRequest request, ShardReplyCallback done) = 0;
};

/// All storage nodes as seen by a client. send() never blocks; it calls back exactly once, from any
/// thread but never from within send(). A node that does not answer is the caller's timer's affair:
/// the callback then still comes, later (at the latest when the connection is given up).
class ShardTransport {
 public:
  virtual ~ShardTransport() = default;
  virtual void send(const std::string& node_address, ShardRequest request,
                    ShardReplyCallback done) = 0;
};

}  // namespace millrace::storage
