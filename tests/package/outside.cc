// A test program of package_test.py: a mixer defined outside of linnet can be built by name,
// trained, stepped, saved and loaded.
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>

#include "linnet/nn/sequence_model.h"

void RunPages();  // the examples of docs/attention, extracted by package_test.py

namespace {

void Check(bool good, const char* what) {
  if (good) return;
  std::fprintf(stderr, "failed: %s\n", what);
  std::exit(1);
}

void KindFromOutside(const char* path) {
  linnet::ModelSpec spec;
  spec.stack.mixer().kind = "fading";
  spec.stack.repeat = 2, spec.stack.mixer().heads = 2, spec.stack.d_model = 16,
  spec.stack.d_ff = 32, spec.input.value_embedding = 8;
  spec.stack.mixer().query_dim = spec.stack.mixer().value_dim = 8;
  spec.image()->width = 5, spec.image()->height = 4, spec.input.max_length = 19;
  linnet::nn::SequenceModel model(spec);
  const torch::Tensor tokens = torch::randint(256, {3, 19}, torch::kInt64);
  model->forward(tokens).square().mean().backward();
  Check(model->parameters()[0].grad().defined(), "it has gradients");

  model->eval();
  torch::NoGradGuard no_grad;
  linnet::nn::SaveModel(path, *model, "{}");
  linnet::nn::SequenceModel loaded = linnet::nn::LoadModel(path);
  loaded->eval();
  const torch::Tensor batch = loaded->forward(tokens);
  linnet::nn::SequenceState state;
  for (int64_t t = 0; t < 19; ++t) {
    const torch::Tensor out = model->Step(tokens.select(1, t), t, state);
    Check((out - batch.select(1, t)).abs().max().item<float>() < 1e-4, "forward equals steps");
  }
}

}  // namespace

int main(int, char** argv) {
  KindFromOutside(argv[1]);
  RunPages();
  std::puts("ok");
}
