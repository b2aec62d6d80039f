#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace millrace {

/// POSIX shared memory, mapped for as long as the object lives. Move-only.
class SharedRegion {
 public:
  /// Creates a region of that name and size, writable, readable by this user alone. Destroying the
  /// object also removes the name; who has it mapped keeps the bytes. kAlreadyExists;
  /// kResourceExhausted when the host's shared memory is full (found out here, not by a fault at
  /// the first write).
  static absl::StatusOr<SharedRegion> create(const std::string& name, std::size_t bytes);

  /// Maps an existing region read-only. kNotFound when there is none of that name, kDataLoss when
  /// its size is another.
  static absl::StatusOr<SharedRegion> open(const std::string& name, std::size_t bytes);
  /// The same, writable. The region stays its creator's: destroying the object keeps the name.
  static absl::StatusOr<SharedRegion> open_writable(const std::string& name, std::size_t bytes);

  SharedRegion(SharedRegion&& other) noexcept;
  SharedRegion& operator=(SharedRegion&& other) noexcept;
  ~SharedRegion();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  /// Only of a region that was created or opened writable.
  std::span<std::byte> writable_bytes() { return {data_, size_}; }

 private:
  SharedRegion() = default;
  static absl::StatusOr<SharedRegion> map_existing(const std::string& name, std::size_t bytes,
                                                   bool is_writable);

  std::string owned_name_;  // empty: opened
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Removes all regions whose names begin so, as a dead process left them. `prefix` starts with no
/// slash. Returns how many.
int remove_shared_regions(std::string_view prefix);

}  // namespace millrace
