#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "api/recipe/argument_value.h"
#include "api/recipe/markup_tags.h"
#include "api/recipe/output.h"
#include "api/recipe/stop_matcher.h"

namespace millrace::api::recipe {

/// What is done with a call of a tool that the request does not offer.
enum class UnknownTool {
  kPassOn,
  kReject,  ///< the answer ends as with a call that was cut off
  kAsText,  ///< the first call's markup, and all behind it, is text; a later call is rejected
};

/// How many calls an answer may hold.
enum class ParallelCalls { kAllowed, kOnlyOne };

/// What the parser knows about an offered tool.
struct OfferedTool {
  std::string name;                     ///< full name
  std::vector<std::string> properties;  ///< of its schema
};

struct ToolCallOptions {
  std::vector<OfferedTool> tools;
  UnknownTool unknown_tool = UnknownTool::kPassOn;
  ParallelCalls parallel_calls = ParallelCalls::kAllowed;
};

/// Why a call cannot be completed.
enum class CallProblem {
  kNone,
  kBadName,            ///< too long, or broken off by markup
  kUnknownTool,        ///< see UnknownTool::kReject
  kBadKey,             ///< a parameter whose type is not told, or whose name is too long
  kRepeatedKey,        ///< two parameters of one name
  kTooManyParameters,  ///< more than kMaxParameters
  kBadJson,            ///< a value that began as JSON and does not go on as such
  kStrayText,          ///< text where parameters belong, and no parameter
  kWrappedTwice,       ///< a parameter beside one that holds all arguments
};

/// The inside of a tool block: markup in, tool events out. Text between the tags is skipped; the
/// names of both dialects count; a missing closer is made up for where what follows leaves no
/// doubt. After a problem or the block's end everything is ignored.
///
/// Memory is bounded by the limits below, whatever the length of values; work per byte is constant.
class ToolCallParser {
 public:
  static constexpr std::size_t kMaxNameBytes = 512;
  static constexpr std::size_t kMaxKeyBytes = 512;
  static constexpr std::size_t kMaxParameters = 1024;

  explicit ToolCallParser(ToolCallOptions options);
  // A copy would go on looking at the options of the original.
  ToolCallParser(const ToolCallParser&) = delete;
  ToolCallParser& operator=(const ToolCallParser&) = delete;

  /// `<｜DSML｜invoke name="` has been read already.
  void begin_call();
  /// The block has been closed already.
  void close() { state_ = State::kClosed; }

  /// Returns how many bytes were taken: all, unless they end the block or reveal a problem.
  std::size_t push(std::string_view bytes, std::vector<ToolEvent>& events);
  /// The marker token, with the bytes that spell it.
  void push_marker(std::string_view spelling, std::vector<ToolEvent>& events);

  /// Nothing can come any more: the block is closed, the only call is over, or a problem ended it.
  bool is_over() const { return state_ == State::kClosed; }
  /// Inside a call that has not ended.
  bool is_in_call() const { return state_ != State::kBetween && state_ != State::kClosed; }
  std::uint32_t complete_calls() const { return complete_calls_; }
  /// Of the last call, as far as it has come.
  const std::string& name() const { return name_; }
  CallProblem problem() const { return problem_; }

 private:
  enum class State {
    kBetween,  // between calls
    kName,
    kBody,  // inside a call, between parameters
    kKey,
    kValue,
    kProbe,       // the beginning of a value that may hold all arguments
    kObjectBody,  // the call's body is a JSON object
    kClosed,
  };
  std::size_t push_any(std::string_view bytes, std::vector<ToolEvent>& events);
  bool has_tags() const;
  const TagSet& tags() const;
  void take(int symbol, std::string_view spelling);
  bool take_tag(int symbol, std::string_view spelling);
  void on_tag(Tag tag);
  void on_literal(std::string_view bytes);
  bool collect(char byte, StopMatcher& end, std::string& text, std::size_t max_bytes,
               CallProblem problem);
  void on_name_byte(char byte);
  void on_key_byte(char byte);
  void begin_parameter(bool is_bare);
  void begin_value(ArgumentValue::Type type);
  bool may_hold_all_arguments() const;
  void probe(std::string_view bytes);
  void end_probe(bool is_wrapper);
  void on_value(std::string_view bytes);
  void end_value();
  void end_call();
  void fail(CallProblem problem);
  void emit(std::string_view json);
  std::string& arguments();

  const ToolCallOptions options_;
  State state_ = State::kBetween;
  std::vector<ToolEvent>* events_ = nullptr;  // of the running call of push()
  CallProblem problem_ = CallProblem::kNone;
  std::uint32_t complete_calls_ = 0;

  int tag_state_ = TagSet::kRoot;
  std::string held_;  // of a tag that is not complete
  StopMatcher name_end_;
  StopMatcher key_end_;
  std::string name_;
  std::string key_;
  bool is_bare_ = false;  // the parameter began without a marker
  ArgumentValue value_;
  ArgumentValue::Type value_type_ = ArgumentValue::Type::kString;
  std::string probed_;
  std::unordered_set<std::size_t> key_hashes_;  // of the call so far
  const OfferedTool* tool_ = nullptr;
  bool has_stray_text_ = false;
  bool is_whole_ = false;  // all arguments came at once, as one object
};

// Inline, down to the validator: a token of a value is a few bytes, and calls through five layers
// cost more than they do.

inline std::size_t ToolCallParser::push(std::string_view bytes, std::vector<ToolEvent>& events) {
  bool may_begin_tag = state_ != State::kValue || tag_state_ != TagSet::kRoot;
  for (const char byte : bytes) may_begin_tag |= byte == '<';
  if (may_begin_tag) return push_any(bytes, events);
  events_ = &events;
  on_value(bytes);
  return bytes.size();
}

inline void ToolCallParser::on_value(std::string_view bytes) {
  // Straight into the event: values are what most bytes of a call belong to.
  std::string& json = arguments();
  const bool is_valid = value_.push(bytes, json);
  if (json.empty()) events_->pop_back();
  if (!is_valid) {
    fail(CallProblem::kBadJson);
  } else if (state_ == State::kObjectBody && value_.is_complete()) {
    state_ = State::kBody;
  }
}

/// Where the next piece of arguments goes: the last event, or a new one without text yet.
inline std::string& ToolCallParser::arguments() {
  if (events_->empty() || events_->back().kind != ToolEvent::Kind::kArguments) {
    events_->emplace_back().kind = ToolEvent::Kind::kArguments;
  }
  return events_->back().text;
}

}  // namespace millrace::api::recipe
