#pragma once

#include <memory>

#include "storage/fetch/block_io.h"
#include "storage/store/block_store.h"

namespace millrace::storage::fetch {

/// Blocks of the storage nodes.
class StoreBlockIo final : public BlockIo {
 public:
  explicit StoreBlockIo(std::unique_ptr<store::BlockStore> store) : store_(std::move(store)) {}

  void read(const BlockKey& key, std::span<std::byte> landing, std::chrono::milliseconds timeout,
            ReadDone done) override;
  void store(NewBlock block, std::chrono::milliseconds timeout, StoreDone done) override;

 private:
  const std::unique_ptr<store::BlockStore> store_;
};

}  // namespace millrace::storage::fetch
