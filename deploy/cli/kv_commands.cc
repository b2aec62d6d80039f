// `millrace kv check` and `millrace kv bench`: commands that talk to the storage nodes themselves.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <future>
#include <iostream>
#include <iterator>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/annotate.h"
#include "common/json.h"
#include "common/mapped_file.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "deploy/cli/block_keys.h"
#include "deploy/cli/statistics.h"
#include "deploy/cli/storage_commands.h"
#include "deploy/cli/storage_server.h"
#include "deploy/cli/store_client.h"
#include "deploy/cli/text_table.h"
#include "storage/kv/check_plan.h"

namespace millrace::deploy::cli {
namespace {

using storage::BlockKey;
using storage::client::StoreClient;
using storage::store::ReadResult;
using storage::store::WriteOutcome;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kCallTimeout{5000};
constexpr std::size_t kMostInputBytes = std::size_t{256} << 20;

int failed(const absl::Status& status) {
  print_error(message_of(status));
  return 1;
}

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

absl::StatusOr<std::string> read_input(const std::string& file) {
  if (file != "-") return read_file(file, kMostInputBytes);
  return std::string(std::istreambuf_iterator<char>(std::cin), {});
}

absl::StatusOr<std::vector<BlockKey>> keys_of(const KvCheckOptions& options, AdminClient& admin) {
  ASSIGN_OR_RETURN(const std::string text, read_input(options.file));
  absl::StatusOr<CheckedPrompt> prompt = parse_checked_prompt(text);
  if (!prompt.ok()) return annotate(prompt.status(), options.file);
  if (prompt->tokens.empty()) return std::move(prompt->keys);
  ASSIGN_OR_RETURN(const ClusterSecret secret, load_secret(options.server.data_dir));
  ASSIGN_OR_RETURN(const api::admin::DesiredState desired, admin.desired());
  return block_keys(desired, secret, options.account, options.user_id, prompt->tokens);
}

struct CheckResult {
  std::size_t blocks = 0;
  std::size_t hit_blocks = 0;
  int rounds = 0;
  double took_ms = 0;
};

CheckResult run_check(storage::store::BlockStore& store, const std::vector<BlockKey>& keys) {
  const Clock::time_point start = Clock::now();
  storage::kv::CheckPlan plan(keys.size());
  for (auto ask = plan.next(); !ask.empty(); ask = plan.next()) {
    std::vector<BlockKey> asked;
    asked.reserve(ask.size());
    for (const std::uint32_t index : ask) asked.push_back(keys[index]);
    std::promise<std::vector<bool>> answer;
    store.query(std::move(asked), std::chrono::milliseconds(0), kCallTimeout,
                [&](std::vector<bool> present) { answer.set_value(std::move(present)); });
    plan.answer(answer.get_future().get());
  }
  return {keys.size(), plan.hit_blocks(), plan.rounds(), milliseconds_since(start)};
}

absl::StatusOr<CheckResult> check(const KvCheckOptions& options) {
  ASSIGN_OR_RETURN(const std::string controller, controller_of(options.server));
  AdminClient admin(controller);
  ASSIGN_OR_RETURN(const std::vector<BlockKey> keys, keys_of(options, admin));
  ASSIGN_OR_RETURN(const std::unique_ptr<StoreClient> client, open_store(controller));
  return run_check(client->blocks(), keys);
}

/// Blocks of one run: which is which follows from the seed and the number alone.
class BenchBlocks {
 public:
  BenchBlocks(std::uint64_t seed, std::size_t block_bytes) : seed_(seed), bytes_(block_bytes) {}

  BlockKey key(std::size_t number) const {
    std::mt19937_64 random(seed_ ^ (0x9e3779b97f4a7c15ULL * (number + 1)));
    BlockKey key;
    for (std::uint8_t& byte : key.bytes) byte = static_cast<std::uint8_t>(random());
    return key;
  }

  std::uint64_t seed() const { return seed_; }

  std::vector<std::byte> content(std::size_t number) const {
    std::mt19937_64 random(seed_ + number);
    std::vector<std::byte> block(bytes_);
    for (std::size_t at = 0; at < block.size(); at += sizeof(std::uint64_t)) {
      const std::uint64_t word = random();
      std::memcpy(block.data() + at, &word, std::min(sizeof word, block.size() - at));
    }
    return block;
  }

