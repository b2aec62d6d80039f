#include "api/recipe/answer_writer.h"

#include <utility>

#include "api/recipe/request_error.h"
#include "common/check.h"

namespace millrace::api::recipe {

absl::StatusOr<AnswerWriter> AnswerWriter::open(PreparedRequest request,
                                                const Deployment& deployment) {
  if (request.sampling.choices != 1) {
    return field_error("n", "one answer is written at a time, so `n` must be 1");
  }
  if (!request.further_prompts.empty()) {
    return field_error("prompt", "one answer is written at a time, so there must be one `prompt`");
  }
  return AnswerWriter(std::move(request), deployment);
}

AnswerWriter::AnswerWriter(PreparedRequest request, const Deployment& deployment)
    : parser_(std::make_unique<OutputParser>(*deployment.tokenizer, deployment.control,
                                             std::move(request.parsing))),
      encoder_(std::move(request.encoder)) {
  usage_.prompt_tokens = static_cast<std::uint32_t>(request.prompt.size());
}

std::string AnswerWriter::begin() {
  return std::exchange(has_begun_, true) ? std::string() : encoder_->begin();
}

void AnswerWriter::read(std::span<const GeneratedToken> tokens, OutputDelta& delta) {
  for (const GeneratedToken& token : tokens) {
    if (parser_->is_done()) break;
    parser_->push(token, delta);
    ++usage_.completion_tokens;
  }
  usage_.reasoning_tokens = parser_->reasoning_tokens();
}

std::vector<std::string> AnswerWriter::push(std::span<const GeneratedToken> tokens) {
  std::string stream = begin();
  OutputDelta delta;
  read(tokens, delta);
  if (!delta.is_empty()) stream += encoder_->delta(delta);
  return event_data(stream);
}

std::vector<std::string> AnswerWriter::finish(FinishReason reason) {
  std::string stream = begin();
  OutputDelta rest;
  reason = parser_->finish(parser_->is_done() ? FinishReason::kStop : reason, rest);
  if (!rest.is_empty()) stream += encoder_->delta(rest);
  stream += encoder_->finish({reason, parser_->matched_stop()}, usage_);
  return event_data(stream);
}

std::string AnswerWriter::complete(std::span<const GeneratedToken> tokens, FinishReason reason) {
  Choice choice;
  read(tokens, choice.output);
  reason = parser_->finish(parser_->is_done() ? FinishReason::kStop : reason, choice.output);
  choice.ending = Ending(reason, parser_->matched_stop());
  std::vector<Choice> choices;
  choices.push_back(std::move(choice));
  return encoder_->complete(choices, usage_);
}

std::vector<std::string> event_data(std::string_view stream) {
  constexpr std::string_view kName = "event: ";
  constexpr std::string_view kData = "data: ";
  std::vector<std::string> events;
  while (!stream.empty()) {
    const std::size_t end = stream.find("\n\n");
    CHECK(end != std::string_view::npos, "an event ends in a blank line");
    std::string_view event = stream.substr(0, end);
    stream.remove_prefix(end + 2);
    if (event.starts_with(kName)) event.remove_prefix(event.find('\n') + 1);
    CHECK(event.starts_with(kData), "an event has data");
    event.remove_prefix(kData.size());
    if (event != "[DONE]") events.emplace_back(event);
  }
  return events;
}

}  // namespace millrace::api::recipe
