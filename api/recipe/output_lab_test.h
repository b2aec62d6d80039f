#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "api/recipe/output_parser.h"
#include "api/recipe/prepared_request.h"
#include "api/recipe/test_deployment.h"
#include "common/json.h"

namespace millrace::api::recipe::test {

/// All that an output came to: deltas merged, calls put together.
struct ParsedOutput {
  struct Call {
    std::string name;
    std::string arguments;
    bool has_ended = false;
    bool operator==(const Call&) const = default;
  };
  std::string reasoning;
  std::string text;
  std::vector<Call> calls;
  FinishReason finish = FinishReason::kStop;
  CallProblem problem = CallProblem::kNone;

  bool operator==(const ParsedOutput&) const = default;
};

/// Puts the events of calls together; fails the test when they come in a wrong order.
std::vector<ParsedOutput::Call> calls_of(const std::vector<ToolEvent>& events);

/// Texts as tokens of nano, and their parse.
class OutputLab {
 public:
  OutputLab();

  /// Tokens of bytes, which need not be whole code points. Control tokens may be spelled.
  std::vector<TokenId> ids(std::string_view bytes) const;
  /// The same with every ordinary byte as a token of its own.
  std::vector<TokenId> byte_ids(const std::vector<TokenId>& ids) const;
  std::vector<TokenId> byte_ids(std::string_view bytes) const { return byte_ids(ids(bytes)); }
  /// The tokens of what tokens spell.
  std::vector<TokenId> ids_of_bytes(const std::vector<TokenId>& bytes) const {
    return ids(text_of(bytes));
  }
  std::string text_of(const std::vector<TokenId>& ids) const;
  ParsedOutput parse(const std::vector<TokenId>& ids, const ParseOptions& options,
                     FinishReason reason = FinishReason::kStop) const;
  ParsedOutput parse(std::string_view text, const ParseOptions& options,
                     FinishReason reason = FinishReason::kStop) const {
    return parse(ids(text), options, reason);
  }
  /// What a client gets when these recorded chunks are the output of a prepared request.
  std::string stream(const PreparedRequest& request, const Json& chunks) const;
  const NanoDeployment& nano() const { return nano_; }

 private:
  bool is_control(TokenId id) const;

  NanoDeployment nano_;
  std::vector<TokenId> byte_tokens_;
};

}  // namespace millrace::api::recipe::test
