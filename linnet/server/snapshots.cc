#include "linnet/server/snapshots.h"

#include <algorithm>
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

constexpr char kState[] = ".state", kOutputs[] = ".outputs";
// Maximum number of pending writes; on a slow disk further snapshots are not written.
constexpr size_t kMostWaiting = 64;

size_t BytesOf(const std::vector<int32_t>& tokens, const Snapshot& snapshot) {
  return tokens.size() * sizeof(int32_t) + snapshot.state.bytes() +
         snapshot.outputs.size() * sizeof(float);
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
  for (const fs::directory_entry& file : files) {
    // Considers only names that this class writes; other files stay untouched.
    const std::string stem = file.path().stem();
    const bool mine = stem.size() == 64 && stem.find_first_not_of("0123456789abcdef") == stem.npos;
    if (!mine || file.path().extension() != kState) continue;
    const auto bytes = file.file_size(error);
    if (!error) files_[file.path().stem()] = static_cast<double>(bytes);
  }
  AtomicFile probe(fs::path(options_.folder) / "probe");  // throws if the folder is not writable
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
  // An existing snapshot is just as good, unless it lacks outputs.
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

// Files: NAME.state, and NAME.outputs (followed by a hash of them) if there are outputs. The
// outputs are written first.

std::string Snapshots::NameOf(std::span<const int32_t> tokens) const {
  const uint64_t model = model_->fingerprint();
  Sha256 hash;
  hash.Update(std::as_bytes(std::span(&model, 1)));
  hash.Update(std::as_bytes(tokens));
  return hash.Hex();
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
    Snapshot snapshot(State::Load(base.string() + kState, *model_));
    if (snapshot.state.batch() != 1 || snapshot.state.position() != tokens.size()) {
      throw InputError(base.string(), ": of another prompt");
    }
    if (fs::exists(base.string() + kOutputs, error)) {
      const std::string bytes = ReadFile(base.string() + kOutputs);
      snapshot.outputs.resize(static_cast<size_t>(model_->spec().OutputSize()));
      const auto outputs = std::as_writable_bytes(std::span(snapshot.outputs));
      uint64_t checksum = 0;
      if (bytes.size() != outputs.size() + sizeof(checksum)) {
        throw InputError(base.string(), ": cut short");
      }
      std::memcpy(outputs.data(), bytes.data(), outputs.size());
      std::memcpy(&checksum, bytes.data() + outputs.size(), sizeof(checksum));
      if (checksum != Hash(outputs)) throw InputError(base.string(), ": is damaged");
    }
    fs::last_write_time(base.string() + kState, fs::file_time_type::clock::now(), error);
    auto shared = std::make_shared<const Snapshot>(std::move(snapshot));
    Insert({tokens.begin(), tokens.end()}, shared);
    return shared;
  } catch (const Error&) {  // damaged or deleted: the prompt is read again
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
      lock.lock();
      files_[name] = static_cast<double>(snapshot->state.bytes());
    } catch (const std::exception&) {  // a full disk costs only this snapshot
      if (!lock.owns_lock()) lock.lock();
    }
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

// Requires mutex_.
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
  // Frees a tenth more than needed, so that the folder is not scanned for every new file.
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
