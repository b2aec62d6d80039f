#include "common/crypto/secret_file.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "common/mapped_file.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace {
namespace {

// More than a secret has, so that a longer file is told from a right one.
constexpr std::size_t kMostBytes = 4096;

}  // namespace

absl::StatusOr<Secret> read_secret_file(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string bytes, read_file(path, kMostBytes));
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return absl::ErrnoToStatus(errno, path);
  if ((info.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return absl::FailedPreconditionError(
        str_cat(path, " may be read or written by others than its owner; set its mode to 0600"));
  }
  Secret secret{};
  if (bytes.size() != secret.size()) {
    return absl::DataLossError(
        str_cat(path, " holds ", bytes.size(), " bytes instead of ", secret.size()));
  }
  std::copy(bytes.begin(), bytes.end(), secret.begin());
  return secret;
}

}  // namespace millrace
