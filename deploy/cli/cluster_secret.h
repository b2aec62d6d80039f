#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/crypto/secret_file.h"

namespace millrace::deploy::cli {

/// What the names of all KV blocks of a cluster are salted with. Whoever has it can tell which
/// prompts were asked, so the file is its owner's alone.
using ClusterSecret = Secret;

/// Where it lies in a data folder.
std::string cluster_secret_path(const std::string& data_dir);

/// Reads it; makes it, of 256 random bits, mode 0600, when there is none. kDataLoss when the file
/// is not 32 bytes long; kFailedPrecondition when others may read it; kPermissionDenied and others
/// of the disk. Each names the file.
absl::StatusOr<ClusterSecret> load_or_create_secret(const std::string& data_dir);

/// Reads it; kNotFound with what to do when there is none.
absl::StatusOr<ClusterSecret> load_secret(const std::string& data_dir);

}  // namespace millrace::deploy::cli
