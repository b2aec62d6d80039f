#include "common/crypto/hmac.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "common/check.h"

namespace millrace {

Sha256Digest hmac_sha256(std::span<const std::uint8_t> secret,
                         std::span<const std::uint8_t> message) {
  // A null secret would mean "the one before" to OpenSSL.
  static constexpr std::uint8_t kNothing = 0;
  const std::uint8_t* key = secret.empty() ? &kNothing : secret.data();
  Sha256Digest digest;
  unsigned length = 0;
  CHECK(HMAC(EVP_sha256(), key, static_cast<int>(secret.size()), message.data(), message.size(),
             digest.data(), &length) != nullptr &&
        length == digest.size());
  return digest;
}

}  // namespace millrace
