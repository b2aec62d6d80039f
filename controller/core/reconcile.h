#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "api/admin/cluster.h"
#include "controller/core/stored_state.h"
#include "controller/membership/membership.h"

namespace millrace::controller::core {

/// Something that changed, for the event log.
struct Note {
  std::string kind;
  std::string subject;
  std::string detail;
};

/// The index in "<role>-<index>"; nullopt when the id has not exactly that form.
std::optional<int> parse_worker_index(std::string_view worker_id, api::admin::ProcessRole role);
std::string worker_name(api::admin::ProcessRole role, int index);
/// Nodes that get a KV fetcher: those with an active engine, if the cluster stores KV.
std::set<std::string> fetcher_nodes(const api::admin::DesiredState& desired,
                                    const std::vector<Placement>& placements);
/// How many workers of a role are wanted.
int wanted_count(const api::admin::DesiredState& desired, const std::vector<Placement>& placements,
                 api::admin::ProcessRole role);
/// "<role>-<index>" of the lowest index that no placement uses, apart from those in `taken`.
std::string free_worker_name(const std::vector<Placement>& placements, api::admin::ProcessRole role,
                             const std::set<int>& taken = {});

inline constexpr api::admin::ProcessRole kAllRoles[] = {
    api::admin::ProcessRole::kPrefill, api::admin::ProcessRole::kDecode,
    api::admin::ProcessRole::kEntrypoint, api::admin::ProcessRole::kStorage,
    api::admin::ProcessRole::kKvFetch};

struct ReconcileInputs {
  const std::optional<api::admin::DesiredState>& desired;
  const std::map<std::string, membership::NodeRecord, std::less<>>& nodes;
  std::uint64_t epoch = 0;
  std::uint64_t next_revision = 0;  ///< what changed placements are marked with
  /// The first moments after a start, when not every agent was heard: nothing is taken away, and
  /// what agents run without being known is taken over.
  bool is_window_open = false;
  /// Nodes that were silent for so long that their workers are replaced elsewhere.
  std::set<std::string, std::less<>> lost_nodes;
};

struct Reconciled {
  std::vector<Placement> placements;
  std::uint64_t retired_incarnation = 0;
};

/// Brings the placements closer to what is desired; they come back in order:
/// 1. takes over unknown processes (window open, or nothing was ever desired);
/// 2. forgets released workers that their node no longer runs;
/// 3. releases the workers of lost nodes when another node is alive;
/// 4. per role, releases the highest indices beyond the desired count (window closed), or revives
///    and places workers up to it, on the alive node with the fewest of that role, then the fewest
///    in all, then the first by name;
/// 5. brings KV fetchers to where the engines are, one on each of fetcher_nodes(), and releases
///    the others (window closed).
/// Pure; with unchanged inputs a second call changes nothing.
Reconciled reconcile(Reconciled current, const ReconcileInputs& inputs, std::vector<Note>& notes);

}  // namespace millrace::controller::core
