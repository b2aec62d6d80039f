#include "controller/kv_map/storage_operator.h"

#include <algorithm>
#include <set>
#include <utility>

#include "common/status_macros.h"
#include "common/str_cat.h"
#include "common/types.h"
#include "storage/map/map_plan.h"

namespace millrace::controller::kv_map {
namespace {

using api::admin::DesiredStorage;
using api::admin::StorageNodeInfo;
using api::admin::StorageReport;
using api::admin::StorageReportReply;
using api::admin::StorageTargetReport;
using storage::Group;
using storage::Member;
using storage::MemberState;
using storage::StorageMap;
using storage::StorageNodeOffer;

absl::Status no_storage() {
  return absl::FailedPreconditionError(
      "this cluster stores no KV: the desired state has no storage nodes");
}

absl::Status fixed(std::string_view field, std::int64_t now, std::int64_t wanted) {
  return absl::FailedPreconditionError(
      str_cat("storage.", field, " is ", now, " and cannot become ", wanted,
              " while the cluster stores blocks of the old form; remove its storage first"));
}

std::string_view state_name(MemberState state) {
  switch (state) {
    case MemberState::kUp:
      return "up";
    case MemberState::kRebuilding:
      return "rebuilding";
    case MemberState::kDown:
      return "down";
  }
  return "";
}

}  // namespace

StorageOperator::StorageOperator(StorageOperatorOptions options, std::optional<StorageMap> stored)
    : options_(std::move(options)),
      map_(std::move(stored)),
      next_request_(options_.first_request) {}

void StorageOperator::start(TimePoint now) {
  if (!map_) return;
  // Nodes that the map shows as up get the time to say so; those that it shows as down stay down
  // until they report.
  for (const auto& node : map_->nodes) {
    NodeRecord& record = nodes_[node.id];
    record.report.address = node.address;
    record.last_heard = now;
    record.silent_since = now;
    record.is_alive = true;
    for (const auto& target : map_->targets) {
      if (target.node_id != node.id) continue;
      StorageTargetReport report;
      report.target_id = target.id;
      record.report.targets.push_back(std::move(report));
    }
  }
  for (const Group& group : map_->groups) {
    for (const Member& member : group.members) {
      if (member.state == MemberState::kRebuilding)
        rebuilding_since_[member.target_id] = map_->epoch;
      if (member.state != MemberState::kDown) continue;
      const auto* target = map_->find_target(member.target_id);
      nodes_[target->node_id].is_alive = false;
    }
  }
}

absl::Status StorageOperator::check(const DesiredStorage& desired) const {
  if (!map_ || map_->groups.empty() || desired.nodes == 0) return absl::OkStatus();
  if (desired.block_bytes != map_->block_bytes) {
    return fixed("block_bytes", map_->block_bytes, desired.block_bytes);
  }
  if (desired.data_shards != map_->data_shards) {
    return fixed("data_shards", map_->data_shards, desired.data_shards);
  }
  if (desired.parity_shards != map_->parity_shards) {
    return fixed("parity_shards", map_->parity_shards, desired.parity_shards);
  }
  return absl::OkStatus();
}

void StorageOperator::set_desired(const DesiredStorage& desired, TimePoint now) {
  desired_ = desired;
  if (desired.nodes == 0) return;
  const auto shape_of = [&](StorageMap& map) {
    map.data_shards = desired.data_shards;
    map.parity_shards = desired.parity_shards;
    map.block_bytes = static_cast<std::uint32_t>(desired.block_bytes);
  };
  if (!map_) {
    StorageMap map;
    map.cluster_id = options_.new_cluster_id;
    map.epoch = 1;
    shape_of(map);
    take(std::move(map));
    note("storage_created", "storage", str_cat("cluster ", map_->cluster_id));
  } else if (map_->groups.empty()) {
    StorageMap map = *map_;
    shape_of(map);
    if (map != *map_) {
      ++map.epoch;
      take(std::move(map));
    }
  }
  form_groups();
  on_timer(now);
}

absl::StatusOr<StorageReportReply> StorageOperator::report(std::string_view node_id,
                                                           const StorageReport& report,
                                                           TimePoint now) {
  if (report.protocol_version != kProtocolVersion) {
    return absl::FailedPreconditionError(
        str_cat("storage node \"", node_id, "\" speaks protocol version ", report.protocol_version,
                ", this controller ", kProtocolVersion));
  }
  if (!map_) return no_storage();
  if (!report.cluster_id.empty() && report.cluster_id != map_->cluster_id) {
    return absl::FailedPreconditionError(str_cat("storage node \"", node_id,
                                                 "\" holds data of cluster ", report.cluster_id,
                                                 ", this controller's is ", map_->cluster_id));
  }
  const auto known = nodes_.find(node_id);
  if (known == nodes_.end() && nodes_.size() >= kMaxNodes) {
    return absl::ResourceExhaustedError(str_cat("there are ", kMaxNodes, " storage nodes already"));
  }
  StorageNodeOffer offer{std::string(node_id), report.address, {}};
  for (const StorageTargetReport& target : report.targets) {
    offer.target_ids.push_back(target.target_id);
  }
  ASSIGN_OR_RETURN(std::optional<StorageMap> added, storage::add_node(*map_, offer));
  take(std::move(added));
  NodeRecord& record = nodes_[std::string(node_id)];
  if (!record.is_alive) {
    note(known == nodes_.end() ? "storage_node_joined" : "storage_node_returned",
         std::string(node_id), str_cat("at ", report.address));
  }
  record.is_alive = true;
  record.last_heard = now;
  record.report = report;
  form_groups();
  follow_liveness();
  note_rebuilt(report);
  StorageReportReply reply;
  reply.map_epoch = map_->epoch;
  reply.report_interval = options_.report_interval;
  reply.scrub_request = scrub_request_;
  reply.evict_request = evict_request_;
  reply.evict_to_fraction = evict_to_fraction_;
  return reply;
}

absl::Status StorageOperator::replace(const api::admin::StorageReplace& replace) {
  if (!map_) return no_storage();
  const std::optional<std::string_view> spare =
      replace.spare_id.empty() ? std::nullopt : std::optional<std::string_view>(replace.spare_id);
  ASSIGN_OR_RETURN(StorageMap next, storage::replace_target(*map_, replace.target_id, spare));
  const auto place = *map_->place_of(replace.target_id);
  take(std::move(next));
  for (const Group& group : map_->groups) {
    if (group.id != place.group_id) continue;
    note("storage_target_replaced", replace.target_id,
         str_cat("by ", group.members[place.shard_index].target_id, " in group ", group.id));
  }
  follow_liveness();
  return absl::OkStatus();
}

absl::StatusOr<api::admin::StorageWish> StorageOperator::scrub() {
  if (!map_) return no_storage();
  scrub_request_ = next_request_++;
  note("storage_scrub", "storage", str_cat("request ", scrub_request_));
  return api::admin::StorageWish{scrub_request_};
}

absl::StatusOr<api::admin::StorageWish> StorageOperator::evict(
    const api::admin::StorageEvict& evict) {
  if (!map_) return no_storage();
  evict_request_ = next_request_++;
  evict_to_fraction_ = evict.to_fraction;
  note("storage_evict", "storage",
       str_cat("request ", evict_request_, ", to ", evict.to_fraction, " of the slots"));
  return api::admin::StorageWish{evict_request_};
}

void StorageOperator::on_timer(TimePoint now) {
  for (auto& [node_id, record] : nodes_) {
    if (!record.is_alive || now - record.last_heard < options_.node_timeout) continue;
    record.is_alive = false;
    record.silent_since = now;
    note("storage_node_dead", node_id,
         str_cat("no report for ", options_.node_timeout.count(), " ms"));
  }
  follow_liveness();
  replace_long_dead(now);
}

std::optional<TimePoint> StorageOperator::next_timer() const {
  std::optional<TimePoint> next;
  const auto consider = [&](TimePoint due) {
    if (!next || due < *next) next = due;
  };
  const bool has_spare = map_ && !storage::spares_of(*map_).empty();
  for (const auto& [node_id, record] : nodes_) {
    if (record.is_alive) {
      consider(record.last_heard + options_.node_timeout);
    } else if (has_spare) {
      // Again and again while it is down: a spare may be usable later than the member is due.
      consider(std::max(record.silent_since + kReplaceAfterTimeouts * options_.node_timeout,
                        last_replace_check_ + options_.node_timeout));
    }
  }
  return next;
}

void StorageOperator::take(std::optional<StorageMap> next) {
  if (!next) return;
  map_ = std::move(next);
  std::map<std::string, std::uint64_t, std::less<>> rebuilding;
  for (const Group& group : map_->groups) {
    for (const Member& member : group.members) {
      if (member.state != MemberState::kRebuilding) continue;
      const auto since = rebuilding_since_.find(member.target_id);
      rebuilding[member.target_id] = since == rebuilding_since_.end() ? map_->epoch : since->second;
    }
  }
  rebuilding_since_ = std::move(rebuilding);
}

void StorageOperator::note(std::string kind, std::string subject, std::string detail) {
  notes_.push_back({std::move(kind), std::move(subject), std::move(detail)});
}

std::vector<StorageNote> StorageOperator::take_notes() { return std::exchange(notes_, {}); }

std::size_t StorageOperator::alive_nodes() const {
  return static_cast<std::size_t>(std::count_if(
      nodes_.begin(), nodes_.end(), [](const auto& entry) { return entry.second.is_alive; }));
}

/// Groups are made once all wanted nodes are there: a group keeps its members' nodes for good, and
/// the first nodes to report would otherwise carry groups that the later ones should share.
void StorageOperator::form_groups() {
  if (!map_ || desired_.nodes == 0) return;
  if (alive_nodes() < static_cast<std::size_t>(desired_.nodes)) return;
  const std::size_t before = map_->groups.size();
  take(storage::form_groups(*map_, static_cast<std::size_t>(desired_.spares)));
  for (std::size_t index = before; index < map_->groups.size(); ++index) {
    note("storage_group_formed", str_cat("group-", map_->groups[index].id),
         str_cat(map_->groups[index].members.size(), " members"));
  }
}

void StorageOperator::follow_liveness() {
  if (!map_) return;
  std::set<std::string, std::less<>> dead;
  for (const auto& node : map_->nodes) {
    const auto record = nodes_.find(node.id);
    if (record == nodes_.end() || !record->second.is_alive) dead.insert(node.id);
  }
  take(storage::set_dead_nodes(*map_, dead));
}

void StorageOperator::note_rebuilt(const StorageReport& report) {
  for (const StorageTargetReport& target : report.targets) {
    const auto since = rebuilding_since_.find(target.target_id);
    if (since == rebuilding_since_.end() || target.rebuilt_epoch < since->second) continue;
    note("storage_target_rebuilt", target.target_id, "");
    take(storage::set_rebuilt(*map_, target.target_id));
  }
}

void StorageOperator::replace_long_dead(TimePoint now) {
  last_replace_check_ = now;
  if (!map_) return;
  std::vector<std::string> overdue;
  for (const Group& group : map_->groups) {
    for (const Member& member : group.members) {
      if (member.state != MemberState::kDown) continue;
      const auto record = nodes_.find(map_->find_target(member.target_id)->node_id);
      if (record == nodes_.end() ||
          now - record->second.silent_since < kReplaceAfterTimeouts * options_.node_timeout) {
        continue;
      }
      overdue.push_back(member.target_id);
    }
  }
  for (const std::string& target_id : overdue) {
    // Without a usable spare it stays as it is, and shows as down.
    if (const std::optional<std::string> spare = alive_spare()) {
      static_cast<void>(replace({target_id, *spare}));
    }
  }
}

std::optional<std::string> StorageOperator::alive_spare() const {
  for (const auto* spare : storage::spares_of(*map_)) {
    const auto record = nodes_.find(spare->node_id);
    if (record != nodes_.end() && record->second.is_alive) return spare->id;
  }
  return std::nullopt;
}

api::admin::StorageStatus StorageOperator::status(TimePoint now) const {
  api::admin::StorageStatus status;
  status.scrub_request = scrub_request_;
  status.evict_request = evict_request_;
  if (!map_) return status;
  status.cluster_id = map_->cluster_id;
  status.map_epoch = map_->epoch;
  status.data_shards = map_->data_shards;
  status.parity_shards = map_->parity_shards;
  status.block_bytes = map_->block_bytes;
  status.groups = static_cast<std::int64_t>(map_->groups.size());
  for (const auto& [node_id, record] : nodes_) {
    StorageNodeInfo info;
    info.node_id = node_id;
    info.address = record.report.address;
    info.is_alive = record.is_alive;
    info.report_age = std::chrono::duration_cast<std::chrono::milliseconds>(
        std::max(now - record.last_heard, TimePoint::duration::zero()));
    info.map_epoch = record.report.map_epoch;
    info.evict_request = record.report.evict_request;
    for (const StorageTargetReport& report : record.report.targets) {
      StorageNodeInfo::Target target;
      target.report = report;
      target.member_state = "spare";
      if (const auto place = map_->place_of(report.target_id)) {
        target.group_id = place->group_id;
        target.shard_index = place->shard_index;
        for (const Group& group : map_->groups) {
          if (group.id != place->group_id) continue;
          target.member_state = state_name(group.members[place->shard_index].state);
        }
      }
      info.targets.push_back(std::move(target));
    }
    status.nodes.push_back(std::move(info));
  }
  return status;
}

}  // namespace millrace::controller::kv_map
