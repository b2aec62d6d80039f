#include "api/recipe/settings.h"

#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>

#include "api/recipe/control_spelling.h"
#include "api/recipe/request_error.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::api::recipe {
namespace {

using Names = std::array<std::string_view, 2>;

// In the order of the enumerations' values.
constexpr Names kEncodings = {"v4", "v41"};
constexpr Names kOldReasoning = {"drop-without-tools", "keep"};
constexpr Names kSchemaKeys = {"name-description-parameters", "as-given"};
constexpr Names kTemplateSpellings = {"control-tokens", "text"};
constexpr Names kV4System = {"one-then-user", "in-place"};
constexpr Names kV4Efforts = {"april-2026", "0731"};
constexpr Names kV41Efforts = {"release", "pre-release"};
constexpr Names kImageSpellings = {"deepseek-image", "image"};
constexpr Names kAfterAssistant = {"new-header", "nothing"};
constexpr Names kThinkNewlines = {"keep", "drop"};
constexpr Names kBlockNewlines = {"blank-line", "all"};
constexpr Names kJsonText = {"object-only", "as-generated"};
constexpr std::array<std::string_view, 3> kUnknownTool = {"pass-on", "reject", "as-text"};
constexpr Names kThinkingSampling = {"as-requested", "fixed"};
constexpr Names kOnOff = {"on", "off"};
constexpr Names kUsageForms = {"separate", "finishing"};

// How a member of the parts that settings have is read and written by the index of its value.

template <auto kPart, auto kMember>
std::size_t get(const Settings& settings) {
  return static_cast<std::size_t>(settings.*kPart.*kMember);
}
template <auto kPart, auto kMember>
void set(Settings& settings, std::size_t index) {
  auto& field = settings.*kPart.*kMember;
  field = static_cast<std::remove_reference_t<decltype(field)>>(index);
}
template <auto kMember>
std::size_t get(const Settings& settings) {
  return static_cast<std::size_t>(settings.*kMember);
}
template <auto kMember>
void set(Settings& settings, std::size_t index) {
  auto& field = settings.*kMember;
  field = static_cast<std::remove_reference_t<decltype(field)>>(index);
}

template <auto kMember>
constexpr Setting rendering(std::string_view name, const Names& values, std::string_view help) {
  return {Setting::Part::kPrompt,         name, help, values, get<&Settings::render, kMember>,
          set<&Settings::render, kMember>};
}
template <auto kMember>
constexpr Setting reading(std::string_view name, const Names& values, std::string_view help) {
  return {Setting::Part::kAnswer,          name, help, values, get<&Settings::reading, kMember>,
          set<&Settings::reading, kMember>};
}

constexpr std::array kSettings = {
    rendering<&RenderOptions::format>("encoding", kEncodings, "Generation of prompts"),
    rendering<&RenderOptions::old_reasoning>(
        "old_reasoning", kOldReasoning, "Reasoning of turns before the last message of the user"),
    rendering<&RenderOptions::schema_keys>("schema_keys", kSchemaKeys,
                                           "Keys of a tool's line in the prompt"),
    rendering<&RenderOptions::template_spellings>(
        "template_spellings", kTemplateSpellings,
        "Control tokens that the text of the tools block spells"),
    rendering<&RenderOptions::v4_system>("v4_system", kV4System, "System messages of V4"),
    rendering<&RenderOptions::v4_efforts>("v4_efforts", kV4Efforts,
                                          "Texts of V4's reasoning efforts"),
    rendering<&RenderOptions::v41_efforts>("v41_efforts", kV41Efforts,
                                           "Numbers of V4.1's reasoning efforts"),
    rendering<&RenderOptions::image_spelling>("image_spelling", kImageSpellings,
                                              "The token in an image's place (V4.1)"),
    rendering<&RenderOptions::after_assistant>("after_assistant", kAfterAssistant,
                                               "What follows when the last message is an answer"),
    Setting{Setting::Part::kPrompt, "default_thinking",
            "Whether the model reasons when a request does not say", kOnOff,
            get<&Settings::default_thinking>, set<&Settings::default_thinking>},
    Setting{Setting::Part::kPrompt, "thinking_sampling",
            "Sampling values of requests in thinking mode", kThinkingSampling,
            get<&Settings::thinking_sampling>, set<&Settings::thinking_sampling>},
    reading<&ParseOptions::think_newlines>("think_newlines", kThinkNewlines,
                                           "Newlines around the end of reasoning"),
    reading<&ParseOptions::block_newlines>("block_newlines", kBlockNewlines,
                                           "Newlines in front of a tool block that are not text"),
    reading<&ParseOptions::json_text>("json_text", kJsonText,
                                      "Text around the object of an answer in JSON mode"),
    Setting{Setting::Part::kAnswer, "unknown_tool", "Calls of tools that were not offered",
            kUnknownTool,
            [](const Settings& settings) {
              return static_cast<std::size_t>(settings.reading.calls.unknown_tool);
            },
            [](Settings& settings, std::size_t index) {
              settings.reading.calls.unknown_tool = static_cast<UnknownTool>(index);
            }},
    Setting{Setting::Part::kAnswer, "usage_form",
            "Where a stream of OpenAI's protocols carries its usage", kUsageForms,
            get<&Settings::usage_form>, set<&Settings::usage_form>},
};

/// Appends "a, b or c".
template <typename List, typename NameOf>
std::string listed(const List& list, NameOf name_of) {
  std::string text;
  std::size_t left = list.size();
  for (const auto& entry : list) {
    text.append(name_of(entry));
    if (--left > 0) text.append(left == 1 ? " or " : ", ");
  }
  return text;
}

}  // namespace

std::string Setting::flag() const {
  std::string flag = str_cat("--", name);
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

std::span<const Setting> all_settings() { return kSettings; }

absl::Status change_setting(std::string_view name, std::string_view value, Settings& settings) {
  const auto* const found =
      std::find_if(kSettings.begin(), kSettings.end(),
                   [&](const Setting& candidate) { return candidate.name == name; });
  if (found == kSettings.end()) {
    return field_error(name,
                       str_cat("there is no setting `", name, "`; there are ",
                               listed(kSettings, [](const Setting& entry) { return entry.name; })));
  }
  const auto choice = std::find(found->values.begin(), found->values.end(), value);
  if (choice == found->values.end()) {
    return field_error(name,
                       str_cat("`", name, "` must be ",
                               listed(found->values, [](std::string_view entry) { return entry; }),
                               ", not \"", value, "\""));
  }
  found->set(settings, static_cast<std::size_t>(choice - found->values.begin()));
  return absl::OkStatus();
}

absl::StatusOr<Deployment> make_deployment(const tokenizer::Tokenizer& tokenizer,
                                           const Settings& settings, std::string model_id) {
  Deployment deployment;
  ASSIGN_OR_RETURN(deployment.control, resolve_control_tokens(tokenizer, settings.render.format));
  const std::optional<TokenId> begin = tokenizer.control_token(spelling::kBegin);
  CHECK(begin.has_value(), "resolve_control_tokens() has seen it");
  deployment.begin_of_sequence = *begin;
  deployment.model_id = std::move(model_id);
  deployment.tokenizer = &tokenizer;
  deployment.render = settings.render;
  deployment.vocab_size = tokenizer.id_bound();
  deployment.reading = settings.reading;
  deployment.default_thinking = settings.default_thinking;
  deployment.thinking_sampling = settings.thinking_sampling;
  deployment.usage_form = settings.usage_form;
  return deployment;
}

}  // namespace millrace::api::recipe
