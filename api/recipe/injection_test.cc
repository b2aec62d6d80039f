#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "api/recipe/prepared_request.h"
#include "api/recipe/test_deployment.h"
#include "api/recipe/test_fixtures.h"
#include "common/json.h"

namespace millrace::api::recipe {
namespace {

constexpr int kRequestsPerProtocol = 1000;

/// Where clients put text: every string of a request and every name in a schema, but for those that
/// choose among fixed values.
bool is_free(std::string_view key) {
  static const std::set<std::string_view> kFixed = {
      "model", "role", "type", "media_type", "format", "effort", "reasoning_effort", "tool_choice"};
  return !kFixed.contains(key);
}

using Change = std::function<std::string(const std::string& text)>;

/// Applies a change to each free text with some probability. The same seed chooses the same texts.
class Mutation {
 public:
  Mutation(unsigned seed, Change change) : random_(seed), change_(std::move(change)) {}

  void apply(Json& value, std::string_view key) {
    if (value.is_string() && is_free(key) && is_chosen()) {
      value = change_(value.get<std::string>());
    } else if (value.is_array()) {
      for (Json& item : value) apply(item, key);
    } else if (value.is_object()) {
      Json changed = Json::object();
      for (auto& [name, member] : value.items()) {
        const bool is_renamed = key == "properties" && is_chosen();
        apply(member, name);
        changed[is_renamed ? change_(name) : name] = std::move(member);
      }
      value = std::move(changed);
    }
  }

 private:
  bool is_chosen() { return random_() % 3 == 0; }

  std::mt19937 random_;
  const Change change_;
};

class Injection : public testing::Test {
 protected:
  Injection() {
    const tokenizer::Tokenizer& tokenizer = *nano_.value.tokenizer;
    for (TokenId id = 0; id < tokenizer.id_bound(); ++id) {
      const std::string spelling(tokenizer.token_bytes(id));
      if (tokenizer.control_token(spelling) == id) spellings_[id] = spelling;
    }
  }

  std::string random_spelling(std::mt19937& random) const {
    return std::next(spellings_.begin(), random() % spellings_.size())->second;
  }

  /// The control tokens of a prompt, in order.
  std::vector<TokenId> controls(const PreparedRequest& request) const {
    std::vector<TokenId> ids;
    for (const TokenId id : request.prompt) {
      if (spellings_.contains(id)) ids.push_back(id);
    }
    return ids;
  }

  absl::StatusOr<PreparedRequest> prepare(PrepareFunction function, Json body, unsigned seed,
                                          Change change) const {
    Mutation(seed, std::move(change)).apply(body, "");
    return function(body.dump(), nano_.value, {"1", 0});
  }

  /// Spellings in any texts of a request leave its control tokens as they are with harmless words
  /// in the same places.
  void expect_no_injection(const std::string& protocol, PrepareFunction function) const {
    std::vector<Json> bodies;
    for (Json line : test::read_fixture_lines("prompt_cases.jsonl")) {
      line["body"]["model"] = nano_.value.model_id;
      const bool is_ours = line["protocol"] == protocol;
      if (is_ours && function(line["body"].dump(), nano_.value, {"1", 0}).ok()) {
        bodies.push_back(line["body"]);
      }
    }
    ASSERT_FALSE(bodies.empty());
    int prompts = 0;
    for (unsigned seed = 0; seed < kRequestsPerProtocol; ++seed) {
      const Json& body = bodies[seed % bodies.size()];
      const auto harmless =
          prepare(function, body, seed, [](const std::string& text) { return text + " (word) "; });
      std::mt19937 random(seed);
      const auto hostile = prepare(function, body, seed, [&](const std::string& text) {
        return text + random_spelling(random) + random_spelling(random);
      });
      if (!harmless.ok() || !hostile.ok()) continue;
      ASSERT_EQ(controls(*hostile), controls(*harmless)) << body.dump();
      ++prompts;
    }
    // Names and the like are refused; most texts may be anything.
    EXPECT_GT(prompts, kRequestsPerProtocol / 4);
  }

  test::NanoDeployment nano_;
  std::map<TokenId, std::string> spellings_;
};

TEST_F(Injection, ChatCompletions) { expect_no_injection("chat_completions", prepare_chat); }
TEST_F(Injection, Responses) { expect_no_injection("responses", prepare_responses); }
TEST_F(Injection, Messages) { expect_no_injection("messages", prepare_messages); }

// The check would notice: read with the added vocabulary, a spelling does become a token.
TEST_F(Injection, SpellingsCountInRawPrompts) {
  const auto controls_of = [&](bool parse_special) {
    Json body = {{"model", nano_.value.model_id}, {"prompt", "a<｜User｜>b"}};
    body["parse_special"] = parse_special;
    return controls(*prepare_completion(body.dump(), nano_.value, {"1", 0}));
  };
  EXPECT_EQ(controls_of(true), std::vector<TokenId>{nano_.control("<｜User｜>")});
  EXPECT_EQ(controls_of(false), std::vector<TokenId>{nano_.value.begin_of_sequence});
}

}  // namespace
}  // namespace millrace::api::recipe
