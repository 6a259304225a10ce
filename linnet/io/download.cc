#include "linnet/io/download.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <span>
#include <system_error>
#include <utility>

#include "linnet/base/units.h"
#include "linnet/error.h"
#include "linnet/io/file.h"
#include "linnet/io/http.h"
#include "linnet/io/sha256.h"

namespace linnet {
namespace {

namespace fs = std::filesystem;

std::string ErrorText(int error) { return std::generic_category().message(error); }

struct Descriptor {
  ~Descriptor() { Close(); }
  void Close() {
    if (fd >= 0) close(std::exchange(fd, -1));
  }
  int fd = -1;
};

// Whether `hash` is the file's checksum. True if that checksum is not known.
bool HasChecksum(const RemoteFile& file, const Sha256& hash) {
  return file.sha256.empty() || hash.Hex() == file.sha256;
}

// The partial file and the checksum of its contents. A lock keeps other downloads from writing to
// the file.
class PartFile {
 public:
  explicit PartFile(const std::string& path) : path_(path) {
    // Tries again if another process renamed or removed the file before Open() locked it.
    while (!Open()) file_.Close();
    std::byte block[1 << 16];
    while (true) {
      const ssize_t n = read(file_.fd, block, sizeof(block));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) Fail(errno);
      if (n == 0) break;
      hash_.Update(std::span(block, static_cast<size_t>(n)));
      size_ += static_cast<uint64_t>(n);
    }
  }
  ~PartFile() {
    if (file_.fd >= 0 && size_ == 0) unlink(path_.c_str());
  }
  PartFile(const PartFile&) = delete;
  PartFile& operator=(const PartFile&) = delete;

  const std::string& path() const { return path_; }
  uint64_t size() const { return size_; }
  const Sha256& hash() const { return hash_; }

  void Append(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t n = write(file_.fd, bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) Fail(errno);
      const auto written = bytes.first(static_cast<size_t>(n));
      hash_.Update(written);
      size_ += written.size();
      bytes = bytes.subspan(written.size());
    }
  }

  void Restart() {
    if (ftruncate(file_.fd, 0) != 0 || lseek(file_.fd, 0, SEEK_SET) != 0) Fail(errno);
    hash_ = Sha256();
    size_ = 0;
  }

  // Renames the file to its final name.
  void Commit(const std::string& target) {
    if (fsync(file_.fd) != 0 || rename(path_.c_str(), target.c_str()) != 0) Fail(errno);
    file_.Close();
  }

 private:
  // Opens the file, then locks it. Returns false if the path no longer names the locked file; the
  // caller must then try again.
  bool Open() {
    file_.fd = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
    if (file_.fd < 0) {
      if (errno == ENOSPC || errno == EDQUOT || errno == EIO) Fail(errno);
      throw InputError(path_, ": cannot be written (", ErrorText(errno),
                       "); choose another folder");
    }
    struct stat ours, there;
    if (fstat(file_.fd, &ours) != 0 || !S_ISREG(ours.st_mode)) {
      throw InputError(path_, ": not a regular file; remove it or choose another folder");
    }
    // Continues unlocked on a file system without locks.
    if (flock(file_.fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      throw InputError(path_, ": another process is downloading this file; wait for it to end");
    }
    return stat(path_.c_str(), &there) == 0 && there.st_ino == ours.st_ino;
  }

  [[noreturn]] void Fail(int error) const {
    throw RuntimeError(path_, ": writing failed after ", FormatBytes(static_cast<double>(size_)),
                       " (", ErrorText(error), "); the next download continues after these bytes");
  }

  const std::string path_;
  Descriptor file_;
  uint64_t size_ = 0;
  Sha256 hash_;
};

// Appends a mirror's bytes to the partial file.
class PartSink : public HttpSink {
 public:
  PartSink(const RemoteFile& file, PartFile& part, const DownloadHooks& hooks)
      : file_(file), part_(part), hooks_(hooks) {}

  bool Begin(uint64_t from, int64_t length) override {
    total_ = file_.size;
    if (total_ == 0 && length >= 0) total_ = from + static_cast<uint64_t>(length);
    // A wrong length means that the mirror has a different file. Refuse it here, before Restart()
    // discards the partial file.
    if (file_.size > 0 && length >= 0 && from + static_cast<uint64_t>(length) != file_.size) {
      refusal_ = StrCat("offers a file of ", from + static_cast<uint64_t>(length),
                        " bytes, not of ", file_.size);
      return false;
    }
    if (from == 0 && part_.size() > 0) part_.Restart();
    return true;
  }

  bool Write(std::span<const std::byte> bytes) override {
    if (file_.size > 0 && bytes.size() > file_.size - part_.size()) {
      refusal_ = StrCat("sends more than the ", file_.size, " bytes of the file");
      too_long_ = true;
      return false;
    }
    part_.Append(bytes);
    if (hooks_.progress) hooks_.progress(part_.size(), total_);
    return true;
  }

  bool Stop() override {
    stopped_ = stopped_ || (hooks_.stop && hooks_.stop());
    return stopped_;
  }

