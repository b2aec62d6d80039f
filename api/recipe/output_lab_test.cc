#include "api/recipe/output_lab_test.h"

#include <gtest/gtest.h>

#include "api/tokenizer/utf8_stream.h"

namespace millrace::api::recipe::test {

std::vector<ParsedOutput::Call> calls_of(const std::vector<ToolEvent>& events) {
  std::vector<ParsedOutput::Call> calls;
  for (const ToolEvent& event : events) {
    if (event.kind == ToolEvent::Kind::kBegin) {
      EXPECT_TRUE(calls.empty() || calls.back().has_ended);
      calls.push_back({event.text, {}, false});
      continue;
    }
    if (calls.empty() || calls.back().has_ended) {
      ADD_FAILURE() << "an event of no call: " << event.text;
    } else if (event.kind == ToolEvent::Kind::kEnd) {
      calls.back().has_ended = true;
    } else {
      calls.back().arguments += event.text;
    }
  }
  return calls;
}

OutputLab::OutputLab() : byte_tokens_(256, -1) {
  const tokenizer::Tokenizer& tokenizer = *nano_.value.tokenizer;
  for (TokenId id = 0; id < tokenizer.id_bound(); ++id) {
    const std::string_view bytes = tokenizer.token_bytes(id);
    if (bytes.size() == 1) byte_tokens_[static_cast<unsigned char>(bytes[0])] = id;
  }
}

bool OutputLab::is_control(TokenId id) const {
  return id < 3 || id >= nano_.control("<｜System｜>");
}

std::vector<TokenId> OutputLab::ids(std::string_view bytes) const {
  std::vector<TokenId> ids;
  while (!bytes.empty()) {
    const std::size_t valid = std::min(tokenizer::find_invalid_utf8(bytes), bytes.size());
    for (TokenId id : nano_.ids(bytes.substr(0, valid))) ids.push_back(id);
    bytes.remove_prefix(valid);
    if (bytes.empty()) break;
    ids.push_back(byte_tokens_[static_cast<unsigned char>(bytes.front())]);
    bytes.remove_prefix(1);
  }
  return ids;
}

std::string OutputLab::text_of(const std::vector<TokenId>& ids) const {
  std::string text;
  for (const TokenId id : ids) text.append(nano_.value.tokenizer->token_bytes(id));
  return text;
}

std::vector<TokenId> OutputLab::byte_ids(const std::vector<TokenId>& ids) const {
  std::vector<TokenId> result;
  for (const TokenId id : ids) {
    if (is_control(id)) {
      result.push_back(id);
      continue;
    }
    for (char byte : nano_.value.tokenizer->token_bytes(id)) {
      result.push_back(byte_tokens_[static_cast<unsigned char>(byte)]);
    }
  }
  return result;
}

ParsedOutput OutputLab::parse(const std::vector<TokenId>& ids, const ParseOptions& options,
                              FinishReason reason) const {
  OutputParser parser(*nano_.value.tokenizer, nano_.value.control, options);
  OutputDelta delta;
  for (TokenId id : ids) parser.push({id, 0, {}}, delta);
  ParsedOutput output;
  output.finish = parser.finish(reason, delta);
  output.problem = parser.problem();
  output.reasoning = delta.reasoning;
  output.text = delta.text;
  output.calls = calls_of(delta.tool_events);
  return output;
}

std::string OutputLab::stream(const PreparedRequest& request, const Json& chunks) const {
  OutputParser parser(*nano_.value.tokenizer, nano_.value.control, request.parsing);
  std::string stream = request.encoder->begin();
  Usage usage;
  FinishReason reason = FinishReason::kStop;
  for (const Json& chunk : chunks) {
    if (chunk["kind"] == "ready") usage.prompt_tokens = chunk["prompt_tokens"];
    if (chunk["kind"] == "finish" && chunk["finish_reason"] == "length") {
      reason = FinishReason::kLength;
    }
    if (chunk["kind"] != "text") continue;
    usage.completion_tokens += chunk["content_tokens"].get<std::uint32_t>();
    OutputDelta delta;
    for (TokenId id : ids(chunk["content"].get<std::string>())) parser.push({id, 0, {}}, delta);
    stream += request.encoder->delta(delta);
  }
  OutputDelta last;
  reason = parser.finish(reason, last);
  stream += request.encoder->delta(last);
  return stream + request.encoder->finish({reason, parser.matched_stop()}, usage);
}

}  // namespace millrace::api::recipe::test
