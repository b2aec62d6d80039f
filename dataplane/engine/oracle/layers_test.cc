// Every piece of every layer against the PyTorch reference, each on the reference's own inputs,
// entries, selections and routing.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "common/check.h"
#include "common/str_cat.h"
#include "dataplane/engine/cpu/cpu_ops.h"
#include "dataplane/engine/layer_runner.h"
#include "dataplane/engine/oracle/fixture.h"
#include "dataplane/engine/step_batch.h"
#include "dataplane/kv/block_pool.h"
#include "dataplane/model/number_formats.h"

namespace millrace::dataplane::engine::oracle {
namespace {

// Two float32 sums of the same products in different orders, in units of the last place of the
// row's largest magnitude: how far from a rounding or ranking boundary a value may lie that falls
// on different sides of it.
constexpr float kBoundaryUlps = 8;
constexpr float kUlp = 1.0f / (1 << 24);
// Values behind two or more roundings in a row, whose unrounded form is not recomputed here:
// neighbouring bf16 numbers, and few of them.
constexpr float kNeighbour = 1.0f / 64;
constexpr double kNeighbourShare = 2e-3;

/// How one kind of value compared, over all layers and models.
struct Agreement {
  std::size_t values = 0, different = 0;
  float largest = 0;  ///< difference, in units of the row's largest magnitude
  float boundary_ulps =
      0;  ///< largest distance of an unrounded value from the boundary it fell across
};

class LayerComparison {
 public:
  LayerComparison(const Model& model, const Case& c, std::map<std::string, Agreement>& totals)
      : config_(model.config()),
        case_(c),
        file_(c.path),
        totals_(totals),
        weights_(*load_weights(*model.checkpoint)),
        layout_(config_,
                c.rounding == Switch::kOn ? kv::Encoding::kQuantized : kv::Encoding::kFloat32),
        pool_(*kv::BlockPool::create(16, layout_.block_bytes())),
        memory_(config_, layout_, pool_->base(), 1),
        ops_(cpu::best_kernels()),
        batch_(config_) {
    sequence_.tokens = file_.i32("tokens");
    sequence_.prompt_tokens = c.prompt_tokens;
    sequence_.decoder_floor = std::max(0, c.prompt_tokens - config_.sliding_window);
    sequence_.blocks = *pool_->take(kv::blocks_for(sequence_.length()));
    runner_ = std::make_unique<LayerRunner>(config_, weights_, ops_, stream_, memory_, c.rounding,
                                            sequence_.length());
    parts_ = {{.sequence = &sequence_, .rows = sequence_.length()}};
    batch_.build(parts_);
    std::vector<std::int64_t> ids;
    for (int layer = 0; layer < config_.num_hidden_layers; ++layer) {
      const auto& engram = weights_.layers[static_cast<std::size_t>(layer)].engram;
      if (!engram) continue;
      batch_.engram_rows(parts_, engram->hash, model.checkpoint->engram_token_map(), ids);
      const std::vector<std::int32_t> theirs = file_.i32(str_cat("layers.", layer, ".engram.rows"));
      EXPECT_TRUE(std::equal(ids.begin(), ids.end(), theirs.begin(), theirs.end()))
          << "layer " << layer;
      engram_ids_[layer] = ids;
    }
  }

  void run() {
    for (int layer = 0; layer < config_.num_hidden_layers; ++layer) run_layer(layer);
  }

 private:
  bool rounds() const { return case_.rounding == Switch::kOn; }
  Rounding rounding() const { return rounds() ? Rounding::kBf16 : Rounding::kNone; }
  std::vector<float> theirs(std::string_view name) const {
    return file_.f32(str_cat(prefix_, name));
  }
  bool has(std::string_view name) const { return file_.has(str_cat(prefix_, name)); }

