#include "linnet/server/state_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <random>
#include <system_error>
#include <utility>

#include "linnet/base/units.h"
#include "linnet/base/utf8.h"
#include "linnet/error.h"
#include "linnet/io/file.h"
#include "linnet/model/spec.h"
#include "linnet/server/snapshot_files.h"

namespace linnet::server {
namespace {

namespace fs = std::filesystem;

constexpr size_t kLongest = 64;        // characters of a name
constexpr size_t kMostPending = 256;   // states that are being written
constexpr char kFolder[] = ".states";  // the states of MODEL are in FOLDER/MODEL.states
constexpr char kClaim[] = ".claim";

bool IsStateName(const std::string& name) {
  return !name.empty() && name.size() <= kLongest && name[0] != '.' &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return c < 128 && (std::isalnum(c) || c == '.' || c == '_' || c == '-');
         });
}

Refusal None(const std::string& name) {
  return {404, StrCat("no state ", Quote(name), "; GET /v1/states lists the states")};
}

// Upper bound of the bytes of a new state's files. (A cache may have grown beyond it.)
double FileBytes(const Model& model) {
  constexpr size_t kHeaders = 1 << 13;
  return static_cast<double>(StateBytes(model.spec(), model.precision()) + kHeaders) +
         sizeof(float) * static_cast<double>(model.spec().OutputSize());
}

// Upper bound of the bytes to read of a file of `bytes` bytes. Damaged files may have any size.
size_t MostBytes(const Model& model, double bytes) {
  if (StateKindOf(model) != StateKind::kConstant) return static_cast<size_t>(bytes);  // it grows
  return static_cast<size_t>(std::min(bytes, FileBytes(model)));
}

}  // namespace

// The right to write or remove the files of a name, which no other store has at the same time. On
// file systems without locks, it holds in this store only.
class StateStore::Claim {
 public:
  Claim(StateStore* store, std::string name, std::string path, int file)
      : store_(store), name_(std::move(name)), path_(std::move(path)), file_(file) {}
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;
  ~Claim() {
    struct stat mine = {}, there = {};  // the path may lead to another file in the meantime
    if (file_ >= 0 && fstat(file_, &mine) == 0 && lstat(path_.c_str(), &there) == 0 &&
        mine.st_ino == there.st_ino && mine.st_dev == there.st_dev) {
      unlink(path_.c_str());
    }
    if (file_ >= 0) close(file_);
    const std::lock_guard lock(store_->mutex_);
    store_->taken_.erase(name_);
  }

 private:
  StateStore* store_;
  std::string name_, path_;
  int file_;  // -1: none
};

struct StateStore::Ticket {
  StateStore* store;
  double bytes = 0;
  std::unique_ptr<Claim> claim = {};

  explicit Ticket(StateStore* of) : store(of) {}
  Ticket(const Ticket&) = delete;
  Ticket& operator=(const Ticket&) = delete;
  ~Ticket() {
    const std::lock_guard lock(store->mutex_);
    store->reserved_ -= bytes;
  }
};

StateStore::StateStore(const StateStoreOptions& options) : options_(options) {
  MakeFolder(options_.folder);
  try {
    Lock();
    AtomicFile probe(fs::path(options_.folder) / kProbe);  // throws if the folder is not writable
    RefreshAll();
  } catch (const fs::filesystem_error& error) {
    close(lock_);
    throw InputError(options_.folder, ": ", error.code().message(), "; give another folder");
  } catch (...) {
    close(lock_);
    throw;
  }
  writer_ = std::thread([this] { WriteLoop(); });
}

