#pragma once

#include <string>

#include "common/str_cat.h"

namespace millrace::api::admin {

/// The one worker that a region of shared memory belongs to. Both ids are plain ("api/admin/id.h").
/// The host id is part of it because a machine's shared memory is one namespace: worker ids are
/// unique in their cluster only, while two clusters on a machine have host ids of their own.
struct SharedMemoryOwner {
  std::string host_id;
  std::string worker_id;
};

/// What the names of all regions of a worker begin with: "millrace-<host id>+<worker id>+". The
/// plus sign is in no id, so that prefill-1 does not own what prefill-10 made. Whoever finds the
/// worker dead removes what begins so.
inline std::string shared_memory_prefix(const SharedMemoryOwner& owner) {
  return str_cat("millrace-", owner.host_id, "+", owner.worker_id, "+");
}

}  // namespace millrace::api::admin