  void run_layer(int layer) {
    prefix_ = str_cat("layers.", layer, ".");
    const bool whole = layer <= config_.first_decoder_layer();
    rows_ = whole ? batch_.encoder.view() : batch_.decoder.view();
    runner_->begin(rows_);
    pin(act().stream, theirs("stream_in"));
    pin(act().mix, theirs("mix_in"));
    if (engram_ids_.contains(layer)) engram(layer);
    runner_->site_input(layer, Site::kAttention);
    compare("collapsed", act().collapsed, theirs("attn.collapsed"), config_.hidden_size);
    pin(act().collapsed, theirs("attn.collapsed"));
    norm_of_collapsed("attn.", weights_.layers[static_cast<std::size_t>(layer)].attn_norm);
    pin(act().x, theirs("attn.x"));
    if (config_.is_kv_source(layer)) entries(layer);
    if (layer == config_.first_decoder_layer()) {
      rows_ = batch_.decoder.view();
      runner_->keep_rows(batch_.decoder_index.data(), rows_);
    }
    attention(layer);
    feed_forward(layer);
    const std::string next = layer + 1 < config_.num_hidden_layers
                                 ? str_cat("layers.", layer + 1, ".stream_in")
                                 : std::string("stream_out");
    compare("ffn stream", act().stream, file_.f32(next), config_.hidden_size);
  }

  void engram(int layer) {
    runner_->engram(layer, engram_ids_[layer].data());
    std::vector<float> memory = theirs("engram.memory");
    if (rounds()) model::round_q8(memory);
    product("engram kv", weights_.layers[static_cast<std::size_t>(layer)].engram->wkv, 0, memory,
            theirs("engram.kv"), config_.hidden_size);
    compare("engram stream", act().stream, theirs("engram.stream_out"), config_.hidden_size);
    pin(act().stream, theirs("engram.stream_out"));
  }

  void entries(int layer) {
    const StepEntries entries = batch_.entries.at(config_.ratio(layer)).view();
    runner_->produce_entries(layer, entries);
    if (config_.ratio(layer) > 1) {
      compare("compressor values", act().compressor_values, theirs("compressor_c"),
              config_.head_dim);
      compare("compressor gates", act().compressor_gates, theirs("compressor_g"), config_.head_dim);
    }
    const std::vector<float> unquantized = theirs(rounds() ? "entry_unquantized" : "entries");
    compare("entry before its format", act().latents, unquantized, config_.head_dim);
    const std::vector<float> key = theirs(rounds() ? "index_key_unquantized" : "index_keys");
    compare("index key before its format", act().index_keys, key, config_.index_head_dim);
    store(layer, entries, PlaneKind::kEntries, unquantized, theirs("entries"), config_.head_dim);
    store(layer, entries, PlaneKind::kIndexKeys, key, theirs("index_keys"), config_.index_head_dim);
  }

  /// Writes the reference's values; their codes must decode to exactly what the reference kept.
  void store(int layer, const StepEntries& entries, PlaneKind plane,
             const std::vector<float>& values, const std::vector<float>& kept, int width) {
    ops_.store_entries(stream_, {.plane = plane,
                                 .rows = rows_,
                                 .entries = entries,
                                 .source = &layout_.source(layer),
                                 .pool = memory_.pool,
                                 .values = values.data()});
    if (!rounds()) return;
    std::vector<float> decoded = values;
    for (std::size_t at = 0; at < decoded.size(); at += static_cast<std::size_t>(width)) {
      const std::span<float> row(decoded.data() + at, static_cast<std::size_t>(width));
      plane == PlaneKind::kEntries ? model::round_q4g(row) : model::round_q4i(row);
    }
    EXPECT_EQ(decoded, kept) << prefix_;
  }

  void attention(int layer) {
    runner_->site_mix(layer, Site::kAttention);
    mixes("attn.", act().attn);
    runner_->queries(layer);
    compare("qr", act().qr, theirs("attn.qr"), config_.q_lora_rank);
    compare("q", act().q, theirs("attn.q"), config_.head_dim);
    compare("window latent", act().k, theirs("attn.k"), config_.head_dim);
    if (rounds()) {
      std::vector<float> latents = theirs("attn.k_unquantized");
      model::round_q8(latents);
      EXPECT_EQ(latents, theirs("attn.k")) << prefix_;
    }
    pin(act().qr, theirs("attn.qr"));
    pin(act().qr_quantized, theirs("attn.qr"));
    if (rounds()) model::round_q8(act().qr_quantized);
    pin(act().q, theirs("attn.q"));
    pin(act().k, theirs("attn.k"));
    if (config_.is_index_source(layer)) selection(layer);
    attention_core(layer);
    runner_->attend(layer);
    attention_output(layer);
    pin(act().y, theirs("attn.y"));
    runner_->expand(Site::kAttention);
    compare("attn stream", act().stream, theirs("attn.stream_out"), config_.hidden_size);
    pin(act().stream, theirs("attn.stream_out"));
  }

