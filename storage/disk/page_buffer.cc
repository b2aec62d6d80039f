#include <cstdlib>
#include <utility>

#include "common/check.h"
#include "storage/disk/slot_io.h"

namespace millrace::storage::disk {
namespace {

constexpr std::size_t kPage = 4096;

}  // namespace

PageBuffer::PageBuffer(std::size_t bytes) : size_((bytes + kPage - 1) / kPage * kPage) {
  if (size_ == 0) return;
  data_ = static_cast<std::byte*>(std::aligned_alloc(kPage, size_));
  CHECK(data_ != nullptr, "out of memory");
}

PageBuffer::PageBuffer(PageBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

PageBuffer& PageBuffer::operator=(PageBuffer&& other) noexcept {
  if (this != &other) {
    std::free(data_);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

PageBuffer::~PageBuffer() { std::free(data_); }

}  // namespace millrace::storage::disk
