#include "deploy/cli/eval_tasks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace millrace::deploy::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class EvalTasksTest : public ::testing::Test {
 protected:
  EvalTasksTest() {
    std::string name = ::testing::TempDir() + "eval_tasks_XXXXXX";
    dir_ = mkdtemp(name.data());
  }
  ~EvalTasksTest() override { std::filesystem::remove_all(dir_); }

  absl::StatusOr<std::vector<EvalTask>> read(const std::string& text) {
    const std::string path = dir_ + "/tasks.jsonl";
    std::ofstream(path) << text;
    return read_eval_tasks(path);
  }

  std::string dir_;
};

TEST_F(EvalTasksTest, ReadsOneTaskPerLine) {
  const auto tasks =
      read(R"({"task":"copy","prompt_ids":[0,5],"expect_ids":[5,1],"max_tokens":4})"
           "\n\n"
           R"({"task":"sum","prompt_ids":[0],"expect_ids":[9],"max_tokens":1,"note":"kept"})");
  ASSERT_TRUE(tasks.ok()) << tasks.status();
  ASSERT_EQ(tasks->size(), 2u);
  EXPECT_EQ((*tasks)[0].task, "copy");
  EXPECT_THAT((*tasks)[0].prompt_ids, ElementsAre(0, 5));
  EXPECT_THAT((*tasks)[0].expect_ids, ElementsAre(5, 1));
  EXPECT_EQ((*tasks)[1].max_tokens, 1);
}

TEST_F(EvalTasksTest, NamesTheLineAndTheField) {
  const auto error = [&](const std::string& text) { return read(text).status().ToString(); };
  EXPECT_THAT(error("{}"), HasSubstr("line 1: "));
  EXPECT_THAT(error("{}"), HasSubstr("task"));
  EXPECT_THAT(error("\n{\"task\":\"a\"}"), HasSubstr("line 2: prompt_ids"));
  EXPECT_THAT(error(R"({"task":"a","prompt_ids":[-1],"expect_ids":[1],"max_tokens":1})"),
              HasSubstr("prompt_ids holds -1"));
  EXPECT_THAT(error(R"({"task":"a","prompt_ids":[1],"expect_ids":[],"max_tokens":1})"),
              HasSubstr("expect_ids"));
  EXPECT_THAT(error(R"({"task":"a","prompt_ids":[1],"expect_ids":[1,2],"max_tokens":1})"),
              HasSubstr("max_tokens"));
  EXPECT_THAT(error(""), HasSubstr("holds no task"));
}

TEST_F(EvalTasksTest, OnlyTheWholeAnswerCounts) {
  const EvalTask task{.task = "copy", .prompt_ids = {0}, .expect_ids = {5, 1}, .max_tokens = 4};
  EXPECT_TRUE(is_exact_match(task, {5, 1}));
  EXPECT_FALSE(is_exact_match(task, {5}));
  EXPECT_FALSE(is_exact_match(task, {5, 1, 1}));
  EXPECT_FALSE(is_exact_match(task, {}));
}

}  // namespace
}  // namespace millrace::deploy::cli
