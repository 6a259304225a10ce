// Downloads files reliably: tries mirrors in order, resumes partial files, and gives a file its
// final name only after its size and checksum are verified.
//
//   const RemoteFile file = {"a.gz", 1000, "9f86d081..."};
//   Download(file, "data", {.mirrors = {"https://host/folder/"}}, {});     // data/a.gz
//
// A file is downloaded to NAME.part and renamed once its checksum is right. After an interruption
// the download resumes if the server supports ranges. Only size and checksum decide whether a file
// is accepted, whatever the server claims. A file without a known checksum is accepted once the
// transfer is complete; the caller must check its contents.
#ifndef LINNET_IO_DOWNLOAD_H_
#define LINNET_IO_DOWNLOAD_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace linnet {

struct RemoteFile {
  std::string name;    // file name in the folder; also appended to a mirror's URL
  uint64_t size = 0;   // 0: not known
  std::string sha256;  // 64 lower-case digits; empty: not known
};

struct DownloadOptions {
  std::vector<std::string> mirrors;  // URLs of folders, http or https, in order of preference
  bool force = false;                // replace an existing file that has another checksum
  int connect_seconds = 20;          // timeouts; see HttpRequest in http.h
  int stall_seconds = 30;
};

struct DownloadHooks {
  std::function<bool()> stop = nullptr;  // polled often; true ends the download
  // `done` and `total` are in bytes. `total` is 0 if neither RemoteFile::size nor the server gives
  // the file's size.
  std::function<void(uint64_t done, uint64_t total)> progress = nullptr;
  // Called after each mirror that failed, with its URL and the reason in one line.
  std::function<void(const std::string& line)> failed = nullptr;
};

enum class DownloadOutcome {
  kDownloaded,
  kPresent,  // the file already existed
  kStopped,  // the partial file stays at PartPath()
};

// Ensures that `folder` contains the file, creating the folder if needed. Throws InputError if the
// folder is not writable, a different file of that name exists, or another process is downloading
// the file; RuntimeError if no mirror delivers the file or the disk is full.
DownloadOutcome Download(const RemoteFile& file, const std::string& folder,
                         const DownloadOptions& options, const DownloadHooks& hooks);

// Path of the partial file.
std::string PartPath(const RemoteFile& file, const std::string& folder);

}  // namespace linnet

#endif  // LINNET_IO_DOWNLOAD_H_
