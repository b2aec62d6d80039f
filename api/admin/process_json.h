#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "api/admin/process.h"
#include "common/json.h"

namespace millrace::api::admin {

/// The parts that several messages share, as JSON values. For the codecs of this folder only.
/// `path` is what precedes a member's name in error messages.
Json report_json(const ProcessReport& report);
absl::StatusOr<ProcessReport> read_report(const Json& value, std::string path);

Json assigned_json(const AssignedProcess& assigned);
absl::StatusOr<AssignedProcess> read_assigned(const Json& value, std::string path);

/// Far above what one node runs; the bound that a malformed message meets.
inline constexpr std::size_t kMaxProcessesPerNode = 4096;

/// Engine sizes: 0 = the worker's own default.
inline constexpr std::int64_t kMaxEngineSize = std::int64_t{1} << 31;

/// Of one storage target.
inline constexpr std::int64_t kMaxStorageBytes = std::int64_t{1} << 50;

}  // namespace millrace::api::admin
