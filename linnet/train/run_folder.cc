#include "linnet/train/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "linnet/error.h"
#include "linnet/io/file.h"
#include "linnet/model/checkpoint.h"

namespace linnet::train {

namespace fs = std::filesystem;
using nlohmann::json;

FolderLock::FolderLock(const std::string& folder)
    : fd_(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (fd_ >= 0 && flock(fd_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    close(fd_);
    throw InputError(folder, ": another process is training in this folder; choose another --out");
  }
}

FolderLock::~FolderLock() {
  if (fd_ >= 0) close(fd_);
}

bool HoldsRun(const fs::path& folder) {
  std::error_code ignored;
  return fs::exists(folder / RunFolder::kState, ignored);
}

RunFolder::RunFolder(std::string path, bool resume) : path_(std::move(path)), resume_(resume) {
  if (resume && !HoldsRun(path_)) {
    throw InputError(state_path(), ": not found, so there is no run to resume; start one without ",
                     "--resume");
  }
  if (!resume) CheckNew();
}

void RunFolder::CheckNew() const {
  if (HoldsRun(path_)) {
    throw InputError(path_.string(),
                     ": already holds a run; continue it with --resume or choose another --out");
  }
  std::error_code error;
  if (fs::exists(model_path(), error)) {
    throw InputError(model_path(), ": this model already exists; choose another --out");
  }
}

void RunFolder::Open() {
  MakeFolder(path_);
  lock_.emplace(path_.string());
  if (!resume_) CheckNew();
}

void RunFolder::RemoveLeftovers() const {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(path_, ignored)) {
    const std::string name = entry.path().filename().string();
    for (const char* file : {kState, "model.safetensors", "config.json", "metrics.jsonl"}) {
      if (name.starts_with(std::string(file) + ".tmp.")) fs::remove(entry.path(), ignored);
    }
  }
}

int64_t RunFolder::ModelStep() const {
  std::error_code error;
  if (!fs::exists(model_path(), error)) return -1;
  const Checkpoint checkpoint = Checkpoint::Open(model_path());
  const json record = json::parse(checkpoint.training(), nullptr, false);
  const json step = record.is_object() ? record.value("steps", json()) : json();
  return step.is_number_integer() ? step.get<int64_t>() : -1;
}

}  // namespace linnet::train
