#include "api/entrypoint/response_table.h"

#include <utility>

#include "common/annotate.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::api::entrypoint {
namespace {

using common::sqlite::Database;
using common::sqlite::Statement;

constexpr std::int64_t kSchemaVersion = 2;
constexpr std::int64_t kPageBytes = 4096;
// How long a lock of another process is waited for.
constexpr int kBusyMs = 500;

// `number` grows, so that the smallest one is the oldest row.
constexpr const char* kSchema = R"(
CREATE TABLE responses (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE,
  created INTEGER NOT NULL,
  bytes INTEGER NOT NULL,
  response TEXT NOT NULL,
  input_items TEXT NOT NULL,
  output_items TEXT NOT NULL,
  events TEXT NOT NULL,
  account TEXT NOT NULL DEFAULT '');
CREATE INDEX responses_created ON responses (created);
CREATE INDEX responses_bytes ON responses (bytes);
)";

// Version 1 knew no accounts: what it stored belongs to whoever has none.
constexpr const char* kFromVersion1 =
    "ALTER TABLE responses ADD COLUMN account TEXT NOT NULL DEFAULT '';";

/// A lock and a full disk pass; for whoever asks they are the same: try again.
absl::Status passing(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kFailedPrecondition:
      return absl::UnavailableError(
          str_cat("the response store is locked by another process: ", message_of(status)));
    case absl::StatusCode::kResourceExhausted:
      return absl::UnavailableError(str_cat("the response store is full: ", message_of(status)));
    default:
      return annotate(status, "the response store");
  }
}

absl::Status prepare_schema(Database& database) {
  RETURN_IF_ERROR(database.execute(str_cat("PRAGMA busy_timeout = ", kBusyMs)));
  ASSIGN_OR_RETURN(const std::int64_t version, database.integer("PRAGMA user_version"));
  if (version < 0 || version > kSchemaVersion) {
    return absl::FailedPreconditionError(
        str_cat("it has schema version ", version, ", this program writes ", kSchemaVersion,
                "; use the program that wrote it, or another file"));
  }
  RETURN_IF_ERROR(database.execute("PRAGMA journal_mode = WAL"));
  // A crash of the machine may lose the last responses, never the file.
  RETURN_IF_ERROR(database.execute("PRAGMA synchronous = NORMAL"));
  RETURN_IF_ERROR(database.execute("PRAGMA journal_size_limit = 4194304"));
  if (version == kSchemaVersion) return absl::OkStatus();
  return database.execute(str_cat("BEGIN;", version == 1 ? kFromVersion1 : kSchema,
                                  "PRAGMA user_version = ", kSchemaVersion, "; COMMIT"));
}

/// What a row takes in the file: whole pages, because long texts lie in pages of their own.
std::int64_t bytes_of(const StoredResponse& response) {
  const auto payload = static_cast<std::int64_t>(
      response.id.size() + response.response.size() + response.input_items.size() +
      response.output_items.size() + response.events.size());
  return (payload / kPageBytes + 2) * kPageBytes;
}

absl::Status not_found(const std::string& id) {
  return absl::NotFoundError(str_cat("Response with id '", id, "' not found."));
}

}  // namespace

absl::StatusOr<ResponseTable> ResponseTable::open(const std::string& path,
                                                  const StoreBounds& bounds) {
  absl::StatusOr<Database> database = Database::open(path.empty() ? ":memory:" : path);
  if (!database.ok()) return annotate(database.status(), str_cat("cannot open ", path));
  if (const absl::Status status = prepare_schema(*database); !status.ok()) {
    return annotate(status, str_cat("cannot use ", path));
  }
  return ResponseTable(std::move(*database), bounds);
}

