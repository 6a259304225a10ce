// Maps files into memory, reads whole files, and replaces files atomically.
//
//   MappedFile weights("digits.safetensors");         // weights.bytes()
//   std::string config = ReadFile("run.json");
//   WriteFileAtomically("metrics.json", text);  // on failure the old file is unchanged
//
// A reader never sees a half-written file, and a full disk loses only the new file: AtomicFile
// writes a temporary file in the target's folder and renames it once everything is on the disk.
#ifndef LINNET_IO_FILE_H_
#define LINNET_IO_FILE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace linnet {

// A file mapped read-only. The mapping stays valid if the file is replaced (AtomicFile), but, as
// with any mapping, not if the file is truncated in place.
class MappedFile {
 public:
  MappedFile() = default;
  // Throws InputError if the path is missing, unreadable, or not a regular file.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

// Reads a whole file (or pipe), for texts and settings. Throws InputError if it is unreadable or
// larger than max_bytes.
std::string ReadFile(const std::string& path, size_t max_bytes = size_t{1} << 30);

// Like ReadFile(), but safe in a folder that other users can write to: accepts only a regular file.
// Throws InputError if the path is a link, a pipe or a device, is unreadable, or is larger than
// max_bytes.
std::string ReadRegularFile(const std::string& path, size_t max_bytes);

// Replaces `path` atomically: Write() fills PATH.tmp.<pid>.<n>, Commit() renames it. Without
// Commit() (an exception, an early return) the target is unchanged and the temporary file is
// removed. Symbolic links are followed: their target is replaced.
//
//   AtomicFile file(path);
//   file.Write(header.data(), header.size());
//   file.Commit();
class AtomicFile {
 public:
  // Throws InputError if the folder is missing or unwritable, or if the target exists and is
  // write-protected or not a regular file; RuntimeError if the disk is full or fails.
  explicit AtomicFile(const std::string& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  // Not buffered, so write large blocks. Throws RuntimeError (disk full, ...).
  void Write(const void* data, size_t size);

  // Syncs the file to the disk, renames it and syncs the folder. Throws RuntimeError on failure.
  void Commit();

 private:
  [[noreturn]] void Fail(int error) const;

  std::string path_;       // as given, for messages
  std::string target_;     // with symbolic links followed
  std::string temporary_;  // empty once renamed
  int slot_ = -1;          // index in the table of RemoveTemporaryFiles(); -1: none
  int fd_ = -1;
  uint64_t written_ = 0;
};

// Creates a folder and the folders above it. Throws InputError if that fails.
void MakeFolder(const std::string& path);

// Checks, before long work, that files can be written into the folder, which need not exist yet.
// Throws InputError if not, RuntimeError if the disk is full.
void CheckWritableFolder(const std::string& path);

// Removes the temporary files of up to 8 open AtomicFiles of this process, which then cannot be
// committed. For the handler of a signal that ends the process; async-signal-safe.
void RemoveTemporaryFiles() noexcept;

// Replaces `path` with a file that has these contents. AtomicFile describes the errors.
void WriteFileAtomically(const std::string& path, std::span<const std::byte> bytes);
void WriteFileAtomically(const std::string& path, std::string_view text);

}  // namespace linnet

#endif  // LINNET_IO_FILE_H_
