#include "api/recipe/logprob_json.h"

#include <utility>

#include "api/recipe/event_stream.h"
#include "common/json.h"

namespace millrace::api::recipe {
namespace {

Json entry_of(TokenId id, float logprob, const tokenizer::Tokenizer& tokenizer) {
  Json entry = Json::object();
  entry["token"] = token_text(tokenizer, id);
  entry["logprob"] = logprob;
  entry["bytes"] = Json::array();
  for (char byte : tokenizer.token_bytes(id)) {
    entry["bytes"].push_back(static_cast<unsigned char>(byte));
  }
  return entry;
}

}  // namespace

Json logprob_list(const std::vector<GeneratedToken>& tokens,
                  const tokenizer::Tokenizer& tokenizer) {
  Json list = Json::array();
  for (const GeneratedToken& token : tokens) {
    Json entry = entry_of(token.id, token.logprob, tokenizer);
    entry["top_logprobs"] = Json::array();
    for (const auto& [id, logprob] : token.top) {
      entry["top_logprobs"].push_back(entry_of(id, logprob, tokenizer));
    }
    list.push_back(std::move(entry));
  }
  return list;
}

}  // namespace millrace::api::recipe
