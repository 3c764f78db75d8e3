#include <algorithm>
#include <cstddef>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "lib/base/sha256.h"
#include "lib/base/text.h"
#include "tests/support/catch2.h"

namespace {

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

}  // namespace

// NIST's examples: csrc.nist.gov, "SHA-256 example values", and the CAVP short messages.
TEST_CASE("sha256 gives the published digests") {
  CHECK(duet::sha256_hex({}) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(duet::sha256_hex(bytes_of("abc")) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(duet::sha256_hex(bytes_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")) ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(duet::sha256_hex(bytes_of(
            "abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqr"
            "lmnopqrsmnopqrstnopqrstu")) == "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
  CHECK(duet::sha256_hex(bytes_of(std::string(1'000'000, 'a'))) ==
        "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_CASE("hmac_sha256 gives the values of RFC 4231") {
  const auto hex = [](const std::string& key, const std::string& text) {
    const duet::Sha256::Digest digest = duet::hmac_sha256(bytes_of(key), bytes_of(text));
    return duet::to_hex(std::as_bytes(std::span(digest)));
  };
  CHECK(hex(std::string(20, '\x0b'), "Hi There") == "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  CHECK(hex("Jefe", "what do ya want for nothing?") ==
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  CHECK(hex(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First") ==
        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST_CASE("sha256 does not depend on how the bytes arrive") {
  std::mt19937 random(7);
  for (std::size_t length = 0; length < 200; ++length) {
    std::string text(length, '\0');
    for (char& c : text) c = static_cast<char>(random());
    const std::string whole = duet::sha256_hex(bytes_of(text));
    duet::Sha256 pieces;
    std::size_t done = 0;
    while (done < length) {
      const std::size_t part = std::min<std::size_t>(length - done, random() % 70);
      pieces.update(bytes_of(text).subspan(done, part));
      done += part;
    }
    INFO("length " << length);
    CHECK(pieces.hex() == whole);
    CHECK(pieces.hex() == whole);  // asking again changes nothing
  }
}
