#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "dataplane/engine/engine.h"
#include "dataplane/kv/layout.h"

namespace millrace::dataplane::engine {

/// Brings stored blocks into sequences on a thread of its own: for one KV source layer after the
/// other the part of every block, so that a forward pass can begin with layers whose part has
/// arrived. The host's memcpy in the place of a copy engine. All calls from the engine thread.
class SwapIns {
 public:
  /// `layout` must outlive it. Sequences are named by their slot, below `slots`.
  SwapIns(const kv::BlockLayout& layout, int slots);
  ~SwapIns();
  SwapIns(const SwapIns&) = delete;
  SwapIns& operator=(const SwapIns&) = delete;

  /// The slot has no swap-in (CHECK). The targets stay valid until cancel() has returned.
  void begin(int slot, std::vector<std::span<std::byte>> targets,
             std::shared_ptr<BlockSource> source);
  /// Waits until the part of this KV source layer is in, or the swap-in has failed.
  void wait(int slot, int layer);
  /// See Engine::swap_in_status(); OK for a slot without one.
  absl::Status status(int slot) const;
  /// Forgets the swap-in; when it returns no more bytes are copied.
  void cancel(int slot);

  SwapInUsage usage() const;

 private:
  struct Job {
    std::vector<std::span<std::byte>> targets;
    std::shared_ptr<BlockSource> source;
    int sources_done = 0;
    bool is_over = false;  // all copied, failed or cancelled
    absl::Status status = absl::OkStatus();
  };

  void run();
  absl::Status copy_part(const Job& job, std::size_t source_index) const;

  const kv::BlockLayout& layout_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;            // of the thread
  std::condition_variable changed_;         // of those who wait
  std::vector<std::shared_ptr<Job>> jobs_;  // by slot; guarded by mutex_, like all below
  std::deque<std::shared_ptr<Job>> queue_;  // front: being copied
  bool is_copying_ = false;                 // outside the mutex
  bool is_stopping_ = false;
  SwapInUsage usage_;
  std::thread thread_;
};

}  // namespace millrace::dataplane::engine
