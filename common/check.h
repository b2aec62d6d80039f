#pragma once

#include <string_view>

/// CHECK(condition): a broken invariant of our own code logs file, line and condition and aborts,
/// in release builds too. CHECK(condition, "what it means") adds a sentence. Bytes from outside
/// never reach a CHECK: they get a Status.

namespace millrace::internal {
[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               std::string_view message = {});
}  // namespace millrace::internal

#define CHECK(condition, ...)                                                    \
  do {                                                                           \
    if (!(condition)) [[unlikely]]                                               \
      ::millrace::internal::check_failed(__FILE__, __LINE__,                     \
                                         #condition __VA_OPT__(, ) __VA_ARGS__); \
  } while (false)
