#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "storage/disk/slot_file.h"
#include "storage/disk/slot_io.h"

namespace millrace::storage::disk {

/// A lane file on a 3FS mount, read and written through shared memory. Data is copied to and from a
/// region of ours: 3FS cannot cancel, and whatever it was given it may write to until it says that
/// it is done.
///
/// When its daemon is dead (the mount says so, or nothing ends for `options.dead_after`) all that
/// is in flight ends as kUnavailable, and so does all that comes later. Rings and region are then
/// left as they are until the process ends: the daemon may only be frozen.
absl::StatusOr<std::unique_ptr<SlotIo>> open_usrbio_io(const SlotFileOptions& options,
                                                       CompletionSink sink);

}  // namespace millrace::storage::disk
