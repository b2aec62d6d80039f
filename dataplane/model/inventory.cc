#include "dataplane/model/inventory.h"

#include <utility>

#include "common/check.h"
#include "common/str_cat.h"
#include "dataplane/model/number_formats.h"

namespace millrace::dataplane::model {
namespace {

using Shape = std::vector<std::int64_t>;

std::int64_t blocks_of(std::int64_t width) { return (width + kWeightBlock - 1) / kWeightBlock; }

/// Collects specs under a changing name prefix.
class Collector {
 public:
  explicit Collector(std::vector<TensorSpec>& out) : out_(out) {}

  void set_prefix(std::string prefix) { prefix_ = std::move(prefix); }

  void add(std::string_view name, DataType type, Shape shape) {
    out_.push_back({str_cat(prefix_, name), type, std::move(shape)});
  }
  void bf16(std::string_view name, Shape shape) { add(name, DataType::kBF16, std::move(shape)); }
  void f32(std::string_view name, Shape shape) { add(name, DataType::kF32, std::move(shape)); }

  /// An FP8 weight and the scales of its 32x32 tiles.
  void fp8(std::string_view name, std::int64_t outputs, std::int64_t inputs) {
    add(str_cat(name, ".weight"), DataType::kF8E4M3, {outputs, inputs});
    add(str_cat(name, ".scale"), DataType::kF8E8M0, {blocks_of(outputs), blocks_of(inputs)});
  }
  /// An FP4 weight, two inputs a byte, and one scale for 32 inputs of a row.
  void fp4(std::string_view name, std::int64_t outputs, std::int64_t inputs) {
    add(str_cat(name, ".weight"), DataType::kI8, {outputs, inputs / 2});
    add(str_cat(name, ".scale"), DataType::kF8E8M0, {outputs, inputs / kWeightBlock});
  }

