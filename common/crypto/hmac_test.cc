#include "common/crypto/hmac.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/hex.h"

namespace millrace {
namespace {

std::vector<std::uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

// RFC 4231, test cases 1 to 4, 6 and 7 (case 5 truncates).
TEST(HmacSha256, GivesThePublishedCodes) {
  struct Case {
    std::vector<std::uint8_t> secret;
    std::vector<std::uint8_t> message;
    const char* code;
  };
  std::vector<std::uint8_t> counting(25);
  for (std::size_t i = 0; i < counting.size(); ++i) counting[i] = static_cast<std::uint8_t>(i + 1);
  const std::vector<Case> cases = {
      {std::vector<std::uint8_t>(20, 0x0b), bytes_of("Hi There"),
       "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"},
      {bytes_of("Jefe"), bytes_of("what do ya want for nothing?"),
       "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"},
      {std::vector<std::uint8_t>(20, 0xaa), std::vector<std::uint8_t>(50, 0xdd),
       "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"},
      {counting, std::vector<std::uint8_t>(50, 0xcd),
       "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b"},
      {std::vector<std::uint8_t>(131, 0xaa),
       bytes_of("Test Using Larger Than Block-Size Key - Hash Key First"),
       "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"},
      {std::vector<std::uint8_t>(131, 0xaa),
       bytes_of("This is a test using a larger than block-size key and a larger than block-size "
                "data. The key needs to be hashed before being used by the HMAC algorithm."),
       "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2"},
  };
  for (const Case& test : cases)
    EXPECT_EQ(to_hex(hmac_sha256(test.secret, test.message)), test.code);
}

// The well-known code of nothing under no secret.
TEST(HmacSha256, TakesAnEmptySecretAndMessage) {
  EXPECT_EQ(to_hex(hmac_sha256({}, {})),
            "b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad");
}

}  // namespace
}  // namespace millrace
