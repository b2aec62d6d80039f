#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "api/recipe/custom_input.h"
#include "api/recipe/deployment.h"
#include "api/recipe/prepared_request.h"
#include "api/recipe/responses_request.h"
#include "common/json_fwd.h"

namespace millrace::api::recipe {

/// What an answer in the Responses form needs besides the output.
struct ResponsesEncoding {
  std::string response_id;
  std::string request_id;  ///< items are named after it
  std::int64_t created_seconds = 0;
  std::function<std::int64_t()> now_seconds;  ///< Unix time, for the response's end
  ReasoningForm reasoning_form = ReasoningForm::kText;
  bool seals_reasoning = false;
  bool return_logprobs = false;
  std::set<std::string> custom_tools;
  std::string echo;  ///< JSON object: what the response repeats of the request
};

/// The Responses form of an answer: items that are open one at a time. Keeps the response as it
/// grows, so that it can be told at any time; what is written does not depend on how the output is
/// cut into deltas, but for the pieces in the events.
class ResponsesEncoder final : public ResponseEncoder {
 public:
  /// The deployment is borrowed.
  ResponsesEncoder(const Deployment& deployment, ResponsesEncoding encoding);

  std::string begin() override;
  std::string delta(const OutputDelta& delta) override;
  std::string finish(const Ending& ending, const Usage& usage) override;
  /// `response.failed`; a bare `error` where nothing has begun.
  std::string fail(const ErrorDetails& error) override;
  std::string complete(const std::vector<Choice>& choices, const Usage& usage) override;
  /// The events that finish() gave, with a failure in the place of the last one.
  std::string fail_instead(std::string_view events, const ErrorDetails& error);

  /// The response as it stands: a JSON object on one line. Its status is queued until begin().
  std::string response() const;
  /// Ends it as cancelled; no events.
  void cancel();
  const std::string& response_id() const { return encoding_.response_id; }
  std::string_view status() const { return status_; }
  /// Its items so far, as a JSON list.
  std::string output_items() const;

 private:
  enum class Kind { kReasoning, kMessage, kFunctionCall, kCustomCall };
  struct Item {
    Kind kind = Kind::kMessage;
    std::string id;
    std::string status;
    std::string text;  // or a call's arguments, or a custom call's input
    std::string call_id;
    std::string name;
    std::string name_space;
    std::string phase;
    std::vector<GeneratedToken> tokens;  // of a message, when log probabilities are asked for
    CustomInput custom_input;
  };
  enum class Events { kSent, kLeftOut };

  void take(const OutputDelta& output);
  void take_tool_event(const ToolEvent& event);
  Item& ensure(Kind kind);
  Item& open(Kind kind);
  void open_call(const std::string& full_name);
  void add_reasoning(const std::string& text);
  void add_text(const OutputDelta& output);
  void add_arguments(std::string_view piece);
  void close(std::string_view status);
  void close_part(const Item& item);
  void end(const Ending& ending, const Usage& usage);

  bool is_open() const { return !items_.empty() && items_.back().status == "in_progress"; }
  int output_index() const { return static_cast<int>(items_.size()) - 1; }
  Json part_json(const Item& item) const;
  Json item_json(const Item& item) const;
  Json text_event(std::string_view type) const;
  Json call_event(std::string_view type, const char* field, std::string_view text) const;
  void emit(Json event);
  void emit_item(std::string_view type);
  void emit_response(std::string_view type);
  std::string take_events();

  const Deployment& deployment_;
  const ResponsesEncoding encoding_;
  Events mode_ = Events::kSent;
  std::string events_;  // written and not yet handed out
  int sequence_number_ = 0;
  std::string_view status_ = "queued";
  std::vector<Item> items_;
  std::optional<std::int64_t> completed_seconds_;
  std::optional<ErrorDetails> error_;
  std::optional<Usage> usage_;
};

/// What becomes of a response when its request is prepared.
struct PreparedResponse {
  PreparedRequest request;  ///< without an encoder
  std::unique_ptr<ResponsesEncoder> encoder;
  bool is_streamed = false;  ///< as the client wants it
  bool is_background = false;
  bool is_stored = true;
  std::string input_items;  ///< JSON list: everything that the answer continues
};

/// What a Responses request needs that its body does not hold.
struct ResponsesContext {
  std::string owner;  ///< the entrypoint that the response's id names; empty = none
  /// As in ResponsesBody.
  std::optional<std::string_view> earlier_items;
  std::function<std::int64_t()> now_seconds;  ///< Unix time
};

/// POST /v1/responses, with what a store knows. prepare_responses() is the same without one.
absl::StatusOr<PreparedResponse> prepare_response(std::string_view body,
                                                  const Deployment& deployment,
                                                  const AnswerIdentity& identity,
                                                  const ResponsesContext& context);

/// The owner in a response's id; nullopt when it is no such id.
std::optional<std::string> owner_of_response(std::string_view response_id);

}  // namespace millrace::api::recipe
