// A table with one named row for each mixer, or for each feature map: the library's own rows, and
// rows that a program adds.
#ifndef LINNET_MODEL_REGISTRY_H_
#define LINNET_MODEL_REGISTRY_H_

#include <iterator>
#include <list>
#include <mutex>
#include <string>
#include <vector>

#include "linnet/error.h"
#include "linnet/io/json.h"

namespace linnet {

// Row has a member `name`. Thread-safe.
template <typename Row>
class Registry {
 public:
  Registry(const char* what, std::vector<Row> rows)
      : what_(what),
        rows_(std::make_move_iterator(rows.begin()), std::make_move_iterator(rows.end())) {}

  std::vector<Row> all() const {
    const std::lock_guard lock(mutex_);
    return {rows_.begin(), rows_.end()};
  }

  // The reference stays valid as long as the registry exists. For an unknown name, throws
  // InputError with a list of the known names.
  const Row& Find(const std::string& name) const {
    const std::lock_guard lock(mutex_);
    for (const Row& row : rows_) {
      if (name == row.name) return row;
    }
    std::string known;
    for (const Row& row : rows_) known += StrCat(known.empty() ? "" : ", ", row.name);
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
  const char* const what_;  // what a row describes, for messages: "feature map"
  mutable std::mutex mutex_;
  std::list<Row> rows_;  // a list never moves its elements: references from Find() stay valid
};

}  // namespace linnet

#endif  // LINNET_MODEL_REGISTRY_H_
