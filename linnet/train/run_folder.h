// The folder of a training run (trainer.h lists its files).
#ifndef LINNET_TRAIN_RUN_FOLDER_H_
#define LINNET_TRAIN_RUN_FOLDER_H_

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace linnet::train {

// Locks a folder against a second run for the lifetime of this object. Throws InputError if it is
// locked.
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
  // Throws InputError if a run to resume is not there, or if a new one would replace one.
  RunFolder(std::string path, bool resume);

  // Makes the folder and locks it.
  void Open();
  // Removes unfinished files of a killed process.
  void RemoveLeftovers() const;

  std::string path() const { return path_.string(); }
  std::string state_path() const { return (path_ / "state.safetensors").string(); }
  std::string model_path() const { return (path_ / "model.safetensors").string(); }
  std::string metrics_path() const { return (path_ / "metrics.jsonl").string(); }
  std::string config_path() const { return (path_ / "config.json").string(); }
  // The update of the model file, or -1 if there is none.
  int64_t ModelStep() const;

 private:
  std::filesystem::path path_;
  std::optional<FolderLock> lock_;
};

}  // namespace linnet::train

#endif  // LINNET_TRAIN_RUN_FOLDER_H_
