#include "linnet/server/snapshots.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "linnet/base/aligned.h"
#include "linnet/base/hash.h"
#include "linnet/engine.h"
#include "linnet/error.h"
#include "linnet/io/file.h"
#include "linnet/io/sha256.h"
#include "linnet/model/spec.h"
#include "linnet/server/snapshot_files.h"

namespace linnet::server {
namespace {

namespace fs = std::filesystem;

// Maximum number of pending writes. While so many are pending (on a slow disk), further snapshots
// get no file.
constexpr size_t kMostWaiting = 64;
// Maximum number of prefixes that Snapshots::seen_ holds: 2 MB, or 2 million tokens.
constexpr size_t kMostSeen = 1 << 16;
// Between the places where prompts part or end, prefixes of a multiple of this many tokens get a
// snapshot.
constexpr size_t kSpareTokens = 4 * Engine::kCutPositions;

size_t BytesOf(std::span<const int32_t> tokens, const Snapshot& snapshot) {
  return tokens.size() * sizeof(int32_t) + snapshot.state.bytes() +
         snapshot.outputs.size() * sizeof(float);
}

// Whether `name` has the form of a snapshot's name: 64 hexadecimal digits (NamesOf()).
bool IsName(const std::string& name) {
  return name.size() == 64 && name.find_first_not_of("0123456789abcdef") == name.npos;
}

}  // namespace

SnapshotFolder::SnapshotFolder(std::string folder, double most_bytes)
    : folder_(std::move(folder)), most_bytes_(most_bytes) {
  std::error_code error;
  fs::create_directories(folder_, error);
  fs::directory_iterator files(folder_, error);
  if (error) throw InputError(folder_, ": ", error.message(), "; give another folder");
  const auto is_mine = [](const std::string& name) {
    return IsSnapshotFile(name, IsName) || name == kProbe;
  };
  std::vector<fs::path> orphans;
  for (const fs::directory_entry& file : files) {
    if (IsOrphan(file, is_mine)) orphans.push_back(file.path());
    if (!IsSnapshotFile(file.path().filename(), IsName)) continue;
    const std::string stem = file.path().stem();
    files_[stem] = SnapshotBytes(BaseOf(stem));
  }
  for (const fs::path& orphan : orphans) fs::remove(orphan, error);
  AtomicFile probe(fs::path(folder_) / kProbe);  // throws if the folder is not writable
}

std::string SnapshotFolder::BaseOf(const std::string& name) const {
  return fs::path(folder_) / name;
}

bool SnapshotFolder::Has(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  return files_.contains(name);
}

void SnapshotFolder::Add(const std::string& name) {
  const double bytes = SnapshotBytes(BaseOf(name));
  const std::lock_guard lock(mutex_);
  if (bytes > 0) files_[name] = bytes;
  Trim();
}

void SnapshotFolder::Remove(const std::string& name) {
  const std::lock_guard lock(mutex_);
  files_.erase(name);
  RemoveSnapshot(BaseOf(name));
}

// Requires mutex_.
void SnapshotFolder::Trim() {
  double sum = 0;
  for (const auto& [name, bytes] : files_) sum += bytes;
  if (sum <= most_bytes_) return;
  std::vector<std::pair<fs::file_time_type, std::string>> by_age;
  std::error_code error;
  for (const auto& [name, bytes] : files_) {
    const auto time = fs::last_write_time(StateFile(BaseOf(name)), error);
    by_age.emplace_back(error ? fs::file_time_type::min() : time, name);
  }
  std::sort(by_age.begin(), by_age.end());
  // Frees space down to 90% of the limit, so that the folder is not scanned for every new file.
  for (const auto& [time, name] : by_age) {
    if (sum <= most_bytes_ * 0.9) break;
    sum -= files_[name];
    files_.erase(name);
    RemoveSnapshot(BaseOf(name));
  }
}

Snapshots::Snapshots(std::shared_ptr<const Model> model, const SnapshotOptions& options)
    : model_(std::move(model)), options_(options) {
  if (options_.folder) writer_ = std::thread([this] { WriteLoop(); });
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

std::vector<uint64_t> Snapshots::KeysOf(std::span<const int32_t> tokens, uint64_t owner) {
  std::vector<uint64_t> keys;
  uint64_t key = owner;
  for (size_t at = 0; at < tokens.size(); at += Engine::kCutPositions) {
    const size_t count = std::min(Engine::kCutPositions, tokens.size() - at);
    key = Hash(std::as_bytes(tokens.subspan(at, count)), key);
    keys.push_back(key);
  }
  return keys;
}

size_t Snapshots::Remember(std::span<const uint64_t> keys) {
  size_t parted = 0;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (parted == i && (seen_.contains(keys[i]) || seen_before_.contains(keys[i]))) ++parted;
    if (seen_.size() >= kMostSeen) seen_before_ = std::exchange(seen_, {});
    seen_.insert(keys[i]);
  }
  return parted * Engine::kCutPositions;
}

std::vector<Snapshots::Stop> Snapshots::StopsOf(size_t known, size_t parted, size_t length) const {
  std::map<size_t, Use> uses;
  for (size_t at = RoundUp(known, kSpareTokens); at < length; at += kSpareTokens) {
    uses[at] = Use::kSpare;
  }
  uses[parted] = uses[length / Engine::kCutPositions * Engine::kCutPositions] = Use::kLikely;
  std::vector<Stop> stops;
  for (const auto& [at, use] : uses) {
    if (at > known && at >= options_.from && at < length) stops.push_back({at, use});
  }
  return stops;
}

Snapshots::Found Snapshots::Find(std::span<const int32_t> prompt, uint64_t owner) {
  if (prompt.empty()) return {};
  const std::vector<uint64_t> keys = KeysOf(prompt, owner);
  const std::vector<std::string> names = NamesOf(prompt, owner);
  const size_t parted = Remember(std::span(keys).first(prompt.size() / Engine::kCutPositions));
  const auto get = [&](size_t length, size_t i) {
    return Get(prompt.first(length), keys[i], names.empty() ? nullptr : &names[i]);
  };
  if (auto whole = get(prompt.size(), keys.size() - 1); whole && !whole->outputs.empty()) {
    return {prompt.size(), std::move(whole), {}};
  }
  for (size_t i = (prompt.size() - 1) / Engine::kCutPositions; i > 0; --i) {
    const size_t length = i * Engine::kCutPositions;
    if (auto part = get(length, i - 1)) {
      return {length, std::move(part), StopsOf(length, parted, prompt.size())};
    }
  }
  return {0, nullptr, StopsOf(0, parted, prompt.size())};
}

std::optional<Snapshots::Recent::iterator> Snapshots::InMemory(std::span<const int32_t> tokens,
                                                               uint64_t key) {
  const auto [begin, end] = index_.equal_range(key);
  for (auto it = begin; it != end; ++it) {
    if (std::equal(tokens.begin(), tokens.end(), it->second->tokens.begin(),
                   it->second->tokens.end())) {
      return it->second;
    }
  }
  return {};
}

std::shared_ptr<const Snapshot> Snapshots::Get(std::span<const int32_t> tokens, uint64_t key,
                                               const std::string* name) {
  if (const auto found = InMemory(tokens, key)) {
    const Recent::iterator entry = *found;
    likely_.splice(likely_.begin(), entry->use == Use::kLikely ? likely_ : spare_, entry);
    entry->use = Use::kLikely;  // prompts part here
    return entry->snapshot;
  }
  return name != nullptr ? Load(tokens, key, *name) : nullptr;
}

void Snapshots::Keep(std::span<const int32_t> prefix, std::shared_ptr<const Snapshot> snapshot,
                     Use use, uint64_t owner) {
  const uint64_t key = KeysOf(prefix, owner).back();
  // An existing snapshot stays, unless it lacks outputs that the new one has.
  if (const auto found = InMemory(prefix, key);
      found && (snapshot->outputs.empty() || !(*found)->snapshot->outputs.empty())) {
    return;
  }
  if (options_.folder && prefix.size() >= options_.folder_from) {
    std::string name = NameOf(prefix, owner);
    const std::lock_guard lock(mutex_);
    const size_t most = use == Use::kLikely ? kMostWaiting : kMostWaiting / 2;
    if (to_write_.size() < most) to_write_.emplace_back(std::move(name), snapshot);
    wake_.notify_all();
  }
  Insert(prefix, key, std::move(snapshot), use);
}

void Snapshots::Insert(std::span<const int32_t> tokens, uint64_t key,
                       std::shared_ptr<const Snapshot> snapshot, Use use) {
  const size_t bytes = BytesOf(tokens, *snapshot);
  if (static_cast<double>(bytes) > options_.bytes) return;
  if (const auto found = InMemory(tokens, key)) Drop(*found);
  while (static_cast<double>(bytes_ + bytes) > options_.bytes) {
    Drop(std::prev(spare_.empty() ? likely_.end() : spare_.end()));
    ++evictions_;
  }
  Recent& recent = use == Use::kLikely ? likely_ : spare_;
  recent.push_front({{tokens.begin(), tokens.end()}, std::move(snapshot), bytes, use, key});
  index_.emplace(key, recent.begin());
  bytes_ += bytes;
  count_ = index_.size();
}

void Snapshots::Drop(Recent::iterator entry) {
  bytes_ -= entry->bytes;
  const auto [begin, end] = index_.equal_range(entry->key);
  index_.erase(std::find_if(begin, end, [&](const auto& pair) { return pair.second == entry; }));
  (entry->use == Use::kLikely ? likely_ : spare_).erase(entry);
  count_ = index_.size();
}

Sha256 Snapshots::HashOfModel(uint64_t owner) const {
  // Where the engine cuts is part of the name, because the bits of a state depend on it.
  const uint64_t origin[] = {model_->fingerprint(), Engine::kCutPositions};
  Sha256 hash;
  hash.Update(std::as_bytes(std::span(origin)));
  if (owner != 0) hash.Update(std::as_bytes(std::span(&owner, 1)));
  return hash;
}

std::string Snapshots::NameOf(std::span<const int32_t> tokens, uint64_t owner) const {
  Sha256 hash = HashOfModel(owner);
  hash.Update(std::as_bytes(tokens));
  return hash.Hex();
}

std::vector<std::string> Snapshots::NamesOf(std::span<const int32_t> tokens, uint64_t owner) const {
  if (!options_.folder) return {};
  Sha256 hash = HashOfModel(owner);
  std::vector<std::string> names;
  for (size_t at = 0; at < tokens.size(); at += Engine::kCutPositions) {
    hash.Update(
        std::as_bytes(tokens.subspan(at, std::min(Engine::kCutPositions, tokens.size() - at))));
    names.push_back(hash.Hex());
  }
  return names;
}

// Upper bound of the size of the state's file after a prompt of this many tokens. A cache grows by
// half when it is full, so it may have room for more positions than the prompt has tokens.
size_t Snapshots::MostStateBytes(size_t tokens) const {
  constexpr size_t kHeader = 1 << 16;
  const auto length = static_cast<size_t>(model_->spec().input.max_length);
  return StateBytes(model_->spec(), model_->precision()) * (2 + 2 * tokens / length) + kHeader;
}

std::shared_ptr<const Snapshot> Snapshots::Load(std::span<const int32_t> tokens, uint64_t key,
                                                const std::string& name) {
  if (tokens.size() < options_.folder_from) return nullptr;
  if (!options_.folder->Has(name)) return nullptr;
  const std::string base = options_.folder->BaseOf(name);
  std::error_code error;
  try {
    Snapshot snapshot = ReadSnapshot(base, *model_, MostStateBytes(tokens.size()));
    if (snapshot.state.position() != tokens.size()) throw InputError(base, ": of another prompt");
    fs::last_write_time(StateFile(base), fs::file_time_type::clock::now(), error);
    auto shared = std::make_shared<const Snapshot>(std::move(snapshot));
    Insert(tokens, key, shared, Use::kLikely);
    return shared;
  } catch (const Error&) {  // a damaged or deleted file: the model reads the prompt again
    options_.folder->Remove(name);
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
      WriteSnapshot(options_.folder->BaseOf(name), *snapshot, *model_);
    } catch (const std::exception&) {  // such as a full disk: only this snapshot is lost
    }
    options_.folder->Add(name);
    lock.lock();
    writing_ = false;
    idle_.notify_all();
  }
}

void Snapshots::Flush() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [&] { return !writer_.joinable() || (to_write_.empty() && !writing_); });
}

}  // namespace linnet::server
