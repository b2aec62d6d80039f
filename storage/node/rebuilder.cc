#include "storage/node/rebuilder.h"

#include <algorithm>
#include <map>
#include <utility>

#include "common/check.h"
#include "storage/node/pending_resolver.h"

namespace millrace::storage::node {
namespace {

constexpr auto kRetryDelay = std::chrono::seconds(5);
constexpr std::size_t kMaxSurveys = 4;

double place_of(const BlockKey& key) { return (key.bytes[0] * 256.0 + key.bytes[1]) / 65536.0; }

Copy copy_of(std::uint8_t member, const ListedShard& listed, std::uint32_t minute) {
  return {.member = member,
          .generation = listed.generation,
          .is_published = listed.is_published,
          .age_minutes = minute - std::min(minute, listed.touch_minute)};
}

Copy own_copy(std::uint8_t member, const index::ShardRecord& record) {
  return {.member = member,
          .generation = record.generation,
          .is_published = record.state == index::ShardState::kPublished,
          .age_minutes = 0};
}

void ignore_reply(const ShardReply&) {}

}  // namespace

/// The same stretch of keys as every member lists it.
struct Rebuilder::Page {
  std::uint64_t scan = 0;
  GroupView view;
  std::map<BlockKey, Copy> own;  // as it was before the others were asked
  std::map<BlockKey, std::vector<Copy>> others;
  std::optional<BlockKey> horizon;  // beyond it somebody's list has not come
  int unseen = 0;
  std::size_t outstanding = 0;
  bool has_failed = false;