  /// The output path piece by piece, each on the reference's values.
  void attention_output(int layer) {
    const LayerWeights& w = weights_.layers[static_cast<std::size_t>(layer)];
    const std::size_t table = config_.ratio(layer) > 0 ? 1 : 0;
    const auto rotate_back = [&](std::vector<float>& o, Rounding rounding) {
      ops_.rope(stream_, {.direction = RopeDirection::kInverse,
                          .rows = rows_.rows,
                          .heads = config_.num_attention_heads,
                          .width = config_.head_dim,
                          .pairs = config_.qk_rope_head_dim / 2,
                          .cosine = act().rope_cosine[table].data(),
                          .sine = act().rope_sine[table].data(),
                          .rounding = rounding,
                          .x = o.data()});
    };
    std::vector<float> o = theirs("attn.o");
    rotate_back(o, rounding());
    compare("attention, rotated back", act().o, o, config_.head_dim);
    const int inputs = w.wo_a.inputs;
    const int rank = config_.o_lora_rank;
    const std::vector<float> low = theirs("attn.o_low");
    for (int group = 0; group < config_.o_groups; ++group) {
      product("grouped output", w.wo_a, group * rank, columns(o, config_.o_groups, group, inputs),
              columns(low, config_.o_groups, group, rank), rank);
    }
    std::vector<float> quantized = low;
    if (rounds()) model::round_q8(quantized);
    product("attention output", w.wo_b, 0, quantized, theirs("attn.y"), config_.hidden_size);
    compare("attention y", act().y, theirs("attn.y"), config_.hidden_size);
  }

  /// Attention itself, rounded and not.
  void attention_core(int layer) {
    const int source = config_.kv_source_of(layer);
    const auto attend = [&](Rounding rounding) {
      std::vector<float> o(act().o.size());
      ops_.attention(stream_,
                     {.rows = rows_,
                      .heads = config_.num_attention_heads,
                      .width = config_.head_dim,
                      .scale = static_cast<float>(1.0 / std::sqrt(config_.head_dim)),
                      .q = act().q.data(),
                      .latents = act().k.data(),
                      .ring = memory_.geometry,
                      .rings = memory_.ring(layer),
                      .sink = weights_.layers[static_cast<std::size_t>(layer)].attn_sink.data(),
                      .source = source < 0 ? nullptr : &layout_.source(source),
                      .pool = memory_.pool,
                      .top_k = config_.index_topk,
                      .selected = act().selected.data(),
                      .selected_count = act().selected_count.data(),
                      .rounding = rounding,
                      .out = o.data()});
      return o;
    };
    compare("attention", attend(rounding()), theirs("attn.o"), config_.head_dim,
            attend(Rounding::kNone));
  }

  /// A product of the reference's input with as many outputs of a matrix as it has, rounded and
  /// not.
  void product(const std::string& name, const WeightMatrix& layer, int first_output,
               const std::vector<float>& x, const std::vector<float>& other, int width) {
    const auto outputs = static_cast<int>(other.size()) / rows_.rows;
    const auto multiply = [&](Rounding rounding) {
      std::vector<float> out(other.size());
      ops_.matmul(stream_, {.rows = rows_.rows,
                            .x = x.data(),
                            .x_stride = layer.inputs,
                            .weight = layer,
                            .first_output = first_output,
                            .outputs = outputs,
                            .rounding = rounding,
                            .out = out.data(),
                            .out_stride = outputs});
      return out;
    };
    compare(name, multiply(rounding()), other, width, multiply(Rounding::kNone));
  }

  void norm_of_collapsed(const std::string& site, const std::vector<float>& weight) {
    const std::vector<float> collapsed = theirs(site + "collapsed");
    const auto normalise = [&](Rounding rounding) {
      std::vector<float> out(collapsed.size());
      ops_.rms_norm(stream_, {.rows = rows_.rows,
                              .width = config_.hidden_size,
                              .x = collapsed.data(),
                              .weight = weight.data(),
                              .eps = static_cast<float>(config_.rms_norm_eps),
                              .rounding = rounding,
                              .out = out.data()});
      return out;
    };
    compare("x", normalise(rounding()), theirs(site + "x"), config_.hidden_size,
            normalise(Rounding::kNone));
  }

