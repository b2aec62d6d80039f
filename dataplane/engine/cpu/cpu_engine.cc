#include <algorithm>
#include <optional>

#include "common/check.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "dataplane/engine/cpu/cpu_ops.h"
#include "dataplane/engine/engine.h"
#include "dataplane/engine/forward.h"
#include "dataplane/engine/handover.h"
#include "dataplane/engine/kept_window.h"
#include "dataplane/engine/layer_runner.h"
#include "dataplane/engine/swap_in.h"
#include "dataplane/kv/block_pool.h"
#include "dataplane/kv/hit_policy.h"
#include "dataplane/model/checkpoint.h"

namespace millrace::dataplane::engine {
namespace {

absl::Status invalid(std::string_view message) {
  return absl::InvalidArgumentError(to_absl(message));
}

class CpuEngine : public Engine {
 public:
  CpuEngine(const model::Checkpoint& checkpoint, ModelWeights weights,
            std::unique_ptr<kv::BlockPool> pool, kv::BlockLayout layout,
            const EngineSwitches& switches, const EngineLimits& limits)
      : config_(checkpoint.config()),
        switches_(switches),
        limits_(limits),
        weights_(std::move(weights)),
        pool_(std::move(pool)),
        memory_(config_, std::move(layout), pool_->base(), limits.max_sequences),
        ops_(cpu::best_kernels(), limits.threads),
        runner_(config_, weights_, ops_, stream_, memory_, switches.rounding, limits.max_step_rows),
        swap_ins_(memory_.layout, limits.max_sequences),
        forward_(config_, weights_, checkpoint.engram_token_map(), runner_, swap_ins_),
        codec_(config_, memory_),
        windows_(config_, memory_),
        sequences_(static_cast<std::size_t>(limits.max_sequences)) {}

  int vocab_size() const override { return config_.vocab_size; }
  int max_position() const override { return config_.max_position_embeddings; }
  int window() const override { return config_.sliding_window; }
  const std::string& kv_layout_id() const override { return memory_.layout.id(); }

  EngineUsage usage() const override {
    const auto live = std::count_if(sequences_.begin(), sequences_.end(),
                                    [](const Slot& slot) { return slot.sequence.has_value(); });
    return {.sequences = static_cast<int>(live),
            .kv_blocks_used = pool_->used(),
            .kv_blocks_total = pool_->capacity()};
  }

  absl::StatusOr<SequenceId> create(const SequencePlan& plan) override {
    RETURN_IF_ERROR(check_plan(plan));
    Sequence sequence;
    sequence.prompt_tokens = plan.prompt_tokens;
    sequence.capacity_tokens = plan.capacity_tokens;
    sequence.window_floor = plan.compute_start - (plan.has_window ? config_.sliding_window : 0);
    sequence.write_floor = plan.write_floor;
    sequence.decoder_floor = decoder_floor(plan);
    sequence.planned_anchor = plan.window_anchor;
    sequence.last_anchor = std::max(plan.window_anchor, kv::anchor_after(plan.prompt_tokens));
    sequence.tokens.assign(plan.prefix_tokens.begin(), plan.prefix_tokens.end());
    return place(std::move(sequence));
  }

  void release(SequenceId id) override {
    Slot& slot = find(id);
    swap_ins_.cancel(slot.sequence->slot);  // before its blocks are somebody else's
    slot.sequence.reset();
  }

  int length(SequenceId id) const override { return get(id).length(); }

  absl::Status step(std::span<const StepItem> items, std::vector<float>& logits) override {
    logits.clear();
    RETURN_IF_ERROR(check_items(items));
    if (items.empty()) return absl::OkStatus();
    parts_.clear();
    for (const StepItem& item : items) {
      Sequence& sequence = *find(item.sequence).sequence;
      sequence.tokens.insert(sequence.tokens.end(), item.tokens.begin(), item.tokens.end());
      parts_.push_back({.sequence = &sequence,
                        .rows = static_cast<int>(item.tokens.size()),
                        .logits_rows = item.logits_rows});
      begin_keeping(sequence, static_cast<int>(item.tokens.size()), memory_.geometry);
    }
    forward_.run(parts_, logits);
    for (const StepItem& item : items) end_keeping(*find(item.sequence).sequence);
    return absl::OkStatus();
  }

