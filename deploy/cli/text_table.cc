#include "deploy/cli/text_table.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

#include "common/check.h"

namespace millrace::deploy::cli {
namespace {

/// How many columns a terminal needs: one per code point, which holds for what tables show here.
std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

bool is_number_like(const std::string& text) {
  return !text.empty() && (text[0] == '-' || text[0] == '.' || (text[0] >= '0' && text[0] <= '9'));
}

}  // namespace

void TextTable::add_row(std::vector<std::string> cells) {
  CHECK(cells.size() == header_.size());
  rows_.push_back(std::move(cells));
}

std::string TextTable::to_string() const {
  std::vector<std::size_t> widths;
  std::vector<bool> align_right;
  for (std::size_t column = 0; column < header_.size(); ++column) {
    std::size_t width = width_of(header_[column]);
    bool all_numbers = column > 0 && !rows_.empty();
    for (const auto& row : rows_) {
      width = std::max(width, width_of(row[column]));
      all_numbers = all_numbers && is_number_like(row[column]);
    }
    widths.push_back(width);
    align_right.push_back(all_numbers);
  }

  std::string text;
  const auto append_row = [&](const std::vector<std::string>& cells) {
    std::string line;
    for (std::size_t column = 0; column < cells.size(); ++column) {
      if (column > 0) line += "  ";
      const std::string padding(widths[column] - width_of(cells[column]), ' ');
      line += align_right[column] ? padding + cells[column] : cells[column] + padding;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  };
  append_row(header_);
  for (const auto& row : rows_) append_row(row);
  return text;
}

std::string fixed(double value, int digits) {
  std::array<char, 64> buffer{};
  std::snprintf(buffer.data(), buffer.size(), "%.*f", digits, value);
  return buffer.data();
}

}  // namespace millrace::deploy::cli
