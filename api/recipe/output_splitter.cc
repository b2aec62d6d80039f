#include "api/recipe/output_splitter.h"

#include <utility>

namespace millrace::api::recipe {

OutputSplitter::OutputSplitter(const tokenizer::Tokenizer& tokenizer, const ControlTokens& control,
                               Stage stage, const std::vector<std::string>& stops)
    : tokenizer_(tokenizer), control_(control), stage_(stage), matcher_(stops) {}

void OutputSplitter::push(const GeneratedToken& token, OutputDelta& delta) {
  if (is_stopped()) return;
  delta.ids.push_back(token.id);
  const bool is_first = std::exchange(is_first_, false);
  if (token.id == control_.end_of_sequence) return;
  if (stage_ == Stage::kReasoning) {
    ++reasoning_tokens_;
    if (is_first && token.id == control_.think_begin) return;
    push_reasoning(token, delta);
  } else if (token.id != control_.think_end) {
    push_answer(token, delta);
  }
}

void OutputSplitter::push_reasoning(const GeneratedToken& token, OutputDelta& delta) {
  if (token.id != control_.think_end) {
    utf8_.push(tokenizer_.token_bytes(token.id), delta.reasoning);
    return;
  }
  // A code point cannot be completed across the marker.
  utf8_ = {};
  stage_ = Stage::kAnswer;
}

void OutputSplitter::push_answer(const GeneratedToken& token, OutputDelta& delta) {
  std::string text;
  utf8_.push(tokenizer_.token_bytes(token.id), text);
  pending_.push_back({answer_bytes_, token});
  answer_bytes_ += text.size();
  const std::size_t before = delta.text.size();
  const bool is_match = matcher_.push(text, delta.text);
  release_tokens(before, delta);
  if (is_match) pending_.clear();
}

void OutputSplitter::release_tokens(std::size_t text_before, OutputDelta& delta) {
  released_bytes_ += delta.text.size() - text_before;
  while (!pending_.empty() && pending_.front().first_byte < released_bytes_) {
    delta.text_tokens.push_back(std::move(pending_.front().token));
    pending_.pop_front();
  }
}

void OutputSplitter::finish(OutputDelta& delta) {
  const std::size_t before = delta.text.size();
  matcher_.finish(delta.text);
  release_tokens(before, delta);
  pending_.clear();
}

}  // namespace millrace::api::recipe
