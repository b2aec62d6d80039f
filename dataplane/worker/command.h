#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/time_point.h"
#include "common/types.h"
#include "dataplane/cost/cost_model.h"
#include "dataplane/sampling/params.h"
#include "dataplane/sampling/sampler.h"
#include "dataplane/transfer/handover.h"
#include "dataplane/transfer/kv_client.h"
#include "storage/kv/block_key.h"
#include "storage/kv/ttl_class.h"
#include "storage/swa/window_location.h"

// The values that move between a worker's threads. The engine thread gets Commands and gives out
// Events; the wire (wire.h) and the sockets (worker_server.h) are somebody else's business.

namespace millrace::dataplane::engine {
class BlockSource;
}

namespace millrace::dataplane::worker {

enum class Role { kPrefill, kDecode };

/// One Connect stream of an entrypoint; never used twice in a process.
using StreamId = std::uint64_t;

/// A request and the attempt to serve it, as its entrypoint names it.
struct RequestKey {
  std::string request_id;
  std::uint32_t attempt = 0;

  friend auto operator<=>(const RequestKey&, const RequestKey&) = default;
};

/// A window that may serve a request.
struct WindowSource {
  int anchor = 0;
  storage::swa::WindowLocation location;
};

/// What a request may take from the KV store, and the names under which its own KV goes there.
struct KvScope {
  storage::BlockKey root;               ///< of the chain: model, layout, account
  std::vector<storage::BlockKey> keys;  ///< of the full blocks of the request's tokens
  int hit_tokens = 0;                   ///< leading tokens that are believed stored
  storage::TtlClass ttl = storage::TtlClass::kAgent;
  std::vector<WindowSource> windows;
};

/// What both kinds of work need. tokens = the prompt, then what was generated; all of it absolute,
/// so that any worker can go on where another stopped.
struct RequestSpec {
  StreamId stream = 0;
  RequestKey key;
  std::vector<TokenId> tokens;
  int prompt_tokens = 0;
  sampling::SamplingParams sampling;
  TimePoint deadline;
  std::optional<KvScope> kv;
};

struct OpenStream {
  StreamId stream = 0;
};
/// Run all tokens, choose the next one, hand over.
struct StartPrefill {
  RequestSpec spec;
  std::uint64_t answered_claim = 0;  ///< 0: it came without one
};
/// Bring in the KV of all tokens but the last, which has none yet, and go on from there.
struct StartDecode {
  RequestSpec spec;
  transfer::Handover handover;
};
/// Ends a request wherever it is; no event answers. export_id 0: none is named.
struct Cancel {
  StreamId stream = 0;
  RequestKey key;
  std::uint64_t export_id = 0;
};
/// The stream is gone: everything that came over it ends.
struct CloseStream {
  StreamId stream = 0;
};
struct ImportDone {
  std::uint64_t request = 0;
  absl::StatusOr<transfer::KvBytes> bytes;
};
struct ReadyWindow {
  int anchor = 0;
  std::vector<std::byte> bytes;
};
/// What could be had of the stored KV of a request: its first blocks, perhaps none, and one of its
/// windows, perhaps none.
struct KvFetched {
  std::uint64_t request = 0;
  int blocks = 0;
  std::shared_ptr<engine::BlockSource> source;  ///< holds them; null without blocks
  std::optional<ReadyWindow> window;
};
/// A window that a request left is stored.
struct WindowStored {
  StreamId stream = 0;
  storage::BlockKey key;  ///< of the block that ends at the anchor
  int anchor = 0;
  storage::swa::WindowLocation location;
};
/// What prefill costs in this cluster: holds until this worker has measured its own steps.
struct PublishedCost {
  cost::CostModel model;
};
/// Refuse new requests from now on.
struct BeginDrain {};

using Command = std::variant<OpenStream, StartPrefill, StartDecode, Cancel, CloseStream, ImportDone,
                             KvFetched, WindowStored, PublishedCost, BeginDrain>;

enum class FinishReason { kNone, kStop, kLength };

/// The first token. With a finish reason there is no hand-over.
struct Prefilled {
  sampling::Sample token;
  FinishReason finish = FinishReason::kNone;
  std::optional<transfer::Handover> handover;
  int cached_tokens = 0;  ///< of the prompt, that were not run
};
struct Sampled {
  sampling::Sample token;
  FinishReason finish = FinishReason::kNone;
};
struct Failed {
  absl::Status status;
};

struct Event {
  RequestKey key;
  std::variant<Prefilled, Sampled, Failed> what;
};

struct Load {
  int running = 0;
  int waiting = 0;
  std::int64_t waiting_tokens = 0;
  std::int64_t kv_tokens = 0;  ///< prompt and generated tokens of all requests
  std::int64_t queued_ns = 0;  ///< predicted compute of prefill rows that are left
  bool wants_more = false;     ///< it would claim if anything were offered
  bool is_holding = false;     ///< finished prefills wait for room among the exports
  int kv_blocks_used = 0;
  int kv_blocks_total = 0;
  bool is_draining = false;
  std::optional<cost::CostModel> prefill_cost = std::nullopt;  ///< of measured steps
};

/// What one stream is told after a turn of the engine.
struct StreamBatch {
  StreamId stream = 0;
  std::vector<Event> events;
  std::vector<WindowStored> windows;
  std::uint64_t started_requests = 0;  ///< Start commands of this stream taken up so far
};

}  // namespace millrace::dataplane::worker
