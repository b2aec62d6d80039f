#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace millrace::dataplane::routing {

/// Patches of an image of so many pixels after the model's resizing: ⌈height ÷ p⌉ ⌈width ÷ p⌉.
/// Sizes below 1 have none.
std::int64_t patches_of(std::int64_t height, std::int64_t width, std::int64_t patch_size);

/// A machine with encoders, as outstanding patches of each of its GPUs.
struct EncoderMachine {
  std::span<const std::int64_t> patches_of_gpu;
  bool is_accepting = true;
};

struct EncoderChoice {
  std::size_t machine = 0;
  std::size_t gpu = 0;
};

/// A random machine, then its GPU with the fewest outstanding patches (equal: the lower index).
/// `random` is 64 fresh random bits. nullopt when no machine with a GPU accepts.
std::optional<EncoderChoice> pick_encoder(std::span<const EncoderMachine> machines,
                                          std::uint64_t random);

}  // namespace millrace::dataplane::routing
