// The folder of a training run (trainer.h lists its files).
#ifndef LINNET_TRAIN_RUN_FOLDER_H_
#define LINNET_TRAIN_RUN_FOLDER_H_

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace linnet::train {

// Locks a folder against a second run for the lifetime of this object. Throws InputError if the
// folder is already locked.
class FolderLock {
 public:
  explicit FolderLock(const std::string& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int fd_;
};

class RunFolder {
 public:
  static constexpr const char* kState = "state.safetensors";

  // Throws InputError if there is no run to resume, or if a new run would overwrite a run or a
  // model.
  RunFolder(std::string path, bool resume);

  // Creates the folder if needed, and locks it. Throws InputError if another process has begun a
  // run in it since the constructor.
  void Open();
  // Removes temporary files that a killed process left.
  void RemoveLeftovers() const;

  std::string path() const { return path_.string(); }
  std::string state_path() const { return (path_ / kState).string(); }
  std::string model_path() const { return (path_ / "model.safetensors").string(); }
  std::string metrics_path() const { return (path_ / "metrics.jsonl").string(); }
  std::string config_path() const { return (path_ / "config.json").string(); }
  // The step that the model file was saved at; -1 if there is no file or it does not name a step.
  int64_t ModelStep() const;

 private:
  void CheckNew() const;

  std::filesystem::path path_;
  bool resume_;
  std::optional<FolderLock> lock_;
};

// Whether the folder holds a run that can be resumed.
bool HoldsRun(const std::filesystem::path& folder);

}  // namespace linnet::train

#endif  // LINNET_TRAIN_RUN_FOLDER_H_
