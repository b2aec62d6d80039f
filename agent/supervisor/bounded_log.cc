#include "agent/supervisor/bounded_log.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "common/str_cat.h"

namespace millrace::agent::supervisor {
namespace {

constexpr std::uint64_t kTailBytes = 8 << 10;
constexpr std::size_t kMaxLineBytes = 500;

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r") == line.npos; }

}  // namespace

std::uint64_t BoundedLog::size() const {
  std::error_code error;
  const std::uintmax_t bytes = std::filesystem::file_size(path_, error);
  return error ? 0 : bytes;
}

void BoundedLog::begin_run() { run_begin_ = size(); }

absl::Status BoundedLog::rotate_if_large() {
  if (size() <= max_bytes_) return absl::OkStatus();
  std::error_code error;
  std::filesystem::copy_file(path_, path_ + ".1", std::filesystem::copy_options::overwrite_existing,
                             error);
  // Without room for the copy the file is emptied all the same: the bound comes first.
  std::error_code resize_error;
  std::filesystem::resize_file(path_, 0, resize_error);
  run_begin_ = 0;
  if (!error) error = resize_error;
  if (!error) return absl::OkStatus();
  return absl::UnavailableError(str_cat("cannot rotate ", path_, ": ", error.message()));
}

std::string BoundedLog::last_line() const {
  const std::uint64_t end = size();
  const std::uint64_t begin_of_run = run_begin_ <= end ? run_begin_ : 0;
  const std::uint64_t begin = std::max(begin_of_run, end > kTailBytes ? end - kTailBytes : 0);
  std::ifstream file(path_, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(begin));
  std::string tail(end - begin, '\0');
  file.read(tail.data(), static_cast<std::streamsize>(tail.size()));
  tail.resize(static_cast<std::size_t>(file.gcount()));
  std::string_view rest = tail;
  while (!rest.empty()) {
    const std::size_t line_break = rest.rfind('\n');
    const std::string_view line = line_break == rest.npos ? rest : rest.substr(line_break + 1);
    if (!is_blank(line)) return std::string(line.substr(0, kMaxLineBytes));
    rest = line_break == rest.npos ? std::string_view() : rest.substr(0, line_break);
  }
  return "";
}

}  // namespace millrace::agent::supervisor
