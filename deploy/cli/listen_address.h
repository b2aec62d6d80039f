#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace millrace::deploy::cli {

/// Looks whether a server could listen at host:port now and returns the address with its real port:
/// for port 0 a free one, so that a server that restarts comes back at the same place. Nothing is
/// kept open: whoever listens there first has it.
/// kInvalidArgument: no host:port with a numeric IPv4 host or "localhost"; kAlreadyExists: in use.
absl::StatusOr<std::string> find_listen_address(std::string_view address);

}  // namespace millrace::deploy::cli
