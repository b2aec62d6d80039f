// `millrace storage nodes|replace` and `millrace kv status|scrub|evict`: questions and wishes that
// go to the controller. `kv check` and `kv bench`, which talk to the nodes, are in kv_commands.cc.
#include "deploy/cli/storage_commands.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <thread>

#include "common/json.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "deploy/cli/admin_client.h"
#include "deploy/cli/storage_server.h"
#include "deploy/cli/text_table.h"

namespace millrace::deploy::cli {
namespace {

using api::admin::StorageNodeInfo;
using api::admin::StorageStatus;
using Target = StorageNodeInfo::Target;

constexpr std::chrono::milliseconds kPollPause{200};
constexpr int kBarWidth = 30;

int failed(const absl::Status& status) {
  print_error(message_of(status));
  return 1;
}

/// Calls `is_done` with the newest status until it says so.
absl::Status wait_until(AdminClient& admin, int wait_s, std::string_view what,
                        const std::function<absl::StatusOr<bool>(const StorageStatus&)>& is_done) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(wait_s);
  while (true) {
    ASSIGN_OR_RETURN(const StorageStatus status, admin.storage());
    ASSIGN_OR_RETURN(const bool done, is_done(status));
    if (done) return absl::OkStatus();
    if (std::chrono::steady_clock::now() > deadline) {
      return absl::DeadlineExceededError(str_cat("the ", what, " is not over after ", wait_s,
                                                 " s; it goes on, and --wait-s waits longer"));
    }
    std::this_thread::sleep_for(kPollPause);
  }
}

std::string percent(std::uint64_t part, std::uint64_t whole) {
  if (whole == 0) return "-";
  return str_cat(fixed(100.0 * static_cast<double>(part) / static_cast<double>(whole), 1), " %");
}

/// What people want to know of the whole, out of what each target says.
struct Totals {
  std::uint64_t slots = 0;
  std::uint64_t used = 0;
  std::uint64_t published = 0;
  std::uint64_t leased = 0;
  std::uint64_t rebuild_left = 0;
  int up = 0;
  int rebuilding = 0;
  int down = 0;
  int spare = 0;
  int failed = 0;
  std::map<std::int64_t, int> missing_of_group;
};

Totals totals_of(const StorageStatus& status) {
  Totals totals;
  for (const StorageNodeInfo& node : status.nodes) {
    for (const Target& target : node.targets) {
      totals.failed += target.report.failure.empty() ? 0 : 1;
      if (target.member_state == "spare") {
        ++totals.spare;
        continue;
      }
      totals.slots += target.report.slots;
      totals.used += target.report.used_slots;
      totals.published += target.report.published;
      totals.leased += target.report.leased;
      totals.rebuild_left += target.report.rebuild_left;
      totals.up += target.member_state == "up" ? 1 : 0;
      totals.rebuilding += target.member_state == "rebuilding" ? 1 : 0;
      totals.down += target.member_state == "down" ? 1 : 0;
      if (target.member_state != "up") ++totals.missing_of_group[target.group_id];
    }
  }
  return totals;
}

int most_missing(const Totals& totals) {
  int most = 0;
  for (const auto& [group, missing] : totals.missing_of_group) most = std::max(most, missing);
  return most;
}

void print_status(const StorageStatus& status, const Terminal& terminal) {
  const Totals totals = totals_of(status);
  const int shards = std::max(1, status.data_shards + status.parity_shards);
  const auto per_block = static_cast<std::uint64_t>(shards);
  std::printf("blocks     about %llu of %lld bytes, %d + %d shards each\n",
              static_cast<unsigned long long>(totals.published / per_block),
              static_cast<long long>(status.block_bytes), status.data_shards, status.parity_shards);
  std::printf(
      "slots      %llu used of %llu (%s), %llu leased\n",
      static_cast<unsigned long long>(totals.used), static_cast<unsigned long long>(totals.slots),
      percent(totals.used, totals.slots).c_str(), static_cast<unsigned long long>(totals.leased));
  std::printf("groups     %lld, map epoch %llu\n", static_cast<long long>(status.groups),
              static_cast<unsigned long long>(status.map_epoch));
  std::printf("targets    %d up, %d rebuilding, %d down, %d spare\n", totals.up, totals.rebuilding,
              totals.down, totals.spare);
  if (totals.rebuild_left > 0) {
    std::printf("rebuild    %llu shards to go\n",
                static_cast<unsigned long long>(totals.rebuild_left));
  }
  const int missing = most_missing(totals);
  if (status.groups == 0) {
    std::printf("%s\n", terminal.red("No group yet: too few targets have reported.").c_str());
  } else if (missing > status.parity_shards) {
    std::printf("%s\n",
                terminal
                    .red(str_cat("A group misses ", missing, " members, ", status.parity_shards,
                                 " may be gone: its blocks are misses "
                                 "until one returns."))
                    .c_str());
  } else if (missing > 0) {
    std::printf("%s\n", terminal
                            .red(str_cat("Degraded: a group misses ", missing, " of ", shards,
                                         " members; every block is still readable."))
                            .c_str());
  } else {
    std::printf("%s\n", terminal.green("Whole.").c_str());
  }
}

Json status_json(const StorageStatus& status) {
  const Totals totals = totals_of(status);
  return Json{{"cluster_id", status.cluster_id},
              {"map_epoch", status.map_epoch},
              {"groups", status.groups},
              {"block_bytes", status.block_bytes},
              {"data_shards", status.data_shards},
              {"parity_shards", status.parity_shards},
              {"slots", totals.slots},
              {"used_slots", totals.used},
              {"published_shards", totals.published},
              {"leased_slots", totals.leased},
              {"rebuild_left", totals.rebuild_left},
              {"targets_up", totals.up},
              {"targets_rebuilding", totals.rebuilding},
              {"targets_down", totals.down},
              {"targets_spare", totals.spare},
              {"targets_failed", totals.failed},
              {"most_missing_members", most_missing(totals)}};
}

void print_nodes(const StorageStatus& status, const Terminal& terminal) {
  TextTable table(
      {"target", "node", "group", "shard", "state", "used", "slots", "shards", "to rebuild"});
  for (const StorageNodeInfo& node : status.nodes) {
    for (const Target& target : node.targets) {
      const bool is_member = target.group_id >= 0;
      table.add_row(
          {target.report.target_id, node.is_alive ? node.node_id : str_cat(node.node_id, " (dead)"),
           is_member ? str_cat(target.group_id) : "-",
           is_member ? str_cat(target.shard_index) : "-",
           target.report.failure.empty() ? target.member_state : "failed",
           percent(target.report.used_slots, target.report.slots), str_cat(target.report.slots),
           str_cat(target.report.published), str_cat(target.report.rebuild_left)});
    }
  }
  std::printf("%s", table.to_string().c_str());
  for (const StorageNodeInfo& node : status.nodes) {
    for (const Target& target : node.targets) {
      if (target.report.failure.empty()) continue;
      const std::string text = str_cat(target.report.target_id, ": ", target.report.failure);
      std::printf("\n%s\n", terminal.red(text).c_str());
    }
  }
}

const Target* find_target(const StorageStatus& status, std::string_view target_id) {
  for (const StorageNodeInfo& node : status.nodes) {
    for (const Target& target : node.targets) {
      if (target.report.target_id == target_id) return &target;
    }
  }
  return nullptr;
}

absl::Status replace(const StorageReplaceOptions& options, const Terminal& terminal) {
  ASSIGN_OR_RETURN(AdminClient admin, admin_of(options.server));
  ASSIGN_OR_RETURN(const StorageStatus before, admin.storage());
  const Target* leaving = find_target(before, options.target);
  ASSIGN_OR_RETURN(const StorageStatus after,
                   admin.replace_target({options.target, options.spare}));
  std::string spare;
  for (const StorageNodeInfo& node : after.nodes) {
    for (const Target& target : node.targets) {
      if (leaving != nullptr && target.group_id == leaving->group_id &&
          target.shard_index == leaving->shard_index) {
        spare = target.report.target_id;
      }
    }
  }
  std::printf("%s takes the place of %s and is being rebuilt.\n", spare.c_str(),
              options.target.c_str());
  if (!options.waits) return absl::OkStatus();
  ProgressLine line(terminal);
  std::uint64_t most_left = 1;
  return wait_until(
      admin, options.wait_s, "rebuild", [&](const StorageStatus& status) -> absl::StatusOr<bool> {
        const Target* target = find_target(status, spare);
        if (target == nullptr || target->member_state == "spare") {
          return absl::AbortedError(str_cat(spare, " has left the group again"));
        }
        const std::uint64_t left = target->report.rebuild_left;
        most_left = std::max(most_left, left);
        const double done = 1.0 - static_cast<double>(left) / static_cast<double>(most_left);
        line.show(str_cat("rebuilding ", progress_bar(done, kBarWidth), " ", left, " shards left"));
        return target->member_state == "up";
      });
}

struct ScrubSums {
  std::uint64_t checked = 0;
  std::uint64_t total = 0;
  std::uint64_t bad = 0;
  bool is_over = true;
};

ScrubSums scrub_sums(const StorageStatus& status, std::uint64_t request) {
  ScrubSums sums;
  for (const StorageNodeInfo& node : status.nodes) {
    if (!node.is_alive) continue;
    for (const Target& target : node.targets) {
      if (!target.report.failure.empty()) continue;
      const bool has_begun = target.report.scrub_request >= request;
      sums.is_over &= has_begun && target.report.scrub_checked >= target.report.scrub_total;
      sums.total += target.report.published;
      if (!has_begun) continue;
      sums.total += target.report.scrub_total - target.report.published;
      sums.checked += target.report.scrub_checked;
      sums.bad += target.report.scrub_bad;
    }
  }
  return sums;
}

absl::Status scrub(const KvScrubOptions& options, const Terminal& terminal) {
  ASSIGN_OR_RETURN(AdminClient admin, admin_of(options.server));
  ASSIGN_OR_RETURN(const api::admin::StorageWish wish, admin.scrub());
  ScrubSums sums;
  {
    ProgressLine line(terminal);
    RETURN_IF_ERROR(wait_until(
        admin, options.wait_s, "scrub", [&](const StorageStatus& status) -> absl::StatusOr<bool> {
          sums = scrub_sums(status, wish.request);
          const double done =
              sums.total == 0 ? 0.0
                              : static_cast<double>(sums.checked) / static_cast<double>(sums.total);
          line.show(str_cat("scrubbing ", progress_bar(std::min(done, 1.0), kBarWidth), " ",
                            sums.checked, " of ", sums.total, " shards, ", sums.bad, " bad"));
          return sums.is_over;
        }));
  }
  if (options.is_json) {
    std::printf("%s\n", dump_json(Json{{"checked", sums.checked}, {"bad", sums.bad}}).c_str());
  } else {
    std::printf("%llu shards checked, %llu were bad and are being rebuilt.\n",
                static_cast<unsigned long long>(sums.checked),
                static_cast<unsigned long long>(sums.bad));
  }
  return absl::OkStatus();
}

/// Whether all nodes have let go of what they could: blocks that somebody is about to read stay.
bool is_carried_out(const StorageStatus& status, std::uint64_t evict_request) {
  return std::all_of(status.nodes.begin(), status.nodes.end(), [&](const StorageNodeInfo& node) {
    return !node.is_alive || node.evict_request >= evict_request;
  });
}

absl::Status evict(const KvEvictOptions& options, const Terminal& terminal) {
  ASSIGN_OR_RETURN(AdminClient admin, admin_of(options.server));
  ASSIGN_OR_RETURN(const StorageStatus before, admin.storage());
  ASSIGN_OR_RETURN(const api::admin::StorageWish wish, admin.evict({options.to_fraction}));
  const std::uint64_t first = totals_of(before).published;
  std::uint64_t left = first;
  {
    ProgressLine line(terminal);
    RETURN_IF_ERROR(wait_until(
        admin, options.wait_s, "eviction",
        [&](const StorageStatus& status) -> absl::StatusOr<bool> {
          const Totals totals = totals_of(status);
          left = totals.published;
          const auto wanted =
              static_cast<std::uint64_t>(options.to_fraction * static_cast<double>(totals.slots));
          line.show(str_cat("evicting, ", left, " shards left, ", wanted, " may stay"));
          // Freed slots count as used for a moment: shards are what to look at.
          return left <= wanted || is_carried_out(status, wish.request);
        }));
  }
  std::printf("%llu shards evicted, %llu are left.\n",
              static_cast<unsigned long long>(first - std::min(first, left)),
              static_cast<unsigned long long>(left));
  return absl::OkStatus();
}

}  // namespace

