#pragma once

#include <condition_variable>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>

namespace grpc {
class ClientContext;
}  // namespace grpc

namespace millrace::storage::swa {

/// The calls of a gRPC client that are under way, so that its end can cancel them and wait until
/// nothing of them is left. Any thread.
class ClientCalls {
 public:
  /// A call is about to start; the context lives as long as the pointer. False: the client is
  /// ending, and the call must not start.
  bool begin(std::shared_ptr<grpc::ClientContext> context);
  /// Its callback runs: nobody needs to cancel it any more.
  void forget(const grpc::ClientContext& context);
  /// Its callback is over, its memory free: the last word of the call.
  void end_one();

  /// Cancels what is under way, lets nothing new begin, and waits until all is over.
  void end_all();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<const grpc::ClientContext*, std::shared_ptr<grpc::ClientContext>>
      contexts_;            // guarded by mutex_
  std::size_t count_ = 0;   // guarded by mutex_
  bool is_ending_ = false;  // guarded by mutex_
};

}  // namespace millrace::storage::swa
