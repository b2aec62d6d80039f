#include "api/recipe/output_parser.h"

#include <algorithm>
#include <utility>

#include "common/str_cat.h"

namespace millrace::api::recipe {
namespace {

/// White space that may stand between a block's opening tag and its first call.
constexpr std::size_t kMaxSpaceBehindOpen = 64;

bool is_space(int symbol) {
  return symbol == ' ' || symbol == '\t' || symbol == '\n' || symbol == '\r';
}

const TagSet& opening_tags() {
  static const TagSet kTags({Tag::kBlockOpen, Tag::kBlockClose, Tag::kInvokeOpen});
  return kTags;
}

}  // namespace

OutputParser::OutputParser(const tokenizer::Tokenizer& tokenizer, const ControlTokens& control,
                           ParseOptions options)
    : tokenizer_(tokenizer),
      control_(control),
      options_(std::move(options)),
      stage_(options_.stage),
      matcher_(options_.stops),
      calls_(options_.calls) {
  drops_newlines_ = stage_ == Stage::kReasoning && options_.think_newlines == ThinkNewlines::kDrop;
}

/// Only the first call's opening is at hand; that of a forced call stands in the prompt.
bool OutputParser::is_text_after_all() const {
  return calls_.problem() == CallProblem::kUnknownTool && calls_.complete_calls() == 0 &&
         options_.calls.unknown_tool == UnknownTool::kAsText &&
         stage_before_block_ != Stage::kToolBlock;
}

inline void OutputParser::push_call(std::string_view bytes, OutputDelta& delta) {
  const std::size_t taken = calls_.push(bytes, delta.tool_events);
  if (calls_.problem() == CallProblem::kNone) [[likely]]
    return;
  if (is_text_after_all()) take_back_block(bytes.substr(taken), delta);
}

void OutputParser::take_back_block(std::string_view rest, OutputDelta& delta) {
  stage_ = stage_before_block_;
  is_text_only_ = true;
  send(str_cat(block_opening_, calls_.name(), "\">"), delta);
  push_text(rest, delta);
}

void OutputParser::push(const GeneratedToken& token, OutputDelta& delta) {
  if (is_done()) return;
  delta.ids.push_back(token.id);
  const bool is_first = std::exchange(is_first_, false);
  if (token.id == control_.end_of_sequence) return;
  const std::string_view bytes = tokenizer_.token_bytes(token.id);
  if (stage_ == Stage::kToolBlock && token.id != control_.dsml) {
    push_call(bytes, delta);
    return;
  }
  push_outside(token, bytes, is_first, delta);
}

/// A token that is not inside a tool block, or the marker.
void OutputParser::push_outside(const GeneratedToken& token, std::string_view bytes, bool is_first,
                                OutputDelta& delta) {
  if (stage_ == Stage::kReasoning) {
    ++reasoning_tokens_;
    if (is_first && token.id == control_.think_begin) return;
  } else if (stage_ == Stage::kAnswer && token.id != control_.think_end) {
    pending_.push_back({answer_bytes_ + newlines_ + held_.size(), token});
  }
  if (token.id == control_.dsml && reads_calls()) {
    push_marker(bytes, delta);
  } else if (token.id == control_.think_end) {
    push_think_end(delta);
  } else {
    push_text(bytes, delta);
  }
}

void OutputParser::push_think_end(OutputDelta& delta) {
  if (stage_ == Stage::kAnswer) {
    // What was held may be the beginning of a tag; the marker that breaks it leaves no trace.
    if (hold_ != Hold::kNewlines) release(delta);
    return;
  }
  if (options_.think_newlines == ThinkNewlines::kDrop && hold_ == Hold::kNewlines) newlines_ = 0;
  release(delta);
  // A code point cannot be completed across the marker.
  utf8_ = {};
  stage_ = Stage::kAnswer;
  drops_newlines_ = options_.think_newlines == ThinkNewlines::kDrop;
}

bool OutputParser::holds_newlines() const {
  return reads_calls() ||
         (stage_ == Stage::kReasoning && options_.think_newlines == ThinkNewlines::kDrop);
}

void OutputParser::push_text(std::string_view bytes, OutputDelta& delta) {
  while (!bytes.empty() && !is_stopped()) {
    if (stage_ == Stage::kToolBlock) {
      push_call(bytes, delta);
      return;
    }
    if (drops_newlines_ && bytes.front() == '\n') {
      bytes.remove_prefix(1);
      continue;
    }
    drops_newlines_ = false;
    const bool is_free = hold_ == Hold::kNewlines && newlines_ == 0;
    const std::size_t run = !holds_newlines() ? bytes.size()
                            : is_free         ? std::min(bytes.find_first_of("\n<"), bytes.size())
                                              : 0;
    if (run > 0) {
      send(bytes.substr(0, run), delta);
      bytes.remove_prefix(run);
    } else {
      take(static_cast<unsigned char>(bytes.front()), bytes.substr(0, 1), delta);
      bytes.remove_prefix(1);
    }
  }
}

void OutputParser::push_marker(std::string_view spelling, OutputDelta& delta) {
  drops_newlines_ = false;
  if (stage_ == Stage::kToolBlock) {
    calls_.push_marker(spelling, delta.tool_events);
  } else {
    take(kMarker, spelling, delta);
  }
}

/// One symbol outside a tool block.
void OutputParser::take(int symbol, std::string_view spelling, OutputDelta& delta) {
  if (hold_ == Hold::kTag) {
    take_tag(symbol, spelling, delta);
  } else if (hold_ == Hold::kBehindOpen && is_space(symbol) &&
             space_behind_open_ < kMaxSpaceBehindOpen) {
    ++space_behind_open_;
    held_.append(spelling);
  } else if (symbol == '<') {
    hold_ = Hold::kTag;
    held_.append(spelling);
    tag_state_ = opening_tags().next(TagSet::kRoot, symbol);
  } else if (hold_ == Hold::kNewlines && symbol == '\n') {
    hold_newline(delta);
  } else if (hold_ == Hold::kBehindOpen) {
    release(delta);
    take(symbol, spelling, delta);
  } else {
    release(delta);
    send(spelling, delta);
  }
}

void OutputParser::take_tag(int symbol, std::string_view spelling, OutputDelta& delta) {
  const int next = opening_tags().next(tag_state_, symbol);
  const Tag tag = next == TagSet::kNowhere ? Tag::kNone : opening_tags().tag(next);
  const bool is_stray_close = tag == Tag::kBlockClose && !is_behind_open_;
  if (next == TagSet::kNowhere || is_stray_close) {
    release(delta);
    take(symbol, spelling, delta);
    return;
  }
  tag_state_ = next;
  held_.append(spelling);
  if (tag == Tag::kInvokeOpen || tag == Tag::kBlockClose) {
    enter_block(delta);
    tag == Tag::kInvokeOpen ? calls_.begin_call() : calls_.close();
  } else if (tag == Tag::kBlockOpen) {
    hold_ = Hold::kBehindOpen;
    is_behind_open_ = true;
    space_behind_open_ = 0;
  }
}

void OutputParser::hold_newline(OutputDelta& delta) {
  // Two suffice to tell the separator; more are held where they may all have to go.
  const bool holds_all = options_.block_newlines == BlockNewlines::kAll ||
                         options_.think_newlines == ThinkNewlines::kDrop;
  if (newlines_ < 2 || holds_all) {
    ++newlines_;
  } else {
    send("\n", delta);
  }
}

/// What was held back is text after all.
void OutputParser::release(OutputDelta& delta) {
  const std::string text = std::string(newlines_, '\n') + held_;
  newlines_ = 0;
  held_.clear();
  hold_ = Hold::kNewlines;
  is_behind_open_ = false;
  if (!text.empty()) send(text, delta);
}

/// A call begins: the newlines in front of it separate it from the text, which is over.
void OutputParser::enter_block(OutputDelta& delta) {
  const bool drops_all = options_.block_newlines == BlockNewlines::kAll;
  const std::size_t newlines = newlines_;
  newlines_ = drops_all ? 0 : newlines_ >= 2 ? newlines_ - 2 : newlines_;
  block_opening_ = std::string(newlines - newlines_, '\n') + std::exchange(held_, {});
  stage_before_block_ = stage_;
  release(delta);
  const std::size_t before = delta.text.size();
  if (!is_stopped()) matcher_.finish(delta.text);
  release_tokens(before, delta);
  pending_.clear();
  stage_ = Stage::kToolBlock;
}

void OutputParser::send(std::string_view bytes, OutputDelta& delta) {
  if (stage_ == Stage::kReasoning) {
    utf8_.push(bytes, delta.reasoning);
    return;
  }
  if (is_stopped()) return;
  std::string text;
  utf8_.push(bytes, text);
  if (options_.is_json && options_.json_text == JsonText::kObjectOnly) json_.push(text);
  answer_bytes_ += text.size();
  const std::size_t before = delta.text.size();
  const bool is_match = matcher_.push(text, delta.text);
  if (is_match && options_.keeps_stop) delta.text.append(matcher_.matched());
  release_tokens(before, delta);
  if (is_match) pending_.clear();
}

void OutputParser::release_tokens(std::size_t text_before, OutputDelta& delta) {
  released_bytes_ += delta.text.size() - text_before;
  while (!pending_.empty() && pending_.front().first_byte < released_bytes_) {
    delta.text_tokens.push_back(std::move(pending_.front().token));
    pending_.pop_front();
  }
}

FinishReason OutputParser::finish(FinishReason reason, OutputDelta& delta) {
  if (stage_ != Stage::kToolBlock) {
    release(delta);
    if (is_stopped()) return FinishReason::kStop;
    const std::size_t before = delta.text.size();
    matcher_.finish(delta.text);
    release_tokens(before, delta);
    pending_.clear();
    return reason;
  }
  if (is_stopped()) return FinishReason::kStop;
  if (calls_.problem() != CallProblem::kNone || calls_.is_in_call()) return FinishReason::kLength;
  if (calls_.complete_calls() == 0) return reason;
  // A limit between two calls may have cut off the next one.
  const bool is_cut = reason == FinishReason::kLength && !calls_.is_over();
  return is_cut ? FinishReason::kLength : FinishReason::kToolCalls;
}

}  // namespace millrace::api::recipe