  void swap_in(SequenceId id, int blocks, std::shared_ptr<BlockSource> source) override {
    const Sequence& sequence = get(id);
    CHECK(blocks > 0 && blocks * kv::kBlockTokens <= sequence.write_floor,
          "stored blocks lie below the write floor");
    std::vector<std::span<std::byte>> targets;
    targets.reserve(static_cast<std::size_t>(blocks));
    for (int i = 0; i < blocks; ++i) targets.push_back(block(id, i));
    swap_ins_.begin(sequence.slot, std::move(targets), std::move(source));
  }

  absl::Status swap_in_status(SequenceId id) const override {
    return swap_ins_.status(get(id).slot);
  }

  SwapInUsage swap_in_usage() const override { return swap_ins_.usage(); }

  std::size_t window_bytes() const override { return windows_.bytes(); }

  absl::Status restore_window(SequenceId id, std::span<const std::byte> window) override {
    return windows_.restore(window, get(id));
  }

  int kept_anchor(SequenceId id) const override { return get(id).kept_anchor; }

  void export_window(SequenceId id, std::span<std::byte> out) const override {
    windows_.encode(get(id), out);
  }

  std::size_t block_bytes() const override { return memory_.layout.block_bytes(); }
  std::span<std::byte> block(SequenceId id, int block_index) override {
    const Sequence& sequence = get(id);
    CHECK(block_index >= 0 && static_cast<std::size_t>(block_index) < sequence.blocks.size());
    return sequence.blocks[static_cast<std::size_t>(block_index)].bytes();
  }

  std::size_t export_bytes(SequenceId id) const override { return codec_.encoded_bytes(get(id)); }

  absl::Status export_to(SequenceId id, std::span<std::byte> out) const override {
    const Sequence& sequence = get(id);
    const std::size_t bytes = codec_.encoded_bytes(sequence);
    if (out.size() != bytes) {
      return invalid(str_cat("export needs a buffer of ", bytes, " bytes, got ", out.size()));
    }
    codec_.encode(sequence, out);
    return absl::OkStatus();
  }

  absl::StatusOr<SequenceId> import_from(std::span<const std::byte> bytes,
                                         int capacity_tokens) override {
    ASSIGN_OR_RETURN(const HandoverHeader header, codec_.read_header(bytes));
    if (capacity_tokens < header.length || capacity_tokens > max_position()) {
      return invalid(str_cat("capacity_tokens ", capacity_tokens, " must lie in [", header.length,
                             ", ", max_position(), "]"));
    }
    Sequence sequence;
    ASSIGN_OR_RETURN(sequence.tokens, codec_.read_tokens(header, bytes));
    sequence.prompt_tokens = header.prompt_tokens;
    sequence.capacity_tokens = capacity_tokens;
    sequence.window_floor = header.window_floor;
    sequence.last_anchor = kv::anchor_after(header.length);
    sequence.write_floor = header.write_floor;
    sequence.decoder_floor = header.decoder_floor;
    ASSIGN_OR_RETURN(const SequenceId id, place(std::move(sequence)));
    codec_.restore(bytes, get(id));
    return id;
  }

 private:
  /// A place in the sequence table. The id changes with every use, so that a stale one is noticed.
  struct Slot {
    SequenceId id = -1;
    int uses = 0;
    std::optional<Sequence> sequence;
  };

  int decoder_floor(const SequencePlan& plan) const {
    if (switches_.decoder_replay == Switch::kOff) return plan.compute_start;
    return std::max(0, plan.prompt_tokens - config_.sliding_window);
  }

