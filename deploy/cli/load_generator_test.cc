#include "deploy/cli/load_generator.h"

#include <gtest/gtest.h>

namespace millrace::deploy::cli {
namespace {

TEST(ClipToContext, ShortensPromptsBeforeAnswers) {
  std::vector<RequestShape> shapes = {{.input_tokens = 100, .output_tokens = 28},
                                      {.input_tokens = 100, .output_tokens = 29},
                                      {.input_tokens = 500, .output_tokens = 64},
                                      {.input_tokens = 5, .output_tokens = 1000}};
  EXPECT_EQ(clip_to_context(shapes, 128), 3);
  EXPECT_EQ(shapes[0].input_tokens, 100);
  EXPECT_EQ(shapes[0].output_tokens, 28);
  EXPECT_EQ(shapes[1].input_tokens, 99);
  EXPECT_EQ(shapes[1].output_tokens, 29);
  EXPECT_EQ(shapes[2].input_tokens, 64);
  EXPECT_EQ(shapes[2].output_tokens, 64);
  EXPECT_EQ(shapes[3].input_tokens, 1);
  EXPECT_EQ(shapes[3].output_tokens, 127);
}

}  // namespace
}  // namespace millrace::deploy::cli
