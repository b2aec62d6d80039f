#include "tests/bench/model_work.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "dataplane/model/inventory.h"

namespace millrace::tests::bench {
namespace {

using dataplane::model::DataType;
using dataplane::model::ModelConfig;
using dataplane::model::TensorSpec;

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

bool starts_with(std::string_view text, std::string_view head) {
  return text.substr(0, head.size()) == head;
}

double elements(const TensorSpec& spec) {
  double count = spec.type == DataType::kI8 ? 2 : 1;  // two FP4 inputs in a byte
  for (const std::int64_t extent : spec.shape) count *= static_cast<double>(extent);
  return count;
}

bool is_scale(const TensorSpec& spec) { return spec.type == DataType::kF8E8M0; }

/// Share of a tensor that one token reads.
double active_share(const ModelConfig& config, const TensorSpec& spec) {
  if (contains(spec.name, ".experts.")) {
    return double{1} * config.num_experts_per_tok / config.n_routed_experts;
  }
  if (spec.name == "embed.weight") return 1.0 / config.vocab_size;
  if (contains(spec.name, "engram.embed.")) {
    const double columns = double{1} * (config.engram_max_ngram_size - 1) * config.engram_n_heads;
    return columns / static_cast<double>(spec.shape[0]);
  }
  return 1;
}

/// Multiply-adds of one row, times two. Keys are made once per entry, not per row.
double row_flops(const ModelConfig& config, const TensorSpec& spec, int layer) {
  if (spec.shape.size() != 2 || is_scale(spec) || contains(spec.name, "engram.embed.") ||
      contains(spec.name, "engram.q_weight") || contains(spec.name, "engram.k_weight")) {
    return 0;
  }
  double flops = 2 * elements(spec) * active_share(config, spec);
  if (contains(spec.name, "indexer.wk.")) flops /= config.ratio(layer);
  return flops;
}

/// The producer of the last global KV runs over all rows, like the layers before it.
bool runs_on_every_row(const ModelConfig& config, std::string_view name, int layer) {
  const int first = config.first_decoder_layer();
  return layer < first ||
         (layer == first && (contains(name, "compressor") || contains(name, "indexer.wk.")));
}

}  // namespace

ModelWork count_work(const ModelConfig& config) {
  ModelWork work;
  for (const TensorSpec& spec : dataplane::model::expected_tensors(config)) {
    if (starts_with(spec.name, "mtp.") || starts_with(spec.name, "vision.")) continue;
    if (!is_scale(spec)) work.parameters += elements(spec);
    work.active_bytes +=
        static_cast<double>(dataplane::model::tensor_bytes(spec.type, spec.shape)) *
        active_share(config, spec);
    if (spec.name == "head.weight") work.head_flops = 2 * elements(spec);
    if (!starts_with(spec.name, "layers.")) continue;
    const int layer = std::atoi(spec.name.c_str() + std::string_view("layers.").size());
    double& total =
        runs_on_every_row(config, spec.name, layer) ? work.encoder_flops : work.decoder_flops;
    total += row_flops(config, spec, layer);
  }
  return work;
}

double prefill_flops(const ModelConfig& config, const ModelWork& work, int prompt_tokens) {
  const int tail = std::min(prompt_tokens, config.sliding_window);
  return prompt_tokens * work.encoder_flops + tail * work.decoder_flops + work.head_flops;
}

const char* cpu_preset_config() {
  return R"({
  "architectures": ["DeepseekV41ForCausalLM"], "model_type": "deepseek_v41", "dtype": "bfloat16",
  "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "image_token_id": 3,
  "quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic",
    "weight_block_size": [32, 32], "scale_fmt": "ue8m0", "expert_dtype": "fp4"},
  "text_config": {
    "model_type": "deepseek_v41_text", "vocab_size": 8192, "hidden_size": 1280,
    "moe_intermediate_size": 640, "num_hidden_layers": 8, "num_attention_heads": 8,
    "num_key_value_heads": 1, "head_dim": 128, "qk_rope_head_dim": 32, "q_lora_rank": 512,
    "o_lora_rank": 256, "o_groups": 2, "hidden_act": "silu", "swiglu_limit": 10.0,
    "rms_norm_eps": 1e-20, "attention_bias": false, "tie_word_embeddings": false,
    "max_position_embeddings": 65536, "rope_theta": 10000, "compress_rope_theta": 160000,
    "rope_scaling": {"rope_type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1,
      "original_max_position_embeddings": 65536},
    "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2,
    "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc", "norm_topk_prob": true,
    "routed_scaling_factor": 1.5, "sliding_window": 128,
    "compress_ratios": [0, 0, 2, 2, 2, 1, 1, 1, 0], "kv_source_layer_ids": [2, 5],
    "index_source_layer_ids": [2, 5, 7], "index_n_heads": 4, "index_head_dim": 64,
    "index_topk": 128, "candidate_source_layer_id": 5, "candidate_topk_blocks": 512,
    "candidate_block_size": 8, "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6,
    "engram_layer_ids": [1], "engram_num_embeddings": [32140], "engram_max_ngram_size": 3,
    "engram_vocab_size": 4000, "engram_n_heads": 4, "engram_head_dim": 32,
    "engram_pad_token_id": 2, "engram_compressed_vocab_size": 7000,
    "num_nextn_predict_layers": 1, "dspark_block_size": 3, "dspark_noise_token_id": 4,
    "dspark_target_layer_ids": [5, 6, 7], "dspark_markov_rank": 32,
    "dspark_n_routed_experts": 1, "dspark_num_experts_per_tok": 1
  }
})";
}

}  // namespace millrace::tests::bench
