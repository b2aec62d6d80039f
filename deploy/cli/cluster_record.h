#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace millrace::deploy::cli {

/// What `up` writes down about the cluster it runs, as cluster.json in the data folder, and prints
/// with --json (without model_dir).
struct ClusterRecord {
  std::string entrypoint = {};  ///< host:port
  std::string controller = {};  ///< host:port
  std::string data_dir = {};
  std::string model_dir = {};
  std::map<std::string, std::vector<std::int64_t>> pids = {};  ///< by role; "up" is the supervisor
};

/// The object of `up --json`: entrypoint, controller, data_dir, pids.
std::string to_json(const ClusterRecord& record);

absl::Status write_record(const ClusterRecord& record);
/// kNotFound with a sentence that says what to do when no cluster was started from there.
absl::StatusOr<ClusterRecord> read_record(const std::string& data_dir);
void remove_record(const std::string& data_dir);

/// The exclusive right to run a cluster from a data folder, held as long as the object and its
/// process live: the kernel gives it back even after kill -9.
class DataDirLock {
 public:
  /// Creates the folder. kAlreadyExists when another process holds the lock.
  static absl::StatusOr<DataDirLock> acquire(const std::string& data_dir);

  /// The process that holds the lock of a folder; nullopt when none does. Not for the process that
  /// holds it itself: looking would give the lock up.
  static std::optional<pid_t> holder(const std::string& data_dir);

  DataDirLock(DataDirLock&& other) noexcept;
  DataDirLock& operator=(DataDirLock&&) = delete;
  ~DataDirLock();

 private:
  explicit DataDirLock(int fd) : fd_(fd) {}
  int fd_ = -1;
};

/// "http://host:port" of an entrypoint: from a flag ("host:port" or a URL, with or without /v1), or
/// when that is empty from the record in data_dir.
absl::StatusOr<std::string> entrypoint_url(std::string_view flag, const std::string& data_dir);

}  // namespace millrace::deploy::cli
