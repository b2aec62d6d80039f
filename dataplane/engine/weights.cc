#include "dataplane/engine/weights.h"

#include <cmath>
#include <cstring>
#include <string>

#include "common/status_macros.h"
#include "common/str_cat.h"
#include "dataplane/model/number_formats.h"
#include "dataplane/model/rope.h"

namespace millrace::dataplane::engine {
namespace {

using model::DataType;
using model::TensorView;

std::size_t element_count(const TensorView& tensor) {
  return tensor.bytes.size() / static_cast<std::size_t>(model::element_bytes(tensor.type));
}

std::vector<float> unpack_plain(const TensorView& tensor) {
  std::vector<float> values(element_count(tensor));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (tensor.type == DataType::kF32) {
      std::memcpy(&values[i], tensor.bytes.data() + i * sizeof(float), sizeof(float));
    } else {
      std::uint16_t bits;
      std::memcpy(&bits, tensor.bytes.data() + i * sizeof bits, sizeof bits);
      values[i] = model::decode_bf16(bits);
    }
  }
  return values;
}

std::vector<float> unpack_fp8(const TensorView& codes, const TensorView& scales,
                              std::size_t outputs, std::size_t inputs) {
  std::vector<float> values(outputs * inputs);
  const auto tiles = static_cast<std::size_t>(scales.shape[1]);
  for (std::size_t o = 0; o < outputs; ++o) {
    const std::uint8_t* row_scales = scales.bytes.data() + o / model::kWeightBlock * tiles;
    for (std::size_t i = 0; i < inputs; ++i) {
      values[o * inputs + i] = model::decode_e4m3(codes.bytes[o * inputs + i]) *
                               model::decode_e8m0(row_scales[i / model::kWeightBlock]);
    }
  }
  return values;
}

std::vector<float> unpack_fp4(const TensorView& codes, const TensorView& scales,
                              std::size_t outputs, std::size_t inputs) {
  std::vector<float> values(outputs * inputs);
  for (std::size_t o = 0; o < outputs; ++o) {
    model::unpack_q4i(codes.bytes.data() + o * inputs / 2,
                      scales.bytes.data() + o * inputs / model::kWeightBlock,
                      {values.data() + o * inputs, inputs});
  }
  return values;
}

/// Reads tensors under a name prefix and remembers the first that is not finite.
class Reader {
 public:
  Reader(const model::Checkpoint& checkpoint, std::string prefix)
      : checkpoint_(checkpoint), prefix_(std::move(prefix)) {}

  const TensorView& view(std::string_view name) const {
    return checkpoint_.tensor(str_cat(prefix_, name));
  }

  std::vector<float> vector(std::string_view name) {
    return checked(name, unpack_plain(view(name)));
  }

  /// A linear layer in whatever format its weight is stored.
  Linear linear(std::string_view name) {
    const std::string weight_name = str_cat(name, ".weight");
    const TensorView& weight = view(weight_name);
    Linear linear{.outputs = static_cast<int>(weight.shape[0]),
                  .inputs = static_cast<int>(weight.shape[1]),
                  .weight = {}};
    if (weight.type == DataType::kI8) linear.inputs *= 2;
    const auto outputs = static_cast<std::size_t>(linear.outputs);
    const auto inputs = static_cast<std::size_t>(linear.inputs);
    if (weight.type == DataType::kF8E4M3) {
      linear.weight = unpack_fp8(weight, view(str_cat(name, ".scale")), outputs, inputs);
    } else if (weight.type == DataType::kI8) {
      linear.weight = unpack_fp4(weight, view(str_cat(name, ".scale")), outputs, inputs);
    } else {
      linear.weight = unpack_plain(weight);
    }
    linear.weight = checked(weight_name, std::move(linear.weight));
    return linear;
  }

  const absl::Status& status() const { return status_; }

 private:
  std::vector<float> checked(std::string_view name, std::vector<float> values) {
    for (float value : values) {
      if (std::isfinite(value)) continue;
      if (status_.ok()) {
        status_ =
            absl::DataLossError(str_cat("tensor ", prefix_, name, " holds a NaN or an infinity"));
      }
      break;
    }
    return values;
  }