  void limit_to(const BlockKey& key) { horizon = horizon ? std::min(*horizon, key) : key; }
};

struct Rebuilder::Survey {
  BlockKey key;
  int unseen = 0;
  std::size_t outstanding = 0;
  std::vector<Copy> others;
};

struct Rebuilder::Work {
  RebuildItem item;
  GroupView view;
  std::uint32_t asked = 0;  // members, bit by bit
  std::size_t outstanding = 0;
  bool is_maybe_there = false;  // somebody did not answer: try again later
  bool is_begun = true;         // the target holds it as being rebuilt
  bool is_over = false;
  std::vector<std::pair<std::uint8_t, std::vector<std::byte>>> good;
};

RebuildProgress Rebuilder::progress() const {
  return {.is_running = is_scanning_,
          .fraction = fraction_,
          .backlog = queue_.size() + works_ + postponed_.size(),
          .rebuilt = rebuilt_,
          .complete_at_epoch = complete_at_epoch_,
          .has_seen_all = target_.is_compared()};
}

void Rebuilder::step(const GroupView& view, TimePoint now) {
  if (target_.state() != TargetState::kServing) return;
  follow_map(view, now);
  if (codec_ == nullptr || now < not_before_) return;
  if (is_doubtful(view, now) || is_one_back(view)) start_scan(view);
  if (view.live_others().size() < static_cast<std::size_t>(view.data_shards)) {
    not_before_ = now + kRetryDelay;  // nothing can be made from so few
    return;
  }
  while (!postponed_.empty() && postponed_.front().until <= now) {
    (void)target_.queue_repair(postponed_.front().key);  // full: the next reader asks again
    postponed_.pop_front();
  }
  while (surveys_ < kMaxSurveys && target_.repair_backlog() > 0) repair_next(now);
  // Most endangered first means: all is known before the first is made again.
  const bool is_all_known = !is_scanning_ || is_scan_at_end_;
  while (is_all_known && works_ < settings_.max_rebuilds && queue_.size() > 0 && pace_.is_due(now))
    rebuild(*queue_.pop(), now);
  if (is_scanning_ && !is_page_open_ && !is_scan_at_end_) scan_page(view, now);
  if (is_scanning_ && is_scan_at_end_ && queue_.size() == 0 && works_ == 0) finish_pass(now);
}

void Rebuilder::follow_map(const GroupView& view, TimePoint now) {
  if (view_ && view_->epoch == view.epoch) return;
  const bool is_new_place =
      !view_ || view_->group.id != view.group.id || view_->own_index != view.own_index;
  const bool is_rebuilding = view.own().state == MemberState::kRebuilding;
  const bool was_rebuilding = view_ && view_->own().state == MemberState::kRebuilding;
  if (codec_ == nullptr) {
    auto codec = ec::Codec::make(view.data_shards, view.parity_shards);
    if (codec.ok()) codec_ = std::move(*codec);
  }
  // A disk that was replaced between two looks of the controller is found by this too.
  const bool is_unfinished = !view_ && !target_.is_compared();
  if ((is_rebuilding && (is_new_place || !was_rebuilding)) || is_unfinished) {
    complete_at_epoch_ = 0;
    start_scan(view);
    not_before_ = now;
  }
  forget_replaced(view);
  view_ = view;
}

/// What a member had that is none any more does not come back.
void Rebuilder::forget_replaced(const GroupView& view) {
  if (unseen_.empty()) return;
  std::erase_if(unseen_, [&](const std::string& id) {
    return std::none_of(view.group.members.begin(), view.group.members.end(),
                        [&](const Member& member) { return member.target_id == id; });
  });
  if (unseen_.empty() && !is_scanning_) target_.set_compared(true);
}

bool Rebuilder::is_one_back(const GroupView& view) const {
  if (is_scanning_ || unseen_.empty()) return false;
  return std::any_of(
      view.group.members.begin(), view.group.members.end(), [&](const Member& member) {
        return member.state != MemberState::kDown && unseen_.contains(member.target_id);
      });
}

/// The map goes on calling us rebuilding, although we said that we are not: we may have been down
/// in between, without having seen the map that said so.
bool Rebuilder::is_doubtful(const GroupView& view, TimePoint now) const {
  return view.own().state == MemberState::kRebuilding && !is_scanning_ &&
         complete_at_epoch_ < view.epoch && now - complete_since_ > kRetryDelay;
}

void Rebuilder::start_scan(const GroupView& view) {
  ++scan_;
  scan_epoch_ = view.epoch;
  target_.set_compared(false);
  is_scanning_ = true;
  is_page_open_ = false;
  unseen_.clear();
  is_scan_at_end_ = false;
  has_failed_ = false;
  after_.reset();
  fraction_ = 0;
  queue_.clear();
}

void Rebuilder::scan_page(const GroupView& view, TimePoint now) {
  auto page = std::make_shared<Page>();
  page->scan = scan_;
  page->view = view;
  const auto own = target_.index().list(after_, settings_.list_page);
  if (!own.ok()) {
    not_before_ = now + kRetryDelay;
    return;
  }
  for (const index::ShardEntry& entry : *own)
    page->own.emplace(entry.key, own_copy(view.own_index, entry.record));
  if (own->size() == settings_.list_page) page->limit_to(own->back().key);
  const std::vector<std::uint8_t> live = view.live_others();
  page->unseen = static_cast<int>(view.group.members.size() - 1 - live.size());
  page->outstanding = live.size();
  for (const Member& member : view.group.members)
    if (member.state == MemberState::kDown) unseen_.insert(member.target_id);
  is_page_open_ = true;
  const ListShards question = {.after = after_.value_or(BlockKey()),
                               .from_start = !after_.has_value(),
                               .limit = settings_.list_page};
  for (const std::uint8_t member : live) {
    peers_.ask(
        view.group.members[member].target_id, question,
        [this, page, member, now](const ShardReply& reply) {
          if (reply.result != ShardResult::kOk) page->has_failed = true;
          for (const ListedShard& listed : reply.listed)
            page->others[listed.key].push_back(copy_of(member, listed, reply.minute));
          if (!reply.is_end && !reply.listed.empty()) page->limit_to(reply.listed.back().key);
          if (--page->outstanding == 0) merge_page(page, now);
        },
        now);
  }
}

void Rebuilder::merge_page(const std::shared_ptr<Page>& page, TimePoint now) {
  if (page->scan != scan_) return;  // another one has begun
  is_page_open_ = false;
  if (page->has_failed) {
    not_before_ = now + kRetryDelay;  // the same page once more: nothing is decided on half a list
    return;
  }
  for (const auto& [key, copy] : page->own) page->others.try_emplace(key);
  for (const auto& [key, copies] : page->others) {
    if (page->horizon && key > *page->horizon) break;
    const auto found = page->own.find(key);
    const std::optional<Copy> own =
        found == page->own.end() ? std::nullopt : std::optional(found->second);
    act(key, own, judge_block(own, copies, page->view.data_shards, page->unseen), copies, now);
  }
  after_ = page->horizon;
  fraction_ = after_ ? place_of(*after_) : 1;
  is_scan_at_end_ = !after_.has_value();
}

void Rebuilder::act(const BlockKey& key, const std::optional<Copy>& own, BlockVerdict verdict,
                    const std::vector<Copy>& others, TimePoint now) {
  switch (verdict) {
    case BlockVerdict::kLeave:
      break;
    case BlockVerdict::kRebuild:
      queue_.push({key, *most_published(others)});
      break;
    case BlockVerdict::kPublish:
      target_.handle(PublishShard{key, own->generation}, ignore_reply, now);
      break;
    case BlockVerdict::kDrop:
      target_.handle(DropShard{key, own->generation}, ignore_reply, now);
      break;
  }
}

void Rebuilder::finish_pass(TimePoint now) {
  if (has_failed_ || queue_.has_overflowed()) {
    start_scan(*view_);
    not_before_ = now + kRetryDelay;
    return;
  }
  is_scanning_ = false;
  complete_at_epoch_ = scan_epoch_;
  complete_since_ = now;
  if (unseen_.empty()) target_.set_compared(true);
}

void Rebuilder::repair_next(TimePoint now) {
  const std::optional<BlockKey> key = target_.next_repair();
  if (!key) return;
  ++surveys_;
  auto survey = std::make_shared<Survey>();
  survey->key = *key;
  const std::vector<std::uint8_t> live = view_->live_others();
  survey->unseen = static_cast<int>(view_->group.members.size() - 1 - live.size());
  survey->outstanding = live.size();
  for (const std::uint8_t member : live) {
    peers_.ask(
        view_->group.members[member].target_id, list_exactly(*key),
        [this, survey, member, now](const ShardReply& reply) {
          if (reply.result != ShardResult::kOk) {
            ++survey->unseen;
          } else if (const ListedShard* const listed = listed_as(reply, survey->key)) {
            survey->others.push_back(copy_of(member, *listed, reply.minute));
          }
          if (--survey->outstanding == 0) conclude_survey(survey, now);
        },
        now);
  }
}

void Rebuilder::conclude_survey(const std::shared_ptr<Survey>& survey, TimePoint now) {
  --surveys_;
  const auto record = target_.index().find(survey->key);
  if (!record.ok()) return;
  const std::optional<Copy> own =
      *record ? std::optional(own_copy(view_->own_index, **record)) : std::nullopt;
  const BlockVerdict verdict = judge_block(own, survey->others, view_->data_shards, survey->unseen);
  if (verdict == BlockVerdict::kLeave && own && own->is_published) {
    check_own(survey, now);
  } else {
    if (verdict == BlockVerdict::kDrop || (verdict == BlockVerdict::kLeave && !own))
      metrics_.rebuilds.with({rebuild_result_name(RebuildResult::kImpossible)}).add();
    act(survey->key, own, verdict, survey->others, now);
  }
}

/// Again when those that did not answer, or were down, may be back.
void Rebuilder::postpone_repair(const BlockKey& key, TimePoint now) {
  if (postponed_.size() < settings_.repair_queue) postponed_.push_back({now + kRetryDelay, key});
}

/// The shard is there and of the right generation: is it whole?
void Rebuilder::check_own(const std::shared_ptr<Survey>& survey, TimePoint now) {
  target_.read_own(survey->key, IoPurpose::kRebuild, [this, survey, now](const ShardReply& reply) {
    if (reply.result == ShardResult::kOk) {
      metrics_.rebuilds.with({rebuild_result_name(RebuildResult::kIntact)}).add();
      return;
    }
    if (reply.result == ShardResult::kNotFound) return;  // was dropped meanwhile
    const bool is_bad = reply.result == ShardResult::kBadShard;
    if (!is_bad && reply.result != ShardResult::kIoError) return postpone_repair(survey->key, now);
    const auto best = most_published(survey->others);
    if (best && best->count >= view_->data_shards) {
      queue_.push({survey->key, *best, is_bad, survey->unseen});
    } else if (is_bad && (best ? best->count : 0) + survey->unseen < view_->data_shards) {
      // Too few are left, and nobody is away who could bring more.
      metrics_.rebuilds.with({rebuild_result_name(RebuildResult::kImpossible)}).add();
      target_.handle(DropShard{survey->key, reply.generation}, ignore_reply, now);
    } else {
      postpone_repair(survey->key, now);
    }
  });
}

void Rebuilder::rebuild(const RebuildItem& item, TimePoint now) {
  if (!target_.begin_rebuild(item.key, item.survivors.generation)) {
    has_failed_ = true;  // is being written just now, perhaps in vain: look again in another pass
    return;
  }
  ++works_;
  auto work = std::make_shared<Work>();
  work->item = item;
  work->view = *view_;
  read_more(work, now);
}

/// Asks as many further members as are missing for k.
void Rebuilder::read_more(const std::shared_ptr<Work>& work, TimePoint now) {
  const auto wanted = static_cast<std::size_t>(work->view.data_shards);
  const auto& members = work->view.group.members;
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (work->good.size() + work->outstanding >= wanted) return;
    const std::uint32_t bit = std::uint32_t{1} << i;
    if ((work->item.survivors.members & bit) == 0 || (work->asked & bit) != 0) continue;
    work->asked |= bit;
    ++work->outstanding;
    const auto member = static_cast<std::uint8_t>(i);
    peers_.ask(
        members[i].target_id, ReadShard{work->item.key},
        [this, work, member, now](const ShardReply& reply) {
          --work->outstanding;
          on_shard(work, member, reply, now);
        },
        now);
  }
  const bool is_short = work->good.size() + work->outstanding < wanted;
  if (is_short && work->outstanding == 0 && !work->is_over)
    finish(work, work->is_maybe_there ? RebuildResult::kFailed : RebuildResult::kImpossible, now);
}

