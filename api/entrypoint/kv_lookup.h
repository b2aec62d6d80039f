#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "api/entrypoint/kv_metrics.h"
#include "api/entrypoint/kv_names.h"
#include "api/entrypoint/kv_scope.h"
#include "api/entrypoint/presence_cache.h"
#include "common/http/event_loop.h"
#include "storage/store/block_store.h"

namespace millrace::api::entrypoint {

/// What was found of a prompt.
struct KvFinding {
  KvScope scope;
  std::size_t blocks = 0;      ///< full blocks of the prompt
  std::size_t hit_blocks = 0;  ///< leading ones that are stored, of those that a prefill can use
};

struct KvLookupOptions {
  /// From the first question to the last answer; what is not known by then is a miss.
  std::chrono::milliseconds timeout{50};
  /// How long blocks that were asked for are kept from eviction: until a worker has read them.
  std::chrono::milliseconds lease{30'000};
  PresenceCache::Limits cache;
};

/// CHECK: how much of a request's prompts is stored. Asks the storage nodes for few blocks of each
/// (storage/kv/check_plan.h) and for none that it knows of. A question takes a timeout at most, and
/// never fails: what cannot be learned is a miss. Belongs to the loop's thread.
class KvLookup {
 public:
  /// One finding for each prompt, in their order.
  using Done = std::function<void(std::vector<KvFinding>)>;

  /// All borrowed. Destroy the store first, or the loop must not run any more.
  KvLookup(common::http::EventLoop& loop, storage::store::BlockStore& store,
           const KvMetrics& metrics, const KvLookupOptions& options);
  ~KvLookup();

  /// Calls `done` once: on the loop, or within the call when nothing is to be asked. As many at a
  /// time as the caller has requests: it bounds them.
  void start(std::shared_ptr<const RequestBlocks> blocks, Done done);

 private:
  struct Prompt;
  struct Question;
  using Id = std::uint64_t;

  bool advance(Id id, Question& question, std::size_t index);
  void on_answer(Id id, std::size_t index, const std::vector<bool>& present);
  void finish(Id id);

  common::http::EventLoop& loop_;
  storage::store::BlockStore& store_;
  const KvMetrics& metrics_;
  const KvLookupOptions options_;
  PresenceCache cache_;
  Id last_id_ = 0;
  std::map<Id, std::unique_ptr<Question>> questions_;
};

}  // namespace millrace::api::entrypoint
