#include <string>
#include <utility>

#include "common/str_cat.h"
#include "dataplane/engine/engine.h"

namespace millrace::dataplane::engine {
namespace {

constexpr std::string_view kAllowed = "allowed are rounding=on|off and decoder_replay=on|off";

}  // namespace

absl::StatusOr<EngineSwitches> parse_engine_switches(std::string_view text) {
  EngineSwitches switches;
  bool more = !text.empty();
  while (more) {
    const std::size_t comma = text.find(',');
    const std::string_view item = text.substr(0, comma);
    more = comma != std::string_view::npos;
    if (more) text = text.substr(comma + 1);
    const std::size_t equals = item.find('=');
    const std::string_view name = item.substr(0, equals);
    const std::string_view value =
        equals == std::string_view::npos ? std::string_view() : item.substr(equals + 1);
    Switch* target = nullptr;
    if (name == "rounding") target = &switches.rounding;
    if (name == "decoder_replay") target = &switches.decoder_replay;
    if (target == nullptr || (value != "on" && value != "off")) {
      return absl::InvalidArgumentError(str_cat("engine switch \"", item, "\": ", kAllowed));
    }
    *target = value == "on" ? Switch::kOn : Switch::kOff;
  }
  return switches;
}

}  // namespace millrace::dataplane::engine
