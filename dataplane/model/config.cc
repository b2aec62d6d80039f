#include "dataplane/model/config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string>

#include "common/annotate.h"
#include "common/json.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "dataplane/model/engram_hash.h"

namespace millrace::dataplane::model {
namespace {

constexpr int kMaxLayers = 1024;
constexpr int kMaxWidth = 1 << 20;
constexpr int kMaxCount = std::numeric_limits<int>::max();

/// Reads the members of one JSON object, remembers the first error and which keys it has seen. A
/// key that nobody asked for is an error too: it might change the arithmetic.
class ObjectReader {
 public:
  ObjectReader(const Json& object, std::string path) : object_(object), path_(std::move(path)) {}

  void read(std::string_view key, int& out, int least, int most) {
    const Json* value = required(key);
    if (value == nullptr) return;
    if (!value->is_number_integer()) return fail(key, "must be an integer");
    read_int(key, *value, out, least, most);
  }

  void read(std::string_view key, double& out, double least) {
    const Json* value = required(key);
    if (value != nullptr) read_double(key, *value, out, least);
  }

  void read_optional(std::string_view key, double& out, double least) {
    const Json* value = find(key);
    if (value != nullptr) read_double(key, *value, out, least);
  }

  template <typename T>
  void read(std::string_view key, std::vector<T>& out, T least, T most) {
    const Json* value = required(key);
    if (value == nullptr) return;
    if (!value->is_array() || value->size() > std::size_t{2} * kMaxLayers) {
      return fail(key, "must be a list of integers, one a layer at most");
    }
    out.clear();
    for (const Json& item : *value) {
      if (!item.is_number_integer()) return fail(key, "must be a list of integers");
      const auto number = item.get<std::int64_t>();
      if (number < least || number > most) {
        return fail(key, str_cat("entry ", number, " must lie in [", least, ", ", most, "]"));
      }
      out.push_back(static_cast<T>(number));
    }
  }

  /// A key whose value this implementation has built in.
  void require_equal(std::string_view key, const Json& expected) {
    const Json* value = required(key);
    if (value != nullptr && *value != expected) mismatch(key, expected);
  }

  void require_equal_if_present(std::string_view key, const Json& expected) {
    const Json* value = find(key);
    if (value != nullptr && *value != expected) mismatch(key, expected);
  }

  /// A key that does not concern inference.
  void skip(std::string_view key) { seen_.insert(std::string(key)); }

  const Json* find(std::string_view key) {
    seen_.insert(std::string(key));
    const auto it = object_.find(key);
    return it == object_.end() ? nullptr : &*it;
  }

  const Json* required(std::string_view key) {
    const Json* value = find(key);
    if (value == nullptr) fail(key, "is missing");
    return value;
  }

  void fail(std::string_view key, std::string_view reason) {
    if (status_.ok()) status_ = absl::InvalidArgumentError(str_cat(path_, key, " ", reason));
  }

  absl::Status finish() {
    for (const auto& [key, value] : object_.items()) {
      if (!seen_.contains(key)) fail(key, "is not a key of this architecture");
    }
    return status_;
  }

 private:
  void read_int(std::string_view key, const Json& value, int& out, int least, int most) {
    const auto number = value.get<std::int64_t>();
    if (number < least || number > most) {
      return fail(key, str_cat(number, " must lie in [", least, ", ", most, "]"));
    }
    out = static_cast<int>(number);
  }

  void read_double(std::string_view key, const Json& value, double& out, double least) {
    if (!value.is_number()) return fail(key, "must be a number");
    out = value.get<double>();
    if (!std::isfinite(out) || out < least) fail(key, str_cat(out, " must be at least ", least));
  }

  void mismatch(std::string_view key, const Json& expected) {
    fail(key, str_cat("must be ", dump_json(expected)));
  }

