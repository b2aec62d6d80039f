#include "dataplane/worker/core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <deque>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "dataplane/worker/core_rig.h"

namespace millrace::dataplane::worker {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

/// Prefills and decodes one request to its end; returns what was generated.
std::vector<TokenId> generate(Worker& prefill, Worker& decode, RequestSpec spec) {
  std::vector<TokenId> text(spec.tokens.begin() + spec.prompt_tokens, spec.tokens.end());
  prefill.core->on_command(StartPrefill{spec});
  const std::size_t before = prefill.events.size();
  while (prefill.events.size() == before) prefill.turn(kStart);
  const Prefilled first = prefill.last<Prefilled>();
  text.push_back(first.token.token);
  if (first.finish != FinishReason::kNone) {
    EXPECT_FALSE(first.handover.has_value());
    return text;
  }
  spec.tokens.push_back(first.token.token);
  decode.core->on_command(StartDecode{spec, *first.handover});
  for (;;) {
    const std::size_t seen = decode.events.size();
    decode.turn(kStart, &prefill);
    for (std::size_t i = seen; i < decode.events.size(); ++i) {
      const auto& sampled = std::get<Sampled>(decode.events[i].what);
      text.push_back(sampled.token.token);
      if (sampled.finish != FinishReason::kNone) {
        decode.turn(kStart, &prefill);
        return text;
      }
    }
  }
}

sampling::SamplingParams random_params(std::mt19937& random) {
  sampling::SamplingParams params;
  params.temperature = random() % 3 == 0 ? 0.0 : 0.3 + static_cast<double>(random() % 10) / 10;
  params.seed = random();
  params.max_new_tokens = static_cast<int>(1 + random() % 40);
  params.ignore_eos = random() % 2 == 0;
  if (random() % 2 == 0) params.top_p = 0.8;
  if (random() % 2 == 0) params.presence_penalty = 1.5;
  if (random() % 2 == 0) params.frequency_penalty = 0.5;
  if (random() % 2 == 0) params.repetition_penalty = 1.2;
  if (random() % 2 == 0) params.stop_token_ids = {3};
  if (random() % 2 == 0) params.min_new_tokens = params.max_new_tokens / 2;
  return params;
}

TEST(Core, PrefillAndDecodeTogetherWriteWhatOneProcessWould) {
  for (unsigned seed = 1; seed <= 60; ++seed) {
    std::mt19937 random(seed);
    const int rows = static_cast<int>(1 + random() % 60);
    Worker prefill(Role::kPrefill, {.max_step_rows = rows, .max_sequences = 1, .kv_blocks = 64});
    Worker decode(Role::kDecode);
    RequestSpec spec = spec_of("r", tokens_of(1 + random() % 200, seed));
    spec.sampling = random_params(random);
    std::vector<TokenId> stops = spec.sampling.stop_token_ids;
    if (!spec.sampling.ignore_eos) stops.push_back(kEos);
    EXPECT_EQ(generate(prefill, decode, spec),
              expected_text(spec.tokens, spec.prompt_tokens, spec.sampling, stops))
        << "seed " << seed;
    EXPECT_TRUE(prefill.has_nothing_left()) << "seed " << seed;
    EXPECT_TRUE(decode.has_nothing_left()) << "seed " << seed;
  }
}

TEST(Core, GoingOnFromAnyDeliveredTokenGivesTheSameText) {
  for (unsigned seed = 1; seed <= 15; ++seed) {
    std::mt19937 random(seed);
    Worker prefill(Role::kPrefill);
    Worker decode(Role::kDecode);
    RequestSpec spec = spec_of("r", tokens_of(30, seed));
    spec.sampling = random_params(random);
    spec.sampling.max_new_tokens = 20;
    spec.sampling.min_new_tokens = 10;
    const std::vector<TokenId> text = generate(prefill, decode, spec);
    for (std::size_t delivered = 1; delivered < text.size(); ++delivered) {
      RequestSpec again = spec;
      again.key.attempt = static_cast<std::uint32_t>(delivered + 1);
      again.tokens.insert(again.tokens.end(), text.begin(),
                          text.begin() + static_cast<std::ptrdiff_t>(delivered));
      EXPECT_EQ(generate(prefill, decode, again), text) << "seed " << seed << " at " << delivered;
    }
  }
}

TEST(Core, ManyRequestsAtOnceDoNotChangeEachOther) {
  Worker prefill(Role::kPrefill, {.max_step_rows = 50, .max_sequences = 5, .kv_blocks = 10});
  Worker decode(Role::kDecode, {.max_step_rows = 8, .max_sequences = 8, .kv_blocks = 12});
  std::map<std::string, RequestSpec> specs;
  std::map<std::string, std::vector<TokenId>> texts;
  std::mt19937 random(99);
  for (int i = 0; i < 40; ++i) {
    RequestSpec spec = spec_of(str_cat("r", i), tokens_of(1 + random() % 150, random()));
    spec.sampling = random_params(random);
    specs[spec.key.request_id] = spec;
    prefill.core->on_command(StartPrefill{spec});
  }
  std::size_t prefill_seen = 0;
  std::size_t decode_seen = 0;
  for (int turn = 0; turn < 2000; ++turn) {
    prefill.turn(kStart);
    for (; prefill_seen < prefill.events.size(); ++prefill_seen) {
      const Event& event = prefill.events[prefill_seen];
      const auto& first = std::get<Prefilled>(event.what);
      texts[event.key.request_id].push_back(first.token.token);
      if (!first.handover) continue;
      RequestSpec next = specs[event.key.request_id];
      next.tokens.push_back(first.token.token);
      decode.core->on_command(StartDecode{next, *first.handover});
    }
    decode.turn(kStart, &prefill);
    for (; decode_seen < decode.events.size(); ++decode_seen) {
      const Event& event = decode.events[decode_seen];
      texts[event.key.request_id].push_back(std::get<Sampled>(event.what).token.token);
    }
  }
  for (const auto& [id, spec] : specs) {
    std::vector<TokenId> stops = spec.sampling.stop_token_ids;
    if (!spec.sampling.ignore_eos) stops.push_back(kEos);
    EXPECT_EQ(texts[id], expected_text(spec.tokens, spec.prompt_tokens, spec.sampling, stops))
        << id;
  }
  EXPECT_TRUE(prefill.has_nothing_left());
  EXPECT_TRUE(decode.has_nothing_left());
}

TEST(Core, ATextThatEndsAtItsFirstTokenHandsNothingOver) {
  Worker prefill(Role::kPrefill);
  prefill.core->on_command(StartPrefill{spec_of("r", tokens_of(5), 1)});
  prefill.turn(kStart);
  EXPECT_EQ(prefill.last<Prefilled>().finish, FinishReason::kLength);
  EXPECT_FALSE(prefill.last<Prefilled>().handover.has_value());
  EXPECT_TRUE(prefill.has_nothing_left());
}

TEST(Core, ImpossibleRequestsAreRefusedWithTheReason) {
  Worker prefill(Role::kPrefill, {.kv_blocks = 8});
  struct Case {
    std::string reason;
    absl::StatusCode code;
    std::function<void(RequestSpec&)> spoil;
  };
  const std::vector<Case> cases = {
      {"vocabulary", absl::StatusCode::kInvalidArgument, [](auto& s) { s.tokens[1] = 50; }},
      {"vocabulary", absl::StatusCode::kInvalidArgument, [](auto& s) { s.tokens[1] = -1; }},
      {"prompt_tokens", absl::StatusCode::kInvalidArgument, [](auto& s) { s.prompt_tokens = 0; }},
      {"prompt_tokens", absl::StatusCode::kInvalidArgument, [](auto& s) { s.prompt_tokens = 6; }},
      {"temperature", absl::StatusCode::kInvalidArgument,
       [](auto& s) { s.sampling.temperature = -1; }},
      {"delivered", absl::StatusCode::kInvalidArgument,
       [](auto& s) {
         s.prompt_tokens = 2;
         s.sampling.max_new_tokens = 3;
       }},
      {"context", absl::StatusCode::kInvalidArgument,
       [](auto& s) { s.sampling.max_new_tokens = TestEngine::kMaxPosition; }},
      {"KV blocks", absl::StatusCode::kInvalidArgument,
       [](auto& s) {
         s.tokens = tokens_of(std::size_t{9} * 128);
         s.prompt_tokens = 9 * 128;
       }},
  };
  for (const Case& c : cases) {
    RequestSpec spec = spec_of("r", tokens_of(5));
    c.spoil(spec);
    prefill.core->on_command(StartPrefill{spec});
    prefill.turn(kStart);
    EXPECT_EQ(prefill.last<Failed>().status.code(), c.code);
    EXPECT_THAT(std::string(prefill.last<Failed>().status.message()), HasSubstr(c.reason));
    EXPECT_TRUE(prefill.has_nothing_left());
  }
  prefill.core->on_command(StartDecode{spec_of("r", tokens_of(5)), {}});
  prefill.turn(kStart);
  EXPECT_EQ(prefill.last<Failed>().status.code(), absl::StatusCode::kFailedPrecondition);
}

TEST(Core, TheSameAttemptTwiceIsRefusedAndTheFirstGoesOn) {
  Worker prefill(Role::kPrefill, {.max_step_rows = 1, .max_sequences = 1, .kv_blocks = 8});
  prefill.core->on_command(StartPrefill{spec_of("r", tokens_of(3), 1)});
  prefill.core->on_command(StartPrefill{spec_of("r", tokens_of(3), 1)});
  prefill.turn(kStart);
  EXPECT_EQ(prefill.last<Failed>().status.code(), absl::StatusCode::kAlreadyExists);
  prefill.turn(kStart);
  prefill.turn(kStart);
  EXPECT_EQ(prefill.last<Prefilled>().finish, FinishReason::kLength);
  EXPECT_TRUE(prefill.has_nothing_left());
}

TEST(Core, AHandoverThatDoesNotMatchIsRefused) {
  Worker prefill(Role::kPrefill);
  Worker decode(Role::kDecode);
  RequestSpec spec = spec_of("r", tokens_of(5));
  prefill.core->on_command(StartPrefill{spec});
  prefill.turn(kStart);
  transfer::Handover handover = *prefill.last<Prefilled>().handover;
  RequestSpec next = spec;
  next.tokens.push_back(1);

  transfer::Handover other_layout = handover;
  other_layout.layout_id = "theirs";
  decode.core->on_command(StartDecode{next, other_layout});
  decode.turn(kStart);
  EXPECT_EQ(decode.last<Failed>().status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(decode.last<Failed>().status.message()),
              ::testing::AllOf(HasSubstr("theirs"), HasSubstr("test-layout")));

  transfer::Handover too_short = handover;
  too_short.computed_tokens = 4;
  decode.core->on_command(StartDecode{next, too_short});
  decode.turn(kStart);
  EXPECT_EQ(decode.last<Failed>().status.code(), absl::StatusCode::kInvalidArgument);

  // The bytes hold another number of positions than announced.
  RequestSpec longer = next;
  longer.tokens.push_back(2);
  transfer::Handover too_long = handover;
  too_long.computed_tokens = 6;
  decode.core->on_command(StartDecode{longer, too_long});
  decode.turn(kStart, &prefill);
  decode.turn(kStart);
  EXPECT_EQ(decode.last<Failed>().status.code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(decode.has_nothing_left());
}

TEST(Core, AFailedImportFailsTheRequestWithItsCode) {
  for (const absl::Status& error : {absl::UnavailableError("gone"), absl::DataLossError("bad")}) {
    Worker decode(Role::kDecode);
    RequestSpec spec = spec_of("r", tokens_of(5));
    spec.prompt_tokens = 4;
    decode.core->on_command(StartDecode{spec,
                                        {.source_worker = "p0",
                                         .source_address = "a:1",
                                         .host_id = "here",
                                         .export_id = 9,
                                         .shm_name = {},
                                         .computed_tokens = 4,
                                         .layout_id = "test-layout"}});
    decode.turn(kStart);
    ASSERT_EQ(decode.imports.size(), 1u);
    EXPECT_EQ(decode.core->load().running, 1);
    decode.core->on_command(ImportDone{decode.imports[0].request, error});
    decode.turn(kStart);
    EXPECT_EQ(decode.last<Failed>().status, error);
    // A source that is gone is not told; one whose copy is bad may drop it.
    EXPECT_EQ(decode.releases.size(), absl::IsUnavailable(error) ? 0u : 1u);
    EXPECT_TRUE(decode.has_nothing_left());
  }
}

// Random traffic with cancels, closed streams and deadlines: in the end nothing is left anywhere,
// and every request had at most one ending.
TEST(Core, NothingIsLeftWhateverEndsARequest) {
  for (unsigned seed = 1; seed <= 40; ++seed) {
    std::mt19937 random(seed);
    Worker prefill(Role::kPrefill,
                   {.max_step_rows = 20, .max_sequences = 4, .kv_blocks = 8, .max_waiting = 10},
                   {.max_bytes = 2000, .max_exports = 4, .time_to_live = 30s});
    Worker decode(Role::kDecode,
                  {.max_step_rows = 8, .max_sequences = 4, .kv_blocks = 8, .max_waiting = 10});
    std::map<std::string, RequestSpec> specs;
    std::map<std::string, int> endings;
    std::set<std::string> cancelled;
    std::deque<ImportJob> imports;
    std::size_t prefill_seen = 0;
    std::size_t decode_seen = 0;
    std::size_t releases_seen = 0;
    std::size_t imports_seen = 0;
    StreamId stream = kStream;
    TimePoint now = kStart;
    int next = 0;
    const auto step = [&](bool answer_all) {
      prefill.turn(now);
      for (; prefill_seen < prefill.events.size(); ++prefill_seen) {
        const Event& event = prefill.events[prefill_seen];
        const std::string id = event.key.request_id;
        ASSERT_FALSE(cancelled.contains(id)) << "seed " << seed;
        const auto* first = std::get_if<Prefilled>(&event.what);
        if (first == nullptr || !first->handover) {
          ++endings[id];
          continue;
        }
        RequestSpec spec = specs[id];
        spec.tokens.push_back(first->token.token);
        if (random() % 8 == 0) {  // nobody will fetch it
          cancelled.insert(id);
          prefill.core->on_command(Cancel{spec.stream, spec.key, first->handover->export_id});
        } else {
          decode.core->on_command(StartDecode{spec, *first->handover});
        }
      }
      decode.turn(now);
      for (; decode_seen < decode.events.size(); ++decode_seen) {
        const Event& event = decode.events[decode_seen];
        ASSERT_FALSE(cancelled.contains(event.key.request_id)) << "seed " << seed;
        const auto* sampled = std::get_if<Sampled>(&event.what);
        if (sampled == nullptr || sampled->finish != FinishReason::kNone) {
          ++endings[event.key.request_id];
        }
      }
      for (; releases_seen < decode.releases.size(); ++releases_seen) {
        prefill.exports->release(decode.releases[releases_seen].export_id);
      }
      for (; imports_seen < decode.imports.size(); ++imports_seen) {
        imports.push_back(decode.imports[imports_seen]);
      }
      while (!imports.empty() && (answer_all || random() % 3 == 0)) {
        if (!imports.front().cancel->load()) {
          decode.core->on_command(Worker::answer(imports.front(), prefill));
        }
        imports.pop_front();
      }
    };
    for (int turn = 0; turn < 300; ++turn) {
      if (random() % 10 == 0 && next > 0) {
        const std::string id = str_cat("r", random() % static_cast<unsigned>(next));
        if (endings[id] == 0) cancelled.insert(id);
        prefill.core->on_command(Cancel{specs[id].stream, specs[id].key, 0});
        decode.core->on_command(Cancel{specs[id].stream, specs[id].key, 0});
      }
      if (random() % 50 == 0) {
        for (const auto& [id, spec] : specs) {
          if (spec.stream == stream && endings[id] == 0) cancelled.insert(id);
        }
        prefill.core->on_command(CloseStream{stream});
        decode.core->on_command(CloseStream{stream});
        ++stream;
        prefill.core->on_command(OpenStream{stream});
        decode.core->on_command(OpenStream{stream});
      }
      if (random() % 2 == 0) {
        RequestSpec spec = spec_of(str_cat("r", next++), tokens_of(1 + random() % 100, random()));
        spec.stream = stream;
        spec.sampling = random_params(random);
        spec.deadline = random() % 5 == 0 ? now + 20s : kLater;
        specs[spec.key.request_id] = spec;
        prefill.core->on_command(StartPrefill{spec});
      }
      now += std::chrono::seconds(random() % 3);
      step(false);
      if (HasFatalFailure()) return;
      ASSERT_EQ(prefill.controls->sequences, prefill.engine.usage().sequences);
      ASSERT_LE(prefill.engine.usage().kv_blocks_used, prefill.core->load().kv_blocks_used);
      ASSERT_LE(decode.engine.usage().kv_blocks_used, decode.core->load().kv_blocks_used);
    }
    for (int turn = 0; turn < 500; ++turn) step(true);
    prefill.turn(now + 1min);  // what was cancelled between two workers goes with its time to live
    for (const auto& [id, count] : endings) {
      ASSERT_LE(count, 1) << id << " seed " << seed;
    }
    for (const auto& [id, spec] : specs) {
      ASSERT_TRUE(cancelled.contains(id) || endings[id] == 1) << id << " seed " << seed;
    }
    EXPECT_TRUE(prefill.has_nothing_left()) << "seed " << seed;
    EXPECT_TRUE(decode.has_nothing_left()) << "seed " << seed;
  }
}

TEST(Core, AFinishedPrefillWaitsForRoomAmongTheExports) {
  Worker prefill(Role::kPrefill, {.kv_blocks = 64}, {.max_exports = 1});
  prefill.core->on_command(StartPrefill{spec_of("a", tokens_of(5))});
  prefill.core->on_command(StartPrefill{spec_of("b", tokens_of(5))});
  prefill.core->on_command(StartPrefill{spec_of("c", tokens_of(5))});
  prefill.turn(kStart);
  ASSERT_EQ(prefill.events.size(), 1u);
  EXPECT_TRUE(prefill.core->is_holding());
  EXPECT_FALSE(prefill.core->has_rows());
  prefill.turn(kStart);
  ASSERT_EQ(prefill.events.size(), 1u);
  prefill.core->on_command(Cancel{kStream, {"b", 1}, 0});
  prefill.exports->release(prefill.last<Prefilled>().handover->export_id);
  prefill.turn(kStart);
  ASSERT_EQ(prefill.events.size(), 2u);
  EXPECT_EQ(prefill.events[1].key.request_id, "c");
  EXPECT_FALSE(prefill.core->is_holding());
  EXPECT_EQ(prefill.controls->sequences, 0);
}

TEST(Core, AnExportThatNobodyFetchesGoesWithItsTime) {
  Worker prefill(Role::kPrefill, {.kv_blocks = 64}, {.time_to_live = 10s});
  prefill.core->on_command(StartPrefill{spec_of("a", tokens_of(5))});
  prefill.turn(kStart);
  EXPECT_FALSE(prefill.has_nothing_left());
  prefill.turn(kStart + 9s);
  EXPECT_EQ(prefill.counts.expired_exports, 0);
  prefill.turn(kStart + 10s);
  EXPECT_EQ(prefill.counts.expired_exports, 1);
  EXPECT_TRUE(prefill.has_nothing_left());
}

TEST(Core, AStepThatFailsFailsItsRequestsAndTheNextOnesRun) {
  Worker prefill(Role::kPrefill);
  prefill.controls->is_failing = true;
  prefill.core->on_command(StartPrefill{spec_of("a", tokens_of(5))});
  prefill.core->on_command(StartPrefill{spec_of("b", tokens_of(5))});
  prefill.turn(kStart);
  ASSERT_EQ(prefill.events.size(), 2u);
  EXPECT_EQ(prefill.last<Failed>().status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(prefill.counts.internal_error, HasSubstr("told to fail"));
  EXPECT_TRUE(prefill.has_nothing_left());
  prefill.controls->is_failing = false;
  prefill.core->on_command(StartPrefill{spec_of("c", tokens_of(5), 1)});
  prefill.turn(kStart);
  EXPECT_EQ(prefill.last<Prefilled>().finish, FinishReason::kLength);
}

TEST(Core, ADrainingWorkerRefusesTheNewAndFinishesTheOld) {
  Worker prefill(Role::kPrefill, {.max_step_rows = 2, .max_sequences = 2, .kv_blocks = 8});
  prefill.core->on_command(StartPrefill{spec_of("a", tokens_of(5), 1)});
  prefill.turn(kStart);
  prefill.core->on_command(BeginDrain{});
  prefill.core->on_command(StartPrefill{spec_of("b", tokens_of(5), 1)});
  prefill.turn(kStart);
  EXPECT_EQ(prefill.last<Failed>().status.code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(prefill.core->is_idle());
  EXPECT_TRUE(prefill.core->load().is_draining);
  prefill.turn(kStart);
  EXPECT_EQ(prefill.last<Prefilled>().finish, FinishReason::kLength);
  EXPECT_TRUE(prefill.core->is_idle());
}

TEST(Core, CountsWhatItTookUpPerStream) {
  Worker prefill(Role::kPrefill);
  prefill.core->on_command(OpenStream{2});
  prefill.core->on_command(StartPrefill{spec_of("a", tokens_of(5))});
  RequestSpec bad = spec_of("b", tokens_of(5));
  bad.tokens[0] = -1;
  prefill.core->on_command(StartPrefill{bad});
  const TurnOutput output = prefill.core->run_turn(kStart);
  ASSERT_EQ(output.batches.size(), 2u);
  EXPECT_EQ(output.batches[0].started_requests, 2u);
  EXPECT_EQ(output.batches[1].started_requests, 0u);
}

/// Runs a prompt to its hand-over and reports each step as one of the model's time; the largest
/// step.
int run_measured(Worker& prefill, const std::string& id, std::size_t tokens,
                 const cost::CostModel& truth) {
  int largest = 0;
  prefill.core->on_command(StartPrefill{spec_of(id, tokens_of(tokens), 1)});
  const std::size_t before = prefill.events.size();
  while (prefill.events.size() == before) {
    prefill.turn(kStart);
    largest = std::max(largest, prefill.counts.prefill_rows);
    cost::PrefillSample step = prefill.counts.prefill_step;
    step.ns = cost::predicted_ns(truth, step);
    prefill.core->on_step_measured(step);
  }
  return largest;
}

TEST(Core, KnowsWhichRowsOfAStepPassTheDecoderLayers) {
  Worker prefill(Role::kPrefill, {.max_step_rows = 200, .kv_blocks = 64});
  RequestSpec spec = spec_of("r", tokens_of(350), 100);
  spec.prompt_tokens = 300;  // 50 tokens were delivered before a worker was lost
  prefill.core->on_command(StartPrefill{spec});
  prefill.core->on_command(PublishedCost{{.linear = 1, .tail = 1000}});
  EXPECT_EQ(prefill.core->load().queued_ns, 350 + 1000 * (350 - (300 - 128)));
  prefill.turn(kStart);
  EXPECT_EQ(prefill.counts.prefill_step.rows, 200);
  EXPECT_EQ(prefill.counts.prefill_step.tail, 200 - (300 - 128));
  prefill.turn(kStart);
  EXPECT_EQ(prefill.counts.prefill_step.rows, 150);
  EXPECT_EQ(prefill.counts.prefill_step.tail, 150);
  EXPECT_EQ(prefill.counts.prefill_step.tail_by_length, 150 * 350);
}

TEST(Core, BeginsWithTheCostsItIsGivenAndLearnsBetterOnes) {
  TestEngine engine(std::make_shared<TestEngineControls>(), 64);
  const auto exports = *transfer::ExportTable::open(
      {.host_id = "here", .worker_id = str_cat("c-", ::getpid())}, 1, {});
  const auto core = *Core::create({.role = Role::kPrefill,
                                   .worker_id = "p0",
                                   .host_id = "here",
                                   .transfer_address = "127.0.0.1:1",
                                   .eos_tokens = {kEos},
                                   .limits = {.kv_blocks = 64},
                                   .prefill_cost = cost::CostModel{.linear = 5e5}},
                                  engine, *exports);
  EXPECT_EQ(core->load().prefill_cost->linear, 5e5);
  core->on_command(PublishedCost{{.linear = 7e5}});
  core->on_command(OpenStream{kStream});
  core->on_command(StartPrefill{spec_of("a", tokens_of(100), 1)});
  EXPECT_EQ(core->load().queued_ns, 100 * 500'000) << "its own count, not the published ones";
}

TEST(Core, LearnsWhatItsStepsCostAndKeepsThemWithinTheBudget) {
  const cost::CostModel truth{
      .cross = 500, .linear = 1e6, .fixed = 2e6, .tail = 1e6, .tail_cross = 1e3};
  Worker prefill(Role::kPrefill,
                 {.max_step_rows = 400, .kv_blocks = 64, .step_budget_ns = 100.5e6});
  EXPECT_EQ(run_measured(prefill, "first", 1000, truth), 400) << "nothing is known yet";
  for (int i = 0; i < 60; ++i) run_measured(prefill, str_cat("p", i), 100 + 37 * i % 1500, truth);
  EXPECT_NEAR(prefill.core->prefill_cost().linear, truth.linear, 1e3);
  EXPECT_NEAR(prefill.core->prefill_cost().tail, truth.tail, 1e3);
  EXPECT_NEAR(prefill.core->prefill_cost().tail_cross, truth.tail_cross, 10);
  // 98 rows take 100 ms of the budget, 99 would exceed it; later in the prompt less fit.
  EXPECT_EQ(run_measured(prefill, "last", 1000, truth), 98);
  EXPECT_TRUE(prefill.has_nothing_left());
  // A machine that has become ten times faster is noticed.
  const cost::CostModel faster{
      .cross = 50, .linear = 1e5, .fixed = 2e5, .tail = 1e5, .tail_cross = 1e2};
  for (int i = 0; i < 200; ++i) run_measured(prefill, str_cat("f", i), 100 + 37 * i % 1500, faster);
  EXPECT_EQ(run_measured(prefill, "fast", 1000, faster), 400);
}

}  // namespace
}  // namespace millrace::dataplane::worker