 private:
  std::uint64_t seed_;
  std::size_t bytes_;
};

/// The number of the block that is next; nullopt ends the phase.
using NextBlock = std::function<std::optional<std::size_t>()>;

/// Every block once.
NextBlock each_of(std::size_t count) {
  return [count, number = std::size_t{0}]() mutable -> std::optional<std::size_t> {
    if (number == count) return std::nullopt;
    return number++;
  };
}

/// Any block, for so long.
NextBlock any_of(std::size_t count, std::chrono::seconds duration, std::uint64_t seed) {
  return [count, end = Clock::now() + duration,
          random = std::mt19937_64(seed)]() mutable -> std::optional<std::size_t> {
    if (Clock::now() >= end) return std::nullopt;
    return random() % count;
  };
}

/// Calls `start(number, done)` for what is next, `concurrency` at a time, and waits for all.
void run_all(const NextBlock& next, int concurrency,
             const std::function<void(std::size_t, std::function<void()>)>& start) {
  std::mutex mutex;
  std::condition_variable changed;
  int running = 0;
  while (const std::optional<std::size_t> number = next()) {
    {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return running < concurrency; });
      ++running;
    }
    start(*number, [&] {
      std::lock_guard lock(mutex);
      --running;
      changed.notify_all();
    });
  }
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return running == 0; });
}

struct Phase {
  std::vector<double> latencies_ms;
  double seconds = 0;
  int failures = 0;
  int wrong = 0;
};

Phase write_all(StoreClient& client, const KvBenchOptions& options, const BenchBlocks& blocks,
                ProgressLine& line) {
  Phase phase;
  std::mutex mutex;
  const Clock::time_point begin = Clock::now();
  const auto count = static_cast<std::size_t>(options.blocks);
  run_all(each_of(count), options.concurrency, [&](std::size_t number, std::function<void()> done) {
    if (number % 64 == 0) line.show(str_cat("writing ", number, " of ", count, " blocks"));
    storage::store::BlockStore::NewBlock block;
    block.key = blocks.key(number);
    block.bytes = blocks.content(number);
    const Clock::time_point start = Clock::now();
    client.blocks().write(
        std::move(block), kCallTimeout, [&, start, done = std::move(done)](WriteOutcome outcome) {
          {
            std::lock_guard lock(mutex);
            phase.latencies_ms.push_back(milliseconds_since(start));
            phase.failures +=
                outcome == WriteOutcome::kStored || outcome == WriteOutcome::kAlreadyThere ? 0 : 1;
          }
          done();
        });
  });
  phase.seconds = milliseconds_since(begin) / 1000;
  return phase;
}

Phase read_all(StoreClient& client, const KvBenchOptions& options, const BenchBlocks& blocks,
               ProgressLine& line) {
  Phase phase;
  std::mutex mutex;
  std::vector<std::pair<std::size_t, std::vector<std::byte>>> arrived;
  const Clock::time_point begin = Clock::now();
  const auto count = static_cast<std::size_t>(options.blocks);
  const NextBlock next =
      options.read_seconds == 0
          ? each_of(count)
          : any_of(count, std::chrono::seconds(options.read_seconds), blocks.seed());
  std::size_t started = 0;
  run_all(next, options.concurrency, [&](std::size_t number, std::function<void()> done) {
    if (started++ % 64 == 0) line.show(str_cat("reading, ", started, " blocks so far"));
    const Clock::time_point start = Clock::now();
    client.blocks().read(blocks.key(number), kCallTimeout,
                         [&, number, start, done = std::move(done)](ReadResult result) {
                           {
                             std::lock_guard lock(mutex);
                             phase.latencies_ms.push_back(milliseconds_since(start));
                             if (result.is_hit()) {
                               arrived.emplace_back(number, std::move(result.block));
                             } else {
                               ++phase.failures;
                             }
                           }
                           done();
                         });
    // Checked here, where it does not hold up the store's thread, and few at a time.
    std::vector<std::pair<std::size_t, std::vector<std::byte>>> checked;
    {
      std::lock_guard lock(mutex);
      checked.swap(arrived);
    }
    for (const auto& [index, bytes] : checked)
      phase.wrong += bytes == blocks.content(index) ? 0 : 1;
  });
  for (const auto& [index, bytes] : arrived) phase.wrong += bytes == blocks.content(index) ? 0 : 1;
  phase.seconds = milliseconds_since(begin) / 1000;
  return phase;
}

Json phase_json(const Phase& phase, std::size_t block_bytes) {
  const Summary summary = summarize(phase.latencies_ms);
  const double bytes = static_cast<double>(summary.count) * static_cast<double>(block_bytes);
  return Json{{"blocks", summary.count},
              {"failures", phase.failures},
              {"wrong", phase.wrong},
              {"seconds", phase.seconds},
              {"mb_per_second", bytes / 1e6 / std::max(phase.seconds, 1e-9)},
              {"p50_ms", summary.p50},
              {"p90_ms", summary.p90},
              {"p99_ms", summary.p99},
              {"max_ms", summary.max}};
}

