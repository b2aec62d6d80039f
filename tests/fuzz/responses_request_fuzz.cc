#include "tests/fuzz/request_fuzz.h"

/// Responses bodies.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  millrace::tests::fuzz::check_request(millrace::api::recipe::prepare_responses, data, size);
  return 0;
}
