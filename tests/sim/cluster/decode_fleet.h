#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "dataplane/cost/cost_model.h"
#include "tests/sim/cluster/prefill_fleet.h"
#include "tests/sim/cluster/scenario.h"

namespace millrace::sim {

/// All decode instances: each step gives every request of the instance a token and lasts as long as
/// its slowest rank. A step is one event, and touches only the requests that end with it.
class DecodeFleet {
 public:
  struct Settings {
    std::int64_t instances = 1;
    std::int64_t ranks = 1;  ///< of an instance
    dataplane::cost::DecodeCostModel cost;
    double step_overhead_ns = 0;
  };
  explicit DecodeFleet(const Settings& settings);

  std::size_t rank_count() const { return batch_.size(); }
  std::size_t instance_of(std::size_t rank) const { return rank / ranks_; }
  std::size_t instance_count() const { return instances_.size(); }

  /// A request arrives with `kv_tokens` of KV and `tokens` (at least 1) still to make; it joins the
  /// next step.
  void add(std::size_t rank, RequestIndex request, std::int64_t kv_tokens, std::int64_t tokens);

  /// As PrefillFleet has them. `finished` also says from which rank.
  std::optional<SimTime> begin_step(std::size_t instance, SimTime now);
  void end_step(std::size_t instance, bool is_counted,
                std::vector<std::pair<RequestIndex, std::size_t>>& finished);

  /// Drops everything of an instance: what ran there, with the tokens that were still to come.
  std::vector<std::pair<RequestIndex, std::int64_t>> clear(std::size_t instance);

  void set_slowness(std::size_t rank, double factor) { slowness_[rank] = factor; }

  /// Tokens of KV that the requests at a rank have now, those that wait for its next step included.
  std::int64_t kv_tokens(std::size_t rank) const { return kv_[rank] + joining_kv_[rank]; }
  std::int64_t running() const { return running_; }
  const StepSums& sums() const { return sums_; }

 private:
  struct Ending {
    std::int64_t step = 0;
    RequestIndex request = 0;
    std::uint32_t rank = 0;
    std::int64_t kv_at_end = 0;
    friend bool operator>(const Ending& a, const Ending& b) {
      return std::pair(a.step, a.request) > std::pair(b.step, b.request);
    }
  };
  struct Joining {
    Ending ending;  // its step counts from the one it joins
    std::int64_t kv_tokens = 0;
  };
  struct Instance {
    bool is_running = false;
    std::int64_t step = 0;
    std::int64_t requests = 0;
    double slowest_ns = 0;
    double mean_ns = 0;
    std::vector<Ending> endings;  // a heap
    std::vector<Joining> joining;
  };

  Settings settings_;
  std::size_t ranks_;
  std::vector<Instance> instances_;
  std::vector<std::int64_t> batch_;
  std::vector<std::int64_t> kv_;
  std::vector<std::int64_t> joining_kv_;
  std::vector<double> slowness_;
  std::int64_t running_ = 0;
  StepSums sums_;
};

}  // namespace millrace::sim
