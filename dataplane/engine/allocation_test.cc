// A step allocates nothing once it has run at its largest size. A program of its own, because it
// replaces the global operator new.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <vector>

#include "common/check.h"
#include "dataplane/engine/engine.h"
#include "dataplane/model/checkpoint.h"
#include "dataplane/model/random_checkpoint.h"

namespace {

std::atomic<long> allocations = 0;

void* counted(std::size_t bytes, std::size_t alignment) {
  ++allocations;
  const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  void* memory = std::aligned_alloc(alignment, rounded == 0 ? alignment : rounded);
  CHECK(memory != nullptr, "out of memory");
  return memory;
}

}  // namespace

// Not inlined: a compiler that sees free() next to a new it did not look into warns of a mismatch.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  return counted(bytes, alignof(std::max_align_t));
}
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<std::size_t>(alignment));
}
// Those that do not throw, too: a sanitizer has its own, which do not call the ones above.
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return counted(bytes, alignof(std::max_align_t));
}
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment,
                                     const std::nothrow_t&) noexcept {
  return counted(bytes, static_cast<std::size_t>(alignment));
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}

namespace millrace::dataplane::engine {
namespace {

constexpr int kSequences = 6;
constexpr int kChunk = 40;

/// Steps of every kind: prompt chunks, then decoding all sequences at once. The first round warms
/// up.
class Rounds {
 public:
  explicit Rounds(Engine& engine) : engine_(engine) {
    tokens_.resize(kChunk);
    for (std::size_t i = 0; i < tokens_.size(); ++i)
      tokens_[i] = static_cast<TokenId>(5 + i * 7 % 200);
    items_.reserve(kSequences);
  }

  /// Returns how many allocations the steps made; creating sequences is not counted.
  long run() {
    std::vector<SequenceId> ids;
    ids.reserve(kSequences);
    for (int i = 0; i < kSequences; ++i) {
      ids.push_back(*engine_.create({.prompt_tokens = 3 * kChunk, .capacity_tokens = 400}));
    }
    const long before = allocations;
    for (const SequenceId id : ids) {
      for (int chunk = 0; chunk < 3; ++chunk) {
        items_.assign(1, {.sequence = id, .tokens = tokens_, .logits_rows = chunk == 2 ? 1 : 0});
        step();
      }
    }
    for (int decoded = 0; decoded < 100; ++decoded) {
      items_.clear();
      for (const SequenceId id : ids) {
        items_.push_back({.sequence = id, .tokens = {tokens_.data(), 1}, .logits_rows = 1});
      }
      step();
    }
    const long made = allocations - before;
    for (const SequenceId id : ids) engine_.release(id);
    return made;
  }

 private:
  void step() {
    const absl::Status status = engine_.step(items_, logits_);
    CHECK(status.ok(), "the steps are valid");
  }

  Engine& engine_;
  std::vector<TokenId> tokens_;
  std::vector<StepItem> items_;
  std::vector<float> logits_;
};

TEST(Allocation, AStepAllocatesNothingAfterWarmUp) {
  const std::string folder = testing::TempDir() + "/allocation_test_checkpoint";
  ASSERT_TRUE(model::write_random_checkpoint(folder, model::tiny_config_json(), 1).ok());
  const auto checkpoint = model::Checkpoint::open(folder);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  for (const Switch rounding : {Switch::kOn, Switch::kOff}) {
    for (const int threads : {1, 3}) {
      const auto engine = open_cpu_engine(**checkpoint, {.rounding = rounding},
                                          {.kv_blocks = 64,
                                           .max_sequences = kSequences,
                                           .max_step_rows = kChunk,
                                           .threads = threads});
      ASSERT_TRUE(engine.ok()) << engine.status();
      Rounds rounds(**engine);
      const long warm_up = rounds.run();
      EXPECT_GT(warm_up, 0) << "the counter counts nothing";
      EXPECT_EQ(rounds.run(), 0) << threads << " threads";
    }
  }
}

}  // namespace
}  // namespace millrace::dataplane::engine
