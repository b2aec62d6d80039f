#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "api/recipe/conversation.h"
#include "api/recipe/model_names.h"
#include "api/recipe/output_parser.h"
#include "api/recipe/prompt.h"
#include "api/recipe/render_options.h"
#include "api/recipe/thinking_sampling.h"
#include "api/tokenizer/encode_pool.h"
#include "api/tokenizer/tokenizer.h"
#include "common/types.h"

namespace millrace::api::recipe {

/// Where a stream carries its usage.
enum class UsageForm {
  kSeparateChunk,   ///< OpenAI's: one more chunk without choices, only when asked for
  kFinishingChunk,  ///< DeepSeek's: on the chunk with the finish reason, always
};

/// What the protocol adapters know about the model that is served. The tokenizer and the pool are
/// borrowed and must outlive everything made from it.
struct Deployment {
  std::string model_id;
  std::vector<std::string> aliases;  ///< further names that requests may use for the model
  std::string system_fingerprint;
  const tokenizer::Tokenizer* tokenizer = nullptr;
  tokenizer::EncodePool* encode_pool = nullptr;  ///< helps with long prompts; may be null
  ControlTokens control;
  RenderOptions render;
  TokenId begin_of_sequence = -1;
  int vocab_size = 0;
  Thinking default_thinking = Thinking::kOn;
  UsageForm usage_form = UsageForm::kSeparateChunk;
  ThinkingSampling thinking_sampling = ThinkingSampling::kAsRequested;
  ParseOptions reading;  ///< of answers: the choices where sources disagree; requests set the rest

  ModelNames names() const { return {model_id, aliases}; }
};

/// Names one answer.
struct AnswerIdentity {
  std::string request_id;            ///< unique; protocols put their prefix before it
  std::int64_t created_seconds = 0;  ///< Unix time
};

}  // namespace millrace::api::recipe
