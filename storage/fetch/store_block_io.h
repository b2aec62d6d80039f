#pragma once

#include <memory>

#include "storage/client/store_client.h"
#include "storage/fetch/block_io.h"

namespace millrace::storage::fetch {

/// Blocks of the storage nodes.
class StoreBlockIo final : public BlockIo {
 public:
  explicit StoreBlockIo(std::unique_ptr<client::StoreClient> store) : store_(std::move(store)) {}

  void read(const BlockKey& key, std::span<std::byte> landing, std::chrono::milliseconds timeout,
            ReadDone done) override;
  void store(NewBlock block, std::chrono::milliseconds timeout, StoreDone done) override;

 private:
  const std::unique_ptr<client::StoreClient> store_;
};

}  // namespace millrace::storage::fetch