absl::Status ResponseTable::put(const StoredResponse& response, std::int64_t now_seconds) {
  const std::int64_t bytes = bytes_of(response);
  if (bytes > static_cast<std::int64_t>(bounds_.bytes)) {
    return absl::ResourceExhaustedError(str_cat("the response and what it continues have ", bytes,
                                                " bytes, more than the response store may hold (",
                                                bounds_.bytes, "); set `store` to false"));
  }
  if (const absl::Status begun = database_.execute("BEGIN IMMEDIATE"); !begun.ok()) {
    return passing(begun);
  }
  absl::Status status = insert(response, bytes, now_seconds);
  if (status.ok()) status = database_.execute("COMMIT");
  if (status.ok()) return absl::OkStatus();
  // Some errors have ended the transaction already; then there is nothing left to undo.
  static_cast<void>(database_.execute("ROLLBACK"));
  return passing(status);
}

absl::Status ResponseTable::insert(const StoredResponse& response, std::int64_t bytes,
                                   std::int64_t now_seconds) {
  RETURN_IF_ERROR(make_room(bytes, now_seconds));
  ASSIGN_OR_RETURN(Statement statement,
                   database_.prepare("INSERT INTO responses (id, created, bytes, response, "
                                     "input_items, output_items, events, account) "
                                     "VALUES (?, ?, ?, ?, ?, ?, ?, ?)"));
  statement.bind(1, response.id);
  statement.bind(2, now_seconds);
  statement.bind(3, bytes);
  statement.bind(4, response.response);
  statement.bind(5, response.input_items);
  statement.bind(6, response.output_items);
  statement.bind(7, response.events);
  statement.bind(8, response.account);
  return statement.run();
}

/// Lets go what is too old, and then the oldest until so many bytes fit.
absl::Status ResponseTable::make_room(std::int64_t bytes, std::int64_t now_seconds) {
  ASSIGN_OR_RETURN(Statement old, database_.prepare("DELETE FROM responses WHERE created <= ?"));
  old.bind(1, now_seconds - bounds_.time_to_live.count());
  RETURN_IF_ERROR(old.run());
  ASSIGN_OR_RETURN(std::int64_t total,
                   database_.integer("SELECT coalesce(sum(bytes), 0) FROM responses"));
  while (total + bytes > static_cast<std::int64_t>(bounds_.bytes)) {
    ASSIGN_OR_RETURN(const std::int64_t oldest_bytes,
                     database_.integer("SELECT bytes FROM responses ORDER BY number LIMIT 1"));
    RETURN_IF_ERROR(database_.execute(
        "DELETE FROM responses WHERE number = (SELECT min(number) FROM responses)"));
    total -= oldest_bytes;
  }
  return absl::OkStatus();
}

absl::StatusOr<StoredResponse> ResponseTable::get(const ResponseName& name,
                                                  std::int64_t now_seconds) {
  auto statement = database_.prepare(
      "SELECT response, input_items, output_items, events FROM responses "
      "WHERE id = ? AND account = ? AND created > ?");
  if (!statement.ok()) return passing(statement.status());
  statement->bind(1, name.id);
  statement->bind(2, name.account);
  statement->bind(3, now_seconds - bounds_.time_to_live.count());
  const absl::StatusOr<bool> has_row = statement->step();
  if (!has_row.ok()) return passing(has_row.status());
  if (!*has_row) return not_found(name.id);
  return StoredResponse{
      name.id,     statement->text(0), statement->text(1), statement->text(2), statement->text(3),
      name.account};
}

absl::Status ResponseTable::erase(const ResponseName& name, std::int64_t now_seconds) {
  const absl::Status status = erase_row(name, now_seconds - bounds_.time_to_live.count());
  return status.code() == absl::StatusCode::kNotFound ? not_found(name.id) : passing(status);
}

absl::Status ResponseTable::erase_row(const ResponseName& name, std::int64_t oldest) {
  ASSIGN_OR_RETURN(Statement statement,
                   database_.prepare("DELETE FROM responses WHERE id = ? AND account = ? AND "
                                     "created > ? RETURNING number"));
  statement.bind(1, name.id);
  statement.bind(2, name.account);
  statement.bind(3, oldest);
  ASSIGN_OR_RETURN(const bool has_row, statement.step());
  if (!has_row) return absl::NotFoundError("no such row");
  // The change takes place when the statement is over.
  return statement.step().status();
}

}  // namespace millrace::api::entrypoint
