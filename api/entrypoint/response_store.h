#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "api/entrypoint/response_table.h"
#include "common/mailbox.h"

namespace millrace::api::entrypoint {

/// Responses that clients may ask for again: a ResponseTable on a thread of its own, behind a
/// bounded queue. Callbacks run on that thread. Any thread may call.
class ResponseStore {
 public:
  struct Options {
    std::string path;  ///< empty: in memory
    StoreBounds bounds;
    std::function<std::int64_t()> now_seconds;  ///< Unix time
  };
  /// Errors: those of ResponseTable::open().
  static absl::StatusOr<std::unique_ptr<ResponseStore>> open(Options options);
  /// Does what is queued, then ends the thread.
  ~ResponseStore();

  /// kUnavailable at once when the queue is full; otherwise what the table says.
  using Done = std::function<void(const absl::Status&)>;
  void put(StoredResponse response, Done done);
  void erase(const ResponseName& name, Done done);
  using Got = std::function<void(absl::StatusOr<StoredResponse>)>;
  void get(const ResponseName& name, Got got);

 private:
  ResponseStore(ResponseTable table, std::function<std::int64_t()> now_seconds);

  ResponseTable table_;  // of the thread
  const std::function<std::int64_t()> now_seconds_;
  std::atomic<std::size_t> queued_bytes_ = 0;
  Mailbox<std::function<void()>> queue_;
  std::thread thread_;
};

}  // namespace millrace::api::entrypoint
