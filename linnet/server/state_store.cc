#include "linnet/server/state_store.h"

#include <fcntl.h>
#include <sys/file.h>
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

bool IsStateName(const std::string& name) {
  return !name.empty() && name.size() <= kLongest && name[0] != '.' &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return c < 128 && (std::isalnum(c) || c == '.' || c == '_' || c == '-');
         });
}

int64_t SecondsOf(const fs::path& file) {
  std::error_code error;
  const fs::file_time_type time = fs::last_write_time(file, error);
  if (error) return 0;
  const auto system = std::chrono::file_clock::to_sys(time);
  return std::chrono::duration_cast<std::chrono::seconds>(system.time_since_epoch()).count();
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

struct StateStore::Ticket {
  StateStore* store;
  double bytes;
  std::optional<std::string> name;
  uint64_t number = 0;  // 0: nothing is reserved yet

  ~Ticket() {
    if (number == 0) return;
    const std::lock_guard lock(store->mutex_);
    store->reserved_ -= bytes;
    if (!name) return;
    const auto found = store->taken_.find(*name);
    if (found != store->taken_.end() && found->second == number) store->taken_.erase(found);
  }
};

StateStore::StateStore(const StateStoreOptions& options) : options_(options) {
  MakeFolder(options_.folder);
  const std::string lock = fs::path(options_.folder) / "lock";
  lock_ = open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (lock_ < 0) {
    throw InputError(lock, ": ", std::system_category().message(errno), "; give another folder");
  }
  // Continues unlocked on a file system without locks.
  if (flock(lock_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    close(lock_);
    throw InputError(options_.folder, ": another server uses this folder; give another one");
  }
  try {
    Scan(options_.folder);
    AtomicFile probe(fs::path(options_.folder) / kProbe);  // throws if the folder is not writable
  } catch (const fs::filesystem_error& error) {
    close(lock_);
    throw InputError(options_.folder, ": ", error.code().message(), "; give another folder");
  } catch (...) {
    close(lock_);
    throw;
  }
  writer_ = std::thread([this] { WriteLoop(); });
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

void StateStore::Scan(const std::string& folder) {
  std::vector<fs::path> orphans;
  std::error_code error;
  const auto is_mine = [](const std::string& name) { return IsSnapshotFile(name, IsStateName); };
  for (const fs::directory_entry& of_model : fs::directory_iterator(folder)) {
    // Links are not followed: they may lead to files that are not the server's.
    if (of_model.path().extension() != kFolder ||
        !fs::is_directory(of_model.symlink_status(error))) {
      continue;
    }
    for (const fs::directory_entry& file : fs::directory_iterator(of_model.path())) {
      if (IsOrphan(file, is_mine)) orphans.push_back(file.path());
      const std::string name = file.path().filename();
      if (!is_mine(name) || !fs::is_regular_file(file.symlink_status(error))) continue;
      Info info{.name = file.path().stem(), .model = of_model.path().stem()};
      if (StateFile(info.name) == name) {
        info.bytes = SnapshotBytes(BaseOf(info));
        info.created = SecondsOf(file.path());
        Add(info);
      } else if (!fs::exists(fs::symlink_status(StateFile(BaseOf(info)), error))) {
        orphans.push_back(file.path());  // outputs without a state
      }
    }
  }
  for (const fs::path& orphan : orphans) fs::remove(orphan, error);
}

std::string StateStore::BaseOf(const Info& info) const {
  return fs::path(options_.folder) / (info.model + kFolder) / info.name;
}

const StateStore::Entry& StateStore::At(const std::string& name) const {
  const auto found = states_.find(name);
  if (found == states_.end()) throw None(name);
  return found->second;
}

void StateStore::Add(const Info& info) {
  states_[info.name] = {info, ++last_number_, {}};
  bytes_ += info.bytes;
}

void StateStore::Log(const std::string& line) const {
  if (options_.log) options_.log(line);
}

std::string StateStore::NewName() { return RandomName("state-"); }

std::shared_ptr<void> StateStore::Reserve(const Model& model, size_t count,
                                          const std::optional<std::string>& name) {
  if (name && !IsStateName(*name)) {
    throw InputError("the name ", Quote(*name), " of a state: use 1 to ", kLongest,
                     " letters, digits, '.', '_' and '-', and no '.' at the beginning");
  }
  const double bytes = static_cast<double>(count) * FileBytes(model);
  auto ticket = std::make_shared<Ticket>(Ticket{this, bytes, name});
  const std::lock_guard lock(mutex_);
  if (name && (states_.contains(*name) || taken_.contains(*name))) {
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
  const uint64_t number = ++last_number_;
  if (name) taken_[*name] = number;
  reserved_ += bytes;
  ticket->number = number;
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
    if (written) Add(pending.info);
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
    pending.info.bytes = SnapshotBytes(base);
    pending.info.created = SecondsOf(StateFile(base));
    return true;
  } catch (const std::exception& error) {
    RemoveSnapshot(base);
    Log(error.what());
    return false;
  }
}

std::shared_ptr<const Snapshot> StateStore::Find(const std::string& model_name, const Model& model,
                                                 const std::string& name) {
  Info info;
  uint64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    const Entry& entry = At(name);
    if (entry.info.model != model_name) throw None(name);
    if (auto snapshot = entry.snapshot.lock()) return snapshot;
    info = entry.info, number = entry.number;
  }
  std::shared_ptr<const Snapshot> snapshot;
  try {
    snapshot = std::make_shared<const Snapshot>(
        ReadSnapshot(BaseOf(info), model, MostBytes(model, info.bytes)));
  } catch (const Error& error) {
    Log(error.what());
  }
  const std::lock_guard lock(mutex_);
  const auto found = states_.find(name);
  // Otherwise the state was removed meanwhile, and its name perhaps given to another one.
  if (found == states_.end() || found->second.number != number) throw None(name);
  if (!snapshot) {
    throw Refusal{409,
                  StrCat("the state '", name,
                         "' cannot be used: its files are damaged, or other weights or another "
                         "precision of the model made it")};
  }
  if (auto other = found->second.snapshot.lock()) return other;  // another request was faster
  found->second.snapshot = snapshot;
  return snapshot;
}

std::vector<StateStore::Info> StateStore::List() const {
  const std::lock_guard lock(mutex_);
  std::vector<Info> list;
  for (const auto& [name, entry] : states_) list.push_back(entry.info);
  return list;
}

StateStore::Info StateStore::Get(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  return At(name).info;
}

void StateStore::Remove(const std::string& name) {
  Entry entry;
  uint64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    entry = At(name);
    taken_[name] = number = ++last_number_;
    states_.erase(name);
  }
  const bool removed = RemoveSnapshot(BaseOf(entry.info));
  const std::lock_guard lock(mutex_);
  if (taken_[name] == number) taken_.erase(name);
  if (removed) {
    bytes_ -= entry.info.bytes;
  } else {
    states_.emplace(name, entry);
    throw RuntimeError("the state '", name, "' could not be removed");
  }
}

}  // namespace linnet::server
