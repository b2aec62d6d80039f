#include "controller/state/store.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "api/admin/process.h"
#include "api/admin/view.h"
#include "common/annotate.h"
#include "common/sqlite/sqlite.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::controller::state {
namespace {

using common::sqlite::Database;
using common::sqlite::Statement;
using core::Placement;
using core::PlacementPhase;
using core::StoredState;

constexpr std::int64_t kSchemaVersion = 2;

constexpr char kSchema[] = R"sql(
CREATE TABLE state (
  id                  INTEGER PRIMARY KEY CHECK (id = 1),
  version             INTEGER NOT NULL,
  epoch               INTEGER NOT NULL,
  revision            INTEGER NOT NULL,
  next_event_id       INTEGER NOT NULL,
  retired_incarnation INTEGER NOT NULL,
  desired             TEXT,           -- JSON as of the REST interface; NULL = never set
  view                TEXT NOT NULL,  -- as above
  storage_map         TEXT            -- as above; NULL = never any
) STRICT;
CREATE TABLE placements (
  worker_id        TEXT PRIMARY KEY,
  role             TEXT NOT NULL,
  worker_index     INTEGER NOT NULL,
  node_id          TEXT NOT NULL,
  is_releasing     INTEGER NOT NULL,
  incarnation      INTEGER NOT NULL,
  changed_revision INTEGER NOT NULL
) STRICT;
CREATE TABLE events (
  id           INTEGER PRIMARY KEY,
  unix_time_ms INTEGER NOT NULL,
  kind         TEXT NOT NULL,
  subject      TEXT NOT NULL,
  detail       TEXT NOT NULL
) STRICT;
)sql";

std::int64_t to_sql(std::uint64_t value) { return static_cast<std::int64_t>(value); }
std::uint64_t from_sql(std::int64_t value) { return static_cast<std::uint64_t>(value); }

/// Takes the lock that a second controller runs into, and keeps it.
absl::Status lock(Database& database) {
  RETURN_IF_ERROR(database.execute("PRAGMA locking_mode = EXCLUSIVE"));
  RETURN_IF_ERROR(database.execute("PRAGMA journal_mode = WAL"));
  RETURN_IF_ERROR(database.execute("PRAGMA synchronous = FULL"));
  RETURN_IF_ERROR(database.execute("BEGIN EXCLUSIVE"));
  return database.execute("COMMIT");
}

absl::Status prepare_schema(Database& database) {
  ASSIGN_OR_RETURN(const std::int64_t version, database.integer("PRAGMA user_version"));
  if (version == kSchemaVersion) return absl::OkStatus();
  if (version == 1) {  // of before there was storage
    return database.execute(str_cat("BEGIN; ALTER TABLE state ADD COLUMN storage_map TEXT;",
                                    "PRAGMA user_version = ", kSchemaVersion, "; COMMIT"));
  }
  if (version != 0) {
    return absl::FailedPreconditionError(
        str_cat("it has schema version ", version, ", this program writes ", kSchemaVersion,
                "; use the program that wrote it, or another --data-dir"));
  }
  return database.execute(
      str_cat("BEGIN;", kSchema, "PRAGMA user_version = ", kSchemaVersion, "; COMMIT"));
}

absl::StatusOr<std::vector<Placement>> load_placements(Database& database) {
  ASSIGN_OR_RETURN(
      Statement statement,
      database.prepare("SELECT worker_id, role, worker_index, node_id, is_releasing, incarnation, "
                       "changed_revision FROM placements"));
  std::vector<Placement> placements;
  while (true) {
    ASSIGN_OR_RETURN(const bool has_row, statement.step());
    if (!has_row) break;
    Placement placement;
    placement.worker_id = statement.text(0);
    ASSIGN_OR_RETURN(placement.role, api::admin::parse_process_role(statement.text(1)));
    placement.index = static_cast<int>(statement.integer(2));
    placement.node_id = statement.text(3);
    placement.phase =
        statement.integer(4) != 0 ? PlacementPhase::kReleasing : PlacementPhase::kActive;
    placement.incarnation = from_sql(statement.integer(5));
    placement.changed_revision = from_sql(statement.integer(6));
    placements.push_back(std::move(placement));
  }
  std::sort(placements.begin(), placements.end(), [](const Placement& a, const Placement& b) {
    return std::tie(a.role, a.index) < std::tie(b.role, b.index);
  });
  return placements;
}

