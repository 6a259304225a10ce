// Constructors by name: the library's own, and those that a program adds.
#ifndef LINNET_NN_REGISTRY_H_
#define LINNET_NN_REGISTRY_H_

#include <initializer_list>
#include <map>
#include <mutex>
#include <string>

#include "linnet/base/error.h"

namespace linnet::nn {

// Kind is a struct {name, make}, make a pointer to a function.
template <typename Kind>
class Registry {
 public:
  using Make = decltype(Kind::make);

  Registry(std::initializer_list<Kind> kinds) {
    for (const Kind& kind : kinds) Add(kind.name, kind.make);
  }

  void Add(const std::string& name, Make make) {
    const std::lock_guard lock(mutex_);
    if (!makes_.emplace(name, make).second) throw InputError("there is a '", name, "' already");
  }

  Make Find(const std::string& name) const {
    const std::lock_guard lock(mutex_);
    const auto found = makes_.find(name);
    if (found == makes_.end()) throw InputError("'", name, "' is known but not built");
    return found->second;
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, Make> makes_;
};

}  // namespace linnet::nn

#endif  // LINNET_NN_REGISTRY_H_
