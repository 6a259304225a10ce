// Arguments of attention kernels: tensors with outer axes in any order, and working memory.
//
//   Strided<const float> q = RowMajor(data, length, heads, dim);     // [N, L, H, D]
//   const float* row = q.At(n, l, h);
//   Scratch scratch{memory.data(), slots};                           // memory: slots x size floats
#ifndef LINNET_KERNELS_STRIDED_H_
#define LINNET_KERNELS_STRIDED_H_

#include <cstddef>

namespace linnet::kernels {

// A tensor [N, L, H, dim] in any order of its outer axes: strides in elements, the last axis dense.
template <typename T>
struct Strided {
  T* data = nullptr;
  ptrdiff_t batch = 0, time = 0, head = 0;

  T* At(size_t n, size_t l, size_t h) const {
    return data + static_cast<ptrdiff_t>(n) * batch + static_cast<ptrdiff_t>(l) * time +
           static_cast<ptrdiff_t>(h) * head;
  }
};

// Strides of a dense [N, L, H, dim] tensor (the layout of modules' inputs and outputs).
template <typename T>
Strided<T> RowMajor(T* data, size_t length, size_t heads, size_t dim) {
  return {data, static_cast<ptrdiff_t>(length * heads * dim), static_cast<ptrdiff_t>(heads * dim),
          static_cast<ptrdiff_t>(dim)};
}

// Strides of a dense [N, H, L, dim] tensor.
template <typename T>
Strided<T> HeadMajor(T* data, size_t length, size_t heads, size_t dim) {
  return {data, static_cast<ptrdiff_t>(length * heads * dim), static_cast<ptrdiff_t>(dim),
          static_cast<ptrdiff_t>(length * dim)};
}

// Working memory, owned by the caller: `slots` pieces, called slots, each of as many floats as the
// kernel's ...Scratch() returns. The work is divided among the slots, and one thread uses a slot at
// a time.
struct Scratch {
  float* data = nullptr;
  size_t slots = 1;
};

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_STRIDED_H_
