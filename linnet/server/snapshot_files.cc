#include "linnet/server/snapshot_files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "linnet/base/hash.h"
#include "linnet/error.h"
#include "linnet/io/file.h"
#include "linnet/model/spec.h"

namespace linnet::server {
namespace {

namespace fs = std::filesystem;

constexpr char kState[] = ".state", kOutputs[] = ".outputs";

const fs::file_time_type process_start = fs::file_time_type::clock::now();

}  // namespace

std::string StateFile(const std::string& base) { return base + kState; }

void WriteSnapshot(const std::string& base, const Snapshot& snapshot, const Model& model) {
  if (!snapshot.outputs.empty()) {
    const auto outputs = std::as_bytes(std::span(snapshot.outputs));
    const uint64_t checksum = Hash(outputs);
    std::vector<std::byte> bytes(outputs.size() + sizeof(checksum));
    std::memcpy(bytes.data(), outputs.data(), outputs.size());
    std::memcpy(bytes.data() + outputs.size(), &checksum, sizeof(checksum));
    WriteFileAtomically(base + kOutputs, bytes);
  }
  snapshot.state.Save(base + kState, model);
}

Snapshot ReadSnapshot(const std::string& base, const Model& model, size_t most) {
  const std::string state = ReadRegularFile(base + kState, most);
  Snapshot snapshot(State::FromBytes(std::as_bytes(std::span(state)), base + kState, model));
  if (snapshot.state.batch() != 1) {
    throw InputError(base, kState, ": has ", snapshot.state.batch(), " sequences instead of one");
  }
  std::error_code error;
  if (!fs::exists(fs::symlink_status(base + kOutputs, error))) return snapshot;
  std::vector<float> outputs(static_cast<size_t>(model.spec().OutputSize()));
  const auto bytes = std::as_writable_bytes(std::span(outputs));
  uint64_t checksum = 0;
  const size_t size = bytes.size() + sizeof(checksum);
  const std::string read = ReadRegularFile(base + kOutputs, size);
  if (read.size() != size) throw InputError(base, kOutputs, ": is cut short");
  std::memcpy(bytes.data(), read.data(), bytes.size());
  std::memcpy(&checksum, read.data() + bytes.size(), sizeof(checksum));
  if (checksum != Hash(bytes)) throw InputError(base, kOutputs, ": is damaged");
  snapshot.outputs = std::move(outputs);
  return snapshot;
}

bool RemoveSnapshot(const std::string& base) {
  bool left = false;
  for (const char* part : {kState, kOutputs}) {
    std::error_code error;
    fs::remove(base + part, error);
    left = left || error;
  }
  return !left;
}

double SnapshotBytes(const std::string& base) {
  double sum = 0;
  for (const char* part : {kState, kOutputs}) {
    struct stat info;
    if (lstat((base + part).c_str(), &info) == 0 && S_ISREG(info.st_mode)) {
      sum += static_cast<double>(info.st_size);
    }
  }
  return sum;
}

bool IsSnapshotFile(const std::string& name, FunctionRef<bool(const std::string&)> is_stem) {
  const fs::path path = name;
  return is_stem(path.stem()) && (path.extension() == kState || path.extension() == kOutputs);
}

// The file's name ends with the id of the process and the number of the file (see AtomicFile). If a
// process with this id runs but the file is older than an hour, another process has reused the id,
// because writing a file takes far less than an hour.
bool IsOrphan(const fs::directory_entry& file, FunctionRef<bool(const std::string&)> is_mine) {
  const std::string name = file.path().filename();
  constexpr std::string_view kTemporary = ".tmp.";
  const size_t end = name.rfind(kTemporary);
  if (end == name.npos || !is_mine(name.substr(0, end))) return false;
  int process = 0;
  const char* const last = name.data() + name.size();
  const auto [stop, fault] = std::from_chars(name.data() + end + kTemporary.size(), last, process);
  if (fault != std::errc() || process <= 0) return false;
  const std::string_view number(stop, last);
  if (!number.starts_with(".") || number.find_first_not_of("0123456789", 1) != number.npos) {
    return false;
  }
  std::error_code error;
  const fs::file_time_type written = file.last_write_time(error);
  if (error) return false;
  // In a restarted container, ids begin at 1 again, so an earlier process may have had this
  // process's id.
  if (process == getpid()) return written < process_start;
  return (kill(process, 0) != 0 && errno == ESRCH) ||
         written < fs::file_time_type::clock::now() - std::chrono::hours(1);
}

}  // namespace linnet::server
