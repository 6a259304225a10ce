#include "linnet/io/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "linnet/base/suggestion.h"
#include "linnet/base/units.h"
#include "linnet/error.h"

namespace linnet {
namespace {

std::string ErrorText(int error) { return std::generic_category().message(error); }

// The message for a path that does not exist. Finds the first missing component of the path and
// suggests a similar name from its parent folder.
std::string NoSuchFile(const std::string& given) {
  if (given.empty()) return "the name of the file is empty; give one";
  const std::filesystem::path path(given);
  std::filesystem::path parent, missing;
  std::error_code error;
  for (const std::filesystem::path& part : path) {
    missing = part;
    if (!std::filesystem::exists(parent / part, error)) break;
    parent /= part;
  }
  constexpr size_t kShortest = 5, kMost = 1000;  // bytes of a name; names that are compared
  std::vector<std::string> names;
  std::filesystem::directory_iterator entry(parent.empty() ? "." : parent, error), end;
  for (; !error && entry != end && names.size() < kMost; entry.increment(error)) {
    const std::string name = entry->path().filename();
    if (name == missing) {
      return StrCat(given, ": ", (parent / missing).string(),
                    " is a link to a file that does not exist");
    }
    names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  const std::string suggestion =
      missing.string().size() < kShortest ? "" : Suggestion(missing.string(), names);
  const bool folder = parent / missing != path;  // a folder is missing, not only the file
  return StrCat(given, ": no such file",
                folder ? StrCat("; there is no folder ", (parent / missing).string()) : "",
                suggestion.empty() ? "; check the path" : suggestion);
}

struct Descriptor {
  ~Descriptor() {
    if (fd >= 0) close(fd);
  }
  int fd;
};

// Opens a file for reading; `info` receives the fstat result. With O_NONBLOCK in `flags`, opening a
// pipe does not wait for a writer.
int OpenForReading(const std::string& path, struct stat& info, int flags = 0) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | flags);
  if (fd < 0) {
    if (errno == ENOENT) throw InputError(NoSuchFile(path));
    throw InputError(path, ": cannot be opened for reading (", ErrorText(errno), ")");
  }
  if (fstat(fd, &info) != 0 || S_ISDIR(info.st_mode)) {
    close(fd);
    throw InputError(path, ": a folder, not a file; name a file in it");
  }
  return fd;
}

// The paths that RemoveTemporaryFiles() removes, in static memory because a signal handler reads
// them. If the table is full, further files are not removed on a signal.
struct TemporarySlot {
  enum : int { kFree, kTaken, kFilled };  // kTaken: the path is being filled in
  std::atomic<int> state = kFree;
  char path[PATH_MAX] = {};
};
constexpr int kSlots = 8;
TemporarySlot temporary_slots[kSlots];

int TakeSlot(const std::string& path) {
  if (path.size() >= PATH_MAX) return -1;
  for (int i = 0; i < kSlots; ++i) {
    int free = TemporarySlot::kFree;
    if (!temporary_slots[i].state.compare_exchange_strong(free, TemporarySlot::kTaken)) continue;
    std::memcpy(temporary_slots[i].path, path.c_str(), path.size() + 1);
    temporary_slots[i].state = TemporarySlot::kFilled;
    return i;
  }
  return -1;
}
void LeaveSlot(int& slot) {
  if (slot >= 0) temporary_slots[slot].state = TemporarySlot::kFree;
  slot = -1;
}

}  // namespace

void RemoveTemporaryFiles() noexcept {
  for (TemporarySlot& slot : temporary_slots) {
    if (slot.state == TemporarySlot::kFilled) unlink(slot.path);
  }
}