void Rebuilder::on_shard(const std::shared_ptr<Work>& work, std::uint8_t member,
                         const ShardReply& reply, TimePoint now) {
  ShardHeader header;
  const bool is_good =
      reply.result == ShardResult::kOk &&
      verify_shard(reply.shard, work->item.key, member, work->item.survivors.generation, header) ==
          ShardDefect::kNone &&
      header.data_shards == work->view.data_shards &&
      header.parity_shards == work->view.parity_shards;
  if (is_good) {
    pace_.spend(reply.shard.size(), now);
    work->good.emplace_back(member, reply.shard);
  } else if (reply.result != ShardResult::kNotFound && reply.result != ShardResult::kBadShard &&
             reply.result != ShardResult::kInvalid) {  // of a group that has grown out of it
    work->is_maybe_there = true;
  }
  if (work->good.size() == static_cast<std::size_t>(work->view.data_shards)) {
    reconstruct(work, now);
  } else {
    read_more(work, now);
  }
}

void Rebuilder::reconstruct(const std::shared_ptr<Work>& work, TimePoint now) {
  ShardHeader header;
  const std::vector<std::byte>& first = work->good.front().second;
  CHECK(read_shard(first, header) == ShardDefect::kNone);
  const std::size_t bytes = kShardHeaderBytes + header.payload_bytes;
  std::vector<ec::ShardInput> present;
  present.reserve(work->good.size());
  for (const auto& [member, shard] : work->good) {
    if (shard.size() != bytes) return finish(work, RebuildResult::kImpossible, now);
    present.push_back({member, std::span(shard).subspan(kShardHeaderBytes)});
  }
  std::vector<std::byte> made(bytes);
  const ec::ShardOutput wanted{work->view.own_index, std::span(made).subspan(kShardHeaderBytes)};
  if (!codec_->reconstruct(present, {&wanted, 1}).ok())
    return finish(work, RebuildResult::kImpossible, now);
  header.shard_index = work->view.own_index;
  seal_shard(header, made);
  const std::uint32_t minute = target_.minute(now);
  const std::uint32_t age = std::min(minute, work->item.survivors.age_minutes);
  work->is_begun = false;
  target_.store_rebuilt(
      std::move(made), minute - age,
      [this, work, now](const ShardReply& reply) {
        const bool is_dropped = reply.result == ShardResult::kNotFound;
        if (reply.result == ShardResult::kOk) ++rebuilt_;
        finish(work,
               reply.result == ShardResult::kOk ? RebuildResult::kRebuilt
               : is_dropped                     ? RebuildResult::kIntact
                                                : RebuildResult::kFailed,
               now);
      },
      now);
}

void Rebuilder::finish(const std::shared_ptr<Work>& work, RebuildResult result, TimePoint now) {
  work->is_over = true;
  --works_;
  const BlockKey& key = work->item.key;
  if (work->is_begun) target_.abandon_rebuild(key);
  metrics_.rebuilds.with({rebuild_result_name(result)}).add();
  if (result == RebuildResult::kFailed) {
    has_failed_ = true;
    if (work->is_maybe_there && (work->item.is_own_bad || !is_scanning_)) postpone_repair(key, now);
  } else if (result == RebuildResult::kImpossible && work->item.is_own_bad) {
    // Those who are away may bring what lacks. Else a damaged shard that stays would send whoever
    // reads it here again, for ever.
    const auto wanted = static_cast<std::size_t>(work->view.data_shards);
    if (work->good.size() + static_cast<std::size_t>(work->item.unseen) >= wanted) {
      postpone_repair(key, now);
    } else {
      target_.handle(DropShard{key, work->item.survivors.generation}, ignore_reply, now);
    }
  }
}

}  // namespace millrace::storage::node
