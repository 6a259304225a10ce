// Files from the network that end up right or not at all: mirrors in order, checksums, partial
// downloads that are continued.
//
//   const RemoteFile file = {"a.gz", 1000, "9f86d081..."};
//   Download(file, "data", {.mirrors = {"https://host/folder/"}}, {});     // data/a.gz
//
// A file grows beside its place, as NAME.part, and takes its name once its checksum is right; what
// came before an interruption is continued where the server can do that. The size and the checksum
// decide; nothing that a server says is relied upon.
#ifndef LINNET_IO_DOWNLOAD_H_
#define LINNET_IO_DOWNLOAD_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace linnet {

struct RemoteFile {
  std::string name;  // in the folder, and after a mirror's URL
  uint64_t size;
  std::string sha256;  // 64 lower-case digits
};

struct DownloadOptions {
  std::vector<std::string> mirrors;  // URLs of folders, http or https, the first choice first
  bool force = false;                // replace a file of that name that is another one
  int connect_seconds = 20;
  int stall_seconds = 30;
};

struct DownloadHooks {
  std::function<bool()> stop = nullptr;  // asked often; true: keep what came and return
  std::function<void(uint64_t done, uint64_t total)> progress = nullptr;  // in bytes
  std::function<void(const std::string& line)> failed = nullptr;          // a mirror did, and why
};

enum class DownloadOutcome {
  kDownloaded,
  kPresent,  // the file was there
  kStopped,  // PartPath() keeps what came
};

// Makes `folder` hold the file; makes the folder too. Throws InputError when the folder cannot be
// written, when another file of that name is there, and when another process downloads the file;
// RuntimeError when no mirror has it or the disk is full.
DownloadOutcome Download(const RemoteFile& file, const std::string& folder,
                         const DownloadOptions& options, const DownloadHooks& hooks);

// Where a file lies until it is whole.
std::string PartPath(const RemoteFile& file, const std::string& folder);

}  // namespace linnet

#endif  // LINNET_IO_DOWNLOAD_H_