MappedFile::MappedFile(const std::string& path) {
  struct stat info;
  const Descriptor file{OpenForReading(path, info, O_NONBLOCK)};
  if (!S_ISREG(info.st_mode)) {
    throw InputError(path, ": not a regular file; copy its contents to a regular file first");
  }
  const size_t size = static_cast<size_t>(info.st_size);
  if (size == 0) return;
  void* data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (data == MAP_FAILED) {
    throw InputError(path, ": cannot be mapped into memory (", ErrorText(errno), ")");
  }
  bytes_ = {static_cast<const std::byte*>(data), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

namespace {

std::string ReadAll(int fd, const std::string& path, size_t max_bytes) {
  std::string text;
  char block[1 << 16];
  while (true) {
    const ssize_t n = read(fd, block, sizeof(block));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw InputError(path, ": cannot be read (", ErrorText(errno), ")");
    if (n == 0) return text;
    if (static_cast<size_t>(n) > max_bytes - text.size()) {
      throw InputError(path, ": larger than ", FormatBytes(static_cast<double>(max_bytes)),
                       ", which is not expected here; check the path");
    }
    text.append(block, static_cast<size_t>(n));
  }
}

}  // namespace

std::string ReadFile(const std::string& path, size_t max_bytes) {
  struct stat info;
  const Descriptor file{OpenForReading(path, info)};
  return ReadAll(file.fd, path, max_bytes);
}

std::string ReadRegularFile(const std::string& path, size_t max_bytes) {
  struct stat info;
  const Descriptor file{OpenForReading(path, info, O_NONBLOCK | O_NOFOLLOW)};
  if (!S_ISREG(info.st_mode)) throw InputError(path, ": not a regular file");
  return ReadAll(file.fd, path, max_bytes);
}

AtomicFile::AtomicFile(const std::string& path) : path_(path), target_(path) {
  std::error_code error;
  if (std::filesystem::is_symlink(target_, error)) {
    target_ = std::filesystem::canonical(target_, error).string();
    if (error) throw InputError(path_, ": a link to nowhere; remove it or choose another path");
  }
  // rename() would silently replace a device or a write-protected file.
  struct stat info;
  if (stat(target_.c_str(), &info) == 0) {
    if (S_ISDIR(info.st_mode)) throw InputError(path_, ": a folder; name a file to write");
    if (!S_ISREG(info.st_mode)) {
      throw InputError(path_, ": not a regular file; name a file to write");
    }
    if (access(target_.c_str(), W_OK) != 0) {
      throw InputError(path_, ": cannot be written (", ErrorText(errno), "); choose another path");
    }
  }
  static std::atomic<uint64_t> files{0};  // so that threads that replace one file do not share it
  temporary_ = StrCat(target_, ".tmp.", getpid(), ".", ++files);
  slot_ = TakeSlot(temporary_);
  fd_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd_ >= 0) return;
  const int reason = errno;
  LeaveSlot(slot_);
  std::string folder = std::filesystem::path(target_).parent_path().string();
  if (folder.empty()) folder = ".";
  switch (reason) {
    case ENOENT:
      throw InputError(path_, ": cannot be written: the folder ", folder,
                       " does not exist; create it first");
    case ENOSPC:
    case EDQUOT:
    case EIO:
    case EMFILE:
    case ENFILE:
      throw RuntimeError(path_, ": cannot be written (", ErrorText(reason), ")");
    default:
      throw InputError(path_, ": cannot be written in the folder ", folder, " (", ErrorText(reason),
                       "); choose another path");
  }
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) close(fd_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
  LeaveSlot(slot_);
}

void AtomicFile::Fail(int error) const {
  throw RuntimeError(path_, ": writing failed after ", FormatBytes(static_cast<double>(written_)),
                     " (", ErrorText(error), "); the previous file, if any, is unchanged");
}

void AtomicFile::Write(const void* data, size_t size) {
  const char* from = static_cast<const char*>(data);
  while (size > 0) {
    // write() takes at most about 2 GiB.
    const ssize_t n = write(fd_, from, std::min(size, size_t{1} << 30));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) Fail(errno);
    from += n;
    size -= static_cast<size_t>(n);
    written_ += static_cast<uint64_t>(n);
  }
}

void AtomicFile::Commit() {
  if (fsync(fd_) != 0) Fail(errno);
  if (close(std::exchange(fd_, -1)) != 0) Fail(errno);
  if (rename(temporary_.c_str(), target_.c_str()) != 0) Fail(errno);
  temporary_.clear();
  LeaveSlot(slot_);

  // The rename is durable once the target's folder is synced. The folder stays unsynced if its file
  // system cannot sync folders (EINVAL), or if the folder is not readable.
  const std::filesystem::path folder = std::filesystem::path(target_).parent_path();
  const Descriptor parent{
      open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (parent.fd >= 0 && fsync(parent.fd) != 0 && errno != EINVAL) {
    throw RuntimeError(path_, ": written, but its folder could not be synced to the disk (",
                       ErrorText(errno), ")");
  }
}

void MakeFolder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) {
    throw InputError(path, ": cannot create this folder (", error.message(),
                     "); choose another one");
  }
}

void CheckWritableFolder(const std::string& path) {
  std::filesystem::path existing = std::filesystem::absolute(path).lexically_normal();
  std::error_code error;
  while (!std::filesystem::exists(existing, error)) existing = existing.parent_path();
  AtomicFile probe(existing / ".writable");  // not committed, so no file is left
}

void WriteFileAtomically(const std::string& path, std::span<const std::byte> bytes) {
  AtomicFile file(path);
  file.Write(bytes.data(), bytes.size());
  file.Commit();
}

void WriteFileAtomically(const std::string& path, std::string_view text) {
  WriteFileAtomically(path, std::as_bytes(std::span(text.data(), text.size())));
}

}  // namespace linnet
