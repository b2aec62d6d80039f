#include "dataplane/model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/json.h"
#include "common/mapped_file.h"
#include "common/str_cat.h"
#include "dataplane/model/inventory.h"
#include "dataplane/model/random_checkpoint.h"
#include "dataplane/model/rope.h"

namespace millrace::dataplane::model {
namespace {

using testing::HasSubstr;

ModelConfig official() {
  const auto text = read_file(MILLRACE_SOURCE_DIR "/dataplane/model/testdata/official_config.json");
  EXPECT_TRUE(text.ok()) << text.status();
  const auto config = parse_model_config(*text);
  EXPECT_TRUE(config.ok()) << config.status();
  return *config;
}

/// The tiny configuration with one key of text_config replaced; a null value removes it.
std::string with_key(const std::string& key, const Json& value) {
  Json document = *parse_json(tiny_config_json());
  if (value.is_null()) {
    document["text_config"].erase(key);
  } else {
    document["text_config"][key] = value;
  }
  return dump_json(document);
}

void expect_refused(const std::string& text, const std::string& names) {
  const auto config = parse_model_config(text);
  ASSERT_FALSE(config.ok()) << names;
  EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(message_of(config.status())), HasSubstr(names));
}

TEST(ModelConfig, ReadsTheOfficialFile) {
  const ModelConfig config = official();
  EXPECT_EQ(config.vocab_size, 129280);
  EXPECT_EQ(config.compress_ratios.size(), 43u);
  EXPECT_EQ(config.rms_norm_eps, 1e-20);
  EXPECT_EQ(config.rope_scaling.original_max_position_embeddings, 65536);
  EXPECT_EQ(config.gate_temp, 1.0);
  ASSERT_TRUE(config.vision_config.has_value());
  EXPECT_EQ(config.vision_config->min_pixels, 295936);
}

TEST(ModelConfig, KnowsTheRoleOfEveryOfficialLayer) {
  const ModelConfig config = official();
  EXPECT_EQ(config.first_decoder_layer(), 20);
  for (int layer : {0, 1, 40, 41, 42}) EXPECT_EQ(config.kv_source_of(layer), -1) << layer;
  const std::vector<std::array<int, 3>> roles = {
      {2, 2, 2},    {7, 2, 2},    {8, 8, 8},    {13, 8, 8},   {14, 14, 14}, {19, 14, 14},
      {20, 20, 20}, {23, 20, 20}, {24, 20, 24}, {27, 20, 24}, {32, 20, 32}, {39, 20, 36}};
  for (const auto& [layer, kv, index] : roles) {
    EXPECT_EQ(config.kv_source_of(layer), kv) << layer;
    EXPECT_EQ(config.index_source_of(layer), index) << layer;
  }
  EXPECT_EQ(config.engram_index(1), 0);
  EXPECT_EQ(config.engram_index(14), 1);
  EXPECT_EQ(config.engram_index(2), -1);
}

TEST(Inventory, OfficialConfigurationExpandsToThePublishedCountAndBytes) {
  const std::vector<TensorSpec> specs = expected_tensors(official());
  EXPECT_EQ(specs.size(), 96085u);
  std::int64_t bytes = 0;
  std::int64_t experts = 0, engram = 0;
  for (const TensorSpec& spec : specs) {
    const std::int64_t size = tensor_bytes(spec.type, spec.shape);
    bytes += size;
    if (spec.name.find("ffn.experts.") != std::string::npos && spec.name[0] == 'l') experts += size;
    if (spec.name.find("engram.embed.") != std::string::npos) engram += size;
  }
  EXPECT_EQ(bytes, 510286023000);
  EXPECT_EQ(experts, 288777830400);
  EXPECT_EQ(engram, 202758032400);
}

TEST(Inventory, HasThePublishedShapes) {
  std::map<std::string, std::string> shapes;
  for (const TensorSpec& spec : expected_tensors(official())) {
    shapes[spec.name] = describe(spec.type, spec.shape);
  }
  EXPECT_EQ(shapes["layers.0.attn.wq_a.scale"], "F8_E8M0 [40, 160]");
  EXPECT_EQ(shapes["layers.1.engram.wkv.scale"], "F8_E8M0 [800, 192]");
  EXPECT_EQ(shapes["layers.36.attn.indexer.wq_b.scale"], "F8_E8M0 [128, 40]");
  EXPECT_EQ(shapes["mtp.2.confidence_head.proj.weight"], "BF16 [1, 5376]");
  EXPECT_EQ(shapes["mtp.0.main_proj.scale"], "F8_E8M0 [160, 480]");
  EXPECT_EQ(shapes["layers.3.ffn.experts.383.w2.weight"], "I8 [5120, 1152]");
  EXPECT_EQ(shapes["vision.blocks.31.mlp.w1.weight"], "BF16 [5632, 1024]");
  EXPECT_EQ(shapes.count("layers.20.attn.compressor.wgate.weight"), 0u);
  EXPECT_EQ(shapes.count("layers.24.attn.indexer.wk.weight"), 0u);
}

TEST(ModelConfig, NamesTheKeyThatIsMissingUnknownOrOfTheWrongType) {
  EXPECT_TRUE(parse_model_config(tiny_config_json()).ok());
  expect_refused(with_key("hidden_size", nullptr), "text_config.hidden_size is missing");
  expect_refused(with_key("hidden_size", "128"), "text_config.hidden_size must be an integer");
  expect_refused(with_key("hidden_size", 0), "text_config.hidden_size 0 must lie in");
  expect_refused(with_key("hiden_size", 128), "text_config.hiden_size is not a key");
  expect_refused(with_key("rms_norm_eps", -1.0), "text_config.rms_norm_eps");
  expect_refused(with_key("scoring_func", "softmax"), "text_config.scoring_func must be");
  expect_refused("{", "config.json: invalid JSON");
  expect_refused("[]", "config.json");
}

TEST(ModelConfig, RefusesContradictionsBetweenKeys) {
  expect_refused(with_key("kv_source_layer_ids", {0, 2, 5}), "kv_source_layer_ids");
  expect_refused(with_key("kv_source_layer_ids", {2, 6}), "kv_source_layer_ids");
  expect_refused(with_key("kv_source_layer_ids", {5, 2}), "kv_source_layer_ids");
  expect_refused(with_key("kv_source_layer_ids", {5}), "layer 2 has no KV source");
  expect_refused(with_key("index_source_layer_ids", {0, 2, 5}), "index_source_layer_ids");
  expect_refused(with_key("index_source_layer_ids", {2, 5, 9}), "index_source_layer_ids");
  expect_refused(with_key("compress_ratios", {0, 0, 2, 2, 2, 1, 1, 1}), "compress_ratios");
  expect_refused(with_key("compress_ratios", {0, 0, 2, 2, 1, 1, 1, 1, 0}),
                 "compress_ratios: layer 4");
  expect_refused(with_key("compress_ratios", {0, 0, 2, 2, 2, 1, 1, 1, 1}), "draft");
  expect_refused(with_key("compress_ratios", {0, 0, 3, 3, 3, 1, 1, 1, 0}), "does not divide");
  expect_refused(with_key("candidate_source_layer_id", 6), "candidate_source_layer_id");
  expect_refused(with_key("candidate_source_layer_id", 2), "candidate_source_layer_id");
  expect_refused(with_key("engram_layer_ids", {1, 6}), "engram_layer_ids");
  expect_refused(with_key("engram_num_embeddings", {290, 371}), "engram_num_embeddings: entry 1");
  expect_refused(with_key("head_dim", 72), "head_dim");
  expect_refused(with_key("o_groups", 3), "o_groups");
  expect_refused(with_key("num_experts_per_tok", 9), "num_experts_per_tok");
  expect_refused(with_key("engram_pad_token_id", 288), "engram_pad_token_id");
}

TEST(ModelConfig, CandidateSelectionMayBeOff) {
  EXPECT_TRUE(parse_model_config(with_key("candidate_source_layer_id", -1)).ok());
  Json document = *parse_json(tiny_config_json());
  document["text_config"]["candidate_source_layer_id"] = nullptr;
  const auto config = parse_model_config(dump_json(document));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_LT(config->candidate_source_layer_id, 0);
}

TEST(Rope, YarnGivesThePublishedFrequencies) {
  const std::vector<float> f = rope_frequencies(official(), RopeKind::kCompress);
  ASSERT_EQ(f.size(), 32u);
  const std::vector<std::pair<std::size_t, double>> expected = {
      {0, 1.0},          {15, 3.635539e-3}, {16, 2.265625e-3}, {20, 2.969778e-4},
      {24, 1.953125e-5}, {25, 5.372313e-6}, {31, 5.680529e-7}};
  for (const auto& [i, value] : expected) EXPECT_NEAR(f[i] / value, 1.0, 2e-7) << i;
}

TEST(Rope, MainTableIsNotStretched) {
  const std::vector<float> f = rope_frequencies(official(), RopeKind::kMain);
  for (std::size_t i = 0; i < f.size(); ++i) {
    EXPECT_FLOAT_EQ(f[i], static_cast<float>(std::pow(10000.0, -static_cast<double>(i) / 32))) << i;
  }
}

}  // namespace
}  // namespace millrace::dataplane::model
