#include "api/recipe/stop_matcher.h"

#include <gtest/gtest.h>

#include <random>

namespace millrace::api::recipe {
namespace {

struct Outcome {
  std::string text;
  std::string matched;
  bool operator==(const Outcome&) const = default;
};

/// The definition: the first byte at which a stop string ends; of those that end there, the
/// longest.
Outcome by_definition(const std::vector<std::string>& stops, const std::string& text) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::string best;
    for (const std::string& stop : stops) {
      if (stop.size() <= end && text.compare(end - stop.size(), stop.size(), stop) == 0 &&
          stop.size() > best.size()) {
        best = stop;
      }
    }
    if (!best.empty()) return {text.substr(0, end - best.size()), best};
  }
  return {text, ""};
}

TEST(StopMatcher, EqualsTheDefinitionForEveryCut) {
  for (unsigned seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const auto word = [&](std::size_t longest) {
      std::string text(1 + random() % longest, 'a');
      for (char& c : text) c = "ab"[random() % 2];
      return text;
    };
    std::vector<std::string> stops;
    for (std::size_t i = 0; i < 1 + seed % 4; ++i) stops.push_back(word(5) + "c");
    if (seed % 3 == 0) stops.push_back(word(6));
    std::string text = word(20);
    for (int i = 0; i < 3; ++i) text += (random() % 2 ? "c" : "") + word(6);
    const Outcome expected = by_definition(stops, text);

    StopMatcher matcher(stops);
    Outcome actual;
    bool found = false;
    for (std::size_t at = 0; at < text.size() && !found;) {
      const std::size_t length = 1 + random() % 3;
      found = matcher.push(std::string_view(text).substr(at, length), actual.text);
      at += length;
      ASSERT_EQ(expected.text.compare(0, actual.text.size(), actual.text), 0) << "sent too much";
    }
    if (!found) matcher.finish(actual.text);
    actual.matched = matcher.matched();
    ASSERT_EQ(actual.text, expected.text);
    ASSERT_EQ(actual.matched, expected.matched);
  }
}

TEST(StopMatcher, HoldsBackOnlyWhatMayBeginAStopString) {
  StopMatcher matcher({"STOP", "\n\nUser"});
  std::string out;
  EXPECT_FALSE(matcher.push("say ST", out));
  EXPECT_EQ(out, "say ");
  EXPECT_FALSE(matcher.push("A\n", out));
  EXPECT_EQ(out, "say STA");
  EXPECT_FALSE(matcher.push("x", out));
  EXPECT_EQ(out, "say STA\nx");
}

TEST(StopMatcher, WithoutStopStringsHoldsNothing) {
  StopMatcher matcher({});
  std::string out;
  EXPECT_FALSE(matcher.push("anything", out));
  EXPECT_EQ(out, "anything");
}

}  // namespace
}  // namespace millrace::api::recipe
