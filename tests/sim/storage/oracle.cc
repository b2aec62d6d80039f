#include "tests/sim/storage/oracle.h"

#include <algorithm>
#include <bit>

#include "common/check.h"
#include "common/str_cat.h"
#include "storage/store/stripe.h"

namespace millrace::storage::sim {
namespace {

TargetMask bit(std::size_t target) { return TargetMask{1} << target; }

std::string name_of(const BlockKey& key, Generation generation) {
  return str_cat("block ", key.hex().substr(0, 8), " generation ", generation % 100000);
}

bool is_same(std::span<const std::byte> a, std::span<const std::byte> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

}  // namespace

std::string target_name(std::size_t number) { return str_cat("t", number); }

std::size_t target_number(const std::string& target_id) { return std::stoul(target_id.substr(1)); }

Oracle::Oracle(int data_shards, int parity_shards)
    : codec_(ec::Codec::make(data_shards, parity_shards).value()) {}

void Oracle::fail(std::string what) {
  constexpr std::size_t kEnough = 20;
  if (violations_.size() < kEnough) violations_.push_back(std::move(what));
}

Attempt* Oracle::edit(const BlockKey& key, Generation generation) {
  const auto found = attempts_.find({key, generation});
  return found == attempts_.end() ? nullptr : &found->second;
}

const Attempt* Oracle::find(const BlockKey& key, Generation generation) const {
  const auto found = attempts_.find({key, generation});
  return found == attempts_.end() ? nullptr : &found->second;
}

void Oracle::on_write(std::uint64_t write, const BlockKey& key, std::vector<std::byte> block) {
  writes_of_[key].push_back(write);
  writes_[write] = {.key = key,
                    .block = std::make_shared<const std::vector<std::byte>>(std::move(block))};
}

void Oracle::on_shard_sent(std::span<const std::byte> shard) {
  ShardHeader header;
  if (read_shard(shard, header) != ShardDefect::kNone)
    return fail("a client sends a shard that is damaged");
  const Name name{header.key, header.generation};
  if (const auto known = attempts_.find(name); known != attempts_.end()) {
    if (!is_same(known->second.shards[header.shard_index], shard))
      fail(str_cat(name_of(header.key, header.generation), ": a client sends other bytes"));
    return;
  }
  const std::vector<std::uint64_t>& candidates = writes_of_[header.key];
  for (auto candidate = candidates.rbegin(); candidate != candidates.rend(); ++candidate) {
    Write& write = writes_[*candidate];
    if (write.block->size() != header.block_bytes) continue;
    std::vector<std::vector<std::byte>> shards = store::seal_block(*codec_, header, *write.block);
    if (!is_same(shards[header.shard_index], shard)) continue;
    write.last_generation = header.generation;
    Attempt attempt;
    attempt.write = *candidate;
    attempt.block = write.block;
    attempt.shards = std::move(shards);
    attempts_.emplace(name, std::move(attempt));
    return;
  }
  fail(str_cat(name_of(header.key, header.generation), ": a client sends what nobody wrote"));
}

void Oracle::on_publication_sent(const BlockKey& key, Generation generation) {
  Attempt* const attempt = edit(key, generation);
  if (attempt == nullptr) return fail("a client publishes what it never sent");
  attempt->is_publication_sent = true;
}

void Oracle::on_write_finished(std::uint64_t write, store::WriteOutcome outcome, TimePoint now) {
  const auto found = writes_.find(write);
  if (found == writes_.end()) return fail("a write finishes that was never begun");
  if (outcome != store::WriteOutcome::kStored) return;
  const BlockKey& key = found->second.key;
  Attempt* const attempt = edit(key, found->second.last_generation);
  if (attempt == nullptr || !attempt->is_publication_sent)
    return fail(str_cat("write ", write, " is called stored and was never published"));
  attempt->is_acknowledged = true;
  attempt->acknowledged_at = now;
  judge_loss(key, *attempt);
  if (std::popcount(attempt->holders) < codec_->data_shards() && !attempt->is_harmed &&
      !attempt->is_evicted)
    fail(str_cat(name_of(key, found->second.last_generation),
                 " is acknowledged with fewer than k shards"));
}

void Oracle::on_read_hit(const BlockKey& key, Generation generation,
                         std::span<const std::byte> block) {
  ++hits_;
  const Attempt* const attempt = find(key, generation);
  if (attempt == nullptr)
    return fail(str_cat(name_of(key, generation), " is read, and nobody wrote it"));
  if (!attempt->is_publication_sent)
    fail(str_cat(name_of(key, generation), " is read, and was never published"));
  if (!is_same(*attempt->block, block))
    fail(str_cat(name_of(key, generation), ": a read returns wrong bytes"));
}

void Oracle::on_fetched(const BlockKey& key, std::span<const std::byte> block) {
  ++hits_;
  for (const auto& [name, attempt] : attempts_)
    if (name.first == key && attempt.is_publication_sent && is_same(*attempt.block, block)) return;
  fail(str_cat("block ", key.hex().substr(0, 8), ": an engine is given bytes that nobody wrote"));
}

void Oracle::on_record_change(const RecordChange& change, TimePoint now) {
  const auto& [before, after] = std::tie(change.before, change.after);
  const bool was_published = before && before->state == index::ShardState::kPublished;
  if (before && !after && was_published && change.is_leased)
    fail(str_cat("target ", change.target, " lets go of a leased block"));
  if (after) {
    Attempt* const attempt = edit(change.key, after->generation);
    if (attempt == nullptr)
      return fail(str_cat("target ", change.target, " records ",
                          name_of(change.key, after->generation), ", which nobody wrote"));
    if (!before || before->slot != after->slot) check_new_record(change, *attempt);
    const bool is_published = after->state == index::ShardState::kPublished;
    if (is_published && !attempt->is_publication_sent)
      fail(str_cat("target ", change.target, " publishes ", name_of(change.key, after->generation),
                   " unasked"));
    if (is_published && change.is_damaged) attempt->is_harmed = true;  // before it counted
    const bool is_same_shard = before && before->slot == after->slot && was_published;
    if (is_published && change.is_certain && !is_same_shard && !change.is_damaged) {
      attempt->holders |= bit(change.target);
      if (!attempt->first_published) attempt->first_published = now;
    }
  }
  const bool is_same_block = after && before && after->generation == before->generation;
  if (!was_published || is_same_block) return;
  if (Attempt* const attempt = edit(change.key, before->generation); attempt != nullptr)
    check_let_go(change, *attempt);
}

void Oracle::check_new_record(const RecordChange& change, Attempt& attempt) {
  const std::string name =
      str_cat("target ", change.target, ": ", name_of(change.key, change.after->generation));
  if (!change.is_synced) fail(str_cat(name, " is recorded before it is durable"));
  if (change.is_damaged || !change.is_certain) return;
  const auto known = std::find_if(attempt.shards.begin(), attempt.shards.end(),
                                  [&](const std::vector<std::byte>& shard) {
                                    return shard.size() == change.after->shard_bytes &&
                                           is_same(shard, change.content.first(shard.size()));
                                  });
  if (known == attempt.shards.end()) return fail(str_cat(name, " is recorded with wrong bytes"));
  attempt.shard_of[change.target] = static_cast<std::uint8_t>(known - attempt.shards.begin());
}

void Oracle::check_let_go(const RecordChange& change, Attempt& attempt) {
  const bool is_member = (members_of(change.key) & bit(change.target)) != 0;
  const bool has_reason = !is_member || attempt.is_evicted || attempt.is_lost || change.may_evict ||
                          is_displaced(change, attempt);
  if (attempt.is_acknowledged && !has_reason)
    fail(str_cat("target ", change.target, (change.after ? " replaces " : " erases "),
                 name_of(change.key, change.before->generation),
                 ", which is acknowledged, without reason"));
  if (change.may_evict && !change.after) attempt.is_evicted = true;
  let_go(attempt, change.target);
  judge_loss(change.key, attempt);
}

/// The target has another place by now, in which its shard is of no use.
bool Oracle::is_displaced(const RecordChange& change, const Attempt& attempt) const {
  const auto shard = attempt.shard_of.find(change.target);
  if (!change.place || shard == attempt.shard_of.end()) return false;
  return change.place->group_id != group_of(map_, change.key).id ||
         change.place->shard_index != shard->second;
}

void Oracle::let_go(Attempt& attempt, std::size_t target) {
  if ((attempt.holders & bit(target)) == 0) return;
  attempt.holders &= ~bit(target);
  attempt.is_harmed = true;
}

void Oracle::on_opened(std::size_t target, const std::map<BlockKey, index::ShardRecord>& records) {
  for (auto& [name, attempt] : attempts_) {
    const auto found = records.find(name.first);
    const bool is_there = found != records.end() && found->second.generation == name.second &&
                          found->second.state == index::ShardState::kPublished;
    if (!is_there && (attempt.holders & bit(target)) != 0) {
      fail(str_cat("target ", target, " has forgotten ", name_of(name.first, name.second),
                   " over a restart"));
      let_go(attempt, target);
    }
  }
}

void Oracle::on_stored_shard(std::size_t target, const BlockKey& key,
                             const index::ShardRecord& record, std::uint8_t shard_index,
                             std::span<const std::byte> content) {
  const Attempt* const attempt = find(key, record.generation);
  if (attempt == nullptr) return fail("a target holds a block that nobody wrote");
  const std::vector<std::byte>& expected = attempt->shards[shard_index];
  if (expected.size() != record.shard_bytes || !is_same(expected, content.first(expected.size())))
    fail(str_cat("target ", target, " holds wrong bytes of ", name_of(key, record.generation)));
}

void Oracle::on_eviction(const BlockKey& key, Generation generation) {
  if (Attempt* const attempt = edit(key, generation); attempt != nullptr)
    attempt->is_evicted = true;
}

void Oracle::on_damaged(std::size_t target, const BlockKey& key) {
  for (auto at = attempts_.lower_bound({key, 0}); at != attempts_.end() && at->first.first == key;
       ++at) {
    let_go(at->second, target);
    judge_loss(key, at->second);
  }
}

void Oracle::on_wiped(std::size_t target) {
  for (auto& [name, attempt] : attempts_) {
    let_go(attempt, target);
    judge_loss(name.first, attempt);
  }
}

void Oracle::on_map(const StorageMap& map) {
  map_ = map;
  for (auto& [name, attempt] : attempts_) judge_loss(name.first, attempt);
}

/// Lost is lost: shards that come back with a member may have been given up meanwhile.
void Oracle::judge_loss(const BlockKey& key, Attempt& attempt) const {
  if (!attempt.is_acknowledged || attempt.is_lost) return;
  attempt.is_lost = std::popcount(members_with_shard(key, attempt)) < map_.data_shards;
}

TargetMask Oracle::members_with_shard(const BlockKey& key, const Attempt& attempt) const {
  TargetMask members = 0;
  const Group& group = group_of(map_, key);
  for (std::size_t i = 0; i < group.members.size(); ++i) {
    const std::size_t target = target_number(group.members[i].target_id);
    const auto shard = attempt.shard_of.find(target);
    if (shard != attempt.shard_of.end() && shard->second == i) members |= bit(target);
  }
  return members & attempt.holders;
}

TargetMask Oracle::members_of(const BlockKey& key) const {
  TargetMask members = 0;
  for (const Member& member : group_of(map_, key).members)
    members |= bit(target_number(member.target_id));
  return members;
}

bool Oracle::may_have_expired(const BlockKey& key, Generation generation, std::chrono::minutes ttl,
                              TimePoint now) const {
  const Attempt* const attempt = find(key, generation);
  // Minutes are counted whole, and once more when a rebuild carries an age to another clock.
  return attempt != nullptr && attempt->first_published &&
         now - *attempt->first_published >= ttl - std::chrono::minutes(2);
}

std::vector<std::pair<BlockKey, Generation>> Oracle::expected() const {
  std::vector<Name> names;
  for (const auto& [name, attempt] : attempts_)
    if (attempt.is_acknowledged && !attempt.is_evicted && !attempt.is_lost) names.push_back(name);
  return names;
}

Oracle::Counts Oracle::counts() const {
  Counts counts;
  counts.hits = hits_;
  for (const auto& [name, attempt] : attempts_) {
    if (!attempt.is_acknowledged) continue;
    ++counts.acknowledged;
    if (attempt.is_evicted) ++counts.evicted;
    if (attempt.is_lost) ++counts.lost;
  }
  return counts;
}

}  // namespace millrace::storage::sim