int run_storage_nodes(const StorageNodesOptions& options, const Terminal& terminal) {
  absl::StatusOr<AdminClient> admin = admin_of(options.server);
  if (!admin.ok()) return failed(admin.status());
  const absl::StatusOr<StorageStatus> status = admin->storage();
  if (!status.ok()) return failed(status.status());
  if (options.is_json) {
    std::printf("%s\n", to_json(*status).c_str());
  } else if (status->nodes.empty()) {
    std::printf("This cluster has no storage nodes.\n");
  } else {
    print_nodes(*status, terminal);
  }
  return 0;
}

int run_storage_replace(const StorageReplaceOptions& options, const Terminal& terminal) {
  const absl::Status status = replace(options, terminal);
  return status.ok() ? 0 : failed(status);
}

int run_kv_status(const KvStatusOptions& options, const Terminal& terminal) {
  absl::StatusOr<AdminClient> admin = admin_of(options.server);
  if (!admin.ok()) return failed(admin.status());
  const absl::StatusOr<StorageStatus> status = admin->storage();
  if (!status.ok()) return failed(status.status());
  if (options.is_json) {
    std::printf("%s\n", dump_json(status_json(*status)).c_str());
  } else if (status->cluster_id.empty()) {
    std::printf("This cluster stores no KV.\n");
  } else {
    print_status(*status, terminal);
  }
  return 0;
}

int run_kv_scrub(const KvScrubOptions& options, const Terminal& terminal) {
  const absl::Status status = scrub(options, terminal);
  return status.ok() ? 0 : failed(status);
}

int run_kv_evict(const KvEvictOptions& options, const Terminal& terminal) {
  const absl::Status status = evict(options, terminal);
  return status.ok() ? 0 : failed(status);
}

}  // namespace millrace::deploy::cli
