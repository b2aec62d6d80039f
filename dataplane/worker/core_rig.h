#pragma once

#include <unistd.h>

#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/str_cat.h"
#include "dataplane/worker/core.h"
#include "dataplane/worker/test_engine.h"

// For the tests of this folder: one worker without threads or sockets.

namespace millrace::dataplane::worker {

using namespace std::chrono_literals;  // NOLINT: a header of tests

inline constexpr TimePoint kStart{};
inline constexpr TimePoint kLater = kStart + 1h;
inline constexpr TokenId kEos = 7;
inline constexpr StreamId kStream = 1;

struct Worker {
  explicit Worker(Role role, scheduler::SchedulerLimits limits = {.kv_blocks = 64},
                  transfer::ExportLimits export_limits = {})
      : controls(std::make_shared<TestEngineControls>()),
        engine(controls, limits.kv_blocks),
        exports(*transfer::ExportTable::open(
            {.host_id = "here",
             .worker_id = str_cat("core-", role == Role::kPrefill ? "p" : "d", "-", ::getpid())},
            1, export_limits)),
        core(*Core::create({.role = role,
                            .worker_id = role == Role::kPrefill ? "p0" : "d0",
                            .host_id = "here",
                            .transfer_address = "127.0.0.1:1",
                            .eos_tokens = {kEos},
                            .limits = limits},
                           engine, *exports)) {
    core->on_command(OpenStream{kStream});
  }

  /// Runs a turn and keeps its events and jobs. Imports are answered from `source`'s exports.
  void turn(TimePoint now, Worker* source = nullptr) {
    TurnOutput output = core->run_turn(now);
    for (StreamBatch& batch : output.batches) {
      for (Event& event : batch.events) events.push_back(std::move(event));
    }
    for (ImportJob& job : output.imports) {
      imports.push_back(job);
      if (source != nullptr) core->on_command(answer(job, *source));
    }
    for (ReleaseJob& job : output.releases) {
      releases.push_back(job);
      if (source != nullptr) source->exports->release(job.export_id);
    }
    counts = output.counts;
  }

  static ImportDone answer(const ImportJob& job, Worker& source) {
    const auto region = source.exports->find(job.handover.export_id);
    if (!region.ok()) return {job.request, absl::UnavailableError("gone")};
    const std::span<const std::byte> bytes = (*region)->bytes();
    return {job.request, transfer::KvBytes(std::vector<std::byte>(bytes.begin(), bytes.end()))};
  }

  bool has_nothing_left() const {
    return controls->sequences == 0 && engine.usage().kv_blocks_used == 0 && core->is_idle() &&
           core->load().running == 0 && core->load().waiting == 0 &&
           core->load().kv_blocks_used == 0 && core->load().waiting_tokens == 0;
  }

  template <typename What>
  const What& last() const {
    return std::get<What>(events.back().what);
  }

  std::shared_ptr<TestEngineControls> controls;
  TestEngine engine;
  std::unique_ptr<transfer::ExportTable> exports;
  std::unique_ptr<Core> core;
  std::vector<Event> events;
  std::vector<ImportJob> imports;
  std::vector<ReleaseJob> releases;
  TurnCounts counts;
};

inline RequestSpec spec_of(const std::string& id, std::vector<TokenId> tokens,
                           int max_new_tokens = 10) {
  RequestSpec spec;
  spec.stream = kStream;
  spec.key = {id, 1};
  spec.prompt_tokens = static_cast<int>(tokens.size());
  spec.tokens = std::move(tokens);
  spec.sampling.temperature = 0;
  spec.sampling.max_new_tokens = max_new_tokens;
  spec.deadline = kLater;
  return spec;
}

inline std::vector<TokenId> tokens_of(std::size_t count, std::uint64_t seed = 1) {
  std::mt19937_64 random(seed);
  std::vector<TokenId> tokens(count);
  for (TokenId& token : tokens) token = static_cast<TokenId>(random() % TestEngine::kVocab);
  return tokens;
}

}  // namespace millrace::dataplane::worker
