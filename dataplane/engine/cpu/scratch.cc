#include "dataplane/engine/cpu/scratch.h"

#include <new>

#include "common/check.h"

namespace millrace::dataplane::engine::cpu {
namespace {

constexpr std::align_val_t kAlignment{64};

}  // namespace

void Scratch::Free::operator()(std::byte* memory) const { ::operator delete(memory, kAlignment); }

std::byte* Scratch::bytes(std::size_t bytes) {
  if (bytes > size_) {
    memory_.reset(static_cast<std::byte*>(::operator new(bytes, kAlignment, std::nothrow)));
    CHECK(memory_ != nullptr, "out of memory for scratch");
    size_ = bytes;
  }
  return memory_.get();
}

}  // namespace millrace::dataplane::engine::cpu
