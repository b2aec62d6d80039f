#pragma once

#include <cstdint>
#include <string>

namespace millrace::storage::swa {

/// Where a window was put: a use of a slot in the pool of one machine. A promise to try, nothing
/// more: whoever reads checks key, generation and checksum at the place itself.
struct WindowLocation {
  std::string host_id;            ///< of the machine
  std::string address;            ///< host:port of its fetcher; empty: for its own machine only
  std::uint64_t incarnation = 0;  ///< of the pool: another one after each start of its fetcher
  std::uint32_t slot = 0;
  std::uint64_t generation = 0;  ///< of the slot
  std::uint32_t bytes = 0;       ///< of the window
  bool operator==(const WindowLocation&) const = default;
};

}  // namespace millrace::storage::swa