void add_phase(TextTable& table, std::string_view name, const Phase& phase,
               std::size_t block_bytes) {
  const Summary summary = summarize(phase.latencies_ms);
  const double bytes = static_cast<double>(summary.count) * static_cast<double>(block_bytes);
  table.add_row({std::string(name), str_cat(summary.count), str_cat(phase.failures),
                 str_cat(phase.wrong), fixed(bytes / 1e6 / std::max(phase.seconds, 1e-9), 1),
                 fixed(summary.p50, 2), fixed(summary.p90, 2), fixed(summary.p99, 2),
                 fixed(summary.max, 2)});
}

/// How the reads went, besides their times: what had to be made up for, and why some missed.
Json counters_json(const storage::store::StoreCounters& counters) {
  Json misses = Json::object();
  for (std::size_t reason = 1; reason < counters.misses.size(); ++reason) {
    if (counters.misses[reason] == 0) continue;
    misses[storage::store::miss_reason_name(static_cast<storage::store::MissReason>(reason))] =
        counters.misses[reason];
  }
  Json results = Json::object();
  for (std::size_t result = 1; result < counters.shard_results.size(); ++result) {
    if (counters.shard_results[result] == 0) continue;
    results[storage::shard_result_name(static_cast<storage::ShardResult>(result))] =
        counters.shard_results[result];
  }
  return Json{{"degraded", counters.degraded_reads},
              {"hedged", counters.hedged_reads},
              {"misses", std::move(misses)},
              {"refused_shards", std::move(results)},
              {"missed_shard_deadlines", counters.missed_deadlines},
              {"nodes_on_probation", counters.nodes_on_probation}};
}

absl::StatusOr<bool> bench(const KvBenchOptions& options, const Terminal& terminal) {
  ASSIGN_OR_RETURN(const std::string controller, controller_of(options.server));
  storage::store::StoreSettings settings;
  settings.spare_shards = options.spare_shards;
  ASSIGN_OR_RETURN(const std::unique_ptr<StoreClient> client, open_store(controller, settings));
  const std::size_t block_bytes = client->map()->block_bytes;
  std::random_device random;
  const std::uint64_t seed =
      options.seed != 0 ? options.seed : (std::uint64_t{random()} << 32) | random();
  const BenchBlocks blocks(seed, block_bytes);
  ProgressLine line(terminal);
  const Phase writes = write_all(*client, options, blocks, line);
  const Phase reads = read_all(*client, options, blocks, line);
  line.clear();
  if (options.is_json) {
    std::printf("%s\n", dump_json(Json{{"seed", seed},
                                       {"block_bytes", block_bytes},
                                       {"writes", phase_json(writes, block_bytes)},
                                       {"reads", phase_json(reads, block_bytes)},
                                       {"read_path", counters_json(client->blocks().counters())}})
                            .c_str());
  } else {
    TextTable table(
        {"", "blocks", "failed", "wrong", "MB/s", "p50 ms", "p90 ms", "p99 ms", "max ms"});
    add_phase(table, "write", writes, block_bytes);
    add_phase(table, "read", reads, block_bytes);
    std::printf("%s", table.to_string().c_str());
  }
  return writes.failures + reads.failures + reads.wrong == 0;
}

}  // namespace

int run_kv_check(const KvCheckOptions& options, const Terminal&) {
  const absl::StatusOr<CheckResult> result = check(options);
  if (!result.ok()) return failed(result.status());
  if (options.is_json) {
    std::printf("%s\n", dump_json(Json{{"blocks", result->blocks},
                                       {"hit_blocks", result->hit_blocks},
                                       {"rounds", result->rounds},
                                       {"milliseconds", result->took_ms}})
                            .c_str());
  } else {
    std::printf("%zu of %zu blocks are stored (%d rounds, %s ms).\n", result->hit_blocks,
                result->blocks, result->rounds, fixed(result->took_ms, 1).c_str());
  }
  return 0;
}

int run_kv_bench(const KvBenchOptions& options, const Terminal& terminal) {
  const absl::StatusOr<bool> is_good = bench(options, terminal);
  if (!is_good.ok()) return failed(is_good.status());
  return *is_good ? 0 : 1;
}

}  // namespace millrace::deploy::cli
