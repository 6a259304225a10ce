// Registers parameters and modules under names that contain dots, as in the checkpoints of other
// programs (private to linnet/nn).
//
//   RegisterAt(layer, "gk_proj.1.bias", torch::zeros({16}));
#ifndef LINNET_NN_REGISTER_AT_H_
#define LINNET_NN_REGISTER_AT_H_

#include <torch/nn/module.h>

#include <memory>
#include <string>

namespace linnet::nn {

// Splits `name` at its dots. Each part before the last is the name of a nested child module of
// `root`. Returns the innermost of these modules (root if there are none), and creates missing
// modules as empty ones.
inline torch::nn::Module& HolderOf(torch::nn::Module& root, const std::string& name) {
  const size_t dot = name.find('.');
  if (dot == std::string::npos) return root;
  const std::string first = name.substr(0, dot);
  const auto children = root.named_children();
  const auto* child = children.find(first);
  torch::nn::Module& next =
      child ? **child : *root.register_module(first, std::make_shared<torch::nn::Module>());
  return HolderOf(next, name.substr(dot + 1));
}

inline std::string LastPart(const std::string& name) { return name.substr(name.rfind('.') + 1); }

inline void RegisterAt(torch::nn::Module& root, const std::string& name,
                       const torch::Tensor& parameter) {
  HolderOf(root, name).register_parameter(LastPart(name), parameter);
}
inline void RegisterAt(torch::nn::Module& root, const std::string& name,
                       const std::shared_ptr<torch::nn::Module>& module) {
  HolderOf(root, name).register_module(LastPart(name), module);
}

}  // namespace linnet::nn

#endif  // LINNET_NN_REGISTER_AT_H_
