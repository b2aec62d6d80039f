#include "dataplane/engine/cpu/scratch.h"

#include <cstdlib>

#include "common/check.h"

namespace millrace::dataplane::engine::cpu {
namespace {

constexpr std::size_t kAlignment = 64;

}  // namespace

void Scratch::Free::operator()(std::byte* memory) const { std::free(memory); }

std::byte* Scratch::bytes(std::size_t bytes) {
  if (bytes > size_) {
    const std::size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded)));
    CHECK(memory_ != nullptr, "out of memory for scratch");
    size_ = rounded;
  }
  return memory_.get();
}

}  // namespace millrace::dataplane::engine::cpu
