#pragma once

#include <cstddef>
#include <memory>

namespace millrace::dataplane::engine::cpu {

/// Memory whose content is lost at every request: it grows to the largest one and stays.
class Scratch {
 public:
  /// At least `bytes`, 64-byte aligned.
  std::byte* bytes(std::size_t bytes);
  float* floats(std::size_t count) {
    return reinterpret_cast<float*>(bytes(count * sizeof(float)));
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte[], Free> memory_;
  std::size_t size_ = 0;
};

}  // namespace millrace::dataplane::engine::cpu
