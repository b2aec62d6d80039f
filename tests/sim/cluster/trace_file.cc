#include "tests/sim/cluster/trace_file.h"

#include <algorithm>
#include <list>
#include <unordered_map>
#include <utility>

#include "common/status_macros.h"
#include "common/trace/trace.h"
#include "dataplane/kv/hit_policy.h"

namespace millrace::sim {
namespace {

constexpr std::int64_t kTraceBlock = 512;                // tokens of a hash id
constexpr std::size_t kMostRows = std::size_t{1} << 30;  // as many as a run may have

/// Which blocks were used before, and by which row last.
class PrefixCache {
 public:
  explicit PrefixCache(std::int64_t capacity) : capacity_(capacity) {}

  struct Hit {
    std::int64_t blocks = 0;
    std::int32_t row = -1;
  };

  /// The leading blocks that are there; then all of them are, used last by `row`.
  Hit use(const std::vector<std::int64_t>& blocks, std::int32_t row) {
    Hit hit;
    bool is_prefix = true;
    for (const std::int64_t block : blocks) {
      const auto found = places_.find(block);
      is_prefix = is_prefix && found != places_.end();
      if (is_prefix) hit = {hit.blocks + 1, found->second->second};
      if (found != places_.end()) {
        order_.splice(order_.end(), order_, found->second);
        found->second->second = row;
      } else {
        order_.emplace_back(block, row);
        places_[block] = std::prev(order_.end());
      }
    }
    while (capacity_ > 0 && static_cast<std::int64_t>(order_.size()) > capacity_) {
      places_.erase(order_.front().first);
      order_.pop_front();
    }
    return hit;
  }

 private:
  using Order =
      std::list<std::pair<std::int64_t, std::int32_t>>;  // block, row; used longest ago first
  std::int64_t capacity_;
  Order order_;
  std::unordered_map<std::int64_t, Order::iterator> places_;
};

}  // namespace

std::int32_t cached_tokens_of(std::int64_t stored_tokens, std::int64_t input_tokens) {
  const auto stored = static_cast<int>(std::min(stored_tokens, input_tokens));
  return dataplane::kv::plan_hit(static_cast<int>(input_tokens), stored, false, false)
      .compute_start;
}

absl::StatusOr<std::vector<TraceRow>> read_trace_rows(const std::string& path, std::int64_t most,
                                                      std::int64_t cache_blocks) {
  ASSIGN_OR_RETURN(
      const auto requests,
      common::trace::read_trace(path, most == 0 ? kMostRows : static_cast<std::size_t>(most)));
  std::vector<TraceRow> rows;
  rows.reserve(requests.size());
  PrefixCache cache(cache_blocks);
  for (const common::trace::RequestShape& request : requests) {
    const auto hit = cache.use(request.prefix_blocks, static_cast<std::int32_t>(rows.size()));
    TraceRow row{.at = request.arrival.count(),
                 .input_tokens = std::max(request.input_tokens, 1),
                 .output_tokens = std::max(request.output_tokens, 1),
                 .parent = hit.row};
    row.cached_tokens = cached_tokens_of(hit.blocks * kTraceBlock, row.input_tokens);
    rows.push_back(row);
  }
  return rows;
}

}  // namespace millrace::sim
