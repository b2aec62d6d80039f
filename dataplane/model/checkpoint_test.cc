#include "dataplane/model/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "common/hex.h"
#include "common/json.h"
#include "common/mapped_file.h"
#include "common/str_cat.h"
#include "dataplane/model/random_checkpoint.h"
#include "dataplane/model/safetensors.h"

namespace millrace::dataplane::model {
namespace {

using testing::HasSubstr;

class CheckpointTest : public testing::Test {
 protected:
  CheckpointTest() : folder_(str_cat(testing::TempDir(), "checkpoint_", ::getpid())) {
    std::filesystem::remove_all(folder_);
    EXPECT_TRUE(write_random_checkpoint(folder_, tiny_config_json(), 7).ok());
  }
  ~CheckpointTest() override { std::filesystem::remove_all(folder_); }

  std::string path(std::string_view file) const { return str_cat(folder_, "/", file); }
  std::string read(std::string_view file) const { return *read_file(path(file)); }
  void write(std::string_view file, std::string_view content) const {
    ASSERT_TRUE(write_file_atomically(path(file), content).ok());
  }

  /// Opens and expects an error; returns its message.
  std::string refused(absl::StatusCode code) const {
    const auto checkpoint = Checkpoint::open(folder_);
    EXPECT_FALSE(checkpoint.ok());
    EXPECT_EQ(checkpoint.status().code(), code) << checkpoint.status();
    return std::string(message_of(checkpoint.status()));
  }

  /// Rewrites a shard after `edit` changed its tensors.
  template <typename Edit>
  void edit_shard(std::string_view file, Edit edit) const {
    const std::string content = read(file);
    const std::span<const std::uint8_t> bytes(reinterpret_cast<const std::uint8_t*>(content.data()),
                                              content.size());
    std::vector<FileTensor> tensors;
    const auto parsed = parse_safetensors(bytes, "test");
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    for (const StoredTensor& tensor : *parsed) {
      tensors.push_back(
          {tensor.name, tensor.type, tensor.shape, {tensor.bytes.begin(), tensor.bytes.end()}});
    }
    edit(tensors);
    const std::vector<std::uint8_t> out = encode_safetensors(tensors);
    write(file, {reinterpret_cast<const char*>(out.data()), out.size()});
  }

