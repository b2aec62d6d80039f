#include "dataplane/model/random_checkpoint.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <random>

#include "common/json.h"
#include "common/mapped_file.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "dataplane/model/inventory.h"
#include "dataplane/model/number_formats.h"

namespace millrace::dataplane::model {
namespace {

bool ends_with(std::string_view text, std::string_view tail) {
  return text.size() >= tail.size() && text.substr(text.size() - tail.size()) == tail;
}

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// Random values that depend on nothing but the generator's words.
class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}

  /// Uniform in [-1, 1).
  float signed_unit() {
    return static_cast<float>(engine_() >> 40) / static_cast<float>(1 << 23) - 1.0f;
  }
  std::uint8_t byte() { return static_cast<std::uint8_t>(engine_() >> 56); }

 private:
  std::mt19937_64 engine_;
};

/// Centre and spread of a plain tensor's values.
struct Spread {
  float centre, width;
};

Spread spread_of(const TensorSpec& spec) {
  if (contains(spec.name, "norm") || contains(spec.name, "q_weight") ||
      contains(spec.name, "k_weight")) {
    return {1.0f, 0.3f};
  }
  if (contains(spec.name, "hc_")) return {0.0f, ends_with(spec.name, "_fn") ? 0.05f : 1.0f};
  if (ends_with(spec.name, "attn_sink")) return {0.0f, 1.0f};
  if (spec.shape.size() == 1) return {0.0f, 0.1f};
  if (spec.name == "embed.weight") return {0.0f, 1.0f};
  return {0.0f, 1.7f / std::sqrt(static_cast<float>(spec.shape.back()))};
}

/// The E8M0 byte that brings codes of magnitude about 1 to weights of about inputs^-1/2.
std::uint8_t scale_byte(std::int64_t inputs) {
  return static_cast<std::uint8_t>(127 - std::lround(std::log2(static_cast<double>(inputs)) / 2));
}

/// Inputs of the matrix whose scales these are.
std::int64_t inputs_of_scales(const TensorSpec& spec) { return spec.shape.back() * kWeightBlock; }

FileTensor random_tensor(const TensorSpec& spec, Random& random) {
  FileTensor tensor{.name = spec.name,
                    .type = std::string(data_type_name(spec.type)),
                    .shape = spec.shape,
                    .bytes = {}};
  const std::int64_t bytes = tensor_bytes(spec.type, spec.shape);
  tensor.bytes.resize(static_cast<std::size_t>(bytes));
  const Spread spread = spread_of(spec);
  switch (spec.type) {
    case DataType::kF32:
      for (std::size_t at = 0; at < tensor.bytes.size(); at += sizeof(float)) {
        const float value = spread.centre + spread.width * random.signed_unit();
        std::memcpy(tensor.bytes.data() + at, &value, sizeof value);
      }
      break;
    case DataType::kBF16:
      for (std::size_t at = 0; at < tensor.bytes.size(); at += sizeof(std::uint16_t)) {
        const std::uint16_t value =
            encode_bf16(spread.centre + spread.width * random.signed_unit());
        std::memcpy(tensor.bytes.data() + at, &value, sizeof value);
      }
      break;
    case DataType::kF8E4M3:
      for (std::uint8_t& byte : tensor.bytes) byte = encode_e4m3(1.7f * random.signed_unit());
      break;
    case DataType::kF8E8M0:
      std::fill(tensor.bytes.begin(), tensor.bytes.end(), scale_byte(inputs_of_scales(spec)));
      break;
    case DataType::kI8:
      // Codes 0 … 3 and their negatives: magnitudes up to 1.5.
      for (std::uint8_t& byte : tensor.bytes) byte = random.byte() & 0xBB;
      break;
  }
  return tensor;
}

absl::Status write_token_map(const std::string& folder, const ModelConfig& config) {
  Json list = Json::array();
  for (int token = 0; token < config.vocab_size; ++token) {
    list.push_back(token % config.engram_compressed_vocab_size);
  }
  return write_file_atomically(folder + "/engram_token_map.json",
                               dump_json(Json{{"token_map", list}}));
}

}  // namespace

