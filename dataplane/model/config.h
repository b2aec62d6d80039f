#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace millrace::dataplane::model {

/// `text_config.rope_scaling`; the only kind is YaRN.
struct RopeScaling {
  double factor = 0;
  double beta_fast = 0;
  double beta_slow = 0;
  int original_max_position_embeddings = 0;
};

/// `vision_config`.
struct VisionConfig {
  int num_hidden_layers = 0;
  int hidden_size = 0;
  int num_attention_heads = 0;
  int intermediate_size = 0;
  int patch_size = 0;
  int downsample_ratio = 0;
  int max_image_tokens = 0;
  int min_pixels = 0;
  double rope_theta = 0;
  std::optional<double> max_wh_ratio;
};

/// The model's composite `config.json`. Fields carry the names of their keys; those of
/// `text_config` and those of the top level share one struct because no name occurs in both with
/// two meanings.
struct ModelConfig {
  int vocab_size = 0;
  int hidden_size = 0;
  int moe_intermediate_size = 0;
  int num_hidden_layers = 0;
  int num_attention_heads = 0;
  int head_dim = 0;
  int qk_rope_head_dim = 0;
  int q_lora_rank = 0;
  int o_lora_rank = 0;
  int o_groups = 0;
  double swiglu_limit = 0;
  double rms_norm_eps = 0;
  int max_position_embeddings = 0;
  double rope_theta = 0;
  double compress_rope_theta = 0;
  RopeScaling rope_scaling;
  int n_routed_experts = 0;
  int num_experts_per_tok = 0;
  double routed_scaling_factor = 0;
  double gate_temp = 1.0;
  int sliding_window = 0;
  std::vector<int> compress_ratios;
  std::vector<int> kv_source_layer_ids;
  std::vector<int> index_source_layer_ids;
  int index_n_heads = 0;
  int index_head_dim = 0;
  int index_topk = 0;
  int candidate_source_layer_id = -1;  ///< negative: two-level selection is off
  int candidate_topk_blocks = 0;
  int candidate_block_size = 0;
  int hc_mult = 0;
  int hc_sinkhorn_iters = 0;
  double hc_eps = 0;
  std::vector<int> engram_layer_ids;
  std::vector<std::int64_t> engram_num_embeddings;
  int engram_max_ngram_size = 0;
  int engram_vocab_size = 0;
  int engram_n_heads = 0;
  int engram_head_dim = 0;
  int engram_pad_token_id = 0;
  int engram_compressed_vocab_size = 0;
  int num_nextn_predict_layers = 0;
  int dspark_block_size = 0;
  int dspark_noise_token_id = 0;
  std::vector<int> dspark_target_layer_ids;
  int dspark_markov_rank = 0;
  int dspark_n_routed_experts = 0;
  int dspark_num_experts_per_tok = 0;

  int bos_token_id = 0;
  int eos_token_id = 0;
  int pad_token_id = 0;
  int image_token_id = 0;
  std::optional<VisionConfig> vision_config;

  /// Compress ratio of a layer or draft layer; 0 = sliding window only.
  int ratio(int layer) const { return compress_ratios[static_cast<std::size_t>(layer)]; }
  bool is_kv_source(int layer) const;
  bool is_index_source(int layer) const;
  /// Layer whose global KV this one reads; -1 for a window-only layer.
  int kv_source_of(int layer) const;
  /// Layer whose selection this one uses; -1 for a window-only layer.
  int index_source_of(int layer) const;
  /// Position of the layer in engram_layer_ids, -1 when it has no Engram.
  int engram_index(int layer) const;
  /// The producer of the decoder's global KV: the last KV source, or num_hidden_layers without one.
  int first_decoder_layer() const;
};

/// Parses and validates. Errors (kInvalidArgument) name the key: missing, unknown, wrong type,
/// outside its range, or in contradiction with another. Source: model specification, section 1.1.
absl::StatusOr<ModelConfig> parse_model_config(std::string_view json_text);

/// The rules that hold between keys; parse_model_config() applies them.
absl::Status validate(const ModelConfig& config);

}  // namespace millrace::dataplane::model