  /// Columns [group * width, (group + 1) * width) of rows that hold `groups` such parts.
  static std::vector<float> columns(const std::vector<float>& rows, int groups, int group,
                                    int width) {
    std::vector<float> out;
    const std::ptrdiff_t stride = std::ptrdiff_t{groups} * width;
    for (auto row = rows.begin(); row != rows.end(); row += stride) {
      out.insert(out.end(), row + std::ptrdiff_t{group} * width,
                 row + std::ptrdiff_t{group + 1} * width);
    }
    return out;
  }

  void selection(int layer) {
    runner_->select(layer);
    compare("index query", act().index_q, theirs("attn.index_q"), config_.index_head_dim);
    std::vector<float> weights = act().index_weights;
    const double scale = 1 / std::sqrt(1.0 * config_.index_head_dim * config_.index_n_heads);
    for (float& weight : weights) weight *= static_cast<float>(scale);
    compare("index weight", weights, theirs("attn.index_weights"), config_.index_n_heads);
    choices(layer);
  }

  /// Selection and candidates from the reference's queries, weights and keys. An entry may be
  /// chosen in place of another only when the reference scores both alike within kBoundaryUlps.
  void choices(int layer) {
    const std::vector<float> q = theirs("attn.index_q");
    const std::vector<float> weights = theirs("attn.index_weights");
    const bool is_source = layer == config_.candidate_source_layer_id;
    const bool restricted =
        config_.candidate_source_layer_id >= 0 && layer > config_.candidate_source_layer_id;
    ops_.select(stream_, {.rows = rows_,
                          .heads = config_.index_n_heads,
                          .width = config_.index_head_dim,
                          .top_k = config_.index_topk,
                          .q = q.data(),
                          .weights = weights.data(),
                          .source = &layout_.source(config_.kv_source_of(layer)),
                          .pool = memory_.pool,
                          .role = is_source    ? CandidateRole::kSource
                                  : restricted ? CandidateRole::kRestricted
                                               : CandidateRole::kNone,
                          .block_size = config_.candidate_block_size,
                          .top_blocks = config_.candidate_topk_blocks,
                          .candidates = act().candidates.data(),
                          .candidate_count = act().candidate_count.data(),
                          .selected = act().selected.data(),
                          .selected_count = act().selected_count.data()});
    const std::vector<std::int32_t> chosen = file_.i32(str_cat(prefix_, "selection"));
    const std::vector<float> scores = theirs("index_scores");
    const auto top_k = static_cast<std::size_t>(config_.index_topk);
    const std::size_t count = scores.size() / static_cast<std::size_t>(rows_.rows);
    for (std::size_t row = 0; row < static_cast<std::size_t>(rows_.rows); ++row) {
      std::vector<std::int32_t> theirs_row;
      for (std::size_t i = 0; i < top_k; ++i) {
        if (chosen[row * top_k + i] >= 0) theirs_row.push_back(chosen[row * top_k + i]);
      }
      const std::int32_t* first = act().selected.data() + row * top_k;
      const std::vector<std::int32_t> mine(first, first + act().selected_count[row]);
      compare_choice("selected entry", mine, theirs_row, {scores.data() + row * count, count});
      // What follows runs on the reference's choice.
      std::copy(theirs_row.begin(), theirs_row.end(),
                act().selected.begin() + static_cast<std::ptrdiff_t>(row * top_k));
      act().selected_count[row] = static_cast<std::int32_t>(theirs_row.size());
    }
    if (is_source) candidates();
  }

  void candidates() {
    const bool all = !file_.has(str_cat(prefix_, "candidates"));
    const std::vector<std::int32_t> mask =
        all ? std::vector<std::int32_t>() : file_.i32(str_cat(prefix_, "candidates"));
    const auto entries = mask.size() / static_cast<std::size_t>(rows_.rows);
    for (std::size_t row = 0; row < static_cast<std::size_t>(rows_.rows); ++row) {
      if (all) {
        EXPECT_EQ(act().candidate_count[row], -1) << prefix_ << row;
        continue;
      }
      if (act().candidate_count[row] < 0)
        continue;  // every block fits: compared through the selections
      std::vector<bool> mine(entries, false);
      for (int i = 0; i < act().candidate_count[row]; ++i) {
        const int block =
            act().candidates[row * static_cast<std::size_t>(config_.candidate_topk_blocks) +
                             static_cast<std::size_t>(i)];
        for (int j = 0; j < config_.candidate_block_size; ++j) {
          const auto entry = static_cast<std::size_t>(block) *
                                 static_cast<std::size_t>(config_.candidate_block_size) +
                             static_cast<std::size_t>(j);
          if (entry < entries) mine[entry] = true;
        }
      }
      const auto visible = static_cast<std::size_t>(
          (rows_.position[row] + 1) / config_.ratio(config_.candidate_source_layer_id));
      for (std::size_t entry = 0; entry < visible; ++entry) {
        Agreement& total = totals_["candidate entry"];
        ++total.values;
        total.different += mine[entry] != (mask[row * entries + entry] != 0);
      }
    }
  }

