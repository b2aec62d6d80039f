#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "common/check.h"
#include "common/str_cat.h"
#include "dataplane/engine/engine.h"
#include "dataplane/model/checkpoint.h"
#include "dataplane/model/random_checkpoint.h"

namespace millrace::dataplane::engine {

/// For tests: engines of one random tiny model (window 8, ratios 2 and 1, every layer role), and
/// the calls that every test makes and expects to succeed.
class EngineRig {
 public:
  /// The model, made when it is first asked for.
  static const model::Checkpoint& checkpoint() {
    static const std::unique_ptr<model::Checkpoint> made = [] {
      const std::string folder =
          str_cat(std::filesystem::temp_directory_path().string(), "/engine_", ::getpid());
      CHECK(model::write_random_checkpoint(folder, model::tiny_config_json(), 11).ok());
      auto opened = model::Checkpoint::open(folder);
      CHECK(opened.ok());
      std::filesystem::remove_all(folder);  // the mappings stay
      return *std::move(opened);
    }();
    return *made;
  }

  static std::unique_ptr<Engine> open(const EngineSwitches& switches = {},
                                      const EngineLimits& limits = {.kv_blocks = 200,
                                                                    .max_sequences = 66,
                                                                    .max_step_rows = 512}) {
    auto engine = open_cpu_engine(checkpoint(), switches, limits);
    CHECK(engine.ok());
    return *std::move(engine);
  }

  static std::vector<TokenId> tokens(int count, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<TokenId> result;
    result.reserve(static_cast<std::size_t>(count));
    for (int i = 0; i < count; ++i) result.push_back(static_cast<TokenId>(random() % 288));
    return result;
  }

  static SequenceId create(Engine& engine, int prompt, int capacity) {
    const auto id = engine.create({.prompt_tokens = prompt, .capacity_tokens = capacity});
    CHECK(id.ok());
    return *id;
  }

  static std::vector<float> step(Engine& engine, SequenceId id, std::span<const TokenId> tokens,
                                 int logits_rows) {
    const StepItem item{.sequence = id, .tokens = tokens, .logits_rows = logits_rows};
    std::vector<float> logits;
    const absl::Status status = engine.step({&item, 1}, logits);
    CHECK(status.ok());
    return logits;
  }

  static std::vector<std::byte> exported(Engine& engine, SequenceId id) {
    std::vector<std::byte> bytes(engine.export_bytes(id));
    CHECK(engine.export_to(id, bytes).ok());
    return bytes;
  }

  static TokenId best(std::span<const float> logits) {
    return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
};

/// Bits of float vectors, so that a failure of -0 or NaN shows.
inline bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

}  // namespace millrace::dataplane::engine
