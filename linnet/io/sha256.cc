#include "linnet/io/sha256.h"

#include <openssl/evp.h>

#include "linnet/error.h"

namespace linnet {
namespace {

void Check(int succeeded) {
  if (succeeded != 1) throw RuntimeError("SHA-256: OpenSSL's libcrypto failed to compute a hash");
}

}  // namespace

void Sha256::Free::operator()(evp_md_ctx_st* context) const { EVP_MD_CTX_free(context); }

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  Check(context_ != nullptr);
  Check(EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr));
}

void Sha256::Update(std::span<const std::byte> bytes) {
  Check(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()));
}

std::string Sha256::Hex() const {
  const Sha256 copy;  // finalizing a digest ends it, so finalize a copy
  Check(EVP_MD_CTX_copy_ex(copy.context_.get(), context_.get()));
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  Check(EVP_DigestFinal_ex(copy.context_.get(), digest, &size));
  std::string hex;
  for (unsigned i = 0; i < size; ++i) {
    for (int nibble : {digest[i] >> 4, digest[i] & 15}) hex += "0123456789abcdef"[nibble];
  }
  return hex;
}

}  // namespace linnet
