#include "common/sqlite/sqlite.h"

#include <sqlite3.h>

#include <utility>

#include "common/check.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::common::sqlite {
namespace {

absl::Status status_of(int code, sqlite3* database) {
  const std::string message = database != nullptr ? sqlite3_errmsg(database) : sqlite3_errstr(code);
  switch (code & 0xff) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return absl::FailedPreconditionError(message);
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return absl::DataLossError(message);
    case SQLITE_CANTOPEN:
    case SQLITE_PERM:
    case SQLITE_READONLY:
      return absl::PermissionDeniedError(message);
    case SQLITE_FULL:
      return absl::ResourceExhaustedError(message);
    default:
      return absl::InternalError(message);
  }
}

}  // namespace

Statement::Statement(Statement&& other) noexcept
    : database_(other.database_), statement_(std::exchange(other.statement_, nullptr)) {}

Statement::~Statement() { sqlite3_finalize(statement_); }

void Statement::bind(int parameter, std::int64_t value) {
  CHECK(sqlite3_bind_int64(statement_, parameter, value) == SQLITE_OK);
}

void Statement::bind(int parameter, std::string_view text) {
  CHECK(sqlite3_bind_text(statement_, parameter, text.data(), static_cast<int>(text.size()),
                          SQLITE_TRANSIENT) == SQLITE_OK);
}

void Statement::bind_null(int parameter) {
  CHECK(sqlite3_bind_null(statement_, parameter) == SQLITE_OK);
}

absl::StatusOr<bool> Statement::step() {
  const int code = sqlite3_step(statement_);
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  return status_of(code, database_);
}

absl::Status Statement::run() {
  const absl::StatusOr<bool> has_row = step();
  sqlite3_reset(statement_);
  sqlite3_clear_bindings(statement_);
  return has_row.status();
}

std::int64_t Statement::integer(int column) const {
  return sqlite3_column_int64(statement_, column);
}

std::string Statement::text(int column) const {
  const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(statement_, column));
  if (text == nullptr) return "";
  return std::string(text, static_cast<std::size_t>(sqlite3_column_bytes(statement_, column)));
}

bool Statement::is_null(int column) const {
  return sqlite3_column_type(statement_, column) == SQLITE_NULL;
}

absl::StatusOr<Database> Database::open(const std::string& path) {
  sqlite3* handle = nullptr;
  // The connection is used by one thread at a time, so SQLite's own mutexes are left out.
  const int code =
      sqlite3_open_v2(path.c_str(), &handle,
                      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, nullptr);
  Database database(handle);  // also a failed open has a handle to close
  if (code != SQLITE_OK) return status_of(code, handle);
  return database;
}

Database::Database(Database&& other) noexcept
    : database_(std::exchange(other.database_, nullptr)) {}

Database::~Database() { sqlite3_close(database_); }

absl::Status Database::execute(const std::string& sql) {
  const int code = sqlite3_exec(database_, sql.c_str(), nullptr, nullptr, nullptr);
  return code == SQLITE_OK ? absl::OkStatus() : status_of(code, database_);
}

absl::StatusOr<Statement> Database::prepare(std::string_view sql) {
  sqlite3_stmt* statement = nullptr;
  const int code =
      sqlite3_prepare_v2(database_, sql.data(), static_cast<int>(sql.size()), &statement, nullptr);
  if (code != SQLITE_OK) return status_of(code, database_);
  return Statement(database_, statement);
}

absl::StatusOr<std::int64_t> Database::integer(std::string_view sql) {
  ASSIGN_OR_RETURN(Statement statement, prepare(sql));
  ASSIGN_OR_RETURN(const bool has_row, statement.step());
  if (!has_row) return absl::NotFoundError(str_cat("no row: ", sql));
  return statement.integer(0);
}

}  // namespace millrace::common::sqlite