  void compare_choice(const std::string& name, const std::vector<std::int32_t>& mine,
                      const std::vector<std::int32_t>& other, std::span<const float> scores) {
    EXPECT_EQ(mine.size(), other.size()) << prefix_ << name;
    Agreement& total = totals_[name];
    total.values += other.size();
    std::vector<std::int32_t> only_mine, only_theirs;
    std::set_difference(mine.begin(), mine.end(), other.begin(), other.end(),
                        std::back_inserter(only_mine));
    std::set_difference(other.begin(), other.end(), mine.begin(), mine.end(),
                        std::back_inserter(only_theirs));
    total.different += only_mine.size();
    float scale = 0;
    for (float score : scores) {
      if (std::isfinite(score)) scale = std::max(scale, std::fabs(score));
    }
    for (std::int32_t a : only_mine) {
      for (std::int32_t b : only_theirs) {
        const float gap =
            std::fabs(scores[static_cast<std::size_t>(a)] - scores[static_cast<std::size_t>(b)]);
        total.boundary_ulps = std::max(total.boundary_ulps, gap / scale / kUlp);
      }
    }
  }

  void mixes(const std::string& site, SiteMix& mine) {
    compare("mix a", mine.a, theirs(site + "a"), config_.hc_mult);
    compare("mix p", mine.p, theirs(site + "p"), config_.hc_mult);
    compare("mix c", mine.c, theirs(site + "c"), config_.hc_mult * config_.hc_mult);
    pin(mine.a, theirs(site + "a"));
    pin(mine.p, theirs(site + "p"));
    pin(mine.c, theirs(site + "c"));
  }

  void feed_forward(int layer) {
    runner_->site_mix(layer, Site::kFeedForward);
    mixes("ffn.", act().ffn);
    runner_->site_input(layer, Site::kFeedForward);
    compare("collapsed", act().collapsed, theirs("ffn.collapsed"), config_.hidden_size);
    norm_of_collapsed("ffn.", weights_.layers[static_cast<std::size_t>(layer)].ffn_norm);
    pin(act().x, theirs("ffn.x"));
    runner_->route(layer);
    routing();
    runner_->experts(layer);
    compare("shared expert", act().shared, theirs("shared"), config_.hidden_size);
    compare("experts", act().y, theirs("ffn.y"), config_.hidden_size);
    pin(act().y, theirs("ffn.y"));
    runner_->expand(Site::kFeedForward);
  }

  void routing() {
    compare("gate logit", act().gate_logits, theirs("gate_logits"), config_.n_routed_experts);
    const auto k = static_cast<std::size_t>(config_.num_experts_per_tok);
    const auto experts = static_cast<std::size_t>(config_.n_routed_experts);
    const std::vector<std::int32_t> ids = file_.i32(str_cat(prefix_, "expert_ids"));
    std::vector<float> scores = theirs("gate_scores");
    const auto& bias =
        weights_.layers[static_cast<std::size_t>(std::stoi(prefix_.substr(7)))].gate_bias;
    for (std::size_t i = 0; i < scores.size(); ++i) scores[i] += bias[i % experts];
    for (std::size_t row = 0; row < static_cast<std::size_t>(rows_.rows); ++row) {
      const auto at = static_cast<std::ptrdiff_t>(row * k);
      const std::vector<std::int32_t> mine(
          act().expert_ids.begin() + at,
          act().expert_ids.begin() + at + static_cast<std::ptrdiff_t>(k));
      const std::vector<std::int32_t> other(ids.begin() + at,
                                            ids.begin() + at + static_cast<std::ptrdiff_t>(k));
      compare_choice("expert", mine, other, {scores.data() + row * experts, experts});
      std::copy(other.begin(), other.end(), act().expert_ids.begin() + at);
    }
    compare("expert weight", act().expert_weights, theirs("expert_weights"),
            config_.num_experts_per_tok);
    pin(act().expert_weights, theirs("expert_weights"));
  }