absl::Status save_placements(Database& database, const std::vector<Placement>& placements) {
  RETURN_IF_ERROR(database.execute("DELETE FROM placements"));
  ASSIGN_OR_RETURN(Statement statement,
                   database.prepare("INSERT INTO placements VALUES (?, ?, ?, ?, ?, ?, ?)"));
  for (const Placement& placement : placements) {
    statement.bind(1, placement.worker_id);
    statement.bind(2, api::admin::process_role_name(placement.role));
    statement.bind(3, placement.index);
    statement.bind(4, placement.node_id);
    statement.bind(5, placement.phase == PlacementPhase::kReleasing ? 1 : 0);
    statement.bind(6, to_sql(placement.incarnation));
    statement.bind(7, to_sql(placement.changed_revision));
    RETURN_IF_ERROR(statement.run());
  }
  return absl::OkStatus();
}

absl::Status save_state(Database& database, const StoredState& state) {
  ASSIGN_OR_RETURN(
      Statement statement,
      database.prepare("INSERT OR REPLACE INTO state VALUES (1, ?, ?, ?, ?, ?, ?, ?, ?)"));
  statement.bind(1, to_sql(state.version));
  statement.bind(2, to_sql(state.epoch));
  statement.bind(3, to_sql(state.revision));
  statement.bind(4, to_sql(state.next_event_id));
  statement.bind(5, to_sql(state.retired_incarnation));
  if (state.desired) {
    statement.bind(6, api::admin::to_json(*state.desired));
  } else {
    statement.bind_null(6);
  }
  statement.bind(7, api::admin::to_json(state.view));
  if (state.storage_map) {
    statement.bind(8, storage::encode_map(*state.storage_map));
  } else {
    statement.bind_null(8);
  }
  return statement.run();
}

absl::Status save_events(Database& database, std::span<const api::admin::ClusterEvent> events) {
  if (events.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(Statement statement,
                   database.prepare("INSERT INTO events VALUES (?, ?, ?, ?, ?)"));
  for (const api::admin::ClusterEvent& event : events) {
    statement.bind(1, to_sql(event.id));
    statement.bind(2, event.unix_time_ms);
    statement.bind(3, event.kind);
    statement.bind(4, event.subject);
    statement.bind(5, event.detail);
    RETURN_IF_ERROR(statement.run());
  }
  return database.execute(
      str_cat("DELETE FROM events WHERE id <= ",
              to_sql(events.back().id) - static_cast<std::int64_t>(Store::kMaxEvents)));
}

}  // namespace

struct Store::Impl {
  explicit Impl(Database opened) : database(std::move(opened)) {}

  Database database;
  std::string path;

  absl::StatusOr<std::uint64_t> stored_version();
  absl::Status replace(std::uint64_t base_version, const StoredState& state,
                       std::span<const api::admin::ClusterEvent> events);
};

absl::StatusOr<std::uint64_t> Store::Impl::stored_version() {
  ASSIGN_OR_RETURN(const std::int64_t version,
                   database.integer("SELECT coalesce(max(version), 0) FROM state"));
  return from_sql(version);
}

absl::Status Store::Impl::replace(std::uint64_t base_version, const StoredState& state,
                                  std::span<const api::admin::ClusterEvent> events) {
  ASSIGN_OR_RETURN(const std::uint64_t version, stored_version());
  if (version != base_version) {
    return absl::AbortedError(
        str_cat("the decision was made on version ", base_version, ", stored is ", version));
  }
  RETURN_IF_ERROR(save_state(database, state));
  RETURN_IF_ERROR(save_placements(database, state.placements));
  return save_events(database, events);
}

