#include "common/crypto/sha256.h"

#include <openssl/evp.h>

#include "common/check.h"

namespace millrace {
namespace {

/// Looked up once: OpenSSL 3 otherwise searches its providers at every start of a digest, which
/// costs as much as hashing a kilobyte.
const EVP_MD* sha256_method() {
  static const EVP_MD* const method = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  return method;
}

}  // namespace

struct Sha256::State {
  State() : context(EVP_MD_CTX_new()) {
    CHECK(context != nullptr && EVP_DigestInit_ex2(context, sha256_method(), nullptr) == 1);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { EVP_MD_CTX_free(context); }

  // OpenSSL fails here only when it is out of memory or lacks SHA-256: nothing a caller could mend.
  void restart() { CHECK(EVP_DigestInit_ex2(context, nullptr, nullptr) == 1); }

  EVP_MD_CTX* context;
};

Sha256::Sha256() : state_(std::make_unique<State>()) {}
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;
Sha256::~Sha256() = default;

void Sha256::update(std::span<const std::uint8_t> bytes) {
  CHECK(EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()) == 1);
}

void Sha256::update(std::string_view text) {
  CHECK(EVP_DigestUpdate(state_->context, text.data(), text.size()) == 1);
}

Sha256Digest Sha256::finish() {
  Sha256Digest digest;
  unsigned length = 0;
  CHECK(EVP_DigestFinal_ex(state_->context, digest.data(), &length) == 1 &&
        length == digest.size());
  state_->restart();
  return digest;
}

Sha256Digest sha256(std::span<const std::uint8_t> bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.finish();
}

}  // namespace millrace
