// Prefill and decode with a store of KV between them: what is taken from it, what is given to it,
// and that nothing that goes wrong with it shows in a text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <random>
#include <span>

#include "dataplane/worker/core_rig.h"
#include "storage/kv/hash_chain.h"

namespace millrace::dataplane::worker {
namespace {

using storage::BlockKey;
using Bytes = std::vector<std::byte>;

/// Blocks as a fetcher would hand them out; the copy of one part may fail.
class StoredBlocks : public engine::BlockSource {
 public:
  StoredBlocks(std::vector<Bytes> blocks, std::optional<int> broken, int& alive)
      : blocks_(std::move(blocks)), broken_(broken), alive_(alive) {
    ++alive_;
  }
  ~StoredBlocks() override { --alive_; }

  absl::Status copy(int block, std::size_t offset, std::span<std::byte> out) override {
    if (broken_ == block) return absl::AbortedError("the slot was used anew");
    std::ranges::copy(
        std::span(blocks_[static_cast<std::size_t>(block)]).subspan(offset, out.size()),
        out.begin());
    return absl::OkStatus();
  }

 private:
  const std::vector<Bytes> blocks_;
  const std::optional<int> broken_;
  int& alive_;
};

/// What may go wrong with one fetch.
struct Faults {
  std::optional<int> blocks_at_most = {};  // fewer come than were promised
  std::optional<int> broken_block = {};    // its copy fails
  bool is_never_answered = false;          // the fetcher hangs
  bool has_lost_windows = false;           // the directory was wrong
};

/// A store and the fetcher in front of it.
class Store {
 public:
  /// What the entrypoint's CHECK would say of a prompt.
  KvScope scope_of(std::span<const TokenId> tokens, int prompt_tokens) const {
    KvScope scope{.root = kRoot,
                  .keys = storage::kv::chain_keys(kRoot, tokens),
                  .hit_tokens = 0,
                  .ttl = storage::TtlClass::kAgent,
                  .windows = {}};
    int stored = 0;
    for (const BlockKey& key : scope.keys) {
      if (!blocks.contains(key)) break;
      stored += 128;
    }
    scope.hit_tokens = kv::usable_hit(prompt_tokens, stored);
    for (const int anchor : {scope.hit_tokens, scope.hit_tokens - 128}) {
      if (anchor <= 0) continue;
      if (windows.contains(scope.keys[static_cast<std::size_t>(anchor / 128 - 1)])) {
        scope.windows.push_back({.anchor = anchor, .location = {}});
      }
    }
    return scope;
  }

  /// Does a worker's jobs.
  void serve(Worker& worker, const Faults& faults) {
    KvJobs jobs = worker.core->take_kv_jobs();
    for (const KvSealJob& seal : jobs.seals) {
      const auto [place, is_new] = blocks.emplace(seal.key, seal.bytes);
      EXPECT_EQ(place->second, seal.bytes) << "one name, two contents";
      depths[seal.key] = seal.depth;
      sealed += 1;
    }
    for (const KvWindowJob& window : jobs.windows) {
      windows[window.key] = window.bytes;
      worker.core->on_command(WindowStored{
          .stream = window.stream, .key = window.key, .anchor = window.anchor, .location = {}});
    }
    for (const KvFetchJob& job : jobs.fetches) {
      if (!faults.is_never_answered) worker.core->on_command(answer(job, faults));
    }
  }

  KvFetched answer(const KvFetchJob& job, const Faults& faults) {
    std::vector<Bytes> found;
    for (const BlockKey& key : job.keys) {
      const auto block = blocks.find(key);
      if (block == blocks.end()) break;
      if (faults.blocks_at_most == static_cast<int>(found.size())) break;
      found.push_back(block->second);
    }
    KvFetched fetched{.request = job.request,
                      .blocks = static_cast<int>(found.size()),
                      .source = nullptr,
                      .window = std::nullopt};
    if (!found.empty()) {
      fetched.source = std::make_shared<StoredBlocks>(found, faults.broken_block, leases);
    }
    for (const WindowSource& source : job.windows) {
      const auto window = windows.find(job.key_at(source.anchor));
      if (faults.has_lost_windows || window == windows.end() || fetched.window) continue;
      fetched.window = ReadyWindow{.anchor = source.anchor, .bytes = window->second};
    }
    return fetched;
  }

