#include "deploy/cli/prompt_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace millrace::deploy::cli {
namespace {

TEST(MadeUpText, DependsOnItsSeedAlone) {
  EXPECT_EQ(made_up_text(1, 50), made_up_text(1, 50));
  EXPECT_NE(made_up_text(1, 50), made_up_text(2, 50));
  EXPECT_EQ(made_up_text(1, 0), "");
}

TEST(MadeUpText, HasThatManyWords) {
  for (int words : {1, 2, 17, 400}) {
    const std::string text = made_up_text(9, words);
    EXPECT_EQ(std::count(text.begin(), text.end(), ' '), words);
  }
}

TEST(PromptText, NamesTheFileThatIsMissing) {
  EXPECT_THAT(PromptText::open("/nonexistent").status().ToString(),
              ::testing::HasSubstr("/nonexistent/tokenizer.json"));
}

TEST(PromptText, MakesExactlyTheLengthThatIsAskedFor) {
  const auto text = PromptText::open(MILLRACE_SOURCE_DIR "/deploy/models/nano");
  ASSERT_TRUE(text.ok()) << text.status();
  for (int count : {1, 2, 100, 3000}) {
    const auto ids = text->token_ids(5, count);
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(ids->size(), static_cast<std::size_t>(count));
    EXPECT_EQ(*ids, *text->token_ids(5, count));
  }
  EXPECT_NE(*text->token_ids(5, 100), *text->token_ids(6, 100));
}

}  // namespace
}  // namespace millrace::deploy::cli
