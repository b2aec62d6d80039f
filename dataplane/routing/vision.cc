#include "dataplane/routing/vision.h"

#include <algorithm>

namespace millrace::dataplane::routing {
namespace {

bool is_usable(const EncoderMachine& machine) {
  return machine.is_accepting && !machine.patches_of_gpu.empty();
}

}  // namespace

std::int64_t patches_of(std::int64_t height, std::int64_t width, std::int64_t patch_size) {
  if (height < 1 || width < 1 || patch_size < 1) return 0;
  return ((height + patch_size - 1) / patch_size) * ((width + patch_size - 1) / patch_size);
}

std::optional<EncoderChoice> pick_encoder(std::span<const EncoderMachine> machines,
                                          std::uint64_t random) {
  const auto usable =
      static_cast<std::uint64_t>(std::count_if(machines.begin(), machines.end(), is_usable));
  if (usable == 0) return std::nullopt;
  std::uint64_t to_pass = random % usable;
  std::size_t machine = 0;
  while (!is_usable(machines[machine]) || to_pass-- > 0) ++machine;
  const auto patches = machines[machine].patches_of_gpu;
  const auto fewest = std::min_element(patches.begin(), patches.end());
  return EncoderChoice{machine, static_cast<std::size_t>(fewest - patches.begin())};
}

}  // namespace millrace::dataplane::routing
