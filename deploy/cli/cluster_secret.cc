#include "deploy/cli/cluster_secret.h"

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>

#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::deploy::cli {
namespace {

absl::Status errno_status(const std::string& path) { return absl::ErrnoToStatus(errno, path); }

/// Writes a new file, complete or not at all: the name appears last.
absl::Status create(const std::string& path, const ClusterSecret& secret) {
  const std::string temporary = str_cat(path, ".tmp.", getpid());
  const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return errno_status(temporary);
  const ssize_t count = write(fd, secret.data(), secret.size());
  absl::Status status = absl::OkStatus();
  if (count != static_cast<ssize_t>(secret.size()) || fsync(fd) != 0) {
    status = errno_status(temporary);
  }
  close(fd);
  // link() and not rename(): whoever was first wins, and is then read by the other.
  if (status.ok() && link(temporary.c_str(), path.c_str()) != 0 && errno != EEXIST) {
    status = errno_status(path);
  }
  unlink(temporary.c_str());
  return status;
}

absl::StatusOr<ClusterSecret> read(const std::string& path) {
  absl::StatusOr<ClusterSecret> secret = read_secret_file(path);
  if (!absl::IsDataLoss(secret.status())) return secret;
  return absl::DataLossError(
      str_cat(message_of(secret.status()),
              "; remove it to make a new one (what is stored under the old one is then lost)"));
}

}  // namespace

std::string cluster_secret_path(const std::string& data_dir) {
  return data_dir + "/cluster.secret";
}

absl::StatusOr<ClusterSecret> load_or_create_secret(const std::string& data_dir) {
  const std::string path = cluster_secret_path(data_dir);
  absl::StatusOr<ClusterSecret> secret = read(path);
  if (!absl::IsNotFound(secret.status())) return secret;
  ClusterSecret fresh{};
  if (getrandom(fresh.data(), fresh.size(), 0) != static_cast<ssize_t>(fresh.size())) {
    return errno_status("getrandom");
  }
  RETURN_IF_ERROR(create(path, fresh));
  return read(path);
}

absl::StatusOr<ClusterSecret> load_secret(const std::string& data_dir) {
  const std::string path = cluster_secret_path(data_dir);
  absl::StatusOr<ClusterSecret> secret = read(path);
  if (!absl::IsNotFound(secret.status())) return secret;
  return absl::NotFoundError(
      str_cat("there is no ", path, "; name the folder of \"millrace up\" with --data-dir"));
}

}  // namespace millrace::deploy::cli
