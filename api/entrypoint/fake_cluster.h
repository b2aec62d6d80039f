#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "api/admin/view.h"
#include "api/entrypoint/entrypoint.h"
#include "api/entrypoint/fake_store.h"
#include "api/tokenizer/tokenizer.h"
#include "common/http/event_loop.h"
#include "common/http/http_server.h"

namespace millrace::api::entrypoint::test {

/// A worker process as an entrypoint sees it, inside the test: a real gRPC server whose tokens are
/// a fixed function of their positions, so that any attempt continues any other.
class FakeWorker {
 public:
  FakeWorker(admin::WorkerRole role, const tokenizer::Tokenizer& tokenizer);
  /// Dies: its streams break.
  ~FakeWorker();

  const std::string& address() const;

  /// Between two tokens of a request, or before its first.
  std::atomic<std::chrono::milliseconds> token_delay{std::chrono::milliseconds(1)};
  /// Refuses starts with kResourceExhausted.
  std::atomic<bool> is_full = false;
  /// The token of this position (counted from the first prompt token) ends the output; 0 = none.
  std::atomic<std::uint32_t> end_position = 0;
  /// Its loads claim more starts than it was sent.
  std::atomic<bool> is_lying = false;
  /// What a prefill says that it did not compute, of a prompt whose hit is that long.
  std::atomic<bool> reports_hits = true;

  /// Requests that run here now, and hand-overs that nobody has fetched or cancelled.
  int running() const;
  int open_exports() const;
  /// What the last greeting says that a row of prefill costs, in nanoseconds; 0: nothing.
  double greeted_row_ns() const;
  /// Starts since the beginning, and their seeds, sorted.
  int starts() const;
  std::multiset<std::uint64_t> seeds() const;
  /// Says that a request left a window at its machine: host "host-0", slot 5.
  void leave_window(const storage::BlockKey& key, std::uint32_t anchor);
  /// What the starts said of stored KV, in their order; the message's bytes. Empty: nothing.
  std::vector<std::string> kv_scopes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The letter that every engine generates at a position.
char letter_at(std::size_t position);
/// The text of `count` tokens behind a prompt of that length.
std::string text_behind(std::size_t prompt_tokens, std::size_t count);

std::unique_ptr<tokenizer::Tokenizer> nano_tokenizer();
/// A deployment named "nano" that does not think unless asked to.
recipe::Deployment nano_deployment(const tokenizer::Tokenizer& tokenizer);

/// The layout of KV that the cluster's entrypoint counts on, and its model's digest in hexadecimal
/// digits.
inline constexpr const char* kKvLayout = "nano-layout";
std::string artifact_digest_hex();

/// What a test may want to be different from the defaults.
struct ClusterOptions {
  int context_tokens = 4096;
  std::size_t max_queue = 512;
  std::size_t body_bytes = 8u << 20;
  std::chrono::milliseconds request_deadline{300'000};
  std::chrono::milliseconds keep_alive{10'000};
  std::string response_store{};  ///< empty: in memory
  std::shared_ptr<const ApiKeys> api_keys = nullptr;
  bool has_secret = false;     ///< a cluster's secret, 32 times the byte 7
  FakeStore* store = nullptr;  ///< the cluster stores KV there; null: it stores none
  std::chrono::milliseconds check_timeout{5000};
};

/// A controller that serves one routing view, workers, and an entrypoint over nano's tokenizer.
class FakeCluster {
 public:
  explicit FakeCluster(const ClusterOptions& options = {});
  ~FakeCluster();

  /// Starts (or restarts, as a new incarnation) a worker and puts it into the view.
  FakeWorker& start_worker(const std::string& worker_id, admin::WorkerRole role);
  /// kill -9: the worker is gone, the view does not know yet.
  void kill_worker(const std::string& worker_id);
  FakeWorker& worker(const std::string& worker_id) { return *workers_.at(worker_id); }
  /// Changes the view by hand.
  void edit_view(const std::function<void(admin::RoutingView&)>& edit);
  void stop_controller();
  /// The latest body that the entrypoint reported to the controller; empty: none yet.
  std::string last_report() const;

  /// A prefill and a decode worker, and waits until the entrypoint is ready.
  void start_workers();
  bool wait_until_ready();

  /// http://host:port of the entrypoint.
  std::string url(const std::string& path) const { return "http://" + address() + path; }
  const std::string& address() const;
  /// A value of the entrypoint's /metrics; `series` with its labels.
  double metric(const std::string& series) const;
  void drain(std::function<void()> done);
  /// Returns when they are the entrypoint's.
  void set_api_keys(std::shared_ptr<const ApiKeys> keys);

  const tokenizer::Tokenizer& tokenizer() const { return *tokenizer_; }

 private:
  std::string view_json() const;

  std::unique_ptr<tokenizer::Tokenizer> tokenizer_;
  common::http::EventLoop controller_loop_;
  std::unique_ptr<common::http::HttpServer> controller_;
  admin::RoutingView view_;  // read and written on the controller's loop
  mutable std::mutex report_mutex_;
  std::string last_report_;  // guarded by report_mutex_
  std::thread controller_thread_;
  std::map<std::string, std::unique_ptr<FakeWorker>> workers_;
  Registry registry_;
  common::http::EventLoop loop_;
  std::unique_ptr<Entrypoint> entrypoint_;
  std::thread thread_;
};

bool eventually(const std::function<bool()>& condition,
                std::chrono::milliseconds timeout = std::chrono::milliseconds(10'000));

}  // namespace millrace::api::entrypoint::test
