#include "common/trace/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>
#include <numeric>

#include "common/str_cat.h"

namespace millrace::common::trace {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class TraceTest : public ::testing::Test {
 protected:
  ~TraceTest() override { std::filesystem::remove(path_); }

  absl::StatusOr<std::vector<RequestShape>> read(const std::string& text, std::size_t most = 1000) {
    std::ofstream(path_, std::ios::binary) << text;
    return read_trace(path_, most);
  }

  std::string error_of(const std::string& text) {
    const auto trace = read(text);
    return trace.ok() ? "no error" : std::string(message_of(trace.status()));
  }

  const std::string path_ = ::testing::TempDir() + "trace_" +
                            std::to_string(::testing::UnitTest::GetInstance()->random_seed()) +
                            ::testing::UnitTest::GetInstance()->current_test_info()->name();
};

const std::string kCsv =
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 23:59:59.9000000,374,44\n"
    "2023-11-17 00:00:00.1500000,396,109";

TEST_F(TraceTest, ReadsCsvWithoutAFinalNewlineOverMidnight) {
  const auto trace = read(kCsv);
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_EQ(trace->size(), 2u);
  EXPECT_EQ((*trace)[0].input_tokens, 374);
  EXPECT_EQ((*trace)[0].output_tokens, 44);
  EXPECT_EQ((*trace)[0].arrival, nanoseconds(0));
  EXPECT_EQ((*trace)[1].arrival, milliseconds(250));
}

TEST_F(TraceTest, ReadsJsonLines) {
  const auto trace =
      read(R"({"timestamp": 3000, "input_length": 6758, "output_length": 500, "hash_ids": [0, 17]})"
           "\n"
           R"({"timestamp": 6000, "input_length": 7322, "output_length": 490})"
           "\n");
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_EQ(trace->size(), 2u);
  EXPECT_THAT((*trace)[0].prefix_blocks, ElementsAre(0, 17));
  EXPECT_THAT((*trace)[1].prefix_blocks, IsEmpty());
  EXPECT_EQ((*trace)[1].input_tokens, 7322);
  EXPECT_EQ((*trace)[1].output_tokens, 490);
  EXPECT_EQ((*trace)[1].arrival, milliseconds(3000));
}

TEST_F(TraceTest, ReadsCompressedFilesAndNoticesDamage) {
  gzFile file = gzopen(path_.c_str(), "wb");
  gzwrite(file, kCsv.data(), static_cast<unsigned>(kCsv.size()));
  gzclose(file);
  const auto trace = read_trace(path_, 1000);
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->size(), 2u);

  std::filesystem::resize_file(path_, std::filesystem::file_size(path_) - 12);
  EXPECT_THAT(read_trace(path_, 1000).status().ToString(), HasSubstr("cannot be decompressed"));
}

TEST_F(TraceTest, StopsAtTheLimit) { EXPECT_EQ(read(kCsv, 1)->size(), 1u); }

TEST_F(TraceTest, NamesTheLineThatIsWrong) {
  const std::string header = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
  EXPECT_THAT(error_of(header + "2023-11-16 18:15:46.68,12\n"),
              HasSubstr("line 2: does not have three"));
  EXPECT_THAT(error_of(header + "2023-11-16 18:15:46.68,12,x\n"),
              HasSubstr("GeneratedTokens is \"x\""));
  EXPECT_THAT(error_of(header + "2023-11-16 18:15:46.68,-1,3\n"), HasSubstr("ContextTokens"));
  EXPECT_THAT(error_of(header + "2023-13-16 18:15:46.68,1,3\n"), HasSubstr("TIMESTAMP"));
  EXPECT_THAT(error_of(header + "noon,1,3\n"), HasSubstr("TIMESTAMP"));
  EXPECT_THAT(error_of(header + "2023-11-16 18:15:46.,1,3\n"), HasSubstr("TIMESTAMP"));
  EXPECT_THAT(error_of(kCsv + "\n2023-11-16 00:00:00,1,1\n"), HasSubstr("line 4: is earlier"));
  EXPECT_THAT(error_of("a,b\n"), HasSubstr("line 1: is neither"));
  EXPECT_THAT(error_of("{\"timestamp\": 1}\n"), HasSubstr("input_length"));
  EXPECT_THAT(error_of(R"({"timestamp": 1, "input_length": 1, "output_length": 16777217})"),
              HasSubstr("out of range"));
  EXPECT_THAT(error_of(R"({"timestamp": 1e13, "input_length": 1, "output_length": 1})"),
              HasSubstr("timestamp"));
  EXPECT_THAT(
      error_of(R"({"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": [0.5]})"),
      HasSubstr("hash_ids must be whole numbers"));
  EXPECT_THAT(error_of(header), HasSubstr("holds no request"));
}

TEST_F(TraceTest, AMissingFileIsNamed) {
  const auto trace = read_trace("/nonexistent/trace.csv", 1);
  EXPECT_EQ(trace.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(trace.status().ToString(), HasSubstr("/nonexistent/trace.csv"));
}

// The sums were taken with awk.
TEST(CommittedTrace, HasTheSumsThatAwkFinds) {
  const auto trace =
      read_trace(MILLRACE_SOURCE_DIR "/tests/data/azure_llm_2023_conv_500.csv.gz", 1000);
  ASSERT_TRUE(trace.ok()) << trace.status();
  const auto sum = [&](auto member) {
    return std::accumulate(trace->begin(), trace->end(), 0,
                           [&](int total, const RequestShape& r) { return total + r.*member; });
  };
  EXPECT_EQ(trace->size(), 500u);
  EXPECT_EQ(sum(&RequestShape::input_tokens), 467684);
  EXPECT_EQ(sum(&RequestShape::output_tokens), 132536);
}

}  // namespace
}  // namespace millrace::common::trace
