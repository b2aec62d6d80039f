#pragma once

#include <memory>

#include "storage/disk/simulated_disk.h"

namespace rocksdb {
class FileSystem;
}

namespace millrace::storage::index {

/// RocksDB's files on a simulated disk, for RocksIndexOptions::file_system. The disk must outlive
/// it.
std::shared_ptr<rocksdb::FileSystem> make_simulated_file_system(disk::SimulatedDisk& disk);

}  // namespace millrace::storage::index
