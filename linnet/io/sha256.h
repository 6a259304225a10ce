// SHA-256 checksums.
//
//   Sha256 hash;
//   hash.Update(bytes);
//   hash.Hex();              // "e3b0c442...", of all bytes so far; Update() may be called again
#ifndef LINNET_IO_SHA256_H_
#define LINNET_IO_SHA256_H_

#include <cstddef>
#include <memory>
#include <span>
#include <string>

struct evp_md_ctx_st;  // OpenSSL's

namespace linnet {

class Sha256 {
 public:
  Sha256();
  void Update(std::span<const std::byte> bytes);
  std::string Hex() const;  // 64 lower-case digits

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

}  // namespace linnet

#endif  // LINNET_IO_SHA256_H_
