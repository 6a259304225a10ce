#include "linnet/server/snapshots.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "linnet/base/hash.h"
#include "linnet/error.h"
#include "linnet/io/file.h"
#include "linnet/io/sha256.h"
#include "linnet/model/spec.h"
#include "linnet/scheduler.h"

namespace linnet::server {
namespace {

namespace fs = std::filesystem;

constexpr char kState[] = ".state", kOutputs[] = ".outputs", kProbe[] = "probe";
// Maximum number of pending writes. While so many are pending (on a slow disk), further snapshots
// get no file.
constexpr size_t kMostWaiting = 64;

size_t BytesOf(const std::vector<int32_t>& tokens, const Snapshot& snapshot) {
  return tokens.size() * sizeof(int32_t) + snapshot.state.bytes() +
         snapshot.outputs.size() * sizeof(float);
}

// Whether `name` has the form of a snapshot's name: 64 hexadecimal digits (NameOf()).
bool IsName(const std::string& name) {
  return name.size() == 64 && name.find_first_not_of("0123456789abcdef") == name.npos;
}

// The bytes of a snapshot's two files.
double FileBytes(const fs::path& base) {
  double sum = 0;
  for (const char* part : {kState, kOutputs}) {
    struct stat info;
    if (lstat((base.string() + part).c_str(), &info) == 0 && S_ISREG(info.st_mode)) {
      sum += static_cast<double>(info.st_size);
    }
  }
  return sum;
}

const fs::file_time_type process_start = fs::file_time_type::clock::now();

// Whether the file is a temporary file (AtomicFile) whose process has ended, so that nobody will
// rename or remove it. The file's name ends with the id of the process. If a process with this id
// runs but the file is older than an hour, another process has reused the id, because writing a
// file takes far less than an hour.
bool IsOrphan(const fs::directory_entry& file) {
  const std::string name = file.path().filename();
  constexpr std::string_view kTemporary = ".tmp.";
  const size_t end = name.rfind(kTemporary);
  if (end == name.npos) return false;
  const fs::path target = name.substr(0, end);
  const bool mine =
      IsName(target.stem()) && (target.extension() == kState || target.extension() == kOutputs);
  int process = 0;
  const char* const last = name.data() + name.size();
  const auto [stop, fault] = std::from_chars(name.data() + end + kTemporary.size(), last, process);
  if ((!mine && target != kProbe) || fault != std::errc() || stop != last || process <= 0) {
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

}  // namespace

size_t Snapshots::HashOf::operator()(const std::vector<int32_t>& tokens) const {
  return Hash(std::as_bytes(std::span(tokens)));
}

Snapshots::Snapshots(std::shared_ptr<const Model> model, const SnapshotOptions& options)
    : model_(std::move(model)), options_(options) {
  if (options_.folder.empty()) return;
  std::error_code error;
  fs::create_directories(options_.folder, error);
  fs::directory_iterator files(options_.folder, error);
  if (error) throw InputError(options_.folder, ": ", error.message(), "; give another folder");
  std::vector<fs::path> orphans;
  for (const fs::directory_entry& file : files) {
    // Considers only names that this class writes; other files stay untouched.
    if (IsOrphan(file)) orphans.push_back(file.path());
    const std::string stem = file.path().stem(), part = file.path().extension();
    if (!IsName(stem) || (part != kState && part != kOutputs)) continue;
    files_[stem] = FileBytes(fs::path(options_.folder) / stem);
  }
  for (const fs::path& orphan : orphans) fs::remove(orphan, error);
  AtomicFile probe(fs::path(options_.folder) / kProbe);  // throws if the folder is not writable
  writer_ = std::thread([this] { WriteLoop(); });
}

Snapshots::~Snapshots() {
  if (!writer_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  writer_.join();
}

Snapshots::Found Snapshots::Find(std::span<const int32_t> prompt) {
  if (prompt.empty()) return {};
  if (auto whole = Get(prompt); whole && !whole->outputs.empty()) {
    return {prompt.size(), std::move(whole)};
  }
  for (size_t length = (prompt.size() - 1) / Scheduler::kPiece * Scheduler::kPiece; length > 0;
       length -= Scheduler::kPiece) {
    if (auto part = Get(prompt.first(length))) return {length, std::move(part)};
  }
  return {};
}

std::shared_ptr<const Snapshot> Snapshots::Get(std::span<const int32_t> tokens) {
  const auto found = index_.find({tokens.begin(), tokens.end()});
  if (found == index_.end()) return Load(tokens);
  recent_.splice(recent_.begin(), recent_, found->second);
  return recent_.front().snapshot;
}

void Snapshots::Keep(std::span<const int32_t> prefix, std::shared_ptr<const Snapshot> snapshot) {
  std::vector<int32_t> tokens(prefix.begin(), prefix.end());
  const auto found = index_.find(tokens);
  // An existing snapshot stays, unless it lacks outputs that the new one has.
  if (found != index_.end() &&
      (snapshot->outputs.empty() || !found->second->snapshot->outputs.empty())) {
    return;
  }
  if (!options_.folder.empty() && prefix.size() >= options_.folder_from) {
    std::string name = NameOf(prefix);
    const std::lock_guard lock(mutex_);
    if (to_write_.size() < kMostWaiting) to_write_.emplace_back(std::move(name), snapshot);
    wake_.notify_all();
  }
  Insert(std::move(tokens), std::move(snapshot));
}

void Snapshots::Insert(std::vector<int32_t> tokens, std::shared_ptr<const Snapshot> snapshot) {
  const auto drop = [&](Recent::iterator entry) {
    bytes_ -= entry->bytes;
    index_.erase(entry->tokens);
    recent_.erase(entry);
  };
  const size_t bytes = BytesOf(tokens, *snapshot);
  if (static_cast<double>(bytes) > options_.bytes) return;
  if (const auto found = index_.find(tokens); found != index_.end()) drop(found->second);
  while (static_cast<double>(bytes_ + bytes) > options_.bytes) drop(std::prev(recent_.end()));
  recent_.push_front({tokens, std::move(snapshot), bytes});
  index_.emplace(std::move(tokens), recent_.begin());
  bytes_ += bytes;
  count_ = recent_.size();
}

// A snapshot has the file NAME.state and, if it has outputs, NAME.outputs (the floats, then their
// hash). Write() writes NAME.outputs first, so that NAME.state exists only for complete snapshots.

std::string Snapshots::NameOf(std::span<const int32_t> tokens) const {
  const uint64_t model = model_->fingerprint();
  Sha256 hash;
  hash.Update(std::as_bytes(std::span(&model, 1)));
  hash.Update(std::as_bytes(tokens));
  return hash.Hex();
}

// Upper bound of the size of the state's file after a prompt of this many tokens. A cache grows by
// half when it is full, so it may have room for more positions than the prompt has tokens.
size_t Snapshots::MostStateBytes(size_t tokens) const {
  constexpr size_t kHeader = 1 << 16;
  const auto length = static_cast<size_t>(model_->spec().input.max_length);
  return StateBytes(model_->spec(), model_->precision()) * (2 + 2 * tokens / length) + kHeader;
}

std::shared_ptr<const Snapshot> Snapshots::Load(std::span<const int32_t> tokens) {
  if (options_.folder.empty() || tokens.size() < options_.folder_from) return nullptr;
  const std::string name = NameOf(tokens);
  {
    const std::lock_guard lock(mutex_);
    if (!files_.contains(name)) return nullptr;
  }
  const fs::path base = fs::path(options_.folder) / name;
  std::error_code error;
  try {
    const std::string state =
        ReadRegularFile(base.string() + kState, MostStateBytes(tokens.size()));
    Snapshot snapshot(
        State::FromBytes(std::as_bytes(std::span(state)), base.string() + kState, *model_));
    if (snapshot.state.batch() != 1 || snapshot.state.position() != tokens.size()) {
      throw InputError(base.string(), ": of another prompt");
    }
    if (fs::exists(fs::symlink_status(base.string() + kOutputs, error))) {
      std::vector<float> outputs(static_cast<size_t>(model_->spec().OutputSize()));
      const auto bytes = std::as_writable_bytes(std::span(outputs));
      uint64_t checksum = 0;
      const size_t size = bytes.size() + sizeof(checksum);
      const std::string read = ReadRegularFile(base.string() + kOutputs, size);
      if (read.size() != size) throw InputError(base.string(), ": cut short");
      std::memcpy(bytes.data(), read.data(), bytes.size());
      std::memcpy(&checksum, read.data() + bytes.size(), sizeof(checksum));
      if (checksum != Hash(bytes)) throw InputError(base.string(), ": is damaged");
      snapshot.outputs = std::move(outputs);
    }
    fs::last_write_time(base.string() + kState, fs::file_time_type::clock::now(), error);
    auto shared = std::make_shared<const Snapshot>(std::move(snapshot));
    Insert({tokens.begin(), tokens.end()}, shared);
    return shared;
  } catch (const Error&) {  // a damaged or deleted file: the model reads the prompt again
    const std::lock_guard lock(mutex_);
    files_.erase(name);
    fs::remove(base.string() + kState, error);
    fs::remove(base.string() + kOutputs, error);
    return nullptr;
  }
}

void Snapshots::WriteLoop() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return stop_ || !to_write_.empty(); });
    if (to_write_.empty()) return;
    const auto [name, snapshot] = std::move(to_write_.front());
    to_write_.pop_front();
    writing_ = true;
    lock.unlock();
    try {
      Write(name, *snapshot);
    } catch (const std::exception&) {  // such as a full disk: only this snapshot is lost
    }
    const double bytes = FileBytes(fs::path(options_.folder) / name);
    lock.lock();
    if (bytes > 0) files_[name] = bytes;
    Trim();
    writing_ = false;
    idle_.notify_all();
  }
}

