#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "api/recipe/deployment.h"
#include "api/recipe/output.h"
#include "api/recipe/output_parser.h"
#include "api/recipe/prepared_request.h"

namespace millrace::api::recipe {

/// An answer outside of a server: tokens in, the protocol's JSON out. Either push() any number of
/// times and then finish(), or complete() once. Not thread-safe.
class AnswerWriter {
 public:
  /// `deployment` is the one that the request was prepared with; it must outlive the writer.
  /// kInvalidArgument when the request asks for more than one answer.
  static absl::StatusOr<AnswerWriter> open(PreparedRequest request, const Deployment& deployment);

  /// The events that these tokens cause, each a JSON text; the first call gives the opening ones
  /// as well. Tokens behind the answer's end are ignored, as an engine would be stopped there.
  std::vector<std::string> push(std::span<const GeneratedToken> tokens);
  /// The events that end a stream whose generation ended for this reason. What ends a stream and is
  /// no JSON ("[DONE]") is left out.
  std::vector<std::string> finish(FinishReason reason);
  /// The body of the answer whose tokens are these.
  std::string complete(std::span<const GeneratedToken> tokens, FinishReason reason);

  /// More tokens would change nothing.
  bool is_done() const { return parser_->is_done(); }

 private:
  AnswerWriter(PreparedRequest request, const Deployment& deployment);
  void read(std::span<const GeneratedToken> tokens, OutputDelta& delta);
  std::string begin();

  std::unique_ptr<OutputParser> parser_;
  std::unique_ptr<ResponseEncoder> encoder_;
  Usage usage_;
  bool has_begun_ = false;
};

/// The data of an event stream that a ResponseEncoder wrote, without "[DONE]".
std::vector<std::string> event_data(std::string_view stream);

}  // namespace millrace::api::recipe
