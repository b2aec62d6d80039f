#include "storage/swa/client_calls.h"

#include <grpcpp/grpcpp.h>

#include <utility>

namespace millrace::storage::swa {

bool ClientCalls::begin(std::shared_ptr<grpc::ClientContext> context) {
  std::lock_guard lock(mutex_);
  if (is_ending_) return false;
  ++count_;
  const grpc::ClientContext* const name = context.get();
  contexts_.emplace(name, std::move(context));
  return true;
}

void ClientCalls::forget(const grpc::ClientContext& context) {
  std::lock_guard lock(mutex_);
  contexts_.erase(&context);
}

void ClientCalls::end_one() {
  std::lock_guard lock(mutex_);
  --count_;
  changed_.notify_all();
}

void ClientCalls::end_all() {
  std::map<const grpc::ClientContext*, std::shared_ptr<grpc::ClientContext>> contexts;
  {
    std::lock_guard lock(mutex_);
    is_ending_ = true;
    contexts.swap(contexts_);
  }
  // Without the mutex: a cancelled call may call back at once, on this thread.
  for (const auto& [name, context] : contexts) context->TryCancel();
  contexts.clear();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return count_ == 0; });
}

}  // namespace millrace::storage::swa
