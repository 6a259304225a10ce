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
    unlink(path_.c_str());
    close(file_);
    const std::lock_guard lock(store_->mutex_);
    store_->taken_.erase(name_);
  }

 private:
  StateStore* store_;
  std::string name_, path_;
  int file_;
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
    const std::lock_guard lock(mutex_);
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

// Takes a shared lock of the folder. A store that gets the exclusive lock first is alone, and
// sweeps. (flock() fails otherwise than with EWOULDBLOCK on file systems without locks.)
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
    for (const fs::directory_entry& file : fs::directory_iterator(folder)) {
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

std::map<std::string, std::string> StateStore::ModelFolders() const {
  std::map<std::string, std::string> folders;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(options_.folder)) {
    // Links are not followed: they may lead to files that are not the server's.
    if (entry.path().extension() == kFolder && fs::is_directory(entry.symlink_status(error))) {
      folders[entry.path().stem()] = entry.path();
    }
  }
  return folders;
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
                .nanoseconds = int64_t{file.st_mtim.tv_sec} * kSecond + file.st_mtim.tv_nsec}};
}

void StateStore::Refresh(const std::string& name) {
  if (!IsStateName(name)) return;
  const auto known = states_.find(name);
  if (known != states_.end()) {
    const std::optional<Entry> now = Look(known->second.info.model, name);
    if (now && now->file == known->second.file) return;
    Erase(known);
    if (now) return Set(*now);
  }
  for (const auto& [model, folder] : ModelFolders()) {
    if (const std::optional<Entry> now = Look(model, name)) return Set(*now);
  }
}

void StateStore::RefreshAll() {
  const auto began = std::chrono::steady_clock::now();
  Index before = std::move(states_);
  states_.clear();
  bytes_ = 0;
  for (const auto& [model, folder] : ModelFolders()) {
    for (const fs::directory_entry& file : fs::directory_iterator(folder)) {
      const std::string name = file.path().stem();
      if (!IsStateName(name) || StateFile(name) != file.path().filename()) continue;
      std::optional<Entry> now = Look(model, name);
      if (!now) continue;
      const auto known = before.find(name);
      if (known != before.end() && known->second.file == now->file) {
        now->snapshot = known->second.snapshot;
      }
      Set(*now);
    }
  }
  // Many states take long to look at: at most a fiftieth of the time goes into that.
  const auto end = std::chrono::steady_clock::now();
  fresh_until_ = end + std::max<std::chrono::steady_clock::duration>(std::chrono::seconds(1),
                                                                     50 * (end - began));
}

StateStore::Entry& StateStore::At(const std::string& name) {
  Refresh(name);
  const auto found = states_.find(name);
  if (found == states_.end()) throw None(name);
  return found->second;
}

void StateStore::Set(const Entry& entry) {
  const auto known = states_.find(entry.info.name);
  if (known != states_.end()) Erase(known);
  states_.emplace(entry.info.name, entry);
  bytes_ += entry.info.bytes;
}

void StateStore::Erase(Index::iterator entry) {
  bytes_ -= entry->second.info.bytes;
  states_.erase(entry);
}

void StateStore::Log(const std::string& line) const {
  if (options_.log) options_.log(line);
}

std::unique_ptr<StateStore::Claim> StateStore::Take(const std::string& name) {
  if (taken_.contains(name)) return nullptr;
  const std::string path = fs::path(options_.folder) / (name + kClaim);
  while (true) {
    const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file < 0) {
      Log(StrCat(path, ": ", std::system_category().message(errno)));
      throw RuntimeError("the state '", name, "' was not kept: its name could not be claimed");
    }
    const bool locked = flock(file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    struct stat info = {};
    const bool removed = fstat(file, &info) != 0 || info.st_nlink == 0;  // a claim that has ended
    if (!locked && !removed) {
      taken_.insert(name);
      return std::make_unique<Claim>(this, name, path, file);
    }
    close(file);
    if (locked) return nullptr;
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
  const std::lock_guard lock(mutex_);
  if (std::chrono::steady_clock::now() > fresh_until_) RefreshAll();
  if (name) {
    ticket->claim = Take(*name);
    if (ticket->claim) Refresh(*name);
    if (!ticket->claim || states_.contains(*name)) {
      throw Refusal{
          409, StrCat("there is a state '", *name, "'; choose another name, or delete it first")};
    }
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
  const std::lock_guard lock(mutex_);
  RefreshAll();
  std::vector<Info> list;
  for (const auto& [name, entry] : states_) list.push_back(entry.info);
  return list;
}

StateStore::Info StateStore::Get(const std::string& name) {
  const std::lock_guard lock(mutex_);
  return At(name).info;
}

void StateStore::Remove(const std::string& name) {
  std::unique_ptr<Claim> claim;
  Info info;
  // The store that wrote the state gives up its claim a moment after it has answered.
  constexpr int kTries = 200;
  for (int i = 0; !claim && i < kTries; ++i) {
    if (i > 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    const std::lock_guard lock(mutex_);
    At(name);
    claim = Take(name);
    if (claim) info = At(name).info;  // that of a new state, if another store was faster
  }
  if (!claim) throw Refusal{409, StrCat("the state '", name, "' is being written or removed")};
  const bool removed = RemoveSnapshot(BaseOf(info));
  const std::lock_guard lock(mutex_);
  Refresh(name);
  if (!removed) throw RuntimeError("the state '", name, "' could not be removed");
}

}  // namespace linnet::server
