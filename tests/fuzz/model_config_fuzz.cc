#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/check.h"
#include "dataplane/model/config.h"

/// config.json: refused with a message, or a configuration whose layers all have a ratio.

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  const auto config = millrace::dataplane::model::parse_model_config(json);
  if (config.ok()) {
    CHECK(config->compress_ratios.size() >= static_cast<std::size_t>(config->num_hidden_layers));
  } else {
    CHECK(!config.status().message().empty());
  }
  return 0;
}
