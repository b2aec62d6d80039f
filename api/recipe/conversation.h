#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/types.h"

namespace millrace::api::recipe {

/// Who speaks. A developer message is a system message to the model.
enum class Role { kSystem, kUser, kAssistant, kLatestReminder };

struct Message {
  Role role = Role::kUser;
  std::vector<std::string> parts;        ///< texts; joined by a blank line when rendered
  std::optional<std::string> reasoning;  ///< assistant only
};

/// Whether the model reasons before it answers.
enum class Thinking { kOn, kOff };

/// A conversation, whatever protocol it came by.
struct Conversation {
  std::vector<Message> messages;
  Thinking thinking = Thinking::kOn;
  int reasoning_effort = 75;  ///< 1 to 100; rendered in thinking mode only
};

/// How tokens are chosen and when generation ends. Defaults are the API's.
struct Sampling {
  double temperature = 1;
  double top_p = 1;
  std::uint32_t top_k = 0;  ///< 0 = off
  double min_p = 0;
  double presence_penalty = 0;
  double frequency_penalty = 0;
  double repetition_penalty = 1;
  std::map<TokenId, float> logit_bias;
  std::optional<std::uint64_t> seed;
  std::vector<std::string> stop;
  std::optional<std::uint32_t> max_tokens;
  bool ignore_eos = false;
  bool return_logprobs = false;
  std::uint32_t top_logprobs = 0;
};

}  // namespace millrace::api::recipe
