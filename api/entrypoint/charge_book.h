#pragma once

#include <cstdint>
#include <deque>

#include "dataplane/routing/least_loaded.h"

namespace millrace::api::entrypoint {

/// What this entrypoint has sent to one worker and the worker's load reports do not show yet. A
/// start is charged at the moment of decision, and released exactly once: by the first report that
/// counts it among the starts the worker has taken up, or when the stream ends (a new one gets a
/// new book). Pure.
class ChargeBook {
 public:
  void charge(const dataplane::routing::RequestSize& size);

  /// A report names how many starts of this stream it includes; they come in order of charging.
  void settle(std::uint64_t started_requests);

  /// Adds the open charges to a snapshot.
  void add_to(dataplane::routing::WorkerSnapshot& snapshot) const;

  std::uint64_t open_charges() const { return open_.size(); }

 private:
  std::uint64_t settled_ = 0;
  std::deque<dataplane::routing::RequestSize> open_;
  std::uint64_t tokens_ = 0;  // of open_
  std::uint64_t kv_blocks_ = 0;
};

}  // namespace millrace::api::entrypoint