// Takes a shared lock of the folder. If no other store has one, which the exclusive lock shows,
// sweeps before. On file systems without locks, flock() fails with other errors than EWOULDBLOCK.
void StateStore::Lock() {
  const std::string path = fs::path(options_.folder) / "lock";
  lock_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (lock_ < 0) {
    throw InputError(path, ": ", std::system_category().message(errno), "; give another folder");
  }
  if (flock(lock_, LOCK_EX | LOCK_NB) == 0) Sweep();
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (flock(lock_, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    if (std::chrono::steady_clock::now() > end) {  // no store sweeps that long
      throw InputError(options_.folder, ": another program has locked ", path);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

StateStore::~StateStore() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  writer_.join();
  close(lock_);
}

void StateStore::Sweep() const {
  std::vector<fs::path> orphans;
  std::error_code error;
  for (const fs::directory_entry& file : fs::directory_iterator(options_.folder)) {
    if (file.path().extension() == kClaim && IsStateName(file.path().stem())) {
      orphans.push_back(file.path());
    }
  }
  const auto is_mine = [](const std::string& name) { return IsSnapshotFile(name, IsStateName); };
  for (const auto& [model, folder] : ModelFolders()) {
    for (const fs::directory_entry& file : FilesIn(folder)) {
      const std::string name = file.path().filename();
      const std::string state = StateFile(fs::path(folder) / file.path().stem());
      // Outputs without a state were about to get one.
      const bool outputs = is_mine(name) && fs::is_regular_file(file.symlink_status(error)) &&
                           !fs::exists(fs::symlink_status(state, error));
      if (IsOrphan(file, is_mine) || outputs) orphans.push_back(file.path());
    }
  }
  for (const fs::path& orphan : orphans) fs::remove(orphan, error);
}

std::map<std::string, std::string> StateStore::ModelFolders(bool* complete) const {
  std::map<std::string, std::string> folders;
  for (const fs::directory_entry& entry : FilesIn(options_.folder, complete)) {
    std::error_code error;
    // Links are not followed: they may lead to files that are not the server's.
    if (entry.path().extension() == kFolder && fs::is_directory(entry.symlink_status(error))) {
      folders[entry.path().stem()] = entry.path();
    }
  }
  return folders;
}

std::vector<fs::directory_entry> StateStore::FilesIn(const std::string& folder,
                                                     bool* complete) const {
  std::vector<fs::directory_entry> files;
  std::error_code error;
  for (fs::directory_iterator at(folder, error); !error && at != fs::directory_iterator();
       at.increment(error)) {
    files.push_back(*at);
  }
  if (error) Log(StrCat(folder, ": ", error.message()));
  if (error && complete != nullptr) *complete = false;
  return files;
}

std::string StateStore::BaseOf(const Info& info) const {
  return fs::path(options_.folder) / (info.model + kFolder) / info.name;
}

std::optional<StateStore::Entry> StateStore::Look(const std::string& model,
                                                  const std::string& name) const {
  Info info{.name = name, .model = model};
  const std::string base = BaseOf(info);
  struct stat file = {};
  if (lstat(StateFile(base).c_str(), &file) != 0 || !S_ISREG(file.st_mode)) return std::nullopt;
  info.bytes = SnapshotBytes(base);
  info.created = file.st_mtim.tv_sec;
  constexpr int64_t kSecond = 1'000'000'000;
  return Entry{info,
               {.inode = file.st_ino,
                .nanoseconds = int64_t{file.st_ctim.tv_sec} * kSecond + file.st_ctim.tv_nsec,
                .model = model}};
}

void StateStore::Refresh(const std::string& name) {
  if (!IsStateName(name)) return;
  FileId before;
  {
    const std::lock_guard lock(mutex_);
    const auto known = states_.find(name);
    if (known != states_.end()) before = known->second.file;
  }
  std::optional<Entry> now;
  if (!before.model.empty()) now = Look(before.model, name);
  if (now && now->file == before) return;
  if (!now) {
    for (const auto& [model, folder] : ModelFolders()) {
      if (!now) now = Look(model, name);
    }
  }
  const std::lock_guard lock(mutex_);
  const auto known = states_.find(name);
  const FileId& file = known != states_.end() ? known->second.file : FileId();
  if (file != before) return;  // it has been refreshed meanwhile
  if (now) {
    Set(*now);
  } else {
    Erase(name);
  }
}

void StateStore::RefreshAll() {
  const std::lock_guard one(scan_mutex_);
  const auto began = std::chrono::steady_clock::now();
  {
    const std::lock_guard lock(mutex_);
    changed_.clear();
  }
  Index found;
  bool complete = true;
  for (const auto& [model, folder] : ModelFolders(&complete)) {
    for (const fs::directory_entry& file : FilesIn(folder, &complete)) {
      const std::string name = file.path().stem();
      if (!IsStateName(name) || StateFile(name) != file.path().filename()) continue;
      if (const std::optional<Entry> now = Look(model, name)) found[name] = *now;
    }
  }
  const std::lock_guard lock(mutex_);
  // Many states take long to look at: at most a fiftieth of the time goes into that.
  const auto end = std::chrono::steady_clock::now();
  fresh_until_ = end + std::max<std::chrono::steady_clock::duration>(std::chrono::seconds(1),
                                                                     50 * (end - began));
  if (!complete) return;  // a folder that cannot be read is no reason to forget its states
  // What has changed during the scan is as Set() and Erase() left it.
  for (const std::string& name : changed_) found.erase(name);
  for (auto& [name, entry] : states_) {
    const auto now = found.find(name);
    if (changed_.contains(name)) {
      found[name] = entry;
    } else if (now != found.end() && now->second.file == entry.file) {
      now->second.snapshot = entry.snapshot;
    }
  }
  states_ = std::move(found);
  bytes_ = 0;
  for (const auto& [name, entry] : states_) bytes_ += entry.info.bytes;
}

StateStore::Entry& StateStore::At(const std::string& name) {
  const auto found = states_.find(name);
  if (found == states_.end()) throw None(name);
  return found->second;
}

void StateStore::Set(const Entry& entry) {
  changed_.insert(entry.info.name);
  Erase(entry.info.name);
  states_.emplace(entry.info.name, entry);
  bytes_ += entry.info.bytes;
}

void StateStore::Erase(const std::string& name) {
  const auto known = states_.find(name);
  if (known == states_.end()) return;
  changed_.insert(name);
  bytes_ -= known->second.info.bytes;
  states_.erase(known);
}

void StateStore::Log(const std::string& line) const {
  if (options_.log) options_.log(line);
}

std::unique_ptr<StateStore::Claim> StateStore::Take(const std::string& name, bool full_disk) {
  {
    const std::lock_guard lock(mutex_);
    if (!taken_.insert(name).second) return nullptr;
  }
  const std::string path = fs::path(options_.folder) / (name + kClaim);
  const auto claim = [&](int file) { return std::make_unique<Claim>(this, name, path, file); };
  while (true) {
    const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file < 0) {
      const int error = errno;
      auto without_file = claim(-1);
      if (full_disk && (error == ENOSPC || error == EDQUOT)) return without_file;
      Log(StrCat(path, ": ", std::system_category().message(error)));
      throw RuntimeError("the name of the state '", name, "' could not be claimed");
    }
    const bool locked = flock(file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    struct stat info = {};
    const bool removed = fstat(file, &info) != 0 || info.st_nlink == 0;  // a claim that has ended
    if (!locked && !removed) return claim(file);
    close(file);
    if (locked) {
      claim(-1);  // gives the name back
      return nullptr;
    }
  }
}

std::string StateStore::NewName() { return RandomName("state-"); }

std::shared_ptr<void> StateStore::Reserve(const Model& model, size_t count,
                                          const std::optional<std::string>& name) {
  if (name && !IsStateName(*name)) {
    throw InputError("the name ", Quote(*name), " of a state: use 1 to ", kLongest,
                     " letters, digits, '.', '_' and '-', and no '.' at the beginning");
  }
  const double bytes = static_cast<double>(count) * FileBytes(model);
  // Declared before the lock: if it is destroyed by an exception, it locks mutex_.
  auto ticket = std::make_shared<Ticket>(this);
  bool due = false;
  {
    const std::lock_guard lock(mutex_);
    due = std::chrono::steady_clock::now() > fresh_until_;
  }
  if (due) RefreshAll();
  if (name) {
    ticket->claim = Take(*name, /*full_disk=*/false);
    if (!ticket->claim) {
      throw Refusal{409, StrCat("the state '", *name, "' is being written or removed")};
    }
    Refresh(*name);
  }
  const std::lock_guard lock(mutex_);
  if (name && states_.contains(*name)) {
    throw Refusal{
        409, StrCat("there is a state '", *name, "'; choose another name, or delete it first")};
  }
  if (bytes_ + reserved_ + bytes > options_.bytes) {
    throw Refusal{507, StrCat("no room for ", count == 1 ? "another state" : "more states",
                              ": the server keeps at most ", FormatBytes(options_.bytes),
                              " of states; delete some (DELETE /v1/states/NAME)")};
  }
  if (pending_.size() >= kMostPending) {
    throw Refusal{429, "too many states are being written; try again in a moment"};
  }
  reserved_ += ticket->bytes = bytes;
  return ticket;
}

void StateStore::Keep(const std::string& model_name, std::shared_ptr<const Model> model,
                      const std::string& name, Snapshot snapshot,
                      std::function<void(const std::string& fault)> done) {
  const std::lock_guard lock(mutex_);
  pending_.push_back({{.name = name, .model = model_name},
                      std::move(model),
                      std::move(snapshot),
                      std::move(done)});
  wake_.notify_all();
}

void StateStore::WriteLoop() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return stop_ || !pending_.empty(); });
    if (pending_.empty()) return;
    Pending pending = std::move(pending_.front());
    pending_.pop_front();
    lock.unlock();
    const bool written = Write(pending);
    lock.lock();
    if (written) {
      if (const auto entry = Look(pending.info.model, pending.info.name)) Set(*entry);
    }
    lock.unlock();
    try {
      pending.done(written ? "" : "the state was not kept: its file could not be written");
    } catch (const std::exception& error) {  // out of memory: this client gets no answer
      Log(StrCat("the state ", pending.info.name, ": ", error.what()));
    }
    pending.done = nullptr;  // it may hold the last reference to a Ticket, which locks
    lock.lock();
  }
}

