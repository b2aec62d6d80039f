#pragma once

#include <string_view>

/// How control tokens are spelled. The bars are U+FF5C, the low lines in the first two U+2581.
namespace millrace::api::recipe::spelling {

inline constexpr std::string_view kBegin = "<｜begin▁of▁sentence｜>";
inline constexpr std::string_view kEnd = "<｜end▁of▁sentence｜>";
inline constexpr std::string_view kSystem = "<｜System｜>";  // V4.1
inline constexpr std::string_view kUser = "<｜User｜>";
inline constexpr std::string_view kAssistant = "<｜Assistant｜>";
inline constexpr std::string_view kReminder = "<｜latest_reminder｜>";
inline constexpr std::string_view kThinkBegin = "<think>";
inline constexpr std::string_view kThinkEnd = "</think>";
inline constexpr std::string_view kDsml = "｜DSML｜";
inline constexpr std::string_view kAction = "<｜action｜>";
inline constexpr std::string_view kQuery = "<｜query｜>";
inline constexpr std::string_view kAuthority = "<｜authority｜>";
inline constexpr std::string_view kDomain = "<｜domain｜>";
inline constexpr std::string_view kTitle = "<｜title｜>";
inline constexpr std::string_view kReadUrl = "<｜read_url｜>";
inline constexpr std::string_view kFimBegin = "<｜fim▁begin｜>";
inline constexpr std::string_view kFimHole = "<｜fim▁hole｜>";
inline constexpr std::string_view kFimEnd = "<｜fim▁end｜>";
inline constexpr std::string_view kDeepseekImage = "<｜deepseek_image｜>";  // V4.1
inline constexpr std::string_view kImage = "<｜image｜>";

}  // namespace millrace::api::recipe::spelling
