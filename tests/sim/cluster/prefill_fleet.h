#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "dataplane/cost/cost_model.h"
#include "dataplane/scheduler/prefill_step.h"
#include "tests/sim/cluster/scenario.h"

namespace millrace::sim {

/// A request's number in a run.
using RequestIndex = std::uint32_t;

/// A request as a prefill rank receives it.
struct PrefillWork {
  RequestIndex request = 0;
  std::int64_t rows = 0;
  std::int64_t cached = 0;
  std::int64_t prompt_end = 0;     ///< where its prompt ends; what follows was delivered before
  std::int64_t prompt_tokens = 0;  ///< as its router counts them
  bool is_ready = true;
};

/// What is queued on a rank.
struct PrefillLoad {
  std::int64_t requests = 0;
  std::int64_t tokens = 0;
  std::int64_t prompt_tokens = 0;
};

/// What steps cost, for the balance of ranks: over all steps of all instances that ended in the
/// window, the compute of the slowest rank and of the mean one.
struct StepSums {
  double slowest_ns = 0;
  double mean_ns = 0;
  double compute_ns = 0;  ///< of all ranks together
  std::int64_t steps = 0;
};

/// All prefill instances: queues of ranks, and steps whose ranks wait for the slowest. Which
/// request goes where is decided elsewhere, what runs in a step by dataplane/scheduler.
class PrefillFleet {
 public:
  struct Settings {
    std::int64_t instances = 1;
    std::int64_t ranks = 1;  ///< of an instance
    dataplane::cost::CostModel cost = {};
    dataplane::scheduler::PrefillStepLimits limits = {};
    double step_overhead_ns = 0;
  };
  explicit PrefillFleet(const Settings& settings);

  std::size_t rank_count() const { return queued_ns_.size(); }
  std::size_t instance_of(std::size_t rank) const { return rank / ranks_; }
  std::size_t instance_count() const { return instances_.size(); }

  void add(std::size_t rank, const PrefillWork& work);
  /// Its stored KV is there, or will not be: then all of its rows have to run. Nothing happens when
  /// the request is gone.
  void set_ready(std::size_t rank, RequestIndex request, std::int64_t rows, std::int64_t cached);

  /// Starts a step if none runs and there is something to run; when it ends.
  std::optional<SimTime> begin_step(std::size_t instance, SimTime now);
  /// Ends it. Appends to `finished` the requests whose last row ran.
  void end_step(std::size_t instance, bool is_counted, std::vector<RequestIndex>& finished);

  /// Drops everything of an instance, the step that runs included; what was queued there.
  std::vector<RequestIndex> clear(std::size_t instance);

  void set_slowness(std::size_t rank, double factor) { slowness_[rank] = factor; }

  /// Predicted compute queued on each rank of an instance, the running step included.
  std::span<const std::int64_t> queued_ns(std::size_t instance) const {
    return std::span(queued_ns_).subspan(instance * ranks_, ranks_);
  }
  const PrefillLoad& load(std::size_t rank) const { return loads_[rank]; }
  /// When the running step ends; `now` or earlier when none runs.
  SimTime step_end(std::size_t instance) const { return instances_[instance].step_end; }
  /// It ends at another time than begin_step said.
  void set_step_end(std::size_t instance, SimTime end) { instances_[instance].step_end = end; }
  bool is_running(std::size_t instance) const { return instances_[instance].is_running; }
  const StepSums& sums() const { return sums_; }

 private:
  struct Queue {
    std::vector<dataplane::scheduler::QueuedPrefill> work;
    std::vector<RequestIndex> requests;
    std::vector<std::int64_t> prompt_tokens;
    std::vector<dataplane::scheduler::PrefillChunk> step;
    double step_ns = 0;
    std::size_t begin = 0;  // what lies before has run
  };
  struct Instance {
    bool is_running = false;
    SimTime step_end = 0;
  };

  std::int64_t quota(const dataplane::scheduler::QueuedPrefill& work) const;
  void apply_chunks(std::size_t rank, std::vector<RequestIndex>& finished);
  static void erase(Queue& queue, std::size_t index);
  static void give_up_space(Queue& queue);

  Settings settings_;
  std::size_t ranks_;
  std::vector<Queue> queues_;
  std::vector<Instance> instances_;
  std::vector<std::int64_t> queued_ns_;
  std::vector<PrefillLoad> loads_;
  std::vector<double> slowness_;
  StepSums sums_;
};

}  // namespace millrace::sim