  const model::Checkpoint& checkpoint_;
  std::string prefix_;
  absl::Status status_;
};

SiteWeights load_site(Reader& r, std::string_view site) {
  return {.fn = r.vector(str_cat("hc_", site, "_fn")),
          .base = r.vector(str_cat("hc_", site, "_base")),
          .scale = r.vector(str_cat("hc_", site, "_scale"))};
}

Expert load_expert(Reader& r, std::string_view name) {
  return {.w1 = r.linear(str_cat(name, ".w1")),
          .w2 = r.linear(str_cat(name, ".w2")),
          .w3 = r.linear(str_cat(name, ".w3"))};
}

void load_attention(Reader& r, const model::ModelConfig& config, int layer, LayerWeights& w) {
  w.attn_norm = r.vector("attn_norm.weight");
  w.q_norm = r.vector("attn.q_norm.weight");
  w.kv_norm = r.vector("attn.kv_norm.weight");
  w.attn_sink = r.vector("attn.attn_sink");
  w.wq_a = r.linear("attn.wq_a");
  w.wq_b = r.linear("attn.wq_b");
  w.wkv = r.linear("attn.wkv");
  w.wo_a = r.linear("attn.wo_a");
  w.wo_b = r.linear("attn.wo_b");
  if (config.is_kv_source(layer)) {
    CompressorWeights& c = w.compressor.emplace();
    c.wkv = r.linear("attn.compressor.wkv");
    if (config.ratio(layer) > 1) c.wgate = r.linear("attn.compressor.wgate");
    c.norm = r.vector("attn.compressor.norm.weight");
    c.wk = r.linear("attn.indexer.wk");
    c.k_norm = r.vector("attn.indexer.k_norm.weight");
  }
  if (config.is_index_source(layer)) {
    w.indexer = {.wq_b = r.linear("attn.indexer.wq_b"),
                 .weights_proj = r.linear("attn.indexer.weights_proj")};
  }
}

void load_experts(Reader& r, const model::ModelConfig& config, LayerWeights& w) {
  w.ffn_norm = r.vector("ffn_norm.weight");
  w.gate = r.linear("ffn.gate");
  w.gate_bias = r.vector("ffn.gate.bias");
  w.shared = load_expert(r, "ffn.shared_experts");
  for (int e = 0; e < config.n_routed_experts; ++e) {
    w.experts.push_back(load_expert(r, str_cat("ffn.experts.", e)));
  }
  for (const Expert& expert : w.experts) {
    w.expert_table.push_back({.w1 = expert.w1.weight.data(),
                              .w2 = expert.w2.weight.data(),
                              .w3 = expert.w3.weight.data()});
  }
}

absl::StatusOr<LayerWeights> load_layer(const model::Checkpoint& checkpoint, int layer) {
  const model::ModelConfig& config = checkpoint.config();
  Reader r(checkpoint, str_cat("layers.", layer, "."));
  LayerWeights w;
  w.attn_site = load_site(r, "attn");
  w.ffn_site = load_site(r, "ffn");
  load_attention(r, config, layer, w);
  load_experts(r, config, w);
  if (config.engram_index(layer) >= 0) {
    w.engram.emplace(EngramWeights{.codes = r.view("engram.embed.weight").bytes.data(),
                                   .scales = r.view("engram.embed.scale").bytes.data(),
                                   .wkv = r.linear("engram.wkv"),
                                   .q_weight = r.vector("engram.q_weight"),
                                   .k_weight = r.vector("engram.k_weight"),
                                   .hash = model::EngramHash(config, layer)});
  }
  RETURN_IF_ERROR(r.status());
  return w;
}

}  // namespace

absl::StatusOr<ModelWeights> load_weights(const model::Checkpoint& checkpoint) {
  const model::ModelConfig& config = checkpoint.config();
  ModelWeights weights;
  Reader r(checkpoint, "");
  weights.embed = r.view("embed.weight").bytes.data();
  weights.norm = r.vector("norm.weight");
  weights.head = r.linear("head");
  RETURN_IF_ERROR(r.status());
  weights.rope_main = model::rope_frequencies(config, model::RopeKind::kMain);
  weights.rope_compress = model::rope_frequencies(config, model::RopeKind::kCompress);
  for (int layer = 0; layer < config.num_hidden_layers; ++layer) {
    ASSIGN_OR_RETURN(LayerWeights layer_weights, load_layer(checkpoint, layer));
    weights.layers.push_back(std::move(layer_weights));
  }
  return weights;
}

}  // namespace millrace::dataplane::engine
