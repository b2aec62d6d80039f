#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "storage/disk/slot_file.h"
#include "storage/disk/slot_io.h"

namespace millrace::storage::disk {

/// io_uring: the submitting thread fills the ring, flush() hands it over in one call, and one
/// thread of its own reaps. kUnavailable, with the file untouched, when the kernel refuses a ring.
absl::StatusOr<std::unique_ptr<SlotIo>> open_uring_io(SlotFile& file, int queue_depth,
                                                      CompletionSink sink);

}  // namespace millrace::storage::disk
