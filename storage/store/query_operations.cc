#include "storage/store/query_operations.h"

#include <algorithm>

#include "common/check.h"

namespace millrace::storage::store {

void QueryOperations::start(StartQuery query, TimePoint now) {
  context_.counters.queried_keys += query.keys.size();
  const bool can_ask = context_.map != nullptr && !context_.map->groups.empty() &&
                       queries_.size() < context_.settings.max_queries &&
                       query.keys.size() <= kMaxQueryKeys;
  if (!can_ask || query.keys.empty()) {
    context_.actions.queries.push_back(FinishQuery{query.id, std::vector<bool>(query.keys.size())});
    return;
  }
  const std::uint64_t id = context_.next_id();
  const TimePoint deadline = query.deadline;
  std::vector<std::size_t> all(query.keys.size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
  Query& entry = queries_
                     .emplace(id, Query{.query = std::move(query),
                                        .map = context_.map,
                                        .present = std::vector<bool>(all.size())})
                     .first->second;
  ask(id, entry, all, {}, now);
  if (entry.open_parts == 0) return finish(id);
  context_.set_timer(deadline, TimerKind::kQueryDeadline, id);
}

const std::string* QueryOperations::pick(const StorageMap& map, const BlockKey& key,
                                         std::string_view without) const {
  const std::string* second_choice = nullptr;
  for (const Member& member : group_of(map, key).members) {
    if (member.state != MemberState::kUp || member.target_id == without) continue;
    if (!context_.scores.is_on_probation(StoreContext::node_of(map, member.target_id)))
      return &member.target_id;
    if (second_choice == nullptr) second_choice = &member.target_id;
  }
  return second_choice;
}

void QueryOperations::ask(std::uint64_t query_id, Query& query,
                          const std::vector<std::size_t>& keys, std::string_view without,
                          TimePoint now) {
  std::map<std::string, std::vector<std::size_t>> by_target;
  for (const std::size_t index : keys) {
    const std::string* target = pick(*query.map, query.query.keys[index], without);
    if (target != nullptr) by_target[*target].push_back(index);
  }
  for (const auto& [target, indices] : by_target) {
    for (std::size_t begin = 0; begin < indices.size(); begin += kMaxKeysPerRequest) {
      const std::size_t end = std::min(indices.size(), begin + kMaxKeysPerRequest);
      const std::uint64_t id = context_.next_id();
      Part part{.query = query_id,
                .target_id = target,
                .keys = {indices.begin() + static_cast<std::ptrdiff_t>(begin),
                         indices.begin() + static_cast<std::ptrdiff_t>(end)},
                .is_second = !without.empty()};
      QueryKeys request{.keys = {}, .lease = query.query.lease};
      request.keys.reserve(part.keys.size());
      for (const std::size_t index : part.keys) request.keys.push_back(query.query.keys[index]);
      parts_.emplace(id, std::move(part));
      ++query.open_parts;
      context_.send(*query.map, target, std::move(request), query.query.deadline, now,
                    {.errand = Errand::kQuery, .attempt = id});
      const auto patience =
          context_.scores.hedge_deadline(StoreContext::node_of(*query.map, target));
      context_.set_timer(now + patience, TimerKind::kQueryOverdue, id);
    }
  }
}

void QueryOperations::on_answer(const Outstanding& note, const ShardReply& reply, TimePoint now) {
  const auto found = parts_.find(note.attempt);
  CHECK(found != parts_.end(), "a part lives until its answer");
  Part& part = found->second;
  const auto query = queries_.find(part.query);
  const bool is_good = reply.result == ShardResult::kOk && reply.present.size() == part.keys.size();
  if (is_good && query != queries_.end()) {
    // Good news counts even from a part that was replaced.
    for (std::size_t i = 0; i < part.keys.size(); ++i)
      if (reply.present[i]) query->second.present[part.keys[i]] = true;
  }
  if (reply.result == ShardResult::kUnavailable && part.is_open)
    context_.scores.on_miss(note.node_id, now);
  if (part.is_open) {
    if (is_good) {
      close(part);
    } else {
      replace(part, now);
    }
  }
  parts_.erase(found);
}

void QueryOperations::on_overdue(std::uint64_t part_id, TimePoint now) {
  const auto found = parts_.find(part_id);
  if (found == parts_.end() || !found->second.is_open || found->second.is_second) return;
  const auto query = queries_.find(found->second.query);
  if (query == queries_.end()) return;
  context_.scores.on_miss(StoreContext::node_of(*query->second.map, found->second.target_id), now);
  replace(found->second, now);
}

void QueryOperations::replace(Part& part, TimePoint now) {
  const auto query = queries_.find(part.query);
  if (query != queries_.end() && !part.is_second)
    ask(part.query, query->second, part.keys, part.target_id, now);
  close(part);
}

void QueryOperations::close(Part& part) {
  part.is_open = false;
  const auto query = queries_.find(part.query);
  if (query != queries_.end() && --query->second.open_parts == 0) finish(part.query);
}

void QueryOperations::finish(std::uint64_t query_id) {
  const auto found = queries_.find(query_id);
  if (found == queries_.end()) return;
  Query& query = found->second;
  context_.counters.present_keys +=
      static_cast<std::uint64_t>(std::count(query.present.begin(), query.present.end(), true));
  context_.actions.queries.push_back(FinishQuery{query.query.id, std::move(query.present)});
  queries_.erase(found);
}

void QueryOperations::on_deadline(std::uint64_t id) { finish(id); }

void QueryOperations::stop() {
  while (!queries_.empty()) finish(queries_.begin()->first);
}

}  // namespace millrace::storage::store