bool StateStore::Write(Pending& pending) const {
  const std::string base = BaseOf(pending.info);
  try {
    const fs::path folder = fs::path(base).parent_path();
    MakeFolder(folder);
    if (fs::is_symlink(folder)) throw InputError(folder.string(), ": a link; remove it");
    RemoveSnapshot(base);  // a link or the like, which is not to be written through
    WriteSnapshot(base, pending.snapshot, *pending.model);
    return true;
  } catch (const std::exception& error) {
    RemoveSnapshot(base);
    Log(error.what());
    return false;
  }
}

std::shared_ptr<const Snapshot> StateStore::Find(const std::string& model_name, const Model& model,
                                                 const std::string& name) {
  Refresh(name);
  Entry entry;
  {
    const std::lock_guard lock(mutex_);
    entry = At(name);
    if (entry.info.model != model_name) throw None(name);
    if (auto snapshot = entry.snapshot.lock()) return snapshot;
  }
  std::shared_ptr<const Snapshot> snapshot;
  try {
    snapshot = std::make_shared<const Snapshot>(
        ReadSnapshot(BaseOf(entry.info), model, MostBytes(model, entry.info.bytes)));
  } catch (const Error& error) {
    Log(error.what());
  }
  Refresh(name);
  const std::lock_guard lock(mutex_);
  Entry& now = At(name);
  // Otherwise the state was removed meanwhile, and its name given to another one.
  if (now.file != entry.file) throw None(name);
  if (!snapshot) {
    throw Refusal{409,
                  StrCat("the state '", name,
                         "' cannot be used: its files are damaged, or other weights or another "
                         "precision of the model made it")};
  }
  if (auto other = now.snapshot.lock()) return other;  // another request was faster
  now.snapshot = snapshot;
  return snapshot;
}

std::vector<StateStore::Info> StateStore::List() {
  RefreshAll();
  const std::lock_guard lock(mutex_);
  std::vector<Info> list;
  for (const auto& [name, entry] : states_) list.push_back(entry.info);
  return list;
}

StateStore::Info StateStore::Get(const std::string& name) {
  Refresh(name);
  const std::lock_guard lock(mutex_);
  return At(name).info;
}

void StateStore::Remove(const std::string& name) {
  Get(name);  // throws if there is none
  // The store that wrote the state gives up its claim a moment after it has answered.
  constexpr int kTries = 200;
  std::unique_ptr<Claim> claim;
  for (int i = 0; i < kTries && !(claim = Take(name, /*full_disk=*/true)); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  if (!claim) throw Refusal{409, StrCat("the state '", name, "' is being written or removed")};
  const bool removed = RemoveSnapshot(BaseOf(Get(name)));
  Refresh(name);
  if (!removed) throw RuntimeError("the state '", name, "' could not be removed");
}

}  // namespace linnet::server
