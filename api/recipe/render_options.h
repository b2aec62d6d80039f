#pragma once

namespace millrace::api::recipe {

/// Which generation of prompts the model was trained on.
enum class PromptFormat { kV4, kV41 };

/// Reasoning of assistant turns before the last message that opens a round.
enum class OldReasoning {
  kDropWithoutTools,  ///< the release encoders: dropped, unless any tools are offered
  kKeep,              ///< deepseek-recipe
};

/// Keys of a tool's line in the tools block.
enum class SchemaKeys {
  kNameDescriptionParameters,  ///< deepseek-recipe, the hosted API: these three, always
  kAsGiven,                    ///< the release encoders: the function object unchanged
};

/// Spellings of control tokens in the fixed text of the tools block.
enum class TemplateSpellings {
  kControlTokens,  ///< as tokenizing the whole prompt gives; recorded from deepseek-recipe 0.1
  kText,
};

/// System messages of V4, which has no token for them.
enum class V4System {
  kOneThenUser,  ///< deepseek-recipe: leading ones are joined, later ones become user messages
  kInPlace,      ///< the release encoder: each as bare text where it stands
};

/// Texts of V4's reasoning efforts.
enum class V4Efforts {
  kApril2026,  ///< the first release: no `low`, `high` says nothing
  k0731,       ///< the current Flash, and deepseek-recipe: `low` says nothing
};

/// Numbers of V4.1's reasoning efforts low, high, xhigh, max.
enum class V41Efforts {
  kRelease,     ///< 50, 75, 75, 100
  kPreRelease,  ///< 25, 50, 75, 100
};

/// How V4.1 spells the place of an image.
enum class ImageSpelling { kDeepseekImage, kImage };

/// What follows when the last message is a finished assistant turn.
enum class AfterAssistant {
  kNewHeader,  ///< another answer is generated
  kNothing,    ///< the release encoders
};

/// Where the sources of the prompt formats disagree: every behaviour has a name. The defaults and
/// their reasons are in docs/decisions.md.
struct RenderOptions {
  PromptFormat format = PromptFormat::kV41;
  OldReasoning old_reasoning = OldReasoning::kDropWithoutTools;
  SchemaKeys schema_keys = SchemaKeys::kNameDescriptionParameters;
  TemplateSpellings template_spellings = TemplateSpellings::kControlTokens;
  V4System v4_system = V4System::kOneThenUser;
  V4Efforts v4_efforts = V4Efforts::k0731;
  V41Efforts v41_efforts = V41Efforts::kRelease;
  ImageSpelling image_spelling = ImageSpelling::kDeepseekImage;
  AfterAssistant after_assistant = AfterAssistant::kNewHeader;
};

}  // namespace millrace::api::recipe
