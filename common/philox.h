#pragma once

#include <array>
#include <cstdint>

namespace millrace {

/// Counter-based random numbers: Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random
/// numbers: as easy as 1, 2, 3", SC 2011). The same (counter, key) always gives the same four
/// words, so a request can be continued by another worker.
std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                        std::array<std::uint32_t, 2> key);

/// A uniform double in [0, 1) with 53 bits, for (seed, absolute position, purpose).
double uniform_at(std::uint64_t seed, std::uint64_t position, std::uint32_t purpose);

}  // namespace millrace
