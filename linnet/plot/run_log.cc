#include "linnet/plot/run_log.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>

#include "linnet/error.h"
#include "linnet/io/file.h"

namespace linnet::plot {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// A record has a few metrics; a file with thousands is not a run.
constexpr size_t kMaxTracks = 1000;
constexpr double kMaxStep = 1e15;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

Track& TrackOf(RunLog& log, const std::string& name, size_t line) {
  for (Track& track : log.tracks) {
    if (track.name == name) return track;
  }
  if (log.tracks.size() == kMaxTracks) {
    throw InputError(log.path, ":", line, ": more than ", kMaxTracks,
                     " different metrics; check that this is the log of a training run");
  }
  log.tracks.push_back({.name = name});
  return log.tracks.back();
}

double Number(const Json& record, const char* name) {
  const auto found = record.find(name);
  return found != record.end() && found->is_number() ? found->get<double>() : kNaN;
}

std::string LogPath(const std::string& run) {
  std::error_code error;
  if (fs::is_directory(run, error)) {
    const std::string path = (fs::path(run) / "metrics.jsonl").string();
    if (fs::exists(path, error)) return path;
    throw InputError(path, ": no such file; name a folder that linnet train wrote");
  }
  if (fs::exists(run, error)) return run;
  throw InputError(run, ": no such run; name a run's folder or its metrics.jsonl");
}

}  // namespace

const Track* RunLog::Find(const std::string& name) const {
  const auto found =
      std::find_if(tracks.begin(), tracks.end(), [&](const Track& t) { return t.name == name; });
  return found == tracks.end() ? nullptr : &*found;
}

RunLog ReadRunLog(const std::string& run) {
  RunLog log;
  log.path = LogPath(run);
  const std::string text = ReadFile(log.path);
  size_t line = 0;
  for (size_t at = 0; at < text.size();) {
    ++line;
    const size_t end = std::min(text.find('\n', at), text.size());
    const Json record =
        Json::parse(std::string_view(text).substr(at, end - at), /*callback=*/nullptr,
                    /*allow_exceptions=*/false);
    at = end + 1;
    const double step = record.is_object() ? Number(record, "step") : kNaN;
    if (!(step >= 0 && step <= kMaxStep)) {
      if (record.is_discarded() && end == text.size()) break;  // an incomplete last line
      throw InputError(log.path, ":", line, ": not a record of a training run (a JSON object with ",
                       "a \"step\"); remove the line or name another file");
    }
    const double seconds = Number(record, "seconds");
    log.last_step = std::llround(step);
    if (log.records++ == 0) log.first_step = log.last_step;
    for (const auto& [name, value] : record.items()) {
      if (name == "step" || name == "seconds" || !(value.is_number() || value.is_null())) continue;
      Track& track = TrackOf(log, name, line);
      track.step.push_back(step);
      track.seconds.push_back(seconds);
      track.value.push_back(value.is_null() ? kNaN : value.get<double>());
    }
  }
  if (log.tracks.empty()) {
    throw InputError(log.path, log.records == 0
                                   ? ": holds no records yet; wait until the run writes one"
                                   : ": its records hold no metrics; name another run");
  }
  return log;
}

}  // namespace linnet::plot
