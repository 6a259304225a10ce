// Matrix products on a GPU by cuBLASLt. The library is loaded when the first Products is created,
// so that programs also start on machines without it.
//
//   Products products;
//   const int plan = products.Plan({.type = ProductType::kBf16, .rows = batch, .in = 256,
//                                   .out = 768});
//   products.Run(plan, x, weight, bias, y, stream);    // y = x W^T + b
//
// fp32 products use fp32 arithmetic, not TF32; bf16 products accumulate in fp32.
#ifndef LINNET_KERNELS_CUDA_PRODUCTS_H_
#define LINNET_KERNELS_CUDA_PRODUCTS_H_

#include <cstddef>
#include <memory>

#include "linnet/kernels/cuda/device.h"

namespace linnet::kernels::cuda {

enum class ProductType : unsigned char { kF32, kBf16 };

struct ProductShape {
  ProductType type = ProductType::kF32;  // of x, W, b and y
  size_t rows = 0, in = 0, out = 0;      // in and out are multiples of 8
  bool relu = false;                     // y = relu(x W^T + b)
};

class Products {
 public:
  // Throws InputError if cuBLASLt cannot be loaded, RuntimeError if it fails.
  Products();
  ~Products();
  Products(const Products&) = delete;

  // Chooses an algorithm for products of this shape and returns the plan for Run(). Throws
  // RuntimeError if cuBLASLt has no algorithm.
  int Plan(const ProductShape& shape);
  // x [rows, in], weight [out, in], bias [out], y [rows, out]. All calls of one Products share its
  // workspace, so streams that run at the same time need separate Products.
  void Run(int plan, const void* x, const void* weight, const void* bias, void* y, Stream stream);

  static constexpr size_t kWorkspaceBytes = size_t{32} << 20;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace linnet::kernels::cuda

#endif  // LINNET_KERNELS_CUDA_PRODUCTS_H_
