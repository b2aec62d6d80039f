#pragma once

#include <string>
#include <vector>

namespace millrace::deploy::cli {

/// A table for a terminal: a header, then rows. The first column is aligned left, numbers right.
class TextTable {
 public:
  explicit TextTable(std::vector<std::string> header) : header_(std::move(header)) {}

  /// As many cells as the header has (CHECK).
  void add_row(std::vector<std::string> cells);

  /// Lines that end in '\n'; columns are two spaces apart.
  std::string to_string() const;

 private:
  std::vector<std::string> header_;
  std::vector<std::vector<std::string>> rows_;
};

/// With that many digits after the point.
std::string fixed(double value, int digits);

}  // namespace millrace::deploy::cli
