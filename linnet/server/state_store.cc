#include "linnet/server/state_store.h"

#include <algorithm>
#include <cctype>
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

Refusal None(const std::string& model, const std::string& name) {
  return {404, StrCat("the model '", model, "' has no state ", Quote(name),
                      "; GET /v1/states lists the states")};
}

Refusal Taken(const std::string& name) {
  return {409, StrCat("there is a state '", name, "'; choose another name, or delete it first")};
}

}  // namespace

StateStore::StateStore(const StateStoreOptions& options) : options_(options) {
  MakeFolder(options_.folder);
  std::error_code error;
  std::vector<fs::path> orphans;
  for (const fs::directory_entry& folder : fs::directory_iterator(options_.folder, error)) {
    if (IsOrphan(folder, [](const std::string& name) { return name == kProbe; })) {
      orphans.push_back(folder.path());
    }
    if (folder.path().extension() != kFolder) continue;
    for (const fs::directory_entry& file : fs::directory_iterator(folder.path(), error)) {
      const std::string name = file.path().filename();
      if (IsOrphan(file, [](const std::string& of) { return IsSnapshotFile(of, IsStateName); })) {
        orphans.push_back(file.path());
      }
      if (!IsSnapshotFile(name, IsStateName)) continue;
      Info info{.name = file.path().stem(), .model = folder.path().stem()};
      if (StateFile(info.name) != name) {  // the outputs, which are of no use without a state
        if (!fs::exists(StateFile(BaseOf(info)))) orphans.push_back(file.path());
        continue;
      }
      info.bytes = SnapshotBytes(BaseOf(info));
      info.created = SecondsOf(file.path());
      states_[info.name] = info;
    }
  }
  for (const fs::path& orphan : orphans) fs::remove(orphan, error);
  AtomicFile probe(fs::path(options_.folder) / kProbe);  // throws if the folder is not writable
  writer_ = std::thread([this] { WriteLoop(); });
}

StateStore::~StateStore() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  writer_.join();
}

std::string StateStore::BaseOf(const Info& info) const {
  return fs::path(options_.folder) / (info.model + kFolder) / info.name;
}

std::string StateStore::NewName() {
  std::random_device random;
  std::string name = "state-";
  for (int i = 0; i < 4; ++i) {
    char digits[16];
    std::snprintf(digits, sizeof(digits), "%08x", static_cast<unsigned>(random()));
    name += digits;
  }
  return name;
}

void StateStore::CheckNew(const std::string& name) const {
  if (!IsStateName(name)) {
    throw InputError("the name ", Quote(name), " of a state: use 1 to ", kLongest,
                     " letters, digits, '.', '_' and '-', and no '.' at the beginning");
  }
  const std::lock_guard lock(mutex_);
  if (states_.contains(name)) throw Taken(name);
}

void StateStore::CheckRoom(const Model& model, size_t count) const {
  double bytes =
      static_cast<double>(count) * static_cast<double>(StateBytes(model.spec(), model.precision()));
  const std::lock_guard lock(mutex_);
  for (const auto& [name, info] : states_) bytes += info.bytes;
  if (bytes > options_.bytes) {
    throw Refusal{507, StrCat("no room for ", count == 1 ? "another state" : "more states",
                              ": the server keeps at most ", FormatBytes(options_.bytes),
                              " of states; delete some (DELETE /v1/states/NAME)")};
  }
}

void StateStore::Keep(const std::string& model_name, std::shared_ptr<const Model> model,
                      const std::string& name, Snapshot snapshot,
                      std::function<void(const std::string& fault)> done) {
  Info info{.name = name, .model = model_name};
  info.bytes = static_cast<double>(snapshot.state.bytes());
  {
    const std::lock_guard lock(mutex_);
    if (states_.try_emplace(name, info).second) {
      pending_.push_back({std::move(info), std::move(model), std::move(snapshot), std::move(done)});
      wake_.notify_all();
      return;
    }
  }
  done(Taken(name).message);
}

void StateStore::WriteLoop() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return stop_ || !pending_.empty(); });
    if (pending_.empty()) return;
    Pending pending = std::move(pending_.front());
    pending_.pop_front();
    lock.unlock();
    const std::string fault = Write(pending);
    lock.lock();
    if (fault.empty()) {
      states_[pending.info.name] = pending.info;
    } else {
      states_.erase(pending.info.name);
    }
    lock.unlock();
    pending.done(fault);
    lock.lock();
  }
}

std::string StateStore::Write(Pending& pending) {
  const std::string base = BaseOf(pending.info);
  try {
    MakeFolder(fs::path(base).parent_path());
    WriteSnapshot(base, pending.snapshot, *pending.model);
    pending.info.bytes = SnapshotBytes(base);
    pending.info.created = SecondsOf(StateFile(base));
    return "";
  } catch (const std::exception& error) {
    RemoveSnapshot(base);
    return StrCat("the state was not kept: ", error.what());
  }
}

std::shared_ptr<const Snapshot> StateStore::Find(const std::string& model_name, const Model& model,
                                                 const std::string& name) {
  const std::optional<Info> info = Get(name);
  if (!info || info->model != model_name) throw None(model_name, name);
  const std::string base = BaseOf(*info);
  try {
    return std::make_shared<const Snapshot>(
        ReadSnapshot(base, model, static_cast<size_t>(info->bytes)));
  } catch (const Error& error) {  // damaged, removed, or of other weights; clients see no paths
    std::string why = error.what();
    if (why.starts_with(base)) why.replace(0, base.size(), name);
    throw Refusal{409, why};
  }
}

std::vector<StateStore::Info> StateStore::List() const {
  const std::lock_guard lock(mutex_);
  std::vector<Info> list;
  for (const auto& [name, info] : states_) {
    if (info.created != 0) list.push_back(info);
  }
  return list;
}

std::optional<StateStore::Info> StateStore::Get(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto found = states_.find(name);
  if (found == states_.end() || found->second.created == 0) return {};
  return found->second;
}

bool StateStore::Remove(const std::string& name) {
  const std::lock_guard lock(mutex_);
  const auto found = states_.find(name);
  if (found == states_.end() || found->second.created == 0) return false;
  RemoveSnapshot(BaseOf(found->second));
  states_.erase(found);
  return true;
}

}  // namespace linnet::server
