#include "dataplane/engine/layer_runner.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/check.h"

namespace millrace::dataplane::engine {
namespace {

std::size_t size(std::int64_t rows, std::int64_t width) {
  return static_cast<std::size_t>(rows * width);
}

int highest_ratio(const model::ModelConfig& config) {
  return *std::max_element(config.compress_ratios.begin(), config.compress_ratios.end());
}

const LayerWeights& at(const ModelWeights& weights, int layer) {
  return weights.layers[static_cast<std::size_t>(layer)];
}

void resize(SiteMix& mix, std::int64_t rows, std::int64_t copies) {
  mix.a.resize(size(rows, copies));
  mix.p.resize(size(rows, copies));
  mix.c.resize(size(rows, copies * copies));
}

}  // namespace

KvMemory::KvMemory(const model::ModelConfig& config, kv::BlockLayout block_layout,
                   std::byte* pool_base, int max_sequences)
    : layout(std::move(block_layout)),
      pool{.base = pool_base, .block_bytes = layout.block_bytes(), .encoding = layout.encoding()},
      geometry{.window = config.sliding_window},
      ring_stride(size(std::int64_t{max_sequences} * geometry.slots(), config.head_dim)),
      kept_stride(size(std::int64_t{max_sequences} * geometry.window, config.head_dim)),
      rings(ring_stride * static_cast<std::size_t>(config.num_hidden_layers)),
      kept_windows(kept_stride * static_cast<std::size_t>(config.first_decoder_layer())),
      carries(static_cast<std::size_t>(config.num_hidden_layers)) {
  for (const kv::SourceLayout& source : layout.sources()) {
    carry(source.layer)
        .resize(size(std::int64_t{max_sequences} * (source.ratio - 1) * 2, config.head_dim));
  }
}

Activations::Activations(const model::ModelConfig& c, int max_rows) {
  const std::int64_t rows = max_rows;
  const std::int64_t hidden = c.hidden_size;
  const std::int64_t heads = std::int64_t{c.num_attention_heads} * c.head_dim;
  stream.resize(size(rows, c.hc_mult * hidden));
  mix.resize(size(rows, c.hc_mult));
  if (!c.engram_layer_ids.empty()) {
    const std::int64_t columns = std::int64_t{c.engram_max_ngram_size - 1} * c.engram_n_heads;
    engram_memory.resize(size(rows, columns * c.engram_head_dim));
    engram_kv.resize(size(rows, (c.hc_mult + 1) * hidden));
  }
  for (auto* v : {&collapsed, &x, &x_quantized, &y, &shared}) v->resize(size(rows, hidden));
  resize(attn, rows, c.hc_mult);
  resize(ffn, rows, c.hc_mult);
  for (auto* v : {&qr, &qr_quantized}) v->resize(size(rows, c.q_lora_rank));
  for (auto* v : {&q, &o}) v->resize(size(rows, heads));
  k.resize(size(rows, c.head_dim));
  low.resize(size(rows, std::int64_t{c.o_groups} * c.o_lora_rank));
  if (highest_ratio(c) > 0) {
    for (auto* v : {&compressor_values, &compressor_gates, &latents})
      v->resize(size(rows, c.head_dim));
    index_keys.resize(size(rows, c.index_head_dim));
    index_q.resize(size(rows, std::int64_t{c.index_n_heads} * c.index_head_dim));
    index_weights.resize(size(rows, c.index_n_heads));
    selected.resize(size(rows, c.index_topk));
    selected_count.resize(size(rows, 1));
    candidate_count.resize(size(rows, 1));
    if (c.candidate_source_layer_id >= 0) candidates.resize(size(rows, c.candidate_topk_blocks));
  }
  gate_logits.resize(size(rows, c.n_routed_experts));
  expert_ids.resize(size(rows, c.num_experts_per_tok));
  expert_weights.resize(size(rows, c.num_experts_per_tok));
  for (auto* v : {&shared_g, &shared_u}) v->resize(size(rows, c.moe_intermediate_size));
  for (auto* v : {&rope_cosine[0], &rope_cosine[1], &rope_sine[0], &rope_sine[1], &entry_cosine,
                  &entry_sine}) {
    v->resize(size(rows, c.qk_rope_head_dim / 2));
  }
}

LayerRunner::LayerRunner(const model::ModelConfig& config, const ModelWeights& weights, Ops& ops,
                         Stream& stream, KvMemory& memory, Switch rounding, int max_rows)
    : config_(config),
      weights_(weights),
      ops_(ops),
      stream_(stream),
      memory_(memory),
      rounding_(rounding == Switch::kOn ? Rounding::kBf16 : Rounding::kNone),
      act_(config, max_rows) {}

void LayerRunner::norm(const std::vector<float>& x, const std::vector<float>& weight, int rows,
                       int width, std::vector<float>& out) {
  ops_.rms_norm(stream_, {.rows = rows,
                          .width = width,
                          .x = x.data(),
                          .weight = weight.data(),
                          .eps = static_cast<float>(config_.rms_norm_eps),
                          .rounding = rounding(),
                          .out = out.data()});
}

void LayerRunner::linear(const WeightMatrix& layer, const float* x, int rows, Rounding rounding,
                         std::vector<float>& out) {
  ops_.matmul(stream_, {.rows = rows,
                        .x = x,
                        .x_stride = layer.inputs,
                        .weight = layer,
                        .outputs = layer.outputs,
                        .rounding = rounding,
                        .out = out.data(),
                        .out_stride = layer.outputs});
}

const float* LayerRunner::quantized(const std::vector<float>& x, int rows, int width,
                                    std::vector<float>& out) {
  if (!quantizes()) return x.data();
  ops_.quantize(
      stream_,
      {.format = QuantFormat::kQ8, .rows = rows, .width = width, .x = x.data(), .out = out.data()});
  return out.data();
}

void LayerRunner::rotate(int layer, RopeDirection direction, int heads, int width,
                         std::vector<float>& x) {
  ops_.rope(stream_, {.direction = direction,
                      .rows = rows_.rows,
                      .heads = heads,
                      .width = width,
                      .pairs = config_.qk_rope_head_dim / 2,
                      .cosine = act_.rope_cosine[rope_of(layer)].data(),
                      .sine = act_.rope_sine[rope_of(layer)].data(),
                      .rounding = rounding(),
                      .x = x.data()});
}

void LayerRunner::begin(const StepRows& rows) {
  rows_ = rows;
  for (std::size_t kind = 0; kind < 2; ++kind) {
    ops_.rope_table(stream_,
                    {.rows = rows.rows,
                     .pairs = config_.qk_rope_head_dim / 2,
                     .position = rows.position,
                     .frequency = (kind == 0 ? weights_.rope_main : weights_.rope_compress).data(),
                     .cosine = act_.rope_cosine[kind].data(),
                     .sine = act_.rope_sine[kind].data()});
  }
}

void LayerRunner::embed(const std::int32_t* tokens) {
  ops_.embed(stream_, {.table = weights_.embed,
                       .tokens = tokens,
                       .rows = rows_.rows,
                       .copies = config_.hc_mult,
                       .width = config_.hidden_size,
                       .stream = act_.stream.data(),
                       .mix = act_.mix.data()});
}

void LayerRunner::engram(int layer, const std::int64_t* ids) {
  const EngramWeights& w = *at(weights_, layer).engram;
  const int columns = w.hash.columns();
  ops_.engram_gather(stream_, {.codes = w.codes,
                               .scales = w.scales,
                               .ids = ids,
                               .rows = rows_.rows,
                               .columns = columns,
                               .width = config_.engram_head_dim,
                               .out = act_.engram_memory.data()});
  const float* memory = quantized(act_.engram_memory, rows_.rows, columns * config_.engram_head_dim,
                                  act_.engram_memory);
  linear(w.wkv, memory, rows_.rows, rounding(), act_.engram_kv);
  ops_.engram_apply(stream_, {.rows = rows_.rows,
                              .copies = config_.hc_mult,
                              .width = config_.hidden_size,
                              .kv = act_.engram_kv.data(),
                              .q_weight = w.q_weight.data(),
                              .k_weight = w.k_weight.data(),
                              .eps = static_cast<float>(config_.rms_norm_eps),
                              .rounding = rounding(),
                              .stream = act_.stream.data()});
}

void LayerRunner::site_input(int layer, Site site) {
  const LayerWeights& w = at(weights_, layer);
  // A site reads the stream with the mix computed one site earlier.
  const bool attention = site == Site::kAttention;
  ops_.collapse(stream_, {.rows = rows_.rows,
                          .copies = config_.hc_mult,
                          .width = config_.hidden_size,
                          .a = attention ? act_.mix.data() : act_.attn.a.data(),
                          .stream = act_.stream.data(),
                          .rounding = rounding(),
                          .out = act_.collapsed.data()});
  norm(act_.collapsed, attention ? w.attn_norm : w.ffn_norm, rows_.rows, config_.hidden_size,
       act_.x);
}

void LayerRunner::site_mix(int layer, Site site) {
  const bool attention = site == Site::kAttention;
  const SiteWeights& w = attention ? at(weights_, layer).attn_site : at(weights_, layer).ffn_site;
  SiteMix& out = attention ? act_.attn : act_.ffn;
  ops_.mix(stream_, {.rows = rows_.rows,
                     .copies = config_.hc_mult,
                     .width = config_.hidden_size,
                     .sinkhorn_rounds = config_.hc_sinkhorn_iters,
                     .stream = act_.stream.data(),
                     .fn = w.fn,
                     .base = w.base.data(),
                     .scale = w.scale.data(),
                     .norm_eps = static_cast<float>(config_.rms_norm_eps),
                     .hc_eps = static_cast<float>(config_.hc_eps),
                     .a = out.a.data(),
                     .p = out.p.data(),
                     .c = out.c.data()});
}

void LayerRunner::produce_entries(int layer, const StepEntries& entries) {
  const CompressorWeights& w = *at(weights_, layer).compressor;
  const kv::SourceLayout& source = memory_.layout.source(layer);
  const int width = config_.head_dim;
  // Gated groups are combined from unrounded products; a group of one is a plain product.
  const bool gated = source.ratio > 1;
  linear(w.wkv, act_.x.data(), rows_.rows, gated ? Rounding::kNone : rounding(),
         act_.compressor_values);
  if (gated) linear(w.wgate, act_.x.data(), rows_.rows, Rounding::kNone, act_.compressor_gates);
  float* carry = memory_.carry(layer).data();
  ops_.compress(stream_, {.rows = rows_,
                          .entries = entries,
                          .ratio = source.ratio,
                          .width = width,
                          .values = act_.compressor_values.data(),
                          .gates = act_.compressor_gates.data(),
                          .carry = carry,
                          .rounding = rounding(),
                          .out = act_.latents.data()});
  if (gated) {
    ops_.store_carry(stream_, {.rows = rows_,
                               .ratio = source.ratio,
                               .width = width,
                               .values = act_.compressor_values.data(),
                               .gates = act_.compressor_gates.data(),
                               .carry = carry});
  }
  norm(act_.latents, w.norm, entries.entries, width, act_.latents);
  linear(w.wk, act_.latents.data(), entries.entries, rounding(), act_.index_keys);
  norm(act_.index_keys, w.k_norm, entries.entries, config_.index_head_dim, act_.index_keys);

  const int pairs = config_.qk_rope_head_dim / 2;
  ops_.rope_table(stream_, {.rows = entries.entries,
                            .pairs = pairs,
                            .position = entries.index,
                            .position_scale = source.ratio,
                            .frequency = weights_.rope_compress.data(),
                            .cosine = act_.entry_cosine.data(),
                            .sine = act_.entry_sine.data()});
  const auto finish = [&](PlaneKind plane, int plane_width, std::vector<float>& values) {
    ops_.rope(stream_, {.rows = entries.entries,
                        .heads = 1,
                        .width = plane_width,
                        .pairs = pairs,
                        .cosine = act_.entry_cosine.data(),
                        .sine = act_.entry_sine.data(),
                        .rounding = rounding(),
                        .x = values.data()});
    ops_.store_entries(stream_, {.plane = plane,
                                 .rows = rows_,
                                 .entries = entries,
                                 .source = &source,
                                 .pool = memory_.pool,
                                 .values = values.data()});
  };
  finish(PlaneKind::kEntries, width, act_.latents);
  finish(PlaneKind::kIndexKeys, config_.index_head_dim, act_.index_keys);
}

void LayerRunner::queries(int layer) {
  const LayerWeights& w = at(weights_, layer);
  const float* x = quantized(act_.x, rows_.rows, config_.hidden_size, act_.x_quantized);
  linear(w.wq_a, x, rows_.rows, rounding(), act_.qr);
  norm(act_.qr, w.q_norm, rows_.rows, config_.q_lora_rank, act_.qr);
  linear(w.wq_b, quantized(act_.qr, rows_.rows, config_.q_lora_rank, act_.qr_quantized), rows_.rows,
         rounding(), act_.q);
  rotate(layer, RopeDirection::kForward, config_.num_attention_heads, config_.head_dim, act_.q);

  linear(w.wkv, x, rows_.rows, rounding(), act_.k);
  norm(act_.k, w.kv_norm, rows_.rows, config_.head_dim, act_.k);
  rotate(layer, RopeDirection::kForward, 1, config_.head_dim, act_.k);
  if (quantizes()) {
    ops_.quantize(stream_, {.format = QuantFormat::kQ8,
                            .rows = rows_.rows,
                            .width = config_.head_dim,
                            .x = act_.k.data(),
                            .out = act_.k.data()});
  }
}

void LayerRunner::select(int layer) {
  if (!config_.is_index_source(layer)) return;
  const IndexerWeights& w = *at(weights_, layer).indexer;
  const int heads = config_.index_n_heads;
  const int width = config_.index_head_dim;
  const float* qr = quantizes() ? act_.qr_quantized.data() : act_.qr.data();
  linear(w.wq_b, qr, rows_.rows, rounding(), act_.index_q);
  rotate(layer, RopeDirection::kForward, heads, width, act_.index_q);
  if (quantizes()) {
    ops_.quantize(stream_, {.format = QuantFormat::kQ4i,
                            .rows = rows_.rows * heads,
                            .width = width,
                            .x = act_.index_q.data(),
                            .out = act_.index_q.data()});
  }
  linear(w.weights_proj, act_.x.data(), rows_.rows, rounding(), act_.index_weights);
  // The product's constant factor, width^-0.5 · heads^-0.5, scales all scores of a row alike and is
  // positive: it changes no choice.
  CandidateRole role = CandidateRole::kNone;
  if (config_.candidate_source_layer_id >= 0 && layer >= config_.candidate_source_layer_id) {
    role = layer == config_.candidate_source_layer_id ? CandidateRole::kSource
                                                      : CandidateRole::kRestricted;
  }
  ops_.select(stream_, {.rows = rows_,
                        .heads = heads,
                        .width = width,
                        .top_k = config_.index_topk,
                        .q = act_.index_q.data(),
                        .weights = act_.index_weights.data(),
                        .source = &memory_.layout.source(config_.kv_source_of(layer)),
                        .pool = memory_.pool,
                        .role = role,
                        .block_size = config_.candidate_block_size,
                        .top_blocks = config_.candidate_topk_blocks,
                        .candidates = act_.candidates.data(),
                        .candidate_count = act_.candidate_count.data(),
                        .selected = act_.selected.data(),
                        .selected_count = act_.selected_count.data()});
}

void LayerRunner::attend(int layer) {
  const LayerWeights& w = at(weights_, layer);
  const int source = config_.kv_source_of(layer);
  ops_.attention(stream_, {.rows = rows_,
                           .heads = config_.num_attention_heads,
                           .width = config_.head_dim,
                           .scale = static_cast<float>(1.0 / std::sqrt(config_.head_dim)),
                           .q = act_.q.data(),
                           .latents = act_.k.data(),
                           .ring = memory_.geometry,
                           .rings = memory_.ring(layer),
                           .sink = w.attn_sink.data(),
                           .source = source < 0 ? nullptr : &memory_.layout.source(source),
                           .pool = memory_.pool,
                           .top_k = config_.index_topk,
                           .selected = act_.selected.data(),
                           .selected_count = act_.selected_count.data(),
                           .rounding = rounding(),
                           .out = act_.o.data()});
  ops_.store_window(stream_, {.rows = rows_,
                              .width = config_.head_dim,
                              .latents = act_.k.data(),
                              .ring = memory_.geometry,
                              .rings = memory_.ring(layer)});
  if (layer < config_.first_decoder_layer()) {
    ops_.keep_window(stream_, {.rows = rows_,
                               .width = config_.head_dim,
                               .latents = act_.k.data(),
                               .ring = memory_.geometry,
                               .rings = memory_.ring(layer),
                               .kept = memory_.kept(layer)});
  }
  rotate(layer, RopeDirection::kInverse, config_.num_attention_heads, config_.head_dim, act_.o);

  // The first output projection is block-diagonal over groups of heads; its input is not quantized.
  const int groups = config_.o_groups;
  const int rank = config_.o_lora_rank;
  const int inputs = w.wo_a.inputs;
  for (int group = 0; group < groups; ++group) {
    ops_.matmul(stream_, {.rows = rows_.rows,
                          .x = act_.o.data() + size(group, inputs),
                          .x_stride = groups * inputs,
                          .weight = w.wo_a,
                          .first_output = group * rank,
                          .outputs = rank,
                          .rounding = rounding(),
                          .out = act_.low.data() + size(group, rank),
                          .out_stride = groups * rank});
  }
  linear(w.wo_b, quantized(act_.low, rows_.rows, groups * rank, act_.low), rows_.rows, rounding(),
         act_.y);
}

void LayerRunner::route(int layer) {
  const LayerWeights& w = at(weights_, layer);
  linear(w.gate, act_.x.data(), rows_.rows, Rounding::kNone, act_.gate_logits);
  ops_.route(stream_, {.rows = rows_.rows,
                       .experts = config_.n_routed_experts,
                       .top_k = config_.num_experts_per_tok,
                       .logits = act_.gate_logits.data(),
                       .bias = w.gate_bias.data(),
                       .temperature = static_cast<float>(config_.gate_temp),
                       .scale = static_cast<float>(config_.routed_scaling_factor),
                       .ids = act_.expert_ids.data(),
                       .weights = act_.expert_weights.data()});
}

void LayerRunner::experts(int layer) {
  const LayerWeights& w = at(weights_, layer);
  const int inner = config_.moe_intermediate_size;
  const float* x = quantized(act_.x, rows_.rows, config_.hidden_size, act_.x_quantized);
  ops_.routed_experts(stream_, {.rows = rows_.rows,
                                .width = config_.hidden_size,
                                .inner = inner,
                                .experts = config_.n_routed_experts,
                                .top_k = config_.num_experts_per_tok,
                                .x = x,
                                .ids = act_.expert_ids.data(),
                                .weights = act_.expert_weights.data(),
                                .table = w.experts.data(),
                                .limit = static_cast<float>(config_.swiglu_limit),
                                .rounding = rounding(),
                                .out = act_.y.data()});
  linear(w.shared.w1, x, rows_.rows, rounding(), act_.shared_g);
  linear(w.shared.w3, x, rows_.rows, rounding(), act_.shared_u);
  ops_.swiglu(stream_, {.rows = rows_.rows,
                        .width = inner,
                        .g = act_.shared_g.data(),
                        .u = act_.shared_u.data(),
                        .limit = static_cast<float>(config_.swiglu_limit),
                        .rounding = rounding(),
                        .out = act_.shared_g.data()});
  linear(w.shared.w2, quantized(act_.shared_g, rows_.rows, inner, act_.shared_g), rows_.rows,
         rounding(), act_.shared);
  ops_.add(stream_, {.count = size(rows_.rows, config_.hidden_size),
                     .x = act_.shared.data(),
                     .rounding = rounding(),
                     .out = act_.y.data()});
}

void LayerRunner::expand(Site site) {
  const SiteMix& mix = site == Site::kAttention ? act_.attn : act_.ffn;
  ops_.expand(stream_, {.rows = rows_.rows,
                        .copies = config_.hc_mult,
                        .width = config_.hidden_size,
                        .p = mix.p.data(),
                        .c = mix.c.data(),
                        .y = act_.y.data(),
                        .rounding = rounding(),
                        .stream = act_.stream.data()});
}

void LayerRunner::run(int layer) {
  site_mix(layer, Site::kAttention);
  queries(layer);
  select(layer);
  attend(layer);
  expand(Site::kAttention);
  site_mix(layer, Site::kFeedForward);
  site_input(layer, Site::kFeedForward);
  route(layer);
  experts(layer);
  expand(Site::kFeedForward);
  std::swap(act_.mix, act_.ffn.a);
}

void LayerRunner::keep_rows(const std::int32_t* index, const StepRows& rows) {
  const auto keep = [&](std::vector<float>& values, int width) {
    ops_.gather_rows(stream_, {.rows = rows.rows,
                               .width = width,
                               .index = index,
                               .x = values.data(),
                               .out = values.data()});
  };
  keep(act_.stream, config_.hc_mult * config_.hidden_size);
  keep(act_.mix, config_.hc_mult);
  keep(act_.x, config_.hidden_size);
  begin(rows);
}

void LayerRunner::logits(const std::int32_t* index, int count, float* out) {
  const int copies = config_.hc_mult;
  const int hidden = config_.hidden_size;
  // The rows are used up: stream and mix may be packed in place.
  ops_.gather_rows(stream_, {.rows = count,
                             .width = copies * hidden,
                             .index = index,
                             .x = act_.stream.data(),
                             .out = act_.stream.data()});
  ops_.gather_rows(stream_, {.rows = count,
                             .width = copies,
                             .index = index,
                             .x = act_.mix.data(),
                             .out = act_.mix.data()});
  ops_.collapse(stream_, {.rows = count,
                          .copies = copies,
                          .width = hidden,
                          .a = act_.mix.data(),
                          .stream = act_.stream.data(),
                          .rounding = rounding(),
                          .out = act_.collapsed.data()});
  norm(act_.collapsed, weights_.norm, count, hidden, act_.x);
  ops_.matmul(stream_, {.rows = count,
                        .x = act_.x.data(),
                        .x_stride = hidden,
                        .weight = weights_.head,
                        .outputs = config_.vocab_size,
                        .rounding = Rounding::kNone,
                        .out = out,
                        .out_stride = config_.vocab_size});
}

}  // namespace millrace::dataplane::engine
