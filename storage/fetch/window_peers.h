#pragma once

#include <chrono>
#include <functional>

#include "storage/fetch/window_types.h"
#include "storage/swa/window_location.h"

namespace millrace::storage::fetch {

/// Windows of other machines. read() does not block; its `done` is called exactly once, from any
/// thread, perhaps before it returns. When the destructor has returned there are no more calls.
class WindowPeers {
 public:
  using Done = std::function<void(PeerWindow)>;

  virtual ~WindowPeers() = default;

  /// A window without a miss has exactly `from.bytes` bytes, which have the checksum that its owner
  /// gave for this very key, incarnation, slot and generation.
  virtual void read(const swa::WindowLocation& from, const BlockKey& key,
                    std::chrono::milliseconds timeout, Done done) = 0;
};

}  // namespace millrace::storage::fetch