  Activations& act() { return runner_->activations(); }

  static void pin(std::vector<float>& target, const std::vector<float>& values) {
    CHECK(values.size() <= target.size());
    std::copy(values.begin(), values.end(), target.begin());
  }

  /// mine may be longer: buffers are sized for all rows. unrounded: what was rounded to give
  /// `mine`.
  void compare(const std::string& name, const std::vector<float>& mine,
               const std::vector<float>& other, int width,
               const std::vector<float>& unrounded = {}) {
    ASSERT_LE(other.size(), mine.size()) << prefix_ << name;
    ASSERT_EQ(other.size() % static_cast<std::size_t>(width), 0u) << prefix_ << name;
    Agreement& total = totals_[name];
    const auto step = static_cast<std::size_t>(width);
    for (std::size_t row = 0; row < other.size(); row += step) {
      float scale = 1e-30f;
      for (std::size_t i = row; i < row + step; ++i) scale = std::max(scale, std::fabs(other[i]));
      for (std::size_t i = row; i < row + step; ++i) {
        ++total.values;
        if (mine[i] == other[i]) continue;
        ++total.different;
        total.largest = std::max(total.largest, std::fabs(mine[i] - other[i]) / scale);
        if (unrounded.empty() || !rounds()) continue;
        const float boundary = mine[i] + (other[i] - mine[i]) / 2;
        total.boundary_ulps =
            std::max(total.boundary_ulps, std::fabs(unrounded[i] - boundary) / scale / kUlp);
      }
    }
  }

  const model::ModelConfig& config_;
  const Case& case_;
  TensorFile file_;
  std::map<std::string, Agreement>& totals_;
  ModelWeights weights_;
  kv::BlockLayout layout_;
  std::unique_ptr<kv::BlockPool> pool_;
  KvMemory memory_;
  cpu::CpuStream stream_;
  cpu::CpuOps ops_;
  Sequence sequence_;
  StepBatch batch_;
  std::vector<StepPart> parts_;
  std::unique_ptr<LayerRunner> runner_;
  std::map<int, std::vector<std::int64_t>> engram_ids_;
  StepRows rows_;
  std::string prefix_;
};

std::map<std::string, Agreement> compare_all(Switch rounding) {
  std::map<std::string, Agreement> totals;
  for (const Model& model : models()) {
    for (const Case& c : model.cases) {
      if (c.kind != "layers" || c.rounding != rounding) continue;
      SCOPED_TRACE(str_cat(model.name, " ", c.name));
      LayerComparison(model, c, totals).run();
    }
  }
  for (const auto& [name, total] : totals) {
    std::printf("%-28s %8zu values, %6zu differ, by at most %.2g of the row's largest",
                name.c_str(), total.values, total.different, static_cast<double>(total.largest));
    std::printf(total.boundary_ulps > 0 ? ", %.1f ulp from a boundary\n" : "\n",
                static_cast<double>(total.boundary_ulps));
  }
  return totals;
}

TEST(Layers, WithoutRoundingEqualTheReference) {
  for (const auto& [name, total] : compare_all(Switch::kOff)) {
    EXPECT_GT(total.values, 0u) << name;
    EXPECT_LE(total.largest, 1e-4f) << name;
  }
}

TEST(Layers, WithRoundingDifferOnlyAtRoundingBoundaries) {
  for (const auto& [name, total] : compare_all(Switch::kOn)) {
    EXPECT_GT(total.values, 0u) << name;
    EXPECT_LE(total.boundary_ulps, kBoundaryUlps) << name;
    EXPECT_LE(total.largest, kNeighbour) << name;
    // Coefficients, gates and the compressor's products stay float32: all of their values differ a
    // little.
    if (total.largest > 1e-5f) {
      EXPECT_LE(static_cast<double>(total.different),
                kNeighbourShare * static_cast<double>(total.values) + 8)
          << name;
    }
  }
}

}  // namespace
}  // namespace millrace::dataplane::engine::oracle
