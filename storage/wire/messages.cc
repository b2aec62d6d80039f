#include "storage/wire/messages.h"

namespace millrace::storage {

const char* shard_result_name(ShardResult result) {
  switch (result) {
    case ShardResult::kOk:
      return "ok";
    case ShardResult::kNotFound:
      return "not_found";
    case ShardResult::kExists:
      return "exists";
    case ShardResult::kBadShard:
      return "bad_shard";
    case ShardResult::kStaleMap:
      return "stale_map";
    case ShardResult::kWrongCluster:
      return "wrong_cluster";
    case ShardResult::kWrongTarget:
      return "wrong_target";
    case ShardResult::kInvalid:
      return "invalid";
    case ShardResult::kFull:
      return "full";
    case ShardResult::kBusy:
      return "busy";
    case ShardResult::kOverdue:
      return "overdue";
    case ShardResult::kIoError:
      return "io_error";
    case ShardResult::kUnavailable:
      return "unavailable";
  }
  return "unknown";
}

}  // namespace millrace::storage
