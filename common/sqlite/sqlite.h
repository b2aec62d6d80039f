#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

struct sqlite3;
struct sqlite3_stmt;

namespace millrace::common::sqlite {

/// A prepared statement. Bind, step through the rows, reset, again. Finalizes itself. Move-only.
/// Errors carry SQLite's own message.
class Statement {
 public:
  Statement(Statement&& other) noexcept;
  Statement& operator=(Statement&&) = delete;
  ~Statement();

  /// Parameters count from 1. The text is copied.
  void bind(int parameter, std::int64_t value);
  void bind(int parameter, std::string_view text);
  void bind_null(int parameter);

  /// True while there is a row to read.
  absl::StatusOr<bool> step();
  /// Runs a statement that returns no rows, and resets it with its parameters.
  absl::Status run();

  /// Columns count from 0.
  std::int64_t integer(int column) const;
  std::string text(int column) const;
  bool is_null(int column) const;

 private:
  friend class Database;
  Statement(sqlite3* database, sqlite3_stmt* statement)
      : database_(database), statement_(statement) {}

  sqlite3* database_;
  sqlite3_stmt* statement_;
};

/// One SQLite connection, for one thread at a time. Closes itself. Move-only.
class Database {
 public:
  /// Opens or creates the file.
  static absl::StatusOr<Database> open(const std::string& path);

  Database(Database&& other) noexcept;
  Database& operator=(Database&&) = delete;
  ~Database();

  /// Runs statements that return nothing of interest.
  absl::Status execute(const std::string& sql);
  absl::StatusOr<Statement> prepare(std::string_view sql);
  /// The first column of the first row.
  absl::StatusOr<std::int64_t> integer(std::string_view sql);

 private:
  explicit Database(sqlite3* database) : database_(database) {}
  sqlite3* database_;
};

}  // namespace millrace::common::sqlite
