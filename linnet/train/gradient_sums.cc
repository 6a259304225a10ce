#include "linnet/train/gradient_sums.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/utils.h>

#include <functional>
#include <utility>

namespace linnet::train {
namespace {

using torch::Tensor;
using torch::autograd::variable_list;

// Bytes of a bucket's gradients: large enough that latency does not matter, small enough that the
// last bucket, which nothing overlaps, is a small part of a large model.
constexpr int64_t kBucketBytes = 1 << 20;

class CallAfter : public torch::autograd::FunctionPostHook {
 public:
  explicit CallAfter(std::function<void()> body) : body_(std::move(body)) {}
  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    body_();
    return outputs;
  }

 private:
  std::function<void()> body_;
};

}  // namespace

GradientSums::GradientSums(const Processes& processes, const std::vector<Tensor>& parameters)
    : processes_(processes) {
  int64_t bytes = kBucketBytes;
  for (size_t i = parameters.size(); i-- > 0;) {
    if (bytes >= kBucketBytes) {
      buckets_.emplace_back();
      bytes = 0;
    }
    const Tensor& parameter = parameters[i];
    const size_t bucket = buckets_.size() - 1;
    buckets_[bucket].parameters.push_back(parameter);
    bytes += parameter.numel() * static_cast<int64_t>(parameter.element_size());
    const auto node = torch::autograd::impl::grad_accumulator(parameter);
    hooks_.push_back(
        node->add_post_hook(std::make_unique<CallAfter>([this, bucket] { Got(bucket); })));
    nodes_.push_back(node);
  }
}

GradientSums::~GradientSums() {
  for (size_t i = 0; i < nodes_.size(); ++i) nodes_[i]->del_post_hook(hooks_[i]);
}

void GradientSums::Begin() {
  for (Bucket& bucket : buckets_) bucket.missing = bucket.parameters.size();
  started_ = 0;
  running_ = true;
}

// Buckets start in order, so that all processes start the same ones.
void GradientSums::Got(size_t bucket) {
  if (!running_) return;
  --buckets_[bucket].missing;
  while (started_ < buckets_.size() && buckets_[started_].missing == 0) Start(buckets_[started_++]);
}

void GradientSums::Start(Bucket& bucket) {
  std::vector<Tensor> gradients;
  for (const Tensor& parameter : bucket.parameters) {
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  }
  bucket.sums = processes_.StartSum(std::move(gradients));
}

void GradientSums::Finish() {
  running_ = false;
  while (started_ < buckets_.size()) Start(buckets_[started_++]);  // parameters without gradients
  started_ = 0;
  for (Bucket& bucket : buckets_) std::exchange(bucket.sums, nullptr)->Wait();
}

}  // namespace linnet::train
