// CudaEngine in a build without CUDA.
#include <cstdlib>

#include "linnet/error.h"
#include "linnet/runtime/cuda/cuda_engine.h"

namespace linnet {

struct CudaEngine::Impl {};

CudaEngine::CudaEngine(const Checkpoint&, const CudaOptions&) { throw InputError(kNoCuda); }
CudaEngine::~CudaEngine() = default;

CudaLimits MeasureCudaLimits(Precision) { throw InputError(kNoCuda); }

bool CudaEngine::Built() { return false; }
std::string CudaEngine::FindDevice() { throw InputError(kNoCuda); }

// Unreachable: the constructor throws.
const Model& CudaEngine::model() const { std::abort(); }
std::shared_ptr<const Model> CudaEngine::shared_model() const { std::abort(); }
size_t CudaEngine::batch() const { std::abort(); }
void CudaEngine::Draw(std::span<uint8_t>, size_t, const ImageDraws&) { std::abort(); }
size_t CudaEngine::output_size() const { std::abort(); }
const std::string& CudaEngine::device() const { std::abort(); }
const CudaMemory& CudaEngine::memory() const { std::abort(); }
size_t CudaEngine::lanes() const { std::abort(); }
void CudaEngine::Reset() { std::abort(); }
size_t CudaEngine::position() const { std::abort(); }
void CudaEngine::Step(std::span<const int32_t>, std::span<float>) { std::abort(); }
double CudaEngine::SecondsOfStep(size_t) { std::abort(); }
std::vector<std::pair<std::string, double>> CudaEngine::ProfileStep() { std::abort(); }
double CudaEngine::StepBytes() const { std::abort(); }
double CudaEngine::StepOperations() const { std::abort(); }
void CudaEngine::SetState(const State&) { std::abort(); }
State CudaEngine::GetState() { std::abort(); }

}  // namespace linnet
