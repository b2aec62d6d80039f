#include "storage/store/store_core.h"

#include <utility>

#include "common/check.h"
#include "common/str_cat.h"

namespace millrace::storage::store {

StoreActions StoreCore::on_event(StoreEvent event, TimePoint now) {
  std::visit([&](auto& alternative) { on(alternative, now); }, event);
  context_.counters.nodes_on_probation =
      static_cast<std::uint64_t>(context_.scores.nodes_on_probation());
  return std::exchange(context_.actions, {});
}

void StoreCore::on(const StartRead& read, TimePoint now) {
  if (is_stopped_) {
    ++context_.counters.reads;
    ++context_.counters.misses[static_cast<std::size_t>(MissReason::kShutdown)];
    context_.actions.reads.push_back(
        FinishRead{read.id, {.miss = MissReason::kShutdown, .block = {}}});
    return;
  }
  reads_.start(read, now);
}

void StoreCore::on(StartWrite& write, TimePoint now) {
  if (is_stopped_) {
    ++context_.counters.writes[static_cast<std::size_t>(WriteOutcome::kShutdown)];
    context_.actions.writes.push_back(FinishWrite{write.id, WriteOutcome::kShutdown});
    return;
  }
  writes_.start(std::move(write), now);
}

void StoreCore::on(StartQuery& query, TimePoint now) {
  if (is_stopped_) {
    context_.actions.queries.push_back(FinishQuery{query.id, std::vector<bool>(query.keys.size())});
    return;
  }
  queries_.start(std::move(query), now);
}

void StoreCore::on(TouchBlocks& touch, TimePoint now) {
  if (!is_stopped_) touches_.add(touch, now);
}

void StoreCore::on(ShardAnswered& answered, TimePoint now) {
  const std::optional<Outstanding> note = context_.take(answered.request_id);
  CHECK(note.has_value(), "an answer to what was never asked, or a second one");
  context_.note_epoch(answered.reply.map_epoch, now);
  switch (note->errand) {
    case Errand::kRead:
      return reads_.on_answer(*note, std::move(answered.reply), now);
    case Errand::kWrite:
      return writes_.on_answer(*note, answered.reply, now);
    case Errand::kQuery:
      return queries_.on_answer(*note, answered.reply, now);
    case Errand::kNone:
      return;
  }
}

void StoreCore::on(MapChanged& changed, TimePoint now) {
  const auto& map = changed.map;
  if (map == nullptr || (context_.map != nullptr && map->epoch <= context_.map->epoch)) return;
  const bool is_other_code = context_.map == nullptr ||
                             context_.map->data_shards != map->data_shards ||
                             context_.map->parity_shards != map->parity_shards;
  if (is_other_code) {
    auto codec = ec::Codec::make(map->data_shards, map->parity_shards);
    CHECK(codec.ok(), message_of(codec.status()));  // maps are validated where they come in
    context_.codec = *std::move(codec);
  }
  context_.map = map;
  context_.scores.retain([&](std::string_view node) { return map->find_node(node) != nullptr; });
  if (is_stopped_) return;
  reads_.on_map(now);
  writes_.on_map(now);
}

void StoreCore::on(TimerDue&, TimePoint now) {
  while (const std::optional<Timer> timer = context_.take_due(now)) {
    switch (timer->kind) {
      case TimerKind::kReadDeadline:
        reads_.on_deadline(timer->subject, now);
        break;
      case TimerKind::kReadOverdue:
        reads_.on_overdue(timer->subject, now);
        break;
      case TimerKind::kWriteDeadline:
        writes_.on_deadline(timer->subject, now);
        break;
      case TimerKind::kWriteRetry:
        writes_.on_retry(timer->subject, now);
        break;
      case TimerKind::kQueryDeadline:
        queries_.on_deadline(timer->subject);
        break;
      case TimerKind::kQueryOverdue:
        queries_.on_overdue(timer->subject, now);
        break;
      case TimerKind::kTouch:
        touches_.flush(now);
        break;
    }
  }
}

void StoreCore::on(StopStore&, TimePoint now) {
  is_stopped_ = true;
  touches_.flush(now);
  reads_.stop();
  writes_.stop(now);
  queries_.stop();
}

}  // namespace millrace::storage::store