  bool stopped() const { return stopped_; }
  bool too_long() const { return too_long_; }
  const std::string& refusal() const { return refusal_; }

 private:
  const RemoteFile& file_;
  PartFile& part_;
  const DownloadHooks& hooks_;
  uint64_t total_ = 0;
  bool stopped_ = false, too_long_ = false;
  std::string refusal_;
};

enum class Ending { kRight, kStopped, kFailed };

struct Attempt {
  Ending ending;
  std::string reason;  // of a failure
  // Whether the failure may be due to wrong bytes that the partial file held before this attempt.
  // If so, the server is at fault only if a request for the whole file fails too.
  bool part_in_doubt = false;
};

Attempt Request(const RemoteFile& file, const std::string& url, PartFile& part,
                const DownloadOptions& options, const DownloadHooks& hooks) {
  PartSink sink(file, part, hooks);
  const HttpResult got = HttpGet({.url = url,
                                  .from = part.size(),
                                  .connect_seconds = options.connect_seconds,
                                  .stall_seconds = options.stall_seconds},
                                 sink);
  if (sink.stopped()) return {Ending::kStopped, ""};
  if (!sink.refusal().empty()) {
    if (sink.too_long()) part.Restart();
    return {Ending::kFailed, sink.refusal(), sink.too_long()};
  }
  if (!got.complete) return {Ending::kFailed, got.error, got.range_refused};
  if (part.size() < file.size) {
    return {Ending::kFailed, StrCat("ends after ", part.size(), " of ", file.size, " bytes")};
  }
  if (HasChecksum(file, part.hash())) return {Ending::kRight, ""};
  part.Restart();
  return {Ending::kFailed, "sends a different file (its SHA-256 does not match)", true};
}

// Requests the rest of the file. If this fails and the partial file may be the cause, requests the
// whole file.
Attempt TryMirror(const RemoteFile& file, const std::string& url, PartFile& part,
                  const DownloadOptions& options, const DownloadHooks& hooks) {
  const bool continued = part.size() > 0;
  const Attempt attempt = Request(file, url, part, options, hooks);
  if (!continued || !attempt.part_in_doubt) return attempt;
  part.Restart();
  return Request(file, url, part, options, hooks);
}

// Creates a folder if it is missing. The destructor removes the folder if the constructor created
// it and it is empty.
class NewFolder {
 public:
  explicit NewFolder(const std::string& path) : path_(path) {
    std::error_code ignored;
    existed_ = fs::exists(path, ignored);
    MakeFolder(path);
  }
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;
  ~NewFolder() {
    std::error_code ignored;
    if (!existed_) fs::remove(path_, ignored);  // fails if the folder holds files
  }

 private:
  const std::string path_;
  bool existed_ = false;
};

std::string UrlOf(const RemoteFile& file, const std::string& mirror) {
  return StrCat(mirror, mirror.ends_with('/') ? "" : "/", file.name);
}

}  // namespace

std::string PartPath(const RemoteFile& file, const std::string& folder) {
  return (fs::path(folder) / (file.name + ".part")).string();
}

DownloadOutcome Download(const RemoteFile& file, const std::string& folder,
                         const DownloadOptions& options, const DownloadHooks& hooks) {
  if (folder.empty()) throw InputError("the name of the download folder is empty; name a folder");
  const NewFolder made(folder);
  const std::string path = (fs::path(folder) / file.name).string();
  std::error_code error;
  if (fs::exists(path, error)) {
    Sha256 hash;
    hash.Update(MappedFile(path).bytes());
    if (HasChecksum(file, hash)) return DownloadOutcome::kPresent;
    if (!options.force) {
      throw InputError(path, ": exists with a different SHA-256 than the file to download; ",
                       "move it away, or replace it with --force");
    }
  }

  PartFile part(PartPath(file, folder));
  const bool whole = file.size > 0 && part.size() == file.size && HasChecksum(file, part.hash());
  if (file.size > 0 && part.size() >= file.size && !whole) part.Restart();
  Attempt last = {whole ? Ending::kRight : Ending::kFailed, "no mirror is given"};
  for (const std::string& mirror : options.mirrors) {
    if (last.ending != Ending::kFailed) break;
    const std::string url = UrlOf(file, mirror);
    last = TryMirror(file, url, part, options, hooks);
    if (last.ending == Ending::kFailed && hooks.failed) {
      hooks.failed(StrCat(url, ": ", last.reason));
    }
  }
  if (last.ending == Ending::kStopped) return DownloadOutcome::kStopped;
  if (last.ending == Ending::kFailed) {
    std::string kept;
    if (part.size() > 0) {
      kept = StrCat(" (", part.path(), " keeps the ", FormatBytes(static_cast<double>(part.size())),
                    " received so far)");
    }
    throw RuntimeError(path, ": no mirror provided this file; the last failure: ", last.reason,
                       "; try again later", kept, ", or name a mirror with --mirror URL");
  }
  part.Commit(path);
  return DownloadOutcome::kDownloaded;
}

}  // namespace linnet
