#include "tests/fuzz/byte_tokenizer.h"

#include <array>
#include <memory>
#include <string>

#include "api/recipe/control_spelling.h"
#include "common/check.h"
#include "common/json.h"

namespace millrace::tests::fuzz {
namespace {

using namespace api::recipe;
using api::tokenizer::Tokenizer;

constexpr TokenId kBytes = 256;
// The first of them are those that output is read by.
constexpr std::array kControls = {spelling::kDsml,   spelling::kThinkBegin, spelling::kThinkEnd,
                                  spelling::kEnd,    spelling::kBegin,      spelling::kSystem,
                                  spelling::kUser,   spelling::kAssistant,  spelling::kReminder,
                                  spelling::kAction, spelling::kQuery,      spelling::kAuthority,
                                  spelling::kDomain, spelling::kTitle,      spelling::kReadUrl};

/// How byte-level vocabularies spell a byte: printable ones as themselves, the others from U+0100.
std::string byte_character(int byte) {
  const auto is_printable = [](int b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
  };
  int code = byte;
  if (!is_printable(byte)) {
    code = 256;
    for (int b = 0; b < byte; ++b) code += is_printable(b) ? 0 : 1;
  }
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
}

std::unique_ptr<Tokenizer> make_tokenizer() {
  Json file = Json::object();
  const Json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  file["added_tokens"] = Json::array();
  for (std::size_t i = 0; i < kControls.size(); ++i) {
    file["added_tokens"].push_back({{"id", kBytes + static_cast<TokenId>(i)},
                                    {"content", kControls[i]},
                                    {"single_word", false},
                                    {"lstrip", false},
                                    {"rstrip", false},
                                    {"normalized", false},
                                    {"special", true}});
  }
  file["normalizer"] = nullptr;
  file["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", Json::array({byte_level})}};
  file["post_processor"] = nullptr;
  file["decoder"] = {{"type", "ByteLevel"}};
  file["model"]["type"] = "BPE";
  for (int byte = 0; byte < kBytes; ++byte) file["model"]["vocab"][byte_character(byte)] = byte;
  file["model"]["merges"] = Json::array();
  auto tokenizer = Tokenizer::from_json(dump_json(file));
  CHECK(tokenizer.ok(), tokenizer.status().ToString());
  return *std::move(tokenizer);
}

Deployment make_deployment() {
  static const std::unique_ptr<Tokenizer> kTokenizer = make_tokenizer();
  const auto control = resolve_control_tokens(*kTokenizer);
  CHECK(control.ok(), control.status().ToString());
  Deployment deployment;
  deployment.model_id = "nano";
  deployment.tokenizer = kTokenizer.get();
  deployment.control = *control;
  deployment.begin_of_sequence = *kTokenizer->control_token(spelling::kBegin);
  deployment.vocab_size = kTokenizer->id_bound();
  return deployment;
}

}  // namespace

const Deployment& byte_deployment() {
  static const Deployment kDeployment = make_deployment();
  return kDeployment;
}

TokenId control_token(int index) { return kBytes + index; }

}  // namespace millrace::tests::fuzz
