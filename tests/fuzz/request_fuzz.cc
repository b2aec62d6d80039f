#include "tests/fuzz/request_fuzz.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/recipe/output_parser.h"
#include "common/check.h"
#include "common/json.h"
#include "tests/fuzz/byte_tokenizer.h"

namespace millrace::tests::fuzz {
namespace {

using namespace api::recipe;

constexpr std::string_view kAnswer =
    "thought</think>text\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter "
    "name=\"a\" "
    "string=\"false\">[1]</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";

/// The values of an event stream's data lines are JSON.
void check_events(std::string_view stream) {
  constexpr std::string_view kData = "data: ";
  while (!stream.empty()) {
    const std::size_t end = stream.find('\n');
    CHECK(end != std::string_view::npos);
    std::string_view line = stream.substr(0, end);
    stream.remove_prefix(end + 1);
    if (!line.starts_with(kData)) continue;
    line.remove_prefix(kData.size());
    CHECK(line == "[DONE]" || Json::accept(line), line);
  }
}

void answer(PreparedRequest request, bool is_streamed) {
  const Deployment& deployment = byte_deployment();
  const auto tokens = deployment.tokenizer->encode_with_special(kAnswer);
  CHECK(tokens.ok());
  OutputParser parser(*deployment.tokenizer, deployment.control, std::move(request.parsing));
  OutputDelta output;
  for (const TokenId id : *tokens) parser.push({id, 0, {}}, output);
  const Ending ending(parser.finish(FinishReason::kStop, output), parser.matched_stop());
  const Usage usage{.prompt_tokens = 1, .completion_tokens = 2};
  if (is_streamed) {
    std::string stream = request.encoder->begin();
    stream.append(request.encoder->delta(output));
    stream.append(request.encoder->finish(ending, usage));
    check_events(stream);
  } else {
    CHECK(Json::accept(request.encoder->complete({{output, ending}}, usage)));
  }
}

}  // namespace

void check_request(PrepareFunction prepare, const std::uint8_t* data, std::size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  const Deployment& deployment = byte_deployment();
  auto request = prepare(body, deployment, {"1", 0});
  if (!request.ok()) {
    CHECK(!request.status().message().empty());
    return;
  }
  CHECK(!request->prompt.empty() && request->prompt.front() == deployment.begin_of_sequence);
  for (const TokenId id : request->prompt) CHECK(id >= 0 && id < deployment.vocab_size);
  answer(*std::move(request), size % 2 == 0);
}

}  // namespace millrace::tests::fuzz
