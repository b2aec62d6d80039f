#pragma once

#include <nlohmann/json_fwd.hpp>

namespace millrace {

/// The project's JSON value, declared only: for headers that pass it by reference. A source that
/// uses the value includes common/json.h.
using Json = nlohmann::ordered_json;

}  // namespace millrace