  absl::Status check_plan(const SequencePlan& plan) const {
    if (plan.prompt_tokens < 1) return invalid("prompt_tokens must be at least 1");
    if (plan.capacity_tokens < plan.prompt_tokens || plan.capacity_tokens > max_position()) {
      return invalid(str_cat("capacity_tokens ", plan.capacity_tokens, " must lie in [",
                             plan.prompt_tokens, ", ", max_position(), "]"));
    }
    if (plan.compute_start < 0 || plan.compute_start >= plan.prompt_tokens ||
        plan.compute_start > decoder_floor(plan)) {
      return invalid(str_cat("compute_start ", plan.compute_start,
                             " must lie in the prompt and not above the ", "decoder floor ",
                             decoder_floor(plan)));
    }
    if (plan.write_floor < plan.compute_start || plan.write_floor > plan.prompt_tokens) {
      return invalid(str_cat("write_floor ", plan.write_floor, " must lie in [", plan.compute_start,
                             ", ", plan.prompt_tokens, "]"));
    }
    RETURN_IF_ERROR(check_windows(plan));
    for (const kv::SourceLayout& source : memory_.layout.sources()) {
      // The first row may lie inside a group whose entry is there already, not inside one to be
      // written.
      const bool cuts = plan.compute_start % source.ratio != 0;
      if (cuts && plan.compute_start / source.ratio >= plan.write_floor / source.ratio) {
        return invalid(str_cat("compute_start ", plan.compute_start, " cuts a group of ",
                               source.ratio, " tokens that is not below the write floor"));
      }
    }
    if (plan.prefix_tokens.size() != static_cast<std::size_t>(plan.compute_start)) {
      return invalid(str_cat("prefix_tokens has ", plan.prefix_tokens.size(),
                             " tokens, compute_start is ", plan.compute_start));
    }
    return check_tokens(plan.prefix_tokens);
  }

  absl::Status check_windows(const SequencePlan& plan) const {
    const int window = config_.sliding_window;
    if (plan.has_window && plan.compute_start < window) {
      return invalid(str_cat("no window of ", window, " positions ends at compute_start ",
                             plan.compute_start));
    }
    const bool is_kept = plan.window_anchor != 0;
    if (is_kept && (plan.window_anchor < plan.compute_start + window ||
                    plan.window_anchor > plan.capacity_tokens)) {
      return invalid(str_cat("window_anchor ", plan.window_anchor, " must lie in [",
                             plan.compute_start + window, ", ", plan.capacity_tokens, "]"));
    }
    return absl::OkStatus();
  }

  absl::Status check_tokens(std::span<const TokenId> tokens) const {
    for (TokenId token : tokens) {
      if (token < 0 || token >= config_.vocab_size) {
        return invalid(
            str_cat("token ", token, " is outside the vocabulary of ", config_.vocab_size));
      }
    }
    return absl::OkStatus();
  }

  absl::Status check_items(std::span<const StepItem> items) {
    std::size_t rows = 0;
    ids_.clear();
    for (const StepItem& item : items) {
      RETURN_IF_ERROR(check_item(item));
      rows += item.tokens.size();
      ids_.push_back(item.sequence);
    }
    if (rows > static_cast<std::size_t>(limits_.max_step_rows)) {
      return invalid(str_cat(rows, " rows exceed max_step_rows ", limits_.max_step_rows));
    }
    std::sort(ids_.begin(), ids_.end());
    const auto twice = std::adjacent_find(ids_.begin(), ids_.end());
    if (twice != ids_.end()) return invalid(str_cat("sequence ", *twice, " is named twice"));
    return absl::OkStatus();
  }

  absl::Status check_item(const StepItem& item) const {
    const Slot* slot = slot_of(item.sequence);
    if (slot == nullptr) return invalid(str_cat("no sequence ", item.sequence));
    const Sequence& sequence = *slot->sequence;
    if (item.tokens.empty()) return invalid(str_cat("no tokens for sequence ", item.sequence));
    RETURN_IF_ERROR(check_tokens(item.tokens));
    const std::size_t room =
        static_cast<std::size_t>(sequence.capacity_tokens) - sequence.tokens.size();
    if (item.tokens.size() > room) {
      return invalid(str_cat(item.tokens.size(), " tokens exceed the capacity of sequence ",
                             item.sequence, ", which has room for ", room));
    }
    const auto end = static_cast<int>(sequence.tokens.size() + item.tokens.size());
    if (item.logits_rows < 0 || static_cast<std::size_t>(item.logits_rows) > item.tokens.size()) {
      return invalid(
          str_cat("logits_rows ", item.logits_rows, " of ", item.tokens.size(), " rows"));
    }
    if (item.logits_rows > 0 && end - item.logits_rows < sequence.decoder_floor) {
      return invalid(str_cat("logits of position ", end - item.logits_rows,
                             " below the decoder floor ", sequence.decoder_floor));
    }
    return absl::OkStatus();
  }

