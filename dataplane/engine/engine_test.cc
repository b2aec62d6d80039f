#include "dataplane/engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "dataplane/engine/engine_rig.h"

namespace millrace::dataplane::engine {
namespace {

using testing::HasSubstr;

class EngineTest : public testing::Test, public EngineRig {};

TEST_F(EngineTest, ARowsBitsDoNotDependOnTheBatch) {
  for (const Switch rounding : {Switch::kOn, Switch::kOff}) {
    const auto engine = open({.rounding = rounding});
    const std::vector<TokenId> prompt = tokens(45, 1);
    const std::vector<TokenId> next = tokens(1, 2);
    const auto alone = create(*engine, 45, 60);
    step(*engine, alone, prompt, 0);
    const std::vector<float> expected = step(*engine, alone, next, 1);
    engine->release(alone);

    for (int batch = 1; batch <= 64; ++batch) {
      std::vector<SequenceId> ids;
      std::vector<std::vector<TokenId>> others;
      std::vector<StepItem> items;
      const int place = batch / 2;
      for (int i = 0; i < batch; ++i) {
        others.push_back(i == place ? prompt
                                    : tokens(1 + (i * 7) % 12, static_cast<unsigned>(100 + i)));
        ids.push_back(create(*engine, static_cast<int>(others.back().size()), 60));
        step(*engine, ids.back(), others.back(), 0);
      }
      items.reserve(ids.size());
      for (int i = 0; i < batch; ++i) {
        items.push_back({.sequence = ids[static_cast<std::size_t>(i)],
                         .tokens = next,
                         .logits_rows = i == place ? 1 : 0});
      }
      std::vector<float> logits;
      ASSERT_TRUE(engine->step(items, logits).ok());
      ASSERT_TRUE(same_bits(logits, expected)) << "batch of " << batch;
      for (SequenceId id : ids) engine->release(id);
    }
    EXPECT_EQ(engine->usage().kv_blocks_used, 0);
    EXPECT_EQ(engine->usage().sequences, 0);
  }
}

TEST_F(EngineTest, ARowsBitsDoNotDependOnTheNumberOfThreads) {
  for (const Switch rounding : {Switch::kOn, Switch::kOff}) {
    std::vector<float> expected;
    std::vector<std::byte> state;
    for (const int threads : {1, 2, 3, 7}) {
      const auto opened = open_cpu_engine(
          checkpoint(), {.rounding = rounding},
          {.kv_blocks = 8, .max_sequences = 2, .max_step_rows = 256, .threads = threads});
      ASSERT_TRUE(opened.ok()) << opened.status();
      const auto id = create(**opened, 150, 160);
      step(**opened, id, tokens(150, 3), 0);
      const std::vector<float> logits = step(**opened, id, tokens(1, 4), 1);
      if (threads == 1) {
        expected = logits;
        state = exported(**opened, id);
      }
      EXPECT_TRUE(same_bits(logits, expected)) << threads << " threads";
      EXPECT_EQ(exported(**opened, id), state) << threads << " threads";
    }
  }
}

TEST_F(EngineTest, EveryTwoWayCutOfAnOddPromptGivesTheSameBitsAndState) {
  for (const Switch replay : {Switch::kOn, Switch::kOff}) {
    const auto engine = open({.decoder_replay = replay});
    const std::vector<TokenId> prompt = tokens(141, 3);
    const auto whole = create(*engine, 141, 160);
    const std::vector<float> expected = step(*engine, whole, prompt, 1);
    const std::vector<std::byte> state = exported(*engine, whole);
    engine->release(whole);
    for (std::size_t cut = 1; cut < prompt.size(); ++cut) {
      const auto id = create(*engine, 141, 160);
      step(*engine, id, std::span(prompt).first(cut), 0);
      EXPECT_EQ(engine->length(id), static_cast<int>(cut));
      ASSERT_TRUE(same_bits(step(*engine, id, std::span(prompt).subspan(cut), 1), expected)) << cut;
      ASSERT_EQ(exported(*engine, id), state) << cut;
      engine->release(id);
    }
  }
}

TEST_F(EngineTest, PrefillInOneStepEqualsOneTokenAtATime) {
  const auto engine = open();
  const std::vector<TokenId> prompt = tokens(40, 4);
  const auto whole = create(*engine, 40, 50), single = create(*engine, 40, 50);
  const std::vector<float> expected = step(*engine, whole, prompt, 1);
  std::vector<float> got;
  for (std::size_t i = 0; i < prompt.size(); ++i)
    got = step(*engine, single, std::span(prompt).subspan(i, 1), i == 39);
  EXPECT_TRUE(same_bits(got, expected));
}

TEST_F(EngineTest, AReRoutedRequestContinuesBitIdentically) {
  const auto engine = open();
  std::vector<TokenId> all = tokens(133, 5);
  const auto undisturbed = create(*engine, 133, 200);
  std::vector<std::vector<float>> expected = {step(*engine, undisturbed, all, 1)};
  for (int i = 0; i < 40; ++i) {
    all.push_back(best(expected.back()));
    expected.push_back(step(*engine, undisturbed, std::span(all).last(1), 1));
  }
  // Another worker gets the prompt and what was delivered, with the original prompt length.
  for (const std::size_t delivered : {1u, 2u, 9u, 40u}) {
    const auto fresh = create(*engine, 133, 200);
    const std::span<const TokenId> teacher = std::span(all).first(133 + delivered);
    step(*engine, fresh, teacher.first(70), 0);
    EXPECT_TRUE(same_bits(step(*engine, fresh, teacher.subspan(70), 1), expected[delivered]))
        << delivered;
    if (delivered < 40) {
      const TokenId next = all[133 + delivered];
      EXPECT_TRUE(same_bits(step(*engine, fresh, {&next, 1}, 1), expected[delivered + 1]))
          << delivered;
    }
    engine->release(fresh);
  }
}

TEST_F(EngineTest, AHandedOverSequenceContinuesBitIdentically) {
  for (const Switch rounding : {Switch::kOn, Switch::kOff}) {
    const auto prefill = open({.rounding = rounding}), decode = open({.rounding = rounding});
    for (const int length : {1, 2, 7, 8, 9, 127, 128, 129, 261}) {
      std::vector<TokenId> all = tokens(length, static_cast<unsigned>(length));
      const auto source = create(*prefill, length, length + 40);
      std::vector<float> logits = step(*prefill, source, all, 1);
      const std::vector<std::byte> bytes = exported(*prefill, source);
      const auto id = decode->import_from(bytes, length + 40);
      ASSERT_TRUE(id.ok()) << id.status();
      EXPECT_EQ(decode->length(*id), length);
      EXPECT_EQ(exported(*decode, *id), bytes) << "an import must export the same bytes";
      for (int i = 0; i < 20; ++i) {
        const TokenId next = best(logits);
        logits = step(*prefill, source, {&next, 1}, 1);
        ASSERT_TRUE(same_bits(step(*decode, *id, {&next, 1}, 1), logits)) << length << " + " << i;
      }
      prefill->release(source);
      decode->release(*id);
    }
    EXPECT_EQ(decode->usage().kv_blocks_used, 0);
  }
}

TEST_F(EngineTest, AReplayLeavesSharedEntriesAlone) {
  const auto engine = open();
  const std::vector<TokenId> prompt = tokens(300, 8);
  const auto cold = create(*engine, 300, 320);
  step(*engine, cold, prompt, 1);
  const int hit = 256;
  const auto id = engine->create({.prompt_tokens = 300,
                                  .capacity_tokens = 320,
                                  .compute_start = hit - 8,
                                  .write_floor = hit,
                                  .prefix_tokens = std::span(prompt).first(hit - 8)});
  ASSERT_TRUE(id.ok()) << id.status();
  EXPECT_EQ(engine->length(*id), hit - 8);
  for (int block = 0; block < 2; ++block) {
    std::ranges::copy(engine->block(cold, block), engine->block(*id, block).begin());
  }
  step(*engine, *id, std::span(prompt).subspan(hit - 8), 1);
  for (int block = 0; block < 2; ++block) {
    EXPECT_TRUE(std::ranges::equal(engine->block(*id, block), engine->block(cold, block))) << block;
  }
}

TEST_F(EngineTest, RefusesBadPlans) {
  const auto engine = open();
  const std::vector<TokenId> history = tokens(64, 9);
  const auto refused = [&](const SequencePlan& plan) {
    const auto id = engine->create(plan);
    EXPECT_EQ(id.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(message_of(id.status()));
  };
  EXPECT_THAT(refused({.prompt_tokens = 0, .capacity_tokens = 5}), HasSubstr("prompt_tokens"));
  EXPECT_THAT(refused({.prompt_tokens = 6, .capacity_tokens = 5}), HasSubstr("capacity_tokens 5"));
  EXPECT_THAT(refused({.prompt_tokens = 6, .capacity_tokens = 5000}),
              HasSubstr("capacity_tokens 5000"));
  EXPECT_THAT(
      refused({.prompt_tokens = 60, .capacity_tokens = 70, .compute_start = 53, .write_floor = 60}),
      HasSubstr("decoder floor 52"));
  EXPECT_THAT(refused({.prompt_tokens = 60,
                       .capacity_tokens = 70,
                       .compute_start = 15,
                       .write_floor = 15,
                       .prefix_tokens = std::span(history).first(15)}),
              HasSubstr("cuts a group"));
  EXPECT_THAT(refused({.prompt_tokens = 60,
                       .capacity_tokens = 70,
                       .compute_start = 16,
                       .write_floor = 8,
                       .prefix_tokens = std::span(history).first(16)}),
              HasSubstr("write_floor 8"));
  EXPECT_THAT(
      refused({.prompt_tokens = 60, .capacity_tokens = 70, .compute_start = 16, .write_floor = 16}),
      HasSubstr("prefix_tokens"));
  EXPECT_EQ(engine->usage().kv_blocks_used, 0);
}

TEST_F(EngineTest, RefusesBadStepsAndChangesNothing) {
  const auto engine = open({}, {.kv_blocks = 8, .max_sequences = 3, .max_step_rows = 32});
  const auto a = create(*engine, 20, 30), b = create(*engine, 5, 8);
  const std::vector<TokenId> ok = tokens(4, 1), many = tokens(33, 1);
  const std::vector<TokenId> foreign = {1, 288}, negative = {-1};
  const auto refused = [&](std::vector<StepItem> items) {
    std::vector<float> logits;
    const absl::Status status = engine->step(items, logits);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(message_of(status));
  };
  EXPECT_THAT(refused({{.sequence = a, .tokens = ok}, {.sequence = b, .tokens = foreign}}),
              HasSubstr("token 288"));
  EXPECT_THAT(refused({{.sequence = a, .tokens = negative}}), HasSubstr("token -1"));
  EXPECT_THAT(refused({{.sequence = a, .tokens = ok}, {.sequence = a, .tokens = ok}}),
              HasSubstr("named twice"));
  EXPECT_THAT(refused({{.sequence = a, .tokens = many}}), HasSubstr("capacity"));
  EXPECT_THAT(refused({{.sequence = a, .tokens = std::span(many).first(28)},
                       {.sequence = b, .tokens = std::span(many).first(5)}}),
              HasSubstr("max_step_rows"));
  EXPECT_THAT(refused({{.sequence = a, .tokens = ok, .logits_rows = 1}}),
              HasSubstr("below the decoder floor 12"));
  EXPECT_THAT(refused({{.sequence = a, .tokens = ok, .logits_rows = 5}}),
              HasSubstr("logits_rows 5"));
  EXPECT_THAT(refused({{.sequence = a, .tokens = {}}}), HasSubstr("no tokens"));
  EXPECT_THAT(refused({{.sequence = 77, .tokens = ok}}), HasSubstr("no sequence 77"));
  EXPECT_EQ(engine->length(a), 0);
  EXPECT_EQ(engine->length(b), 0);
}

TEST_F(EngineTest, SaysWhatIsFull) {
  const auto engine = open({}, {.kv_blocks = 3, .max_sequences = 2, .max_step_rows = 32});
  const auto a = create(*engine, 5, 256);
  const auto no_blocks = engine->create({.prompt_tokens = 5, .capacity_tokens = 256});
  EXPECT_EQ(no_blocks.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(message_of(no_blocks.status())),
              HasSubstr("2 blocks wanted, 1 of 3 free"));
  create(*engine, 5, 10);
  const auto no_slot = engine->create({.prompt_tokens = 5, .capacity_tokens = 10});
  EXPECT_EQ(no_slot.status().code(), absl::StatusCode::kResourceExhausted);
  engine->release(a);
  EXPECT_EQ(engine->usage().kv_blocks_used, 1);
  const auto again = create(*engine, 5, 256);
  EXPECT_NE(again, a) << "a released id must not come back at once";
}

TEST_F(EngineTest, RefusesForeignHandovers) {
  const auto rounded = open(), exact = open({.rounding = Switch::kOff});
  const auto id = create(*rounded, 9, 20);
  step(*rounded, id, tokens(9, 1), 0);
  const std::vector<std::byte> bytes = exported(*rounded, id);
  const auto other = exact->import_from(bytes, 20);
  EXPECT_EQ(other.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(message_of(other.status())), HasSubstr(rounded->kv_layout_id()));
  EXPECT_THAT(std::string(message_of(other.status())), HasSubstr(exact->kv_layout_id()));
  EXPECT_EQ(rounded->import_from(bytes, 8).status().code(), absl::StatusCode::kInvalidArgument);
  std::vector<std::byte> small(bytes.size() - 1);
  EXPECT_EQ(rounded->export_to(id, small).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(EngineTest, RefusesEveryTruncationAndHeaderBitFlip) {
  const auto engine = open();
  const auto id = create(*engine, 9, 20);
  step(*engine, id, tokens(9, 1), 0);
  const std::vector<std::byte> bytes = exported(*engine, id);
  for (std::size_t size = 0; size < bytes.size(); size += size < 200 ? 1 : 97) {
    EXPECT_EQ(engine->import_from(std::span(bytes).first(size), 20).status().code(),
              absl::StatusCode::kDataLoss)
        << size;
  }
  std::vector<std::byte> longer = bytes;
  longer.push_back(std::byte{0});
  EXPECT_EQ(engine->import_from(longer, 20).status().code(), absl::StatusCode::kDataLoss);
  const std::size_t header = static_cast<std::size_t>(bytes[12]);
  for (std::size_t i = 0; i < header; ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::vector<std::byte> flipped = bytes;
      flipped[i] ^= static_cast<std::byte>(1 << bit);
      EXPECT_EQ(engine->import_from(flipped, 20).status().code(), absl::StatusCode::kDataLoss)
          << i << "." << bit;
    }
  }
  std::vector<std::byte> bad_token = bytes;
  bad_token[header + 3] = std::byte{0x7F};
  EXPECT_EQ(engine->import_from(bad_token, 20).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(engine->usage().sequences, 1);
}

TEST(EngineSwitchesTest, ReadsNamesAndValues) {
  EXPECT_EQ(parse_engine_switches("")->rounding, Switch::kOn);
  const auto switches = parse_engine_switches("rounding=off,decoder_replay=off");
  ASSERT_TRUE(switches.ok());
  EXPECT_EQ(switches->rounding, Switch::kOff);
  EXPECT_EQ(switches->decoder_replay, Switch::kOff);
  for (const char* bad : {"rounding", "rounding=no", "speed=on", "rounding=off,", "=off"}) {
    const auto result = parse_engine_switches(bad);
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(std::string(message_of(result.status())), HasSubstr("allowed are")) << bad;
  }
}

}  // namespace
}  // namespace millrace::dataplane::engine
