#include "linnet/base/suggestion.h"

#include <algorithm>
#include <cstddef>

namespace linnet {
namespace {

// The least number of insertions, deletions, replacements and swaps of neighboring bytes that turns
// `a` into `b`.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> cost(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      size_t& best = cost[i][j];
      if (i == 0 || j == 0) {
        best = i + j;
        continue;
      }
      best = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1,
                       cost[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        best = std::min(best, cost[i - 2][j - 2] + 1);
      }
    }
  }
  return cost[a.size()][b.size()];
}

}  // namespace

std::string Suggestion(std::string_view given, const std::vector<std::string>& names) {
  std::string best;
  size_t least = std::max<size_t>(2, given.size() / 3) + 1;  // only a smaller distance qualifies
  for (const std::string& name : names) {
    // The difference in length is a lower bound on the distance. Testing it first saves work for a
    // long `given`.
    const size_t longer = std::max(given.size(), name.size());
    if (longer - std::min(given.size(), name.size()) >= least) continue;
    const size_t distance = EditDistance(given, name);
    if (distance < least) best = name, least = distance;
  }
  return best.empty() ? "" : "; did you mean '" + best + "'?";
}

}  // namespace linnet