  static constexpr BlockKey kRoot{{1, 2, 3}};
  std::map<BlockKey, Bytes> blocks;
  std::map<BlockKey, Bytes> windows;
  std::map<BlockKey, std::uint32_t> depths;
  int sealed = 0;
  int leases = 0;
};

/// One request through both workers and the store.
struct Served {
  std::vector<TokenId> text;
  int cached_tokens = 0;
  TurnCounts counts;  // of the prefill's turns, summed where these tests look
};

Served serve(Worker& prefill, Worker& decode, Store& store, RequestSpec spec,
             const Faults& faults = {}) {
  Served served;
  spec.kv = store.scope_of(spec.tokens, spec.prompt_tokens);
  served.text.assign(spec.tokens.begin() + spec.prompt_tokens, spec.tokens.end());
  prefill.core->on_command(StartPrefill{spec});
  TimePoint now = kStart;
  const std::size_t before = prefill.events.size();
  for (int turn = 0; prefill.events.size() == before; ++turn) {
    CHECK(turn < 1000, "a request whose KV does not come must go on");
    store.serve(prefill, faults);
    prefill.turn(now);
    now += 100ms;
    for (std::size_t i = 0; i < served.counts.replays.size(); ++i)
      served.counts.replays[i] += prefill.counts.replays[i];
    served.counts.prefill_rows += prefill.counts.prefill_rows;
    served.counts.failed_swap_ins += prefill.counts.failed_swap_ins;
    served.counts.late_fetches += prefill.counts.late_fetches;
  }
  store.serve(prefill, faults);
  const Prefilled first = prefill.last<Prefilled>();
  served.cached_tokens = first.cached_tokens;
  served.text.push_back(first.token.token);
  if (!first.handover) return served;
  spec.tokens.push_back(first.token.token);
  spec.kv = store.scope_of(spec.tokens, spec.prompt_tokens);
  decode.core->on_command(StartDecode{spec, *first.handover});
  for (;;) {
    const std::size_t seen = decode.events.size();
    decode.turn(kStart, &prefill);
    store.serve(decode, faults);
    for (std::size_t i = seen; i < decode.events.size(); ++i) {
      const auto& sampled = std::get<Sampled>(decode.events[i].what);
      served.text.push_back(sampled.token.token);
      if (sampled.finish == FinishReason::kNone) continue;
      decode.turn(kStart, &prefill);
      return served;
    }
  }
}

RequestSpec greedy(std::vector<TokenId> tokens, int max_new_tokens) {
  RequestSpec spec = spec_of("r", std::move(tokens), max_new_tokens);
  spec.sampling.ignore_eos = true;
  return spec;
}

std::vector<TokenId> text_without_store(const RequestSpec& spec) {
  return expected_text(spec.tokens, spec.prompt_tokens, spec.sampling, {});
}

int replays(const Served& served, kv::ReplayKind kind) {
  return served.counts.replays[static_cast<std::size_t>(kind)];
}

TEST(CoreKv, AFirstRequestStoresEachFullBlockOnceUnderItsName) {
  Worker prefill(Role::kPrefill), decode(Role::kDecode);
  Store store;
  const RequestSpec spec = greedy(tokens_of(300), 100);
  const Served served = serve(prefill, decode, store, spec);
  EXPECT_EQ(served.text, text_without_store(spec));
  EXPECT_EQ(served.cached_tokens, 0);
  // 399 positions have run: three full blocks, the third one filled while decoding.
  std::vector<TokenId> all = spec.tokens;
  all.insert(all.end(), served.text.begin(), served.text.end());
  const auto keys = storage::kv::chain_keys(Store::kRoot, std::span(all).first(399));
  ASSERT_EQ(keys.size(), 3u);
  EXPECT_EQ(store.sealed, 3);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    ASSERT_TRUE(store.blocks.contains(keys[i])) << i;
    EXPECT_EQ(store.blocks[keys[i]], TestEngine::bytes_for(std::span(all).first((i + 1) * 128)));
    EXPECT_EQ(store.depths[keys[i]], i);
  }
  // The prefill left the window at 256, decoding the one at 384.
  EXPECT_EQ(store.windows.size(), 2u);
  EXPECT_EQ(store.windows[keys[1]], TestEngine::bytes_for(std::span(all).first(256)));
  EXPECT_EQ(store.windows[keys[2]], TestEngine::bytes_for(std::span(all).first(384)));
  EXPECT_TRUE(prefill.has_nothing_left());
  EXPECT_TRUE(decode.has_nothing_left());
}

TEST(CoreKv, TheNextTurnStartsWhereTheLastOneEnded) {
  Worker prefill(Role::kPrefill), decode(Role::kDecode);
  Store store;
  std::vector<TokenId> conversation = tokens_of(200);
  for (int turn = 0; turn < 8; ++turn) {
    const RequestSpec spec = greedy(conversation, 60);
    const Served served = serve(prefill, decode, store, spec);
    EXPECT_EQ(served.text, text_without_store(spec)) << turn;
    const int hit = kv::usable_hit(spec.prompt_tokens,
                                   turn == 0 ? 0 : static_cast<int>(conversation.size()) - 141);
    if (hit > 0) {
      EXPECT_EQ(served.cached_tokens, hit) << turn;
      EXPECT_EQ(replays(served, kv::ReplayKind::kWindow), 1) << turn;
      EXPECT_EQ(served.counts.prefill_rows, spec.prompt_tokens - hit) << turn;
    }
    conversation.insert(conversation.end(), served.text.begin(), served.text.end());
    const auto more = tokens_of(140, static_cast<std::uint64_t>(turn) + 50);
    conversation.insert(conversation.end(), more.begin(), more.end());
  }
  EXPECT_EQ(store.leases, 0);
}

TEST(CoreKv, AnExactRepeatReplaysTheWindowItCannotHave) {
  Worker prefill(Role::kPrefill), decode(Role::kDecode);
  Store store;
  const RequestSpec spec = greedy(tokens_of(600), 5);
  serve(prefill, decode, store, spec);
  const int sealed = store.sealed;
  const Served again = serve(prefill, decode, store, spec);
  EXPECT_EQ(again.text, text_without_store(spec));
  // 600 - 134 = 466: three blocks, of which the third runs again; its window ended at 512.
  EXPECT_EQ(again.cached_tokens, 256);
  EXPECT_EQ(again.counts.prefill_rows, 600 - 256);
  EXPECT_EQ(replays(again, kv::ReplayKind::kTruncated), 1);
  EXPECT_EQ(store.sealed, sealed + 1) << "only what lies behind the hit is stored again";
}

TEST(CoreKv, AHoleOrAShortFetchIsAShorterHit) {
  Worker prefill(Role::kPrefill), decode(Role::kDecode);
  Store store;
  const RequestSpec spec = greedy(tokens_of(800), 5);
  serve(prefill, decode, store, spec);
  for (int blocks = 0; blocks <= 5; ++blocks) {
    const Served served = serve(prefill, decode, store, spec, {.blocks_at_most = blocks});
    EXPECT_EQ(served.text, text_without_store(spec)) << blocks;
    EXPECT_EQ(served.cached_tokens, blocks < 2 ? 0 : 128 * blocks - 128) << blocks;
    EXPECT_EQ(store.leases, 0);
  }
}

TEST(CoreKv, BlocksThatAreNotWholeAreComputed) {
  Worker prefill(Role::kPrefill, {.max_step_rows = 100, .kv_blocks = 64}), decode(Role::kDecode);
  Store store;
  const RequestSpec spec = greedy(tokens_of(800), 5);
  serve(prefill, decode, store, spec);
  for (const int broken : {0, 3, 4}) {
    const Served served = serve(prefill, decode, store, spec, {.broken_block = broken});
    EXPECT_EQ(served.text, text_without_store(spec)) << broken;
    EXPECT_EQ(served.cached_tokens, 0) << "it was told what was used in the end";
    EXPECT_EQ(served.counts.failed_swap_ins, 1);
    EXPECT_EQ(served.counts.prefill_rows, 800 + 100) << "one step was for nothing";
    EXPECT_EQ(store.leases, 0);
  }
  EXPECT_TRUE(prefill.has_nothing_left());
}

TEST(CoreKv, AFetcherThatHangsCostsItsTimeAndNoMore) {
  Worker prefill(Role::kPrefill), decode(Role::kDecode);
  Store store;
  const RequestSpec spec = greedy(tokens_of(400), 5);
  serve(prefill, decode, store, spec);
  const Served served = serve(prefill, decode, store, spec, {.is_never_answered = true});
  EXPECT_EQ(served.text, text_without_store(spec));
  EXPECT_EQ(served.counts.late_fetches, 1);
  EXPECT_EQ(served.cached_tokens, 0);
  // Others are not held up meanwhile.
  RequestSpec slow = greedy(spec.tokens, 5);
  slow.kv = store.scope_of(slow.tokens, slow.prompt_tokens);
  prefill.core->on_command(StartPrefill{slow});
  RequestSpec quick = greedy(tokens_of(20, 9), 5);
  quick.key.request_id = "quick";
  prefill.core->on_command(StartPrefill{quick});
  prefill.turn(kStart);
  EXPECT_EQ(prefill.events.back().key.request_id, "quick");
}

TEST(CoreKv, WhatComesForARequestThatIsGoneIsGivenBack) {
  Worker prefill(Role::kPrefill), decode(Role::kDecode);
  Store store;
  RequestSpec spec = greedy(tokens_of(400), 5);
  serve(prefill, decode, store, spec);
  spec.kv = store.scope_of(spec.tokens, spec.prompt_tokens);
  spec.key.attempt = 2;
  prefill.core->on_command(StartPrefill{spec});
  KvJobs jobs = prefill.core->take_kv_jobs();
  ASSERT_EQ(jobs.fetches.size(), 1u);
  prefill.core->on_command(Cancel{.stream = spec.stream, .key = spec.key});
  EXPECT_EQ(prefill.core->take_kv_jobs().cancels,
            std::vector<std::uint64_t>{jobs.fetches[0].request});
  prefill.core->on_command(store.answer(jobs.fetches[0], {}));
  EXPECT_EQ(store.leases, 0);
  prefill.turn(kStart);
  EXPECT_TRUE(prefill.has_nothing_left());
}

TEST(CoreKv, AStreamIsToldOfWindowsEvenAfterItsRequestsEnd) {
  Worker prefill(Role::kPrefill), decode(Role::kDecode);
  Store store;
  serve(prefill, decode, store, greedy(tokens_of(300), 1));
  const TurnOutput output = prefill.core->run_turn(kStart);
  ASSERT_EQ(output.batches.size(), 1u);
  ASSERT_EQ(output.batches[0].windows.size(), 1u);
  EXPECT_EQ(output.batches[0].windows[0].anchor, 256);
}

TEST(CoreKv, WithoutAScopeNothingIsAskedForAndNothingIsKept) {
  Worker prefill(Role::kPrefill);
  prefill.core->on_command(StartPrefill{greedy(tokens_of(400), 1)});
  prefill.turn(kStart);
  const KvJobs jobs = prefill.core->take_kv_jobs();
  EXPECT_TRUE(jobs.fetches.empty() && jobs.seals.empty() && jobs.windows.empty());
}

/// 1,000 conversations over shared workers and one store, with every fault: each text is what one
/// process without a store would write.
TEST(CoreKv, NoFaultOfTheStoreChangesAText) {
  int hits = 0, faults_met = 0;
  for (unsigned seed = 1; seed <= 1000; ++seed) {
    std::mt19937 random(seed);
    Worker prefill(Role::kPrefill, {.max_step_rows = static_cast<int>(50 + random() % 400),
                                    .max_sequences = 4,
                                    .kv_blocks = 64});
    Worker decode(Role::kDecode);
    Store store;
    std::vector<TokenId> conversation = tokens_of(1 + random() % 500, seed);
    for (int turn = 0; turn < 4; ++turn) {
      RequestSpec spec = greedy(conversation, static_cast<int>(1 + random() % 60));
      if (random() % 4 == 0) spec.tokens.push_back(static_cast<TokenId>(random() % 50));
      spec.sampling.max_new_tokens += static_cast<int>(spec.tokens.size()) - spec.prompt_tokens;
      Faults faults;
      if (random() % 4 == 0) faults.blocks_at_most = static_cast<int>(random() % 4);
      if (random() % 4 == 0) faults.broken_block = static_cast<int>(random() % 4);
      faults.is_never_answered = random() % 12 == 0;
      faults.has_lost_windows = random() % 3 == 0;
      if (random() % 3 == 0 && !store.blocks.empty()) {  // evicted
        store.blocks.erase(std::next(store.blocks.begin(),
                                     static_cast<std::ptrdiff_t>(random() % store.blocks.size())));
      }
      const Served served = serve(prefill, decode, store, spec, faults);
      ASSERT_EQ(served.text, text_without_store(spec)) << "seed " << seed << ", turn " << turn;
      ASSERT_EQ(store.leases, 0) << "seed " << seed;
      hits += served.cached_tokens > 0;
      faults_met += served.counts.failed_swap_ins + served.counts.late_fetches;
      conversation.assign(spec.tokens.begin(), spec.tokens.begin() + spec.prompt_tokens);
      conversation.insert(conversation.end(), served.text.begin(), served.text.end());
      const auto more = tokens_of(random() % 300, random());
      conversation.insert(conversation.end(), more.begin(), more.end());
    }
    ASSERT_TRUE(prefill.has_nothing_left()) << "seed " << seed;
    ASSERT_TRUE(decode.has_nothing_left()) << "seed " << seed;
  }
  EXPECT_GT(hits, 500);
  EXPECT_GT(faults_met, 100);
}

}  // namespace
}  // namespace millrace::dataplane::worker
