#pragma once

#include <optional>
#include <string>

#include "storage/kv/ttl_class.h"

namespace millrace::api::entrypoint {

/// Who sends a request, as far as it was authenticated. Without API keys everybody is the account
/// "".
struct Caller {
  std::string account;
  std::optional<storage::TtlClass> ttl;  ///< what the account's key says of its traffic

  bool operator==(const Caller&) const = default;
};

}  // namespace millrace::api::entrypoint