void Snapshots::Write(const std::string& name, const Snapshot& snapshot) {
  const fs::path base = fs::path(options_.folder) / name;
  if (!snapshot.outputs.empty()) {
    const auto outputs = std::as_bytes(std::span(snapshot.outputs));
    const uint64_t checksum = Hash(outputs);
    std::vector<std::byte> bytes(outputs.size() + sizeof(checksum));
    std::memcpy(bytes.data(), outputs.data(), outputs.size());
    std::memcpy(bytes.data() + outputs.size(), &checksum, sizeof(checksum));
    WriteFileAtomically(base.string() + kOutputs, bytes);
  }
  snapshot.state.Save(base.string() + kState, *model_);
}

// Deletes the oldest snapshots if the files exceed options.folder_bytes. Requires mutex_.
void Snapshots::Trim() {
  double sum = 0;
  for (const auto& [name, bytes] : files_) sum += bytes;
  if (sum <= options_.folder_bytes) return;
  std::vector<std::pair<fs::file_time_type, std::string>> by_age;
  std::error_code error;
  for (const auto& [name, bytes] : files_) {
    const auto time = fs::last_write_time(fs::path(options_.folder) / (name + kState), error);
    by_age.emplace_back(error ? fs::file_time_type::min() : time, name);
  }
  std::sort(by_age.begin(), by_age.end());
  // Frees space down to 90% of the limit, so that the folder is not scanned for every new file.
  for (const auto& [time, name] : by_age) {
    if (sum <= options_.folder_bytes * 0.9) break;
    sum -= files_[name];
    files_.erase(name);
    fs::remove(fs::path(options_.folder) / (name + kState), error);
    fs::remove(fs::path(options_.folder) / (name + kOutputs), error);
  }
}

void Snapshots::Flush() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [&] { return !writer_.joinable() || (to_write_.empty() && !writing_); });
}

}  // namespace linnet::server