Store::Store(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Store::~Store() = default;

absl::StatusOr<std::unique_ptr<Store>> Store::open(const std::string& data_dir) {
  const std::string path = data_dir + "/controller.sqlite";
  absl::StatusOr<Database> database = Database::open(path);
  if (!database.ok()) return annotate(database.status(), str_cat("cannot open ", path));
  if (const absl::Status status = lock(*database); !status.ok()) {
    if (status.code() == absl::StatusCode::kFailedPrecondition) {
      return absl::FailedPreconditionError(
          str_cat("another controller is running on ", data_dir,
                  "; stop it first, or choose another --data-dir"));
    }
    return annotate(status, str_cat("cannot use ", path));
  }
  if (const absl::Status status = prepare_schema(*database); !status.ok()) {
    return annotate(status, str_cat("cannot use ", path));
  }
  auto impl = std::make_unique<Impl>(std::move(*database));
  impl->path = path;
  return std::unique_ptr<Store>(new Store(std::move(impl)));
}

absl::StatusOr<StoredState> Store::load() {
  StoredState state;
  ASSIGN_OR_RETURN(Statement statement,
                   impl_->database.prepare("SELECT version, epoch, revision, next_event_id, "
                                           "retired_incarnation, desired, view, storage_map FROM "
                                           "state"));
  ASSIGN_OR_RETURN(const bool has_row, statement.step());
  if (!has_row) return state;
  state.version = from_sql(statement.integer(0));
  state.epoch = from_sql(statement.integer(1));
  state.revision = from_sql(statement.integer(2));
  state.next_event_id = from_sql(statement.integer(3));
  state.retired_incarnation = from_sql(statement.integer(4));
  if (!statement.is_null(5)) {
    absl::StatusOr<api::admin::DesiredState> desired =
        api::admin::parse_desired_state(statement.text(5));
    if (!desired.ok()) return annotate(desired.status(), str_cat(impl_->path, ": desired state"));
    state.desired = std::move(*desired);
  }
  absl::StatusOr<api::admin::RoutingView> view = api::admin::parse_routing_view(statement.text(6));
  if (!view.ok()) return annotate(view.status(), str_cat(impl_->path, ": view"));
  state.view = std::move(*view);
  if (!statement.is_null(7)) {
    absl::StatusOr<storage::StorageMap> map = storage::decode_map(statement.text(7));
    if (!map.ok()) return annotate(map.status(), str_cat(impl_->path, ": storage map"));
    state.storage_map = std::move(*map);
  }
  ASSIGN_OR_RETURN(state.placements, load_placements(impl_->database));
  return state;
}

absl::Status Store::commit(std::uint64_t base_version, const StoredState& state,
                           std::span<const api::admin::ClusterEvent> events) {
  RETURN_IF_ERROR(impl_->database.execute("BEGIN IMMEDIATE"));
  if (const absl::Status status = impl_->replace(base_version, state, events); !status.ok()) {
    // Some errors have ended the transaction already; then there is nothing left to undo.
    static_cast<void>(impl_->database.execute("ROLLBACK"));
    return annotate(status, str_cat("cannot write ", impl_->path));
  }
  return annotate(impl_->database.execute("COMMIT"), str_cat("cannot write ", impl_->path));
}

absl::StatusOr<api::admin::EventList> Store::events_after(std::uint64_t after) {
  api::admin::EventList list;
  ASSIGN_OR_RETURN(const std::int64_t oldest,
                   impl_->database.integer("SELECT coalesce(min(id), 0) FROM events"));
  list.oldest_id = from_sql(oldest);
  ASSIGN_OR_RETURN(Statement statement,
                   impl_->database.prepare("SELECT id, unix_time_ms, kind, subject, detail FROM "
                                           "events WHERE id > ? ORDER BY id"));
  statement.bind(1, to_sql(after));
  while (true) {
    ASSIGN_OR_RETURN(const bool has_row, statement.step());
    if (!has_row) return list;
    list.events.push_back({from_sql(statement.integer(0)), statement.integer(1), statement.text(2),
                           statement.text(3), statement.text(4)});
  }
}

}  // namespace millrace::controller::state