  const Json& object_;
  std::string path_;
  std::set<std::string> seen_;
  absl::Status status_;
};

void read_shape(ObjectReader& r, ModelConfig& c) {
  r.read("vocab_size", c.vocab_size, 1, 1 << 24);
  r.read("hidden_size", c.hidden_size, 1, kMaxWidth);
  r.read("moe_intermediate_size", c.moe_intermediate_size, 1, kMaxWidth);
  r.read("num_hidden_layers", c.num_hidden_layers, 1, kMaxLayers);
  r.read("num_attention_heads", c.num_attention_heads, 1, 4096);
  r.read("head_dim", c.head_dim, 1, 8192);
  r.read("qk_rope_head_dim", c.qk_rope_head_dim, 2, 8192);
  r.read("q_lora_rank", c.q_lora_rank, 1, 1 << 16);
  r.read("o_lora_rank", c.o_lora_rank, 1, 1 << 16);
  r.read("o_groups", c.o_groups, 1, 4096);
  r.read("swiglu_limit", c.swiglu_limit, -kMaxCount);
  r.read("rms_norm_eps", c.rms_norm_eps, 0.0);
  r.read("max_position_embeddings", c.max_position_embeddings, 1, 1 << 24);
  r.read("rope_theta", c.rope_theta, 2.0);
  r.read("compress_rope_theta", c.compress_rope_theta, 2.0);
  r.read("n_routed_experts", c.n_routed_experts, 1, 65536);
  r.read("num_experts_per_tok", c.num_experts_per_tok, 1, 65536);
  r.read("routed_scaling_factor", c.routed_scaling_factor, 0.0);
  r.read_optional("gate_temp", c.gate_temp, 1e-6);
  r.read("hc_mult", c.hc_mult, 1, 64);
  r.read("hc_sinkhorn_iters", c.hc_sinkhorn_iters, 1, 1000);
  r.read("hc_eps", c.hc_eps, 0.0);
  r.require_equal("n_shared_experts", 1);
}

void read_attention(ObjectReader& r, ModelConfig& c) {
  r.read("sliding_window", c.sliding_window, 1, 1 << 16);
  r.read("compress_ratios", c.compress_ratios, 0, 128);
  r.read("kv_source_layer_ids", c.kv_source_layer_ids, 0, kMaxLayers);
  r.read("index_source_layer_ids", c.index_source_layer_ids, 0, kMaxLayers);
  r.read("index_n_heads", c.index_n_heads, 1, 4096);
  r.read("index_head_dim", c.index_head_dim, 1, 8192);
  r.read("index_topk", c.index_topk, 1, 1 << 20);
  const Json* candidate = r.required("candidate_source_layer_id");
  if (candidate != nullptr && !candidate->is_null()) {
    r.read("candidate_source_layer_id", c.candidate_source_layer_id, -kMaxLayers, kMaxLayers);
  }
  r.read("candidate_topk_blocks", c.candidate_topk_blocks, 1, 1 << 24);
  r.read("candidate_block_size", c.candidate_block_size, 1, 1 << 16);
}

void read_engram_and_draft(ObjectReader& r, ModelConfig& c) {
  r.read("engram_layer_ids", c.engram_layer_ids, 0, kMaxLayers);
  r.read("engram_num_embeddings", c.engram_num_embeddings, std::int64_t{1}, std::int64_t{1} << 40);
  r.read("engram_max_ngram_size", c.engram_max_ngram_size, 2, 16);
  r.read("engram_vocab_size", c.engram_vocab_size, 2, 1 << 30);
  r.read("engram_n_heads", c.engram_n_heads, 1, 256);
  r.read("engram_head_dim", c.engram_head_dim, 1, 8192);
  r.read("engram_pad_token_id", c.engram_pad_token_id, 0, 1 << 24);
  r.read("engram_compressed_vocab_size", c.engram_compressed_vocab_size, 1, 1 << 24);
  r.read("num_nextn_predict_layers", c.num_nextn_predict_layers, 0, 64);
  r.read("dspark_block_size", c.dspark_block_size, 1, 64);
  r.read("dspark_noise_token_id", c.dspark_noise_token_id, 0, 1 << 24);
  r.read("dspark_target_layer_ids", c.dspark_target_layer_ids, 0, kMaxLayers);
  r.read("dspark_markov_rank", c.dspark_markov_rank, 1, kMaxWidth);
  r.read("dspark_n_routed_experts", c.dspark_n_routed_experts, 1, 65536);
  r.read("dspark_num_experts_per_tok", c.dspark_num_experts_per_tok, 1, 65536);
}

absl::Status read_rope_scaling(ObjectReader& parent, RopeScaling& out) {
  const Json* object = parent.required("rope_scaling");
  if (object == nullptr) return absl::OkStatus();
  if (!object->is_object()) {
    parent.fail("rope_scaling", "must be an object");
    return absl::OkStatus();
  }
  ObjectReader r(*object, "text_config.rope_scaling.");
  r.require_equal("rope_type", "yarn");
  r.read("factor", out.factor, 1.0);
  r.read("beta_fast", out.beta_fast, 1e-6);
  r.read("beta_slow", out.beta_slow, 1e-6);
  r.read("original_max_position_embeddings", out.original_max_position_embeddings, 1, 1 << 24);
  return r.finish();
}

absl::Status read_text(const Json& object, ModelConfig& c) {
  ObjectReader r(object, "text_config.");
  r.require_equal("model_type", "deepseek_v41_text");
  r.require_equal("num_key_value_heads", 1);
  r.require_equal("hidden_act", "silu");
  r.require_equal("attention_bias", false);
  r.require_equal("tie_word_embeddings", false);
  r.require_equal("scoring_func", "sqrtsoftplus");
  r.require_equal("topk_method", "noaux_tc");
  r.require_equal("norm_topk_prob", true);
  r.require_equal_if_present("num_hash_layers", 0);
  r.skip("attention_dropout");
  r.skip("initializer_range");
  r.skip("use_cache");
  read_shape(r, c);
  read_attention(r, c);
  read_engram_and_draft(r, c);
  RETURN_IF_ERROR(read_rope_scaling(r, c.rope_scaling));
  return r.finish();
}

absl::Status read_vision(const Json& object, VisionConfig& v) {
  ObjectReader r(object, "vision_config.");
  r.require_equal("model_type", "deepseek_v41_vision");
  r.read("num_hidden_layers", v.num_hidden_layers, 1, kMaxLayers);
  r.read("hidden_size", v.hidden_size, 1, kMaxWidth);
  r.read("num_attention_heads", v.num_attention_heads, 1, 4096);
  r.read("intermediate_size", v.intermediate_size, 1, kMaxWidth);
  r.read("patch_size", v.patch_size, 1, 1024);
  r.read("downsample_ratio", v.downsample_ratio, 1, 64);
  r.read("max_image_tokens", v.max_image_tokens, 1, 1 << 24);
  r.read("min_pixels", v.min_pixels, 1, 1 << 30);
  r.read("rope_theta", v.rope_theta, 1.0);
  const Json* ratio = r.find("max_wh_ratio");
  if (ratio != nullptr && !ratio->is_null()) {
    r.read("max_wh_ratio", v.max_wh_ratio.emplace(), 1.0);
  }
  return r.finish();
}

absl::Status read_quantization(const Json& object) {
  ObjectReader r(object, "quantization_config.");
  r.require_equal("quant_method", "fp8");
  r.require_equal("activation_scheme", "dynamic");
  r.require_equal("weight_block_size", Json::array({32, 32}));
  r.require_equal("scale_fmt", "ue8m0");
  r.require_equal("expert_dtype", "fp4");
  return r.finish();
}

absl::Status read_nested(ObjectReader& r, std::string_view key, const Json*& object) {
  object = r.required(key);
  if (object != nullptr && object->is_object()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      str_cat(key, object == nullptr ? " is missing" : " must be an object"));
}

absl::StatusOr<ModelConfig> read_document(const Json& document) {
  if (!document.is_object()) return absl::InvalidArgumentError("must be a JSON object");
  ModelConfig c;
  ObjectReader r(document, "");
  r.require_equal("architectures", Json::array({"DeepseekV41ForCausalLM"}));
  r.require_equal("model_type", "deepseek_v41");
  r.require_equal("dtype", "bfloat16");
  r.skip("transformers_version");
  r.read("bos_token_id", c.bos_token_id, 0, 1 << 24);
  r.read("eos_token_id", c.eos_token_id, 0, 1 << 24);
  r.read("pad_token_id", c.pad_token_id, 0, 1 << 24);
  r.read("image_token_id", c.image_token_id, 0, 1 << 24);
  const Json* object = nullptr;
  RETURN_IF_ERROR(read_nested(r, "quantization_config", object));
  RETURN_IF_ERROR(read_quantization(*object));
  RETURN_IF_ERROR(read_nested(r, "text_config", object));
  RETURN_IF_ERROR(read_text(*object, c));
  const Json* vision = r.find("vision_config");
  if (vision != nullptr && !vision->is_null()) {
    RETURN_IF_ERROR(read_nested(r, "vision_config", object));
    RETURN_IF_ERROR(read_vision(*object, c.vision_config.emplace()));
  }
  RETURN_IF_ERROR(r.finish());
  RETURN_IF_ERROR(validate(c));
  return c;
}

absl::Status broken(std::string_view key, std::string_view rule) {
  return absl::InvalidArgumentError(str_cat("text_config.", key, ": ", rule));
}

absl::Status validate_layer_list(std::string_view key, const std::vector<int>& ids, int layers) {
  if (!std::is_sorted(ids.begin(), ids.end(), std::less_equal<>())) {
    return broken(key, "must be ascending without repeats");
  }
  if (!ids.empty() && (ids.front() < 0 || ids.back() >= layers)) {
    return broken(key, str_cat("names a layer outside [0, ", layers, ")"));
  }
  return absl::OkStatus();
}

absl::Status validate_ratios(const ModelConfig& c) {
  const int layers = c.num_hidden_layers + c.num_nextn_predict_layers;
  if (c.compress_ratios.size() != static_cast<std::size_t>(layers)) {
    return broken("compress_ratios", str_cat("has ", c.compress_ratios.size(), " entries for ",
                                             layers, " layers and draft layers"));
  }
  for (int layer = 0; layer < layers; ++layer) {
    if (layer >= c.num_hidden_layers && c.ratio(layer) != 0) {
      return broken("compress_ratios", "must be 0 for the draft layers");
    }
    // A group must not cross a 128-token block.
    if (c.ratio(layer) > 0 && 128 % c.ratio(layer) != 0) {
      return broken("compress_ratios", str_cat(c.ratio(layer), " does not divide 128"));
    }
  }
  RETURN_IF_ERROR(
      validate_layer_list("kv_source_layer_ids", c.kv_source_layer_ids, c.num_hidden_layers));
  RETURN_IF_ERROR(
      validate_layer_list("index_source_layer_ids", c.index_source_layer_ids, c.num_hidden_layers));
  RETURN_IF_ERROR(validate_layer_list("engram_layer_ids", c.engram_layer_ids, c.num_hidden_layers));
  return validate_layer_list("dspark_target_layer_ids", c.dspark_target_layer_ids,
                             c.num_hidden_layers);
}

absl::Status validate_sources(const ModelConfig& c) {
  for (int layer : c.kv_source_layer_ids) {
    if (c.ratio(layer) == 0) {
      return broken("kv_source_layer_ids", str_cat("layer ", layer, " has compress ratio 0"));
    }
    if (!c.is_index_source(layer)) {
      return broken("kv_source_layer_ids",
                    str_cat("layer ", layer, " is not in index_source_layer_ids"));
    }
  }
  for (int layer : c.index_source_layer_ids) {
    if (c.ratio(layer) == 0) {
      return broken("index_source_layer_ids", str_cat("layer ", layer, " has compress ratio 0"));
    }
  }
  for (int layer = 0; layer < c.num_hidden_layers; ++layer) {
    if (c.ratio(layer) == 0) continue;
    const int source = c.kv_source_of(layer);
    if (source < 0) {
      return broken("compress_ratios",
                    str_cat("layer ", layer, " has no KV source at or before it"));
    }
    if (c.ratio(source) != c.ratio(layer)) {
      return broken("compress_ratios",
                    str_cat("layer ", layer, " has ratio ", c.ratio(layer), ", its KV source ",
                            source, " has ", c.ratio(source)));
    }
  }
  return absl::OkStatus();
}

absl::Status validate_candidates(const ModelConfig& c) {
  const int source = c.candidate_source_layer_id;
  if (source < 0) return absl::OkStatus();
  if (source >= c.num_hidden_layers || !c.is_index_source(source)) {
    return broken("candidate_source_layer_id", str_cat(source, " is not an index source"));
  }
  // Blocks count entries of one cache; they mean nothing in another.
  for (int layer : c.index_source_layer_ids) {
    if (layer > source && c.kv_source_of(layer) != c.kv_source_of(source)) {
      return broken("candidate_source_layer_id",
                    str_cat("index source ", layer, " reads another layer's global KV"));
    }
  }
  return absl::OkStatus();
}

absl::Status validate_widths(const ModelConfig& c) {
  const std::pair<std::string_view, int> blocked[] = {
      {"hidden_size", c.hidden_size},
      {"moe_intermediate_size", c.moe_intermediate_size},
      {"head_dim", c.head_dim},
      {"q_lora_rank", c.q_lora_rank},
      {"index_head_dim", c.index_head_dim},
      {"engram_head_dim", c.engram_head_dim},
      {"o_lora_rank", c.o_groups * c.o_lora_rank}};
  for (const auto& [key, width] : blocked) {
    if (width % 32 != 0) return broken(key, "must fill quantization blocks of 32 channels");
  }
  if (c.num_attention_heads % c.o_groups != 0) {
    return broken("o_groups", "must divide num_attention_heads");
  }
  if (c.qk_rope_head_dim % 2 != 0 || c.qk_rope_head_dim > std::min(c.head_dim, c.index_head_dim)) {
    return broken("qk_rope_head_dim", "must be even and fit head_dim and index_head_dim");
  }
  if (c.num_experts_per_tok > c.n_routed_experts) {
    return broken("num_experts_per_tok", "exceeds n_routed_experts");
  }
  if (c.dspark_num_experts_per_tok > c.dspark_n_routed_experts) {
    return broken("dspark_num_experts_per_tok", "exceeds dspark_n_routed_experts");
  }
  return absl::OkStatus();
}

absl::Status validate_engram(const ModelConfig& c) {
  if (c.engram_num_embeddings.size() != c.engram_layer_ids.size()) {
    return broken("engram_num_embeddings", "needs one entry for each of engram_layer_ids");
  }
  if (c.engram_layer_ids.empty()) return absl::OkStatus();
  if (c.engram_layer_ids.back() >= c.first_decoder_layer()) {
    return broken("engram_layer_ids", "must lie below the first decoder layer");
  }
  if (c.engram_compressed_vocab_size > c.vocab_size) {
    return broken("engram_compressed_vocab_size", "exceeds vocab_size");
  }
  const auto primes = engram_primes(c);
  for (std::size_t i = 0; i < primes.size(); ++i) {
    std::int64_t rows = 0;
    for (std::int64_t prime : primes[i]) rows += prime;
    if (rows != c.engram_num_embeddings[i]) {
      return broken("engram_num_embeddings",
                    str_cat("entry ", i, " is ", c.engram_num_embeddings[i],
                            ", the bucket primes sum to ", rows));
    }
  }
  return absl::OkStatus();
}

absl::Status validate_tokens(const ModelConfig& c) {
  const std::pair<std::string_view, int> tokens[] = {
      {"bos_token_id", c.bos_token_id},
      {"eos_token_id", c.eos_token_id},
      {"pad_token_id", c.pad_token_id},
      {"image_token_id", c.image_token_id},
      {"text_config.engram_pad_token_id", c.engram_pad_token_id},
      {"text_config.dspark_noise_token_id", c.dspark_noise_token_id}};
  for (const auto& [key, token] : tokens) {
    if (token < 0 || token >= c.vocab_size) {
      return absl::InvalidArgumentError(
          str_cat(key, ": ", token, " is outside the vocabulary of ", c.vocab_size));
    }
  }
  return absl::OkStatus();
}

int largest_at_or_below(const std::vector<int>& ids, int layer) {
  const auto it = std::upper_bound(ids.begin(), ids.end(), layer);
  return it == ids.begin() ? -1 : *std::prev(it);
}

}  // namespace

bool ModelConfig::is_kv_source(int layer) const {
  return std::binary_search(kv_source_layer_ids.begin(), kv_source_layer_ids.end(), layer);
}

bool ModelConfig::is_index_source(int layer) const {
  return std::binary_search(index_source_layer_ids.begin(), index_source_layer_ids.end(), layer);
}

int ModelConfig::kv_source_of(int layer) const {
  return ratio(layer) == 0 ? -1 : largest_at_or_below(kv_source_layer_ids, layer);
}

int ModelConfig::index_source_of(int layer) const {
  return ratio(layer) == 0 ? -1 : largest_at_or_below(index_source_layer_ids, layer);
}

int ModelConfig::engram_index(int layer) const {
  const auto it = std::lower_bound(engram_layer_ids.begin(), engram_layer_ids.end(), layer);
  const bool found = it != engram_layer_ids.end() && *it == layer;
  return found ? static_cast<int>(it - engram_layer_ids.begin()) : -1;
}

int ModelConfig::first_decoder_layer() const {
  return kv_source_layer_ids.empty() ? num_hidden_layers : kv_source_layer_ids.back();
}

absl::StatusOr<ModelConfig> parse_model_config(std::string_view json_text) {
  absl::StatusOr<Json> document = parse_json(json_text);
  if (!document.ok()) return annotate(document.status(), "config.json");
  absl::StatusOr<ModelConfig> config = read_document(*document);
  if (!config.ok()) return annotate(config.status(), "config.json");
  return config;
}

absl::Status validate(const ModelConfig& config) {
  RETURN_IF_ERROR(validate_ratios(config));
  RETURN_IF_ERROR(validate_sources(config));
  RETURN_IF_ERROR(validate_candidates(config));
  RETURN_IF_ERROR(validate_widths(config));
  RETURN_IF_ERROR(validate_engram(config));
  return validate_tokens(config);
}

}  // namespace millrace::dataplane::model
