#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "storage/fetch/fetch_types.h"

namespace millrace::storage::fetch {

/// Where blocks come from and go to. Calls do not block; each `done` is called exactly once, from
/// any thread, perhaps before the call returns. When the destructor has returned there are no more
/// calls, and no landing is touched.
class BlockIo {
 public:
  using ReadDone = std::function<void(FetchEnd)>;
  using StoreDone = std::function<void(StoreEnd)>;

  struct NewBlock {
    BlockKey key;
    std::vector<std::byte> bytes;
    std::uint32_t depth = 0;  ///< in its chain
    TtlClass ttl = TtlClass::kAgent;
  };

  virtual ~BlockIo() = default;

  /// kComplete: `landing`, which has exactly the block's size, holds the block, verified. It is
  /// the callee's until `done`.
  virtual void read(const BlockKey& key, std::span<std::byte> landing,
                    std::chrono::milliseconds timeout, ReadDone done) = 0;
  virtual void store(NewBlock block, std::chrono::milliseconds timeout, StoreDone done) = 0;
};

}  // namespace millrace::storage::fetch