std::string tiny_config_json() {
  return R"({
  "architectures": ["DeepseekV41ForCausalLM"], "model_type": "deepseek_v41", "dtype": "bfloat16",
  "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "image_token_id": 3,
  "quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic",
    "weight_block_size": [32, 32], "scale_fmt": "ue8m0", "expert_dtype": "fp4"},
  "text_config": {
    "model_type": "deepseek_v41_text", "vocab_size": 288, "hidden_size": 128, "moe_intermediate_size": 64,
    "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 64,
    "qk_rope_head_dim": 32, "q_lora_rank": 64, "o_lora_rank": 32, "o_groups": 2, "hidden_act": "silu",
    "swiglu_limit": 10.0, "rms_norm_eps": 1e-20, "attention_bias": false, "tie_word_embeddings": false,
    "max_position_embeddings": 4096, "rope_theta": 10000, "compress_rope_theta": 160000,
    "rope_scaling": {"rope_type": "yarn", "factor": 4, "beta_fast": 32, "beta_slow": 1,
      "original_max_position_embeddings": 16},
    "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2, "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc", "norm_topk_prob": true, "routed_scaling_factor": 1.5, "sliding_window": 8,
    "compress_ratios": [0, 0, 2, 2, 2, 1, 1, 1, 0], "kv_source_layer_ids": [2, 5],
    "index_source_layer_ids": [2, 5, 7], "index_n_heads": 2, "index_head_dim": 64, "index_topk": 6,
    "candidate_source_layer_id": 5, "candidate_topk_blocks": 4, "candidate_block_size": 4,
    "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6, "engram_layer_ids": [1, 3],
    "engram_num_embeddings": [290, 370], "engram_max_ngram_size": 3, "engram_vocab_size": 64,
    "engram_n_heads": 2, "engram_head_dim": 32, "engram_pad_token_id": 2,
    "engram_compressed_vocab_size": 262, "num_nextn_predict_layers": 1, "dspark_block_size": 3,
    "dspark_noise_token_id": 4, "dspark_target_layer_ids": [5, 6, 7], "dspark_markov_rank": 32,
    "dspark_n_routed_experts": 4, "dspark_num_experts_per_tok": 1
  }
})";
}

std::vector<std::uint8_t> encode_safetensors(const std::vector<FileTensor>& tensors) {
  Json header = Json::object();
  std::size_t at = 0;
  for (const FileTensor& tensor : tensors) {
    header[tensor.name] = {{"dtype", tensor.type},
                           {"shape", tensor.shape},
                           {"data_offsets", {at, at + tensor.bytes.size()}}};
    at += tensor.bytes.size();
  }
  const std::string text = dump_json(header);
  std::vector<std::uint8_t> file;
  for (std::size_t i = 0; i < 8; ++i)
    file.push_back(static_cast<std::uint8_t>(text.size() >> (8 * i)));
  file.insert(file.end(), text.begin(), text.end());
  for (const FileTensor& tensor : tensors) {
    file.insert(file.end(), tensor.bytes.begin(), tensor.bytes.end());
  }
  return file;
}

absl::Status write_random_checkpoint(const std::string& folder, std::string_view config_json,
                                     std::uint64_t seed, int shards) {
  ASSIGN_OR_RETURN(const ModelConfig config, parse_model_config(config_json));
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return absl::UnavailableError(str_cat(folder, ": ", error.message()));
  RETURN_IF_ERROR(write_file_atomically(folder + "/config.json", config_json));
  if (!config.engram_layer_ids.empty()) RETURN_IF_ERROR(write_token_map(folder, config));

  Random random(seed);
  Json weight_map = Json::object();
  const std::vector<TensorSpec> specs = expected_tensors(config);
  const std::size_t per_shard = specs.size() / static_cast<std::size_t>(shards) + 1;
  for (std::size_t first = 0; first < specs.size(); first += per_shard) {
    const std::string name = str_cat("model-", first / per_shard + 1, ".safetensors");
    std::vector<FileTensor> tensors;
    for (std::size_t i = first; i < std::min(specs.size(), first + per_shard); ++i) {
      tensors.push_back(random_tensor(specs[i], random));
      weight_map[specs[i].name] = name;
    }
    const std::vector<std::uint8_t> file = encode_safetensors(tensors);
    RETURN_IF_ERROR(write_file_atomically(
        str_cat(folder, "/", name), {reinterpret_cast<const char*>(file.data()), file.size()}));
  }
  return write_file_atomically(folder + "/model.safetensors.index.json",
                               dump_json(Json{{"weight_map", weight_map}}));
}

}  // namespace millrace::dataplane::model
