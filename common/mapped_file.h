#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"

namespace millrace {

/// A file mapped read-only for as long as the object lives. Move-only.
class MappedFile {
 public:
  /// kNotFound, kPermissionDenied or kUnavailable with the path and the reason.
  static absl::StatusOr<MappedFile> open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::uint8_t> bytes() const { return {data_, size_}; }

 private:
  MappedFile(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}

  const std::uint8_t* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Reads a whole file of at most max_bytes; kOutOfRange when it is larger.
absl::StatusOr<std::string> read_file(const std::string& path, std::size_t max_bytes = 64u << 20);

/// Writes a file so that a reader sees the old content or the new, never a mixture (temporary +
/// rename).
absl::Status write_file_atomically(const std::string& path, std::string_view content);

/// The same, and the new content survives a crash of the machine once this returned OK (file and
/// folder are synced). After an error the old content is still there.
absl::Status write_file_durably(const std::string& path, std::string_view content);

}  // namespace millrace
