#include "linnet/kernels/cuda/products.h"

#include <cublasLt.h>
#include <dlfcn.h>

#include <string>
#include <vector>

#include "linnet/error.h"
#include "linnet/kernels/cuda/device.h"

namespace linnet::kernels::cuda {
namespace {

// Functions of cuBLASLt, which is loaded by the first Get() and never unloaded.
struct Lt {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtMatmulDescCreate) make_description;
  decltype(&cublasLtMatmulDescDestroy) destroy_description;
  decltype(&cublasLtMatmulDescSetAttribute) set_description;
  decltype(&cublasLtMatrixLayoutCreate) make_layout;
  decltype(&cublasLtMatrixLayoutDestroy) destroy_layout;
  decltype(&cublasLtMatmulPreferenceCreate) make_preference;
  decltype(&cublasLtMatmulPreferenceDestroy) destroy_preference;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference;
  decltype(&cublasLtMatmulAlgoGetHeuristic) choose;
  decltype(&cublasLtMatmul) multiply;

  static const Lt& Get() {
    static const Lt library;
    return library;
  }

 private:
  Lt() {
    void* handle = nullptr;
    std::string fault;
    for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12"}) {
      handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
      if (handle != nullptr) break;
      if (fault.empty()) fault = dlerror();
    }
    if (handle == nullptr) {
      throw InputError("cuBLASLt cannot be loaded (", fault,
                       "); install CUDA's cuBLAS, or name its folder in LD_LIBRARY_PATH");
    }
    const auto find = [&](auto& function, const char* name) {
      void* const symbol = dlsym(handle, name);
      if (symbol == nullptr) throw InputError("cuBLASLt has no ", name, "; install CUDA 12 or 13");
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(symbol);
    };
    find(create, "cublasLtCreate");
    find(destroy, "cublasLtDestroy");
    find(make_description, "cublasLtMatmulDescCreate");
    find(destroy_description, "cublasLtMatmulDescDestroy");
    find(set_description, "cublasLtMatmulDescSetAttribute");
    find(make_layout, "cublasLtMatrixLayoutCreate");
    find(destroy_layout, "cublasLtMatrixLayoutDestroy");
    find(make_preference, "cublasLtMatmulPreferenceCreate");
    find(destroy_preference, "cublasLtMatmulPreferenceDestroy");
    find(set_preference, "cublasLtMatmulPreferenceSetAttribute");
    find(choose, "cublasLtMatmulAlgoGetHeuristic");
    find(multiply, "cublasLtMatmul");
  }
};

void CheckLt(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw RuntimeError("cuBLASLt: ", what, " failed with status ", static_cast<int>(status));
}

// A chosen algorithm with its cuBLASLt descriptors. cuBLAS is column-major, so it sees W as A [in,
// out] and x as B [in, rows], and computes A^T B = y^T [out, rows].
struct PlannedProduct {
  cublasLtMatmulDesc_t description = nullptr;
  cublasLtMatrixLayout_t weight = nullptr, x = nullptr, y = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
  size_t workspace_bytes = 0;

  PlannedProduct() = default;
  PlannedProduct(const PlannedProduct&) = delete;
  ~PlannedProduct() {
    const Lt& lt = Lt::Get();
    if (description != nullptr) lt.destroy_description(description);
    for (const cublasLtMatrixLayout_t layout : {weight, x, y}) {
      if (layout != nullptr) lt.destroy_layout(layout);
    }
  }
};

}  // namespace

struct Products::Impl {
  const Lt& lt = Lt::Get();
  cublasLtHandle_t handle = nullptr;
  DeviceBuffer<char> workspace{kWorkspaceBytes};
  std::vector<std::unique_ptr<PlannedProduct>> plans;

  Impl() { CheckLt(lt.create(&handle), "cublasLtCreate"); }
  ~Impl() {
    plans.clear();
    lt.destroy(handle);
  }
};

Products::Products() : impl_(std::make_unique<Impl>()) {}
Products::~Products() = default;

int Products::Plan(const ProductShape& shape) {
  const Lt& lt = impl_->lt;
  auto plan = std::make_unique<PlannedProduct>();
  const cudaDataType_t type = shape.type == ProductType::kBf16 ? CUDA_R_16BF : CUDA_R_32F;
  CheckLt(lt.make_description(&plan->description, CUBLAS_COMPUTE_32F, CUDA_R_32F),
          "cublasLtMatmulDescCreate");
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
    CheckLt(lt.set_description(plan->description, attribute, &value, sizeof(value)),
            "cublasLtMatmulDescSetAttribute");
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  set(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
  set(CUBLASLT_MATMUL_DESC_EPILOGUE,
      shape.relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS);
  set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type);
  CheckLt(lt.make_layout(&plan->weight, type, shape.in, shape.out, static_cast<int64_t>(shape.in)),
          "cublasLtMatrixLayoutCreate");
  CheckLt(lt.make_layout(&plan->x, type, shape.in, shape.rows, static_cast<int64_t>(shape.in)),
          "cublasLtMatrixLayoutCreate");
  CheckLt(lt.make_layout(&plan->y, type, shape.out, shape.rows, static_cast<int64_t>(shape.out)),
          "cublasLtMatrixLayoutCreate");

  cublasLtMatmulPreference_t preference = nullptr;
  CheckLt(lt.make_preference(&preference), "cublasLtMatmulPreferenceCreate");
  const size_t most = kWorkspaceBytes;
  lt.set_preference(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most, sizeof(most));
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  const cublasStatus_t status = lt.choose(impl_->handle, plan->description, plan->weight, plan->x,
                                          plan->y, plan->y, preference, 1, &found, &count);
  lt.destroy_preference(preference);
  if (status != CUBLAS_STATUS_SUCCESS || count == 0) {
    throw RuntimeError("cuBLASLt: no algorithm for a product of ", shape.rows, " x ", shape.in,
                       " x ", shape.out, " (status ", static_cast<int>(status), ")");
  }
  plan->algorithm = found.algo, plan->workspace_bytes = found.workspaceSize;
  impl_->plans.push_back(std::move(plan));
  return static_cast<int>(impl_->plans.size()) - 1;
}

void Products::Run(int index, const void* x, const void* weight, const void* bias, void* y,
                   Stream stream) {
  const PlannedProduct& plan = *impl_->plans[static_cast<size_t>(index)];
  CheckLt(impl_->lt.set_description(plan.description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                    sizeof(bias)),
          "cublasLtMatmulDescSetAttribute");
  const float one = 1, zero = 0;
  CheckLt(impl_->lt.multiply(impl_->handle, plan.description, &one, weight, plan.weight, x, plan.x,
                             &zero, y, plan.y, y, plan.y, &plan.algorithm, impl_->workspace.data(),
                             plan.workspace_bytes, static_cast<cudaStream_t>(stream)),
          "cublasLtMatmul");
}

}  // namespace linnet::kernels::cuda
