#include "api/entrypoint/kv_lookup.h"

#include <algorithm>
#include <utility>

#include "dataplane/kv/hit_policy.h"
#include "storage/kv/check_plan.h"

namespace millrace::api::entrypoint {
namespace {

using Clock = std::chrono::steady_clock;

/// How many of a prompt's blocks a prefill can use at most: nobody needs to know of the others.
std::size_t usable_blocks(const PromptBlocks& prompt) {
  const auto stored = static_cast<int>(prompt.keys.size()) * storage::kBlockTokens;
  const int usable = dataplane::kv::usable_hit(static_cast<int>(prompt.prompt_tokens), stored);
  return static_cast<std::size_t>(usable / storage::kBlockTokens);
}

}  // namespace

struct KvLookup::Prompt {
  explicit Prompt(std::size_t block_count) : plan(block_count), is_known(block_count == 0) {}

  storage::kv::CheckPlan plan;
  std::vector<std::uint32_t> round;  ///< blocks of the round under way
  std::vector<bool> present;         ///< as far as they are known
  std::vector<std::size_t> asked;    ///< places of the round that the storage nodes were asked for
  bool is_known;
};

struct KvLookup::Question {
  std::shared_ptr<const RequestBlocks> blocks;
  Done done;
  std::vector<Prompt> prompts;
  std::size_t unknown = 0;
  TimePoint begin;
  bool is_late = false;
  common::http::EventLoop::Timer deadline;
};

KvLookup::KvLookup(common::http::EventLoop& loop, storage::store::BlockStore& store,
                   const KvMetrics& metrics, const KvLookupOptions& options)
    : loop_(loop), store_(store), metrics_(metrics), options_(options), cache_(options.cache) {}

KvLookup::~KvLookup() = default;

void KvLookup::start(std::shared_ptr<const RequestBlocks> blocks, Done done) {
  const Id id = ++last_id_;
  auto made = std::make_unique<Question>();
  Question& question = *made;
  question.blocks = std::move(blocks);
  question.done = std::move(done);
  question.begin = Clock::now();
  question.prompts.reserve(question.blocks->prompts.size());
  for (const PromptBlocks& prompt : question.blocks->prompts) {
    question.prompts.emplace_back(usable_blocks(prompt));
  }
  questions_.emplace(id, std::move(made));
  for (std::size_t index = 0; index < question.prompts.size(); ++index) {
    if (!advance(id, question, index)) ++question.unknown;
  }
  if (question.unknown == 0) {
    finish(id);
    return;
  }
  question.deadline = loop_.after(options_.timeout, [this, id] {
    questions_.at(id)->is_late = true;
    finish(id);
  });
}

/// Goes on with a prompt as far as the cache knows, and then asks; true when its end is known.
bool KvLookup::advance(Id id, Question& question, std::size_t index) {
  Prompt& prompt = question.prompts[index];
  const std::vector<storage::BlockKey>& keys = question.blocks->prompts[index].keys;
  while (!prompt.is_known) {
    prompt.round = prompt.plan.next();
    prompt.is_known = prompt.round.empty();
    if (prompt.is_known) break;
    prompt.present.assign(prompt.round.size(), true);
    prompt.asked.clear();
    std::vector<storage::BlockKey> asked;
    for (std::size_t place = 0; place < prompt.round.size(); ++place) {
      const storage::BlockKey& key = keys[prompt.round[place]];
      if (cache_.contains(key, Clock::now())) continue;
      prompt.asked.push_back(place);
      asked.push_back(key);
    }
    if (!asked.empty()) {
      // Longer than ours: at its own deadline the store says "absent", and late is not missing.
      store_.query(std::move(asked), options_.lease, 2 * options_.timeout,
                   [this, id, index](std::vector<bool> present) {
                     loop_.post([this, id, index, present = std::move(present)] {
                       on_answer(id, index, present);
                     });
                   });
      return false;
    }
    prompt.plan.answer(prompt.present);
  }
  return true;
}

void KvLookup::on_answer(Id id, std::size_t index, const std::vector<bool>& present) {
  const auto it = questions_.find(id);
  if (it == questions_.end()) return;  // too late
  Question& question = *it->second;
  Prompt& prompt = question.prompts[index];
  const std::vector<storage::BlockKey>& keys = question.blocks->prompts[index].keys;
  for (std::size_t i = 0; i < prompt.asked.size(); ++i) {
    const std::size_t place = prompt.asked[i];
    prompt.present[place] = present[i];
    if (present[i]) cache_.add(keys[prompt.round[place]], Clock::now());
  }
  prompt.plan.answer(prompt.present);
  if (advance(id, question, index) && --question.unknown == 0) finish(id);
}

void KvLookup::finish(Id id) {
  const auto it = questions_.find(id);
  const std::unique_ptr<Question> question = std::move(it->second);
  questions_.erase(it);
  std::vector<KvFinding> findings;
  findings.reserve(question->prompts.size());
  std::size_t hit_blocks = 0;
  bool is_askable = false;
  for (std::size_t index = 0; index < question->prompts.size(); ++index) {
    const Prompt& prompt = question->prompts[index];
    const PromptBlocks& blocks = question->blocks->prompts[index];
    KvFinding finding;
    finding.scope.salt = question->blocks->salt;
    finding.scope.ttl = question->blocks->ttl;
    finding.blocks = blocks.keys.size();
    if (prompt.is_known) finding.hit_blocks = prompt.plan.hit_blocks();
    finding.scope.hit_tokens = static_cast<std::uint32_t>(
        dataplane::kv::usable_hit(static_cast<int>(blocks.prompt_tokens),
                                  static_cast<int>(finding.hit_blocks) * storage::kBlockTokens));
    hit_blocks += finding.hit_blocks;
    is_askable = is_askable || usable_blocks(blocks) > 0;
    findings.push_back(std::move(finding));
  }
  CheckResult result = hit_blocks > 0 ? CheckResult::kHit : CheckResult::kMiss;
  if (!is_askable) result = CheckResult::kTooShort;
  if (question->is_late) result = CheckResult::kTimeout;
  metrics_.checked(result, Clock::now() - question->begin);
  question->done(std::move(findings));
}

}  // namespace millrace::api::entrypoint
