#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace millrace::api::admin {

/// What a process that an agent supervises does. Its id is "<role>-<index>": "decode-0".
enum class ProcessRole { kPrefill, kDecode, kEntrypoint, kStorage, kKvFetch };

/// "prefill", "decode", "entrypoint", "storage" or "kvfetch".
std::string_view process_role_name(ProcessRole role);
absl::StatusOr<ProcessRole> parse_process_role(std::string_view name);
/// All of them, in the order of the enumeration: the values of a metric's label.
std::vector<std::string> process_role_names();
/// Whether it is an engine worker: what the routing view lists.
bool is_engine(ProcessRole role);

/// What a supervised process should be. Equal specs need no restart.
struct ProcessSpec {
  std::string worker_id;
  std::string instance_id;
  ProcessRole role = ProcessRole::kPrefill;
  std::string model_dir;
  std::string model_id;
  std::string engine;              ///< engine switches, "rounding=off,..."; empty = none
  std::string listen;              ///< entrypoints only: host:port for clients, or ":port"
  std::int64_t kv_blocks = 0;      ///< engines only; 0 = the worker's own default
  std::int64_t max_sequences = 0;  ///< as above
  std::int64_t step_rows = 0;      ///< as above
  std::int64_t targets = 0;        ///< storage only: how many
  std::int64_t target_bytes = 0;   ///< storage only: of each
  bool uses_kv_store = false;      ///< engines only: KV comes from and goes to the node's fetcher
  std::int64_t fetch_bytes =
      0;  ///< kvfetch only: shared memory for fetched blocks; 0 = its default
  std::int64_t window_bytes = 0;       ///< kvfetch only: of a sliding window; 0 = none are kept
  std::int64_t window_pool_bytes = 0;  ///< kvfetch only: shared memory for windows; 0 = its default
  bool operator==(const ProcessSpec&) const = default;
};

/// A spec together with the highest incarnation that was ever seen of its id: the next start takes
/// a higher one, so that incarnations grow over restarts of agents and moves between nodes.
struct AssignedProcess {
  ProcessSpec spec;
  std::uint64_t incarnation_floor = 0;
  bool operator==(const AssignedProcess&) const = default;
};

/// What an agent sees of one of its processes.
///   starting  it runs, but has not written its ready-file
///   ready     it serves
///   draining  it was told to stop
///   backoff   it died and waits for its next start
///   failing   as backoff, after several starts in a row that never became ready
enum class ProcessState { kStarting, kReady, kDraining, kBackoff, kFailing };

std::string_view process_state_name(ProcessState state);
absl::StatusOr<ProcessState> parse_process_state(std::string_view name);

struct ProcessReport {
  std::string worker_id;
  ProcessRole role = ProcessRole::kPrefill;
  ProcessState state = ProcessState::kStarting;
  std::uint64_t incarnation = 0;    ///< of the running process, or of the last one
  std::int64_t pid = 0;             ///< 0 = not running
  std::string address;              ///< host:port; empty unless ready or draining
  std::string metrics_address;      ///< as above
  std::string model_id;             ///< as the process itself reports it; empty until ready
  std::string artifact_digest_hex;  ///< as above
  std::string directory_address;    ///< entrypoints only: host:port of its window directory
  std::uint64_t restarts = 0;       ///< by this agent, since it began to supervise this id
  std::string last_error;           ///< how the last run ended; empty when none ended badly
  bool operator==(const ProcessReport&) const = default;
};

/// The JSON object that a server process writes to its --ready-file once it serves.
struct ReadyFile {
  std::int64_t pid = 0;
  std::string address;
  std::string metrics_address;      ///< may be empty
  std::string model_id;             ///< may be empty
  std::string artifact_digest_hex;  ///< may be empty
  std::string directory_address;    ///< may be empty
};

std::string to_json(const ReadyFile& ready);
absl::StatusOr<ReadyFile> parse_ready_file(std::string_view json);

}  // namespace millrace::api::admin
