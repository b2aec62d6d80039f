#include "storage/store/block_store.h"

#include <pthread.h>

#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>

#include "storage/store/store_core.h"
#include "storage/store/store_metrics.h"

namespace millrace::storage::store {
namespace {

using Clock = std::chrono::steady_clock;

/// Longest sleep of the loop: a map that nobody announced is seen so late at most.
constexpr std::chrono::milliseconds kLongestSleep{100};
constexpr std::chrono::milliseconds kPublishInterval{250};

double seconds_since(TimePoint start, TimePoint now) {
  return std::chrono::duration<double>(now - start).count();
}

}  // namespace

/// The thread, its inbox, and who waits for what. Answers of the transport hold it too, so that one
/// that comes after the store is gone finds an inbox that takes nothing.
class BlockStore::Loop : public std::enable_shared_from_this<Loop> {
 public:
  Loop(const BlockStoreOptions& options, ShardTransport& transport, const MapCell& map)
      : options_(options), transport_(transport), map_(map), core_(options.settings, options.seed) {
    if (options.registry != nullptr) metrics_.emplace(*options.registry);
  }

  void start() {
    thread_ = std::thread([this] { run(); });
    pthread_setname_np(thread_.native_handle(), "kv-store");
  }

  void stop() {
    {
      std::lock_guard lock(mutex_);
      is_stopping_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }

  struct Start {
    StoreEvent event;  ///< its id is given by the loop
    ReadDone read_done;
    WriteDone write_done;
    QueryDone query_done;
  };

  /// False: the inbox is full or closed, and the start untouched.
  bool push(Start& start) {
    {
      std::lock_guard lock(mutex_);
      if (is_stopping_ || starts_.size() >= options_.max_waiting_operations) return false;
      starts_.push_back(std::move(start));
    }
    wake_.notify_one();
    return true;
  }

  void wake() {
    {
      std::lock_guard lock(mutex_);
      is_map_new_ = true;
    }
    wake_.notify_one();
  }

  StoreCounters counters() const {
    std::lock_guard lock(mutex_);
    return published_;
  }

 private:
  /// As many as requests are outstanding, which the windows of the core bound.
  void push_answer(ShardAnswered answered) {
    {
      std::lock_guard lock(mutex_);
      if (is_closed_) return;
      answers_.push_back(std::move(answered));
    }
    wake_.notify_one();
  }

  void run() {
    std::vector<Start> starts;
    std::vector<ShardAnswered> answers;
    TimePoint publish_at = Clock::now();
    bool is_stopping = false;
    while (!is_stopping) {
      is_stopping = wait(starts, answers);
      take_map();
      for (ShardAnswered& answered : answers) handle(std::move(answered));
      for (Start& start : starts) begin(std::move(start));
      answers.clear();
      starts.clear();
      const TimePoint now = Clock::now();
      if (const auto timer = core_.next_timer(); timer && *timer <= now) handle(TimerDue{});
      if (is_stopping) handle(StopStore{});
      if (now >= publish_at || is_stopping) {
        publish();
        publish_at = now + kPublishInterval;
      }
    }
  }

  /// Takes what has come. True: the store is being destroyed, and nothing will come any more.
  bool wait(std::vector<Start>& starts, std::vector<ShardAnswered>& answers) {
    TimePoint until = Clock::now() + kLongestSleep;
    if (const auto timer = core_.next_timer()) until = std::min(until, *timer);
    std::unique_lock lock(mutex_);
    wake_.wait_until(lock, until, [&] {
      return is_stopping_ || is_map_new_ || !starts_.empty() || !answers_.empty();
    });
    is_map_new_ = false;
    starts.swap(starts_);
    answers.swap(answers_);
    is_closed_ = is_stopping_;
    return is_stopping_;
  }

  void take_map() {
    std::shared_ptr<const StorageMap> map = map_.current();
    if (map == nullptr || map.get() == core_.map()) return;
    handle(MapChanged{std::move(map)});
  }

  void begin(Start start) {
    const OperationId id = ++last_id_;
    const TimePoint now = Clock::now();
    if (auto* read = std::get_if<StartRead>(&start.event)) {
      read->id = id;
      reads_.emplace(id, std::pair(std::move(start.read_done), now));
    } else if (auto* write = std::get_if<StartWrite>(&start.event)) {
      write->id = id;
      writes_.emplace(id, std::pair(std::move(start.write_done), now));
    } else if (auto* query = std::get_if<StartQuery>(&start.event)) {
      query->id = id;
      queries_.emplace(id, std::move(start.query_done));
    }
    handle(std::move(start.event));
  }

  void handle(StoreEvent event) {
    StoreActions actions = core_.on_event(std::move(event), Clock::now());
    for (SendShard& send : actions.sends) execute(send);
    for (const FetchMap& fetch : actions.maps) execute(fetch);
    for (FinishRead& finish : actions.reads) execute(finish);
    for (const FinishWrite& finish : actions.writes) execute(finish);
    for (FinishQuery& finish : actions.queries) execute(finish);
  }

  void execute(SendShard& send) {
    transport_.send(send.node_address, std::move(send.request),
                    [self = shared_from_this(), id = send.request_id](ShardReply reply) {
                      self->push_answer({id, std::move(reply)});
                    });
  }

  void execute(const FetchMap& fetch) {
    if (options_.fetch_map) options_.fetch_map(fetch.epoch);
  }

  void execute(FinishRead& finish) {
    auto node = reads_.extract(finish.id);
    auto& [done, start] = node.mapped();
    if (metrics_)
      metrics_->observe_read(finish.result.is_hit(), seconds_since(start, Clock::now()));
    done(std::move(finish.result));
  }

  void execute(const FinishWrite& finish) {
    auto node = writes_.extract(finish.id);
    auto& [done, start] = node.mapped();
    if (metrics_) metrics_->observe_write(seconds_since(start, Clock::now()));
    done(finish.outcome);
  }

  void execute(FinishQuery& finish) {
    auto node = queries_.extract(finish.id);
    node.mapped()(std::move(finish.present));
  }

  void publish() {
    if (metrics_) metrics_->publish(core_.counters());
    std::lock_guard lock(mutex_);
    published_ = core_.counters();
  }

  const BlockStoreOptions options_;
  ShardTransport& transport_;
  const MapCell& map_;
  std::thread thread_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Start> starts_;           // guarded by mutex_
  std::vector<ShardAnswered> answers_;  // guarded by mutex_
  StoreCounters published_;             // guarded by mutex_
  bool is_map_new_ = false;             // guarded by mutex_
  bool is_stopping_ = false;            // guarded by mutex_
  bool is_closed_ = false;              // guarded by mutex_

  // The loop's own.
  StoreCore core_;
  std::optional<StoreMetrics> metrics_;
  OperationId last_id_ = 0;
  std::unordered_map<OperationId, std::pair<ReadDone, TimePoint>> reads_;
  std::unordered_map<OperationId, std::pair<WriteDone, TimePoint>> writes_;
  std::unordered_map<OperationId, QueryDone> queries_;
};

BlockStore::BlockStore(const BlockStoreOptions& options, ShardTransport& transport,
                       const MapCell& map)
    : loop_(std::make_shared<Loop>(options, transport, map)) {
  loop_->start();
}

BlockStore::~BlockStore() { loop_->stop(); }

void BlockStore::read(const BlockKey& key, std::span<std::byte> landing,
                      std::chrono::milliseconds timeout, ReadDone done) {
  Loop::Start start{
      .event = StartRead{.key = key, .landing = landing, .deadline = Clock::now() + timeout},
      .read_done = std::move(done),
      .write_done = {},
      .query_done = {}};
  if (!loop_->push(start)) start.read_done({.miss = MissReason::kBusy, .block = {}});
}

void BlockStore::read(const BlockKey& key, std::chrono::milliseconds timeout, ReadDone done) {
  read(key, {}, timeout, std::move(done));
}

void BlockStore::write(NewBlock block, std::chrono::milliseconds timeout, WriteDone done) {
  Loop::Start start{.event = StartWrite{.key = block.key,
                                        .block = std::move(block.bytes),
                                        .depth = block.depth,
                                        .ttl = block.ttl,
                                        .deadline = Clock::now() + timeout},
                    .read_done = {},
                    .write_done = std::move(done),
                    .query_done = {}};
  if (!loop_->push(start)) start.write_done(WriteOutcome::kBusy);
}

void BlockStore::query(std::vector<BlockKey> keys, std::chrono::milliseconds lease,
                       std::chrono::milliseconds timeout, QueryDone done) {
  const std::size_t count = keys.size();
  Loop::Start start{
      .event =
          StartQuery{.keys = std::move(keys), .lease = lease, .deadline = Clock::now() + timeout},
      .read_done = {},
      .write_done = {},
      .query_done = std::move(done)};
  if (!loop_->push(start)) start.query_done(std::vector<bool>(count));
}

void BlockStore::touch(std::vector<BlockKey> keys, TtlClass ttl) {
  Loop::Start start{.event = TouchBlocks{.keys = std::move(keys), .ttl = ttl},
                    .read_done = {},
                    .write_done = {},
                    .query_done = {}};
  // Full: the use of a block that is in use will be heard of again.
  loop_->push(start);
}

void BlockStore::map_changed() { loop_->wake(); }

StoreCounters BlockStore::counters() const { return loop_->counters(); }

}  // namespace millrace::storage::store
