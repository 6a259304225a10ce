// A registry of named rows: those of the library, and those that a program adds.
#ifndef LINNET_MODEL_REGISTRY_H_
#define LINNET_MODEL_REGISTRY_H_

#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "linnet/error.h"
#include "linnet/io/json.h"

namespace linnet {

// Row has a member `name`. Thread-safe.
template <typename Row>
class Registry {
 public:
  Registry(const char* what, std::vector<Row> rows) : what_(what), rows_(std::move(rows)) {}

  std::vector<Row> all() const {
    const std::lock_guard lock(mutex_);
    return rows_;
  }

  // For an unknown name, throws InputError with a list of the known names.
  Row Find(const std::string& name) const {
    std::string known;
    for (const Row& row : all()) {
      if (name == row.name) return row;
      known += StrCat(known.empty() ? "" : ", ", row.name);
    }
    throw InputError("unknown ", what_, " ", Quote(name), "; choose one of ", known);
  }

  // Throws InputError if the name is taken.
  void Add(const Row& row) {
    const std::lock_guard lock(mutex_);
    for (const Row& other : rows_) {
      if (other.name == row.name) {
        throw InputError("the ", what_, " ", Quote(row.name), " exists already");
      }
    }
    rows_.push_back(row);
  }

 private:
  const char* const what_;
  mutable std::mutex mutex_;
  std::vector<Row> rows_;
};

}  // namespace linnet

#endif  // LINNET_MODEL_REGISTRY_H_
