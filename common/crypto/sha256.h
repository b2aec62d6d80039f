#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

namespace millrace {

using Sha256Digest = std::array<std::uint8_t, 32>;

/// SHA-256 of data that arrives in pieces (OpenSSL; SHA-NI where the CPU has it).
class Sha256 {
 public:
  Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;
  ~Sha256();

  void update(std::span<const std::uint8_t> bytes);
  void update(std::string_view text);
  /// The digest of everything so far; starts over.
  Sha256Digest finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// SHA-256 of one span.
Sha256Digest sha256(std::span<const std::uint8_t> bytes);

}  // namespace millrace
