#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/time_point.h"
#include "dataplane/cost/cost_model.h"
#include "dataplane/scheduler/prefill_step.h"

namespace millrace::dataplane::scheduler {

/// A request at this worker; numbers are given by the caller and never used twice.
using RequestId = std::uint64_t;

/// Tokens of one KV block.
inline constexpr int kBlockTokens = 128;

/// Blocks that a sequence of that many positions may come to hold.
constexpr int blocks_for(int capacity_tokens) {
  return (capacity_tokens + kBlockTokens - 1) / kBlockTokens;
}

struct SchedulerLimits {
  int max_step_rows = 512;
  int max_sequences = 64;  ///< at most max_step_rows: every running sequence decodes every step
  int kv_blocks = 2048;
  int max_waiting = 256;                      ///< requests in the waiting queue
  std::int64_t max_waiting_tokens = 8 << 20;  ///< their rows together: bounds the queue's memory
  double step_budget_ns = 300e6;              ///< predicted compute of a step's prefill
  double share_cap = 1.0;                     ///< of that, for one prefill while others wait
};

enum class Work {
  kPrefill,  ///< runs `rows` rows in chunks, then waits on hold
  kDecode,   ///< is brought in from elsewhere, then runs one row a step
};

struct NewRequest {
  RequestId id = 0;
  Work work = Work::kPrefill;
  int rows = 0;             ///< kPrefill: tokens to run, at least 1
  int prompt_tokens = 0;    ///< kPrefill: of them; the others were delivered before
  int capacity_tokens = 1;  ///< positions it may reach on this worker
  TimePoint deadline;
  bool awaits_kv = false;  ///< kPrefill: is not admitted before begin_at(), and may be overtaken
  int expected_hit = 0;    ///< rows before it that will probably not run; for the load alone
};

/// Rows of one request in a step.
struct StepSlice {
  RequestId id = 0;
  Work work = Work::kPrefill;
  int first_row = 0;  ///< kPrefill: index into its rows
  int row_count = 1;
  bool is_last = false;  ///< a token is sampled after this slice
  int tail_rows = 0;     ///< kPrefill: those that pass the decoder layers, too
};

/// What begins or ends before a step.
struct Turn {
  std::vector<RequestId> expired;   ///< past their deadline: removed
  std::vector<RequestId> admitted;  ///< now own a sequence and their blocks; in order of arrival
};

struct SchedulerLoad {
  int running = 0;  ///< admitted requests
  int waiting = 0;
  std::int64_t waiting_tokens = 0;  ///< rows queued, and rows left of running prefills
  std::int64_t queued_ns = 0;       ///< predicted compute of those rows
  int kv_blocks_used = 0;           ///< reserved by admitted requests
};

/// Decides which rows run in which step. Pure: no I/O, no clock, no lock; one thread.
///
/// A request is queued (bounded, first in first out; only one whose stored KV is still being
/// fetched is overtaken), admitted when a sequence and its worst-case blocks are free (so a running
/// request never runs out of room), and removed. Each step holds one row of every decoding request,
/// then prefill rows in order of admission, cut where rows or predicted compute of the step are
/// used up (plan_prefill_step); several prefills share a step. Deadlines are checked whenever a
/// turn begins; a cancelled request is removed, so nothing is popped that nobody wants.
class Scheduler {
 public:
  /// kInvalidArgument names the limit that makes no sense.
  static absl::StatusOr<Scheduler> create(const SchedulerLimits& limits);

  /// kResourceExhausted when the queue is full, kInvalidArgument when the request could never run
  /// here.
  absl::Status enqueue(const NewRequest& request);

  /// A waiting request's stored KV has arrived, or will not: it begins at that row (the rows before
  /// it need not run), and may be admitted from now on.
  void begin_at(RequestId id, int first_row);

  /// A running prefill has to start over at its first row.
  void restart(RequestId id);

  /// Drops what is past its deadline and admits from the front of the queue while there is room.
  Turn begin_turn(TimePoint now);

  /// An admitted kDecode request has been brought in: from now on it takes a row of every step.
  void start_decoding(RequestId id);

  /// What prefill rows cost here, from now on.
  void set_cost(const cost::CostModel& model) { cost_ = model; }

  /// The rows of the next step; empty when there is nothing to run.
  std::vector<StepSlice> plan_step() const;

  /// Those rows have run. A prefill whose last row ran is on hold: it keeps its blocks until it is
  /// removed.
  void step_done(std::span<const StepSlice> slices);

  /// Forgets the request, wherever it is, and gives its blocks back. False when it is unknown.
  bool remove(RequestId id);

  bool is_empty() const { return requests_.empty(); }
  SchedulerLoad load() const;

 private:
  enum class State { kWaiting, kPrefilling, kArriving, kDecoding, kOnHold };
  struct Entry {
    NewRequest request;
    State state = State::kWaiting;
    int rows_done = 0;
    int blocks = 0;
  };

  explicit Scheduler(const SchedulerLimits& limits) : limits_(limits) {}
  Entry& entry(RequestId id);

  void plan_prefills(int room_rows, std::vector<StepSlice>& slices) const;

  SchedulerLimits limits_;
  cost::CostModel cost_ = cost::kUnmeasuredCost;
  std::map<RequestId, Entry> requests_;
  std::deque<RequestId> waiting_;
  std::vector<RequestId> admitted_;  // in order of admission
  std::int64_t waiting_rows_ = 0;    // of waiting_
  int blocks_used_ = 0;
};

}  // namespace millrace::dataplane::scheduler
