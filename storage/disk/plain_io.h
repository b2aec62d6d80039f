#pragma once

#include <memory>

#include "storage/disk/slot_file.h"
#include "storage/disk/slot_io.h"

namespace millrace::storage::disk {

/// pread, pwrite and fdatasync on a few threads.
std::unique_ptr<SlotIo> open_plain_io(SlotFile file, int queue_depth, CompletionSink sink);

}  // namespace millrace::storage::disk