 private:
  std::vector<TensorSpec>& out_;
  std::string prefix_;
};

void add_vision(const ModelConfig& c, Collector& out) {
  const VisionConfig& v = *c.vision_config;
  const std::int64_t hidden = c.hidden_size;
  const std::int64_t width = v.hidden_size;
  const std::int64_t merged = width * v.downsample_ratio * v.downsample_ratio;
  for (std::string_view name : {"image_start", "image_end", "image_newline"})
    out.bf16(name, {hidden});
  out.bf16("aligner.w1.weight", {hidden, merged});
  out.bf16("aligner.w1.bias", {hidden});
  out.bf16("aligner.w2.weight", {hidden, hidden});
  out.bf16("aligner.w2.bias", {hidden});
  out.bf16("vision.patch_embed.proj.weight",
           {width, std::int64_t{3} * v.patch_size * v.patch_size});
  out.bf16("vision.patch_embed.proj.bias", {width});
  out.bf16("vision.norm.weight", {width});
  for (int block = 0; block < v.num_hidden_layers; ++block) {
    out.set_prefix(str_cat("vision.blocks.", block, "."));
    out.bf16("norm1.weight", {width});
    out.bf16("norm2.weight", {width});
    out.bf16("attn.wqkv.weight", {3 * width, width});
    out.bf16("attn.wqkv.bias", {3 * width});
    out.bf16("attn.wo.weight", {width, width});
    out.bf16("attn.wo.bias", {width});
    out.bf16("mlp.w1.weight", {std::int64_t{2} * v.intermediate_size, width});
    out.bf16("mlp.w2.weight", {width, v.intermediate_size});
  }
  out.set_prefix("");
}

void add_attention(const ModelConfig& c, Collector& out) {
  const std::int64_t heads = c.num_attention_heads;
  const std::int64_t all_heads = heads * c.head_dim;
  const std::int64_t low = std::int64_t{c.o_groups} * c.o_lora_rank;
  out.bf16("attn_norm.weight", {c.hidden_size});
  out.bf16("ffn_norm.weight", {c.hidden_size});
  out.fp8("attn.wq_a", c.q_lora_rank, c.hidden_size);
  out.bf16("attn.q_norm.weight", {c.q_lora_rank});
  out.fp8("attn.wq_b", all_heads, c.q_lora_rank);
  out.fp8("attn.wkv", c.head_dim, c.hidden_size);
  out.bf16("attn.kv_norm.weight", {c.head_dim});
  out.fp8("attn.wo_a", low, all_heads / c.o_groups);
  out.fp8("attn.wo_b", c.hidden_size, low);
  out.f32("attn.attn_sink", {heads});
}

void add_mixes(const ModelConfig& c, Collector& out) {
  const std::int64_t n = c.hc_mult;
  for (std::string_view site : {"attn", "ffn"}) {
    out.f32(str_cat("hc_", site, "_fn"), {(2 + n) * n, n * c.hidden_size});
    out.f32(str_cat("hc_", site, "_base"), {(2 + n) * n});
    out.f32(str_cat("hc_", site, "_scale"), {3});
  }
}

void add_experts(const ModelConfig& c, int experts, Collector& out) {
  const std::int64_t hidden = c.hidden_size;
  const std::int64_t inner = c.moe_intermediate_size;
  out.bf16("ffn.gate.weight", {experts, hidden});
  out.f32("ffn.gate.bias", {experts});
  out.f32("ffn.gate.bias_vl", {experts});
  out.fp8("ffn.shared_experts.w1", inner, hidden);
  out.fp8("ffn.shared_experts.w2", hidden, inner);
  out.fp8("ffn.shared_experts.w3", inner, hidden);
  for (int expert = 0; expert < experts; ++expert) {
    out.fp4(str_cat("ffn.experts.", expert, ".w1"), inner, hidden);
    out.fp4(str_cat("ffn.experts.", expert, ".w2"), hidden, inner);
    out.fp4(str_cat("ffn.experts.", expert, ".w3"), inner, hidden);
  }
}

void add_sources(const ModelConfig& c, int layer, Collector& out) {
  if (c.is_kv_source(layer)) {
    out.bf16("attn.compressor.wkv.weight", {c.head_dim, c.hidden_size});
    if (c.ratio(layer) > 1) out.bf16("attn.compressor.wgate.weight", {c.head_dim, c.hidden_size});
    out.bf16("attn.compressor.norm.weight", {c.head_dim});
    out.bf16("attn.indexer.wk.weight", {c.index_head_dim, c.head_dim});
    out.bf16("attn.indexer.k_norm.weight", {c.index_head_dim});
  }
  if (c.is_index_source(layer)) {
    out.fp8("attn.indexer.wq_b", std::int64_t{c.index_n_heads} * c.index_head_dim, c.q_lora_rank);
    out.bf16("attn.indexer.weights_proj.weight", {c.index_n_heads, c.hidden_size});
  }
}

void add_engram(const ModelConfig& c, int index, Collector& out) {
  const std::int64_t rows = c.engram_num_embeddings[static_cast<std::size_t>(index)];
  const std::int64_t columns = std::int64_t{c.engram_max_ngram_size - 1} * c.engram_n_heads;
  out.add("engram.embed.weight", DataType::kF8E4M3, {rows, c.engram_head_dim});
  out.add("engram.embed.scale", DataType::kF8E8M0, {rows, c.engram_head_dim / kQ8Block});
  out.fp8("engram.wkv", std::int64_t{c.hc_mult + 1} * c.hidden_size, columns * c.engram_head_dim);
  out.bf16("engram.q_weight", {c.hc_mult, c.hidden_size});
  out.bf16("engram.k_weight", {c.hc_mult, c.hidden_size});
}

void add_draft_ends(const ModelConfig& c, int stage, Collector& out) {
  const std::int64_t hidden = c.hidden_size;
  const std::int64_t rank = c.dspark_markov_rank;
  if (stage == 0) {
    out.fp8("main_proj", hidden,
            hidden * static_cast<std::int64_t>(c.dspark_target_layer_ids.size()));
    out.bf16("main_norm.weight", {hidden});
  }
  if (stage == c.num_nextn_predict_layers - 1) {
    out.bf16("norm.weight", {hidden});
    out.bf16("markov_head.embed.weight", {c.vocab_size, rank});
    out.bf16("markov_head.head.weight", {c.vocab_size, rank});
    out.bf16("confidence_head.proj.weight", {1, hidden + rank});
  }
}

}  // namespace

int element_bytes(DataType type) {
  switch (type) {
    case DataType::kF32:
      return 4;
    case DataType::kBF16:
      return 2;
    case DataType::kF8E4M3:
    case DataType::kF8E8M0:
    case DataType::kI8:
      return 1;
  }
  CHECK(false, "not a DataType");
}

std::string_view data_type_name(DataType type) {
  switch (type) {
    case DataType::kF32:
      return "F32";
    case DataType::kBF16:
      return "BF16";
    case DataType::kF8E4M3:
      return "F8_E4M3";
    case DataType::kF8E8M0:
      return "F8_E8M0";
    case DataType::kI8:
      return "I8";
  }
  CHECK(false, "not a DataType");
}

std::int64_t tensor_bytes(DataType type, const std::vector<std::int64_t>& shape) {
  std::int64_t bytes = element_bytes(type);
  for (std::int64_t extent : shape) bytes *= extent;
  return bytes;
}

std::string describe(DataType type, const std::vector<std::int64_t>& shape) {
  std::string text = str_cat(data_type_name(type), " [");
  for (std::size_t i = 0; i < shape.size(); ++i) text += str_cat(i == 0 ? "" : ", ", shape[i]);
  return text + "]";
}

std::vector<TensorSpec> expected_tensors(const ModelConfig& c) {
  std::vector<TensorSpec> specs;
  Collector out(specs);
  out.bf16("embed.weight", {c.vocab_size, c.hidden_size});
  out.bf16("head.weight", {c.vocab_size, c.hidden_size});
  out.bf16("norm.weight", {c.hidden_size});
  if (c.vision_config) add_vision(c, out);
  for (int layer = 0; layer < c.num_hidden_layers; ++layer) {
    out.set_prefix(str_cat("layers.", layer, "."));
    add_attention(c, out);
    add_mixes(c, out);
    add_experts(c, c.n_routed_experts, out);
    add_sources(c, layer, out);
    if (c.engram_index(layer) >= 0) add_engram(c, c.engram_index(layer), out);
  }
  for (int stage = 0; stage < c.num_nextn_predict_layers; ++stage) {
    out.set_prefix(str_cat("mtp.", stage, "."));
    add_attention(c, out);
    add_mixes(c, out);
    add_experts(c, c.dspark_n_routed_experts, out);
    add_draft_ends(c, stage, out);
  }
  return specs;
}

}  // namespace millrace::dataplane::model
