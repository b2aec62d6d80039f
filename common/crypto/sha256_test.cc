#include "common/crypto/sha256.h"

#include <gtest/gtest.h>

#include <string>

#include "common/hex.h"

namespace millrace {
namespace {

// Vectors: FIPS 180-4 examples (NIST cryptographic standards, "SHA-256").
TEST(Sha256, GivesThePublishedDigests) {
  EXPECT_EQ(to_hex(sha256({})), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  Sha256 hash;
  hash.update("abc");
  EXPECT_EQ(to_hex(hash.finish()),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  hash.update("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq");
  EXPECT_EQ(to_hex(hash.finish()),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

TEST(Sha256, PiecesGiveTheDigestOfTheWhole) {
  const std::string million(1000000, 'a');
  Sha256 hash;
  for (std::size_t at = 0; at < million.size(); at += 777) {
    hash.update(std::string_view(million).substr(at, 777));
  }
  EXPECT_EQ(to_hex(hash.finish()),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

}  // namespace
}  // namespace millrace
