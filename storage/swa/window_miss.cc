#include "storage/swa/window_miss.h"

#include "common/check.h"

namespace millrace::storage::swa {

const char* window_miss_name(WindowMiss miss) {
  switch (miss) {
    case WindowMiss::kExpired:
      return "expired";
    case WindowMiss::kRecycled:
      return "recycled";
    case WindowMiss::kOtherOwner:
      return "other_owner";
    case WindowMiss::kUnreachable:
      return "unreachable";
    case WindowMiss::kDeadline:
      return "deadline";
    case WindowMiss::kCorrupt:
      return "corrupt";
    case WindowMiss::kBusy:
      return "busy";
    case WindowMiss::kNoPool:
      return "no_pool";
    case WindowMiss::kCancelled:
      return "cancelled";
  }
  CHECK(false, "no such miss");
}

}  // namespace millrace::storage::swa