  /// Gives the sequence a slot and its blocks.
  absl::StatusOr<SequenceId> place(Sequence sequence) {
    const auto free = std::find_if(sequences_.begin(), sequences_.end(),
                                   [](const Slot& slot) { return !slot.sequence.has_value(); });
    if (free == sequences_.end()) {
      return absl::ResourceExhaustedError(
          str_cat("all ", limits_.max_sequences, " sequences are in use"));
    }
    ASSIGN_OR_RETURN(sequence.blocks, pool_->take(kv::blocks_for(sequence.capacity_tokens)));
    sequence.slot = static_cast<std::int32_t>(free - sequences_.begin());
    sequence.tokens.reserve(static_cast<std::size_t>(sequence.capacity_tokens));
    constexpr int kIdUses = 1 << 14;
    free->id = sequence.slot + limits_.max_sequences * free->uses;
    free->uses = (free->uses + 1) % kIdUses;
    free->sequence = std::move(sequence);
    return free->id;
  }

  const Slot* slot_of(SequenceId id) const {
    if (id < 0) return nullptr;
    const Slot& slot = sequences_[static_cast<std::size_t>(id % limits_.max_sequences)];
    return slot.id == id && slot.sequence.has_value() ? &slot : nullptr;
  }

  Slot& find(SequenceId id) {
    CHECK(slot_of(id) != nullptr, "a sequence id that create() did not give, or that was released");
    return sequences_[static_cast<std::size_t>(id % limits_.max_sequences)];
  }

  const Sequence& get(SequenceId id) const {
    const Slot* slot = slot_of(id);
    CHECK(slot != nullptr, "a sequence id that create() did not give, or that was released");
    return *slot->sequence;
  }

  const model::ModelConfig& config_;
  const EngineSwitches switches_;
  const EngineLimits limits_;
  const ModelWeights weights_;
  // Outlives the sequences: their blocks go back to it.
  const std::unique_ptr<kv::BlockPool> pool_;
  KvMemory memory_;
  cpu::CpuStream stream_;
  cpu::CpuOps ops_;
  LayerRunner runner_;
  SwapIns swap_ins_;
  Forward forward_;
  // Of the step under way; members, so that a step allocates nothing.
  std::vector<StepPart> parts_;
  std::vector<SequenceId> ids_;
  HandoverCodec codec_;
  WindowCodec windows_;
  std::vector<Slot> sequences_;
};

absl::Status check_limit(std::string_view name, int value, int most) {
  if (value >= 1 && value <= most) return absl::OkStatus();
  return invalid(str_cat(name, " ", value, " must lie in [1, ", most, "]"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> open_cpu_engine(const model::Checkpoint& checkpoint,
                                                        const EngineSwitches& switches,
                                                        const EngineLimits& limits) {
  RETURN_IF_ERROR(check_limit("kv_blocks", limits.kv_blocks, 1 << 24));
  RETURN_IF_ERROR(check_limit("max_sequences", limits.max_sequences, 1 << 16));
  RETURN_IF_ERROR(check_limit("max_step_rows", limits.max_step_rows, 1 << 16));
  RETURN_IF_ERROR(check_limit("threads", limits.threads, 1 << 10));
  ASSIGN_OR_RETURN(ModelWeights weights, load_weights(checkpoint));
  kv::BlockLayout layout(checkpoint.config(), switches.rounding == Switch::kOn
                                                  ? kv::Encoding::kQuantized
                                                  : kv::Encoding::kFloat32);
  ASSIGN_OR_RETURN(std::unique_ptr<kv::BlockPool> pool,
                   kv::BlockPool::create(limits.kv_blocks, layout.block_bytes()));
  return std::make_unique<CpuEngine>(checkpoint, std::move(weights), std::move(pool),
                                     std::move(layout), switches, limits);
}

}  // namespace millrace::dataplane::engine
