#include "deploy/cli/cluster_record.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "common/annotate.h"
#include "common/json.h"
#include "common/mapped_file.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::deploy::cli {
namespace {

constexpr std::size_t kMaxRecordBytes = std::size_t{1} << 20;

std::string record_path(const std::string& data_dir) { return str_cat(data_dir, "/cluster.json"); }
std::string lock_path(const std::string& data_dir) { return str_cat(data_dir, "/lock"); }

Json record_json(const ClusterRecord& record) {
  Json pids = Json::object();
  for (const auto& [role, numbers] : record.pids) pids[role] = numbers;
  Json json;
  json["entrypoint"] = record.entrypoint;
  json["controller"] = record.controller;
  json["data_dir"] = record.data_dir;
  json["pids"] = std::move(pids);
  return json;
}

/// The whole file, exclusively.
struct flock whole_file_lock() {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;
}

}  // namespace

std::string to_json(const ClusterRecord& record) { return dump_json(record_json(record)); }

absl::Status write_record(const ClusterRecord& record) {
  Json json = record_json(record);
  json["model_dir"] = record.model_dir;
  return write_file_atomically(record_path(record.data_dir), dump_json_pretty(json) + "\n");
}

absl::StatusOr<ClusterRecord> read_record(const std::string& data_dir) {
  const absl::StatusOr<std::string> text = read_file(record_path(data_dir), kMaxRecordBytes);
  if (absl::IsNotFound(text.status())) {
    return absl::NotFoundError(str_cat("no cluster was started from ", data_dir,
                                       "; start one with \"millrace up\", or name another folder "
                                       "with --data-dir"));
  }
  RETURN_IF_ERROR(text.status());
  ASSIGN_OR_RETURN(const Json json, parse_json(*text));
  ClusterRecord record;
  ASSIGN_OR_RETURN(record.entrypoint, json_string(json, "entrypoint"));
  ASSIGN_OR_RETURN(record.controller, json_string(json, "controller"));
  ASSIGN_OR_RETURN(record.data_dir, json_string(json, "data_dir"));
  ASSIGN_OR_RETURN(record.model_dir, json_string(json, "model_dir"));
  const auto pids = json.find("pids");
  if (pids == json.end() || !pids->is_object()) {
    return absl::InvalidArgumentError(str_cat(record_path(data_dir), ": pids is missing"));
  }
  for (const auto& [role, numbers] : pids->items()) {
    for (const Json& number : numbers) {
      if (number.is_number_integer()) record.pids[role].push_back(number.get<std::int64_t>());
    }
  }
  return record;
}

void remove_record(const std::string& data_dir) {
  std::error_code ignored;  // gone already is as good
  std::filesystem::remove(record_path(data_dir), ignored);
}

absl::StatusOr<DataDirLock> DataDirLock::acquire(const std::string& data_dir) {
  std::error_code error;
  std::filesystem::create_directories(data_dir, error);
  if (error) {
    return absl::PermissionDeniedError(
        str_cat("the data folder ", data_dir, " cannot be made: ", error.message()));
  }
  const int fd = open(lock_path(data_dir).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) {
    return absl::PermissionDeniedError(
        str_cat("the data folder ", data_dir, " cannot be written: ", strerror(errno)));
  }
  DataDirLock holder(fd);
  struct flock lock = whole_file_lock();
  if (fcntl(fd, F_SETLK, &lock) != 0) {
    return absl::AlreadyExistsError(str_cat("another process runs a cluster from ", data_dir));
  }
  return holder;
}

std::optional<pid_t> DataDirLock::holder(const std::string& data_dir) {
  const int fd = open(lock_path(data_dir).c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return std::nullopt;
  struct flock lock = whole_file_lock();
  const bool is_known = fcntl(fd, F_GETLK, &lock) == 0;
  close(fd);
  if (!is_known || lock.l_type == F_UNLCK) return std::nullopt;
  return lock.l_pid;
}

DataDirLock::DataDirLock(DataDirLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

DataDirLock::~DataDirLock() {
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<std::string> entrypoint_url(std::string_view flag, const std::string& data_dir) {
  std::string url(flag);
  if (url.empty()) {
    absl::StatusOr<ClusterRecord> record = read_record(data_dir);
    if (absl::IsNotFound(record.status())) {
      return absl::NotFoundError(
          str_cat(message_of(record.status()), ", or a running server with --url"));
    }
    RETURN_IF_ERROR(record.status());
    url = record->entrypoint;
  }
  if (url.find("://") == std::string::npos) url = "http://" + url;
  while (url.ends_with('/')) url.pop_back();
  if (url.ends_with("/v1")) url.resize(url.size() - 3);
  return url;
}

}  // namespace millrace::deploy::cli
