#include "api/recipe/tool_call_parser.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "api/recipe/json_text.h"
#include "api/tokenizer/utf8_stream.h"

namespace millrace::api::recipe {
namespace {

constexpr std::string_view kNameEnd = "\">";
constexpr std::string_view kStringEnd = "\" string=\"true\">";
constexpr std::string_view kJsonEnd = "\" string=\"false\">";
constexpr std::size_t kMaxProbedBytes = 512;

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

const StopMatcher& name_end() {
  static const StopMatcher kEnd({std::string(kNameEnd)});
  return kEnd;
}

const StopMatcher& key_end() {
  static const StopMatcher kEnd({std::string(kStringEnd), std::string(kJsonEnd)});
  return kEnd;
}

/// Names may be cut out of any bytes; what goes out is UTF-8.
std::string as_utf8(std::string_view bytes) {
  tokenizer::Utf8Stream stream;
  std::string text;
  stream.push(bytes, text);
  stream.finish(text);
  return text;
}

/// What the beginning of a value tells about it.
enum class Probe { kOpen, kWrapper, kValue };

/// Whether a text begins an object whose first member is one of the tool's parameters, or an empty
/// object.
Probe probe_object(std::string_view text, const std::vector<std::string>& properties) {
  std::size_t at = 0;
  const auto skip_space = [&] {
    while (at < text.size() && is_space(text[at])) ++at;
    return at < text.size();
  };
  if (!skip_space()) return Probe::kOpen;
  if (text[at++] != '{') return Probe::kValue;
  if (!skip_space()) return Probe::kOpen;
  if (text[at] == '}') return Probe::kWrapper;
  if (text[at] != '"') return Probe::kValue;
  const std::size_t begin = at++;
  while (at < text.size() && text[at] != '"') at += text[at] == '\\' ? 2 : 1;
  if (at >= text.size()) return Probe::kOpen;
  const auto name = string_value(text.substr(begin, at + 1 - begin));
  const bool is_known =
      name && std::find(properties.begin(), properties.end(), *name) != properties.end();
  return is_known ? Probe::kWrapper : Probe::kValue;
}

}  // namespace

ToolCallParser::ToolCallParser(ToolCallOptions options)
    : options_(std::move(options)), name_end_(name_end()), key_end_(key_end()) {}

void ToolCallParser::begin_call() {
  state_ = State::kName;
  name_.clear();
  name_end_.restart();
  key_hashes_.clear();
  has_stray_text_ = false;
  is_whole_ = false;
}

std::size_t ToolCallParser::push_any(std::string_view bytes, std::vector<ToolEvent>& events) {
  events_ = &events;
  const std::size_t given = bytes.size();
  while (!bytes.empty() && !is_over()) {
    // Long values go through in runs: only `<` can begin a tag.
    if (state_ == State::kValue && tag_state_ == TagSet::kRoot && bytes.front() != '<') {
      const std::string_view run = bytes.substr(0, bytes.find('<'));
      on_value(run);
      bytes.remove_prefix(run.size());
      continue;
    }
    take(static_cast<unsigned char>(bytes.front()), bytes.substr(0, 1));
    bytes.remove_prefix(1);
  }
  return given - bytes.size();
}

void ToolCallParser::push_marker(std::string_view spelling, std::vector<ToolEvent>& events) {
  events_ = &events;
  if (!is_over()) take(kMarker, spelling);
}

bool ToolCallParser::has_tags() const {
  return state_ == State::kBetween || state_ == State::kBody || state_ == State::kValue ||
         state_ == State::kProbe;
}

const TagSet& ToolCallParser::tags() const {
  static const TagSet kBetweenTags({Tag::kInvokeOpen, Tag::kBlockClose});
  static const TagSet kBodyTags({Tag::kParameterOpen, Tag::kBareParameterOpen, Tag::kInvokeClose,
                                 Tag::kInvokeOpen, Tag::kBlockClose});
  static const TagSet kValueTags(
      {Tag::kParameterClose, Tag::kParameterOpen, Tag::kInvokeClose, Tag::kBlockClose});
  static const TagSet kBareValueTags({Tag::kParameterClose, Tag::kBareParameterClose,
                                      Tag::kParameterOpen, Tag::kInvokeClose, Tag::kBlockClose});
  if (state_ == State::kBetween) return kBetweenTags;
  if (state_ == State::kBody) return kBodyTags;
  return is_bare_ ? kBareValueTags : kValueTags;
}

void ToolCallParser::take(int symbol, std::string_view spelling) {
  if (is_over()) return;
  if (has_tags()) {
    if (take_tag(symbol, spelling)) return;
    on_literal(spelling);
  } else if (state_ == State::kObjectBody) {
    on_value(spelling);
  } else if (symbol == kMarker) {
    fail(state_ == State::kName ? CallProblem::kBadName : CallProblem::kBadKey);
  } else if (state_ == State::kName) {
    on_name_byte(spelling.front());
  } else if (state_ == State::kKey) {
    on_key_byte(spelling.front());
  }
}

/// True when the symbol belongs to a tag, or to what may become one.
bool ToolCallParser::take_tag(int symbol, std::string_view spelling) {
  int next = tags().next(tag_state_, symbol);
  if (next == TagSet::kNowhere && tag_state_ != TagSet::kRoot) {
    tag_state_ = TagSet::kRoot;
    on_literal(std::exchange(held_, {}));
    // The text may have changed the state, but never to one without tags or back to another value.
    if (!has_tags()) {
      take(symbol, spelling);
      return true;
    }
    next = tags().next(TagSet::kRoot, symbol);
  }
  if (next == TagSet::kNowhere) return false;
  tag_state_ = next;
  held_.append(spelling);
  if (const Tag tag = tags().tag(next); tag != Tag::kNone) {
    tag_state_ = TagSet::kRoot;
    held_.clear();
    on_tag(tag);
  }
  return true;
}

void ToolCallParser::on_tag(Tag tag) {
  if (state_ == State::kProbe) end_probe(false);
  if (state_ == State::kValue) end_value();
  if (is_over()) return;
  switch (tag) {
    case Tag::kParameterOpen:
    case Tag::kBareParameterOpen:
      begin_parameter(tag == Tag::kBareParameterOpen);
      break;
    case Tag::kInvokeOpen:
      if (state_ == State::kBody) end_call();
      if (!is_over()) begin_call();
      break;
    case Tag::kInvokeClose:
      end_call();
      break;
    case Tag::kBlockClose:
      if (state_ == State::kBody) end_call();
      state_ = State::kClosed;
      break;
    default:
      break;  // a parameter's closer: end_value() did it all
  }
}

/// Bytes, in a state that knows tags, that belong to none.
void ToolCallParser::on_literal(std::string_view bytes) {
  if (state_ == State::kProbe) {
    probe(bytes);
  } else if (state_ == State::kValue) {
    on_value(bytes);
  } else if (state_ == State::kBody) {
    if (std::all_of(bytes.begin(), bytes.end(), is_space)) return;
    if (key_hashes_.empty() && !is_whole_ && !has_stray_text_ && bytes == "{") {
      is_whole_ = true;
      state_ = State::kObjectBody;
      value_ = ArgumentValue(ArgumentValue::Type::kJson);
      on_value(bytes);
    } else {
      has_stray_text_ = true;
    }
  }
}

/// Collects a name or a key up to what ends it; true when it is whole.
bool ToolCallParser::collect(char byte, StopMatcher& end, std::string& text, std::size_t max_bytes,
                             CallProblem problem) {
  if (!end.push({&byte, 1}, text)) {
    if (text.size() > max_bytes) fail(problem);
    return false;
  }
  text = as_utf8(text);
  return true;
}

void ToolCallParser::on_name_byte(char byte) {
  if (!collect(byte, name_end_, name_, kMaxNameBytes, CallProblem::kBadName)) return;
  const auto tool = std::find_if(options_.tools.begin(), options_.tools.end(),
                                 [this](const OfferedTool& offer) { return offer.name == name_; });
  tool_ = tool == options_.tools.end() ? nullptr : &*tool;
  if (tool_ == nullptr && options_.unknown_tool != UnknownTool::kPassOn) {
    fail(CallProblem::kUnknownTool);
    return;
  }
  events_->push_back({ToolEvent::Kind::kBegin, name_});
  state_ = State::kBody;
}

void ToolCallParser::begin_parameter(bool is_bare) {
  if (is_whole_) {
    fail(CallProblem::kWrappedTwice);
    return;
  }
  state_ = State::kKey;
  key_.clear();
  key_end_.restart();
  is_bare_ = is_bare;
}

void ToolCallParser::on_key_byte(char byte) {
  if (!collect(byte, key_end_, key_, kMaxKeyBytes, CallProblem::kBadKey)) return;
  value_type_ =
      key_end_.matched() == kStringEnd ? ArgumentValue::Type::kString : ArgumentValue::Type::kJson;
  if (key_hashes_.size() == kMaxParameters) {
    fail(CallProblem::kTooManyParameters);
  } else if (!key_hashes_.insert(std::hash<std::string>()(key_)).second) {
    fail(CallProblem::kRepeatedKey);
  } else if (may_hold_all_arguments()) {
    probed_.clear();
    state_ = State::kProbe;
  } else {
    begin_value(value_type_);
  }
}

/// Models sometimes put all arguments into one parameter that the schema does not have.
bool ToolCallParser::may_hold_all_arguments() const {
  if (key_hashes_.size() > 1 || (key_ != "arguments" && key_ != "input")) return false;
  if (tool_ == nullptr || tool_->properties.empty()) return false;
  const auto& properties = tool_->properties;
  return std::find(properties.begin(), properties.end(), key_) == properties.end();
}

void ToolCallParser::probe(std::string_view bytes) {
  probed_.append(bytes);
  const Probe result = probe_object(probed_, tool_->properties);
  if (result != Probe::kOpen) {
    end_probe(result == Probe::kWrapper);
  } else if (probed_.size() > kMaxProbedBytes) {
    end_probe(false);
  }
}

void ToolCallParser::end_probe(bool is_wrapper) {
  if (is_wrapper) {
    is_whole_ = true;
    value_ = ArgumentValue(ArgumentValue::Type::kJson);
    state_ = State::kValue;
  } else {
    begin_value(value_type_);
  }
  on_value(std::exchange(probed_, {}));
}

void ToolCallParser::begin_value(ArgumentValue::Type type) {
  std::string opening = key_hashes_.size() == 1 ? "{" : ", ";
  opening.append(quoted(key_)).append(": ");
  emit(opening);
  value_ = ArgumentValue(type);
  state_ = State::kValue;
}

void ToolCallParser::end_value() {
  std::string json;
  const bool is_valid = value_.finish(json);
  emit(json);
  state_ = State::kBody;
  if (!is_valid) fail(CallProblem::kBadJson);
}

void ToolCallParser::end_call() {
  if (key_hashes_.empty() && !is_whole_ && has_stray_text_) {
    fail(CallProblem::kStrayText);
    return;
  }
  if (!is_whole_) emit(key_hashes_.empty() ? "{}" : "}");
  events_->push_back({ToolEvent::Kind::kEnd, {}});
  ++complete_calls_;
  state_ = options_.parallel_calls == ParallelCalls::kOnlyOne ? State::kClosed : State::kBetween;
}

void ToolCallParser::fail(CallProblem problem) {
  problem_ = problem;
  state_ = State::kClosed;
}

void ToolCallParser::emit(std::string_view json) {
  if (json.empty()) return;
  arguments().append(json);
}

}  // namespace millrace::api::recipe