  const std::string folder_;
};

TEST_F(CheckpointTest, OpensAndMapsEveryTensor) {
  const auto checkpoint = Checkpoint::open(folder_);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  for (const TensorSpec& spec : expected_tensors((*checkpoint)->config())) {
    const TensorView& tensor = (*checkpoint)->tensor(spec.name);
    EXPECT_EQ(tensor.shape, spec.shape) << spec.name;
    EXPECT_EQ(static_cast<std::int64_t>(tensor.bytes.size()), tensor_bytes(spec.type, spec.shape))
        << spec.name;
  }
  EXPECT_EQ((*checkpoint)->engram_token_map().size(), 288u);
}

TEST_F(CheckpointTest, ListsEveryProblemInOneError) {
  edit_shard("model-1.safetensors", [](std::vector<FileTensor>& tensors) {
    for (FileTensor& tensor : tensors) {
      if (tensor.name == "norm.weight") tensor.name = "foreign.weight";
      if (tensor.name == "layers.0.attn.attn_sink") tensor.type = "I32";
      if (tensor.name == "layers.0.attn_norm.weight") tensor.shape = {64, 2};
    }
  });
  const std::string message = refused(absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(message, HasSubstr("4 tensors do not match"));
  EXPECT_THAT(message, HasSubstr("norm.weight: missing, expected BF16 [128]"));
  EXPECT_THAT(message, HasSubstr("foreign.weight: extra, BF16 [128]"));
  EXPECT_THAT(message, HasSubstr("layers.0.attn.attn_sink: I32 [4], expected F32 [4]"));
  EXPECT_THAT(message, HasSubstr("layers.0.attn_norm.weight: BF16 [64, 2], expected BF16 [128]"));
}

TEST_F(CheckpointTest, BoundsTheListOfProblems) {
  edit_shard("model-1.safetensors", [](std::vector<FileTensor>& tensors) { tensors.resize(10); });
  const std::string message = refused(absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(message, HasSubstr("more"));
  EXPECT_LT(message.size(), 8000u);
}

TEST_F(CheckpointTest, NamesATruncatedShardAndItsTensor) {
  const std::string content = read("model-2.safetensors");
  write("model-2.safetensors", std::string_view(content).substr(0, content.size() - 1));
  const std::string message = refused(absl::StatusCode::kDataLoss);
  EXPECT_THAT(message, HasSubstr("model-2.safetensors: tensor "));
  EXPECT_THAT(message, HasSubstr("truncated"));
  write("model-2.safetensors", std::string_view(content).substr(0, 5));
  EXPECT_THAT(refused(absl::StatusCode::kDataLoss), HasSubstr("model-2.safetensors: too short"));
  std::filesystem::remove(path("model-2.safetensors"));
  EXPECT_THAT(refused(absl::StatusCode::kNotFound), HasSubstr("model-2.safetensors"));
}

TEST_F(CheckpointTest, RefusesABadTokenMap) {
  write("engram_token_map.json", R"({"token_map": [0, 1, 2]})");
  EXPECT_THAT(refused(absl::StatusCode::kInvalidArgument),
              HasSubstr("3 entries, vocab_size is 288"));
  Json list = Json::array();
  for (int i = 0; i < 288; ++i) list.push_back(i % 261);
  write("engram_token_map.json", dump_json(Json{{"token_map", list}}));
  EXPECT_THAT(refused(absl::StatusCode::kInvalidArgument), HasSubstr("261 distinct ids"));
  list[7] = 262;
  write("engram_token_map.json", dump_json(Json{{"token_map", list}}));
  EXPECT_THAT(refused(absl::StatusCode::kInvalidArgument), HasSubstr("entry 7"));
  std::filesystem::remove(path("engram_token_map.json"));
  EXPECT_THAT(refused(absl::StatusCode::kNotFound), HasSubstr("engram_token_map.json"));
}

TEST_F(CheckpointTest, RefusesAnIndexThatLeavesTheFolderOrDisagrees) {
  Json index = *parse_json(read("model.safetensors.index.json"));
  Json outside = index;
  outside["weight_map"]["norm.weight"] = "../norm.safetensors";
  write("model.safetensors.index.json", dump_json(outside));
  EXPECT_THAT(refused(absl::StatusCode::kInvalidArgument), HasSubstr("norm.weight"));
  index["weight_map"]["norm.weight"] = "model-2.safetensors";
  write("model.safetensors.index.json", dump_json(index));
  EXPECT_THAT(refused(absl::StatusCode::kInvalidArgument), HasSubstr("norm.weight is in model-1"));
  write("model.safetensors.index.json", "{}");
  EXPECT_THAT(refused(absl::StatusCode::kInvalidArgument), HasSubstr("weight_map"));
}

TEST_F(CheckpointTest, RefusesATensorThatOccursTwice) {
  std::vector<FileTensor> first;
  edit_shard("model-1.safetensors",
             [&](std::vector<FileTensor>& tensors) { first = {tensors[2]}; });
  edit_shard("model-2.safetensors",
             [&](std::vector<FileTensor>& tensors) { tensors.push_back(first[0]); });
  Json index = *parse_json(read("model.safetensors.index.json"));
  index["weight_map"].erase(first[0].name);
  write("model.safetensors.index.json", dump_json(index));
  EXPECT_THAT(refused(absl::StatusCode::kInvalidArgument),
              HasSubstr(str_cat("tensor ", first[0].name, " occurs in two shards")));
}

TEST_F(CheckpointTest, NamesAMissingFolder) {
  const auto checkpoint = Checkpoint::open(folder_ + "_not_there");
  EXPECT_EQ(checkpoint.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(message_of(checkpoint.status())), HasSubstr("_not_there/config.json"));
}

TEST_F(CheckpointTest, DigestCoversConfigTokenizerAndWeights) {
  const auto digest = [&] { return to_hex((*Checkpoint::open(folder_))->artifact_digest()); };
  const std::string first = digest();
  EXPECT_EQ(digest(), first);
  write("tokenizer.json", "{}");
  const std::string with_tokenizer = digest();
  EXPECT_NE(with_tokenizer, first);
  write("tokenizer.json", "{ }");
  EXPECT_NE(digest(), with_tokenizer);
  std::filesystem::remove(path("tokenizer.json"));
  EXPECT_EQ(digest(), first);
  write("config.json", read("config.json") + "\n");
  EXPECT_NE(digest(), first);
  write("config.json", tiny_config_json());
  edit_shard("model-2.safetensors",
             [](std::vector<FileTensor>& tensors) { tensors[3].bytes[0] ^= 1; });
  EXPECT_NE(digest(), first);
}

std::vector<std::uint8_t> small_file() {
  return encode_safetensors({{"a", "F32", {2}, std::vector<std::uint8_t>(8, 1)},
                             {"b", "BF16", {1, 3}, std::vector<std::uint8_t>(6, 2)}});
}

TEST(Safetensors, ReadsWhatWasWritten) {
  const std::vector<std::uint8_t> file = small_file();
  const auto tensors = parse_safetensors(file, "f");
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  ASSERT_EQ(tensors->size(), 2u);
  EXPECT_EQ((*tensors)[1].name, "b");
  EXPECT_EQ((*tensors)[1].shape, (std::vector<std::int64_t>{1, 3}));
  EXPECT_EQ((*tensors)[1].bytes[0], 2);
}

/// A file with this header text and data bytes.
std::vector<std::uint8_t> file_of(std::string_view header, std::size_t data_bytes) {
  std::vector<std::uint8_t> file(8, 0);
  file[0] = static_cast<std::uint8_t>(header.size());
  file[1] = static_cast<std::uint8_t>(header.size() >> 8);
  file.insert(file.end(), header.begin(), header.end());
  file.resize(file.size() + data_bytes);
  return file;
}

TEST(Safetensors, RefusesHeadersThatLie) {
  const std::vector<std::tuple<const char*, std::size_t, const char*>> bad = {
      {R"([])", 0, "no JSON object"},
      {R"({"a": 1})", 0, "tensor a"},
      {R"({"a": {"dtype": "F32", "shape": [2]}})", 8, "tensor a"},
      {R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 9]}})", 8, "truncated"},
      {R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}})", 8, "no range"},
      {R"({"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}})", 8, "need 12"},
      {R"({"a": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}})", 8, "natural number"},
      {R"({"a": {"dtype": "F32", "shape": [4294967296, 4294967296], "data_offsets": [0, 8]}})", 8,
       "overflows"},
      {R"({"a": {"dtype": "Q7", "shape": [2], "data_offsets": [0, 8]}})", 8, "unknown dtype"},
      {R"({"a": {"dtype": "F4", "shape": [1], "data_offsets": [0, 1]}})", 1, "inside a byte"},
      {R"({"a": {"dtype": "I8", "shape": [4], "data_offsets": [0, 4]}, "b": {"dtype": "I8", "shape": [4], "data_offsets": [2, 6]}})",
       6, "overlaps"},
      {R"({"a": {"dtype": "I8", "shape": [4], "data_offsets": [1, 5]}})", 5, "gap"},
      {R"({"a": {"dtype": "I8", "shape": [4], "data_offsets": [0, 4]}})", 5,
       "belong to no tensor"}};
  for (const auto& [header, data, names] : bad) {
    const auto tensors = parse_safetensors(file_of(header, data), "the file");
    ASSERT_FALSE(tensors.ok()) << header;
    EXPECT_EQ(tensors.status().code(), absl::StatusCode::kDataLoss) << header;
    EXPECT_THAT(std::string(message_of(tensors.status())), HasSubstr("the file: ")) << header;
    EXPECT_THAT(std::string(message_of(tensors.status())), HasSubstr(names)) << header;
  }
}

TEST(Safetensors, SurvivesEveryTruncationAndBitFlip) {
  const std::vector<std::uint8_t> file = small_file();
  for (std::size_t size = 0; size < file.size(); ++size) {
    EXPECT_FALSE(parse_safetensors(std::span(file).first(size), "f").ok()) << size;
  }
  const std::size_t header = file.size() - 14;
  for (std::size_t i = 0; i < header; ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::vector<std::uint8_t> flipped = file;
      flipped[i] ^= static_cast<std::uint8_t>(1 << bit);
      const auto tensors = parse_safetensors(flipped, "f");
      // What still parses must still lie inside the file.
      if (!tensors.ok()) continue;
      for (const StoredTensor& tensor : *tensors) {
        EXPECT_GE(tensor.bytes.data(), flipped.data());
        EXPECT_LE(tensor.bytes.data() + tensor.bytes.size(), flipped.data() + flipped.size());
      }
    }
  }
}

}  // namespace
}  // namespace millrace::dataplane::model
