#pragma once

#include "absl/status/status.h"

namespace millrace::common::http {

/// The HTTP status that stands for an error code: the one table of the code base.
int http_status_of(absl::StatusCode code);

/// The error code that an HTTP status of one of our own servers stands for; kOk for 2xx. Several
/// codes share a status, so this is not an exact inverse: it keeps the retry decision, which is
/// what callers branch on.
absl::StatusCode code_of_http_status(int status);

/// Whether the same call may succeed later without anyone changing anything.
bool is_retryable(absl::StatusCode code);

}  // namespace millrace::common::http
