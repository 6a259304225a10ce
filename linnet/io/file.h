// Files: mapped for reading, read whole, and replaced in one step.
//
//   MappedFile weights("digits.safetensors");         // weights.bytes()
//   std::string config = ReadFile("run.json");
//   WriteFileAtomically("metrics.json", text);        // all of it, or the file as it was
//
// A reader never sees a half-written file, and a full disk costs the new file only: AtomicFile
// writes beside the target and renames when everything is on the disk.
#ifndef LINNET_IO_FILE_H_
#define LINNET_IO_FILE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace linnet {

// A file mapped read-only. Replacing the file (AtomicFile) leaves the mapping whole; shortening it
// in place does not, as with any mapping.
class MappedFile {
 public:
  MappedFile() = default;
  // Throws InputError when the path is missing, unreadable, or not a regular file.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

// The whole file (a pipe too), for texts and settings. Throws InputError when it cannot be read or
// is larger than max_bytes.
std::string ReadFile(const std::string& path, size_t max_bytes = size_t{1} << 30);

// Replaces `path` in one step: Write() fills PATH.tmp.<pid>, Commit() makes it the file. Without
// Commit() (an exception, an early return) the target stays as it was and the temporary file goes.
// A symbolic link is followed: what it points at is replaced.
//
//   AtomicFile file(path);
//   file.Write(header.data(), header.size());
//   file.Commit();
class AtomicFile {
 public:
  // Throws InputError when the folder is missing or not writable, or the target is no plain file.
  explicit AtomicFile(const std::string& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  // Unbuffered: gather small pieces first. Throws RuntimeError (disk full, ...).
  void Write(const void* data, size_t size);

  // fsync, rename, fsync of the folder. Throws RuntimeError.
  void Commit();

 private:
  [[noreturn]] void Fail(int error) const;

  std::string path_;       // as given, for messages
  std::string target_;     // with symbolic links followed
  std::string temporary_;  // empty once renamed
  int slot_ = -1;          // of the list for RemoveTemporaryFiles()
  int fd_ = -1;
  uint64_t written_ = 0;
};

// Removes what AtomicFiles of this process are writing at the moment, which they then cannot finish:
// for a signal's handler that ends the process. Safe to call in one.
void RemoveTemporaryFiles() noexcept;

// AtomicFile in one call.
void WriteFileAtomically(const std::string& path, std::span<const std::byte> bytes);
void WriteFileAtomically(const std::string& path, std::string_view text);

}  // namespace linnet

#endif  // LINNET_IO_FILE_H_
