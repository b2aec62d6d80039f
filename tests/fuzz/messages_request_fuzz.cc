#include "tests/fuzz/request_fuzz.h"

/// Messages bodies.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  millrace::tests::fuzz::check_request(millrace::api::recipe::prepare_messages, data, size);
  return 0;
}
