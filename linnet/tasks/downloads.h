// The downloadable data sets: their files and URLs.
//
//   for (const DownloadableSet& set : DownloadableSets()) std::cout << set.name << "\n";
//
// To add a data set, add an entry in downloads.cc; `linnet data NAME` then works.
#ifndef LINNET_TASKS_DOWNLOADS_H_
#define LINNET_TASKS_DOWNLOADS_H_

#include <string>
#include <vector>

#include "linnet/io/download.h"

namespace linnet {

struct DownloadableSet {
  std::string name;  // for image data sets, ImageDataset::name
  std::string description;
  std::string terms;                 // license or conditions of use, in a few words
  std::vector<RemoteFile> files;     // kept as downloaded
  std::vector<std::string> mirrors;  // URLs of folders, in order of preference
  std::string next;  // suggested next command; DIR stands for the data folder, without a final '/'
  // A folder in the downloaded tar archive; its files are unpacked next to the archive. Empty: the
  // downloaded files are used as they are.
  std::string unpack = {};
  // A file in `unpack`, for archives without a known checksum: its checksum is verified before
  // unpacking.
  RemoteFile contains = {};
};

const std::vector<DownloadableSet>& DownloadableSets();

}  // namespace linnet

#endif  // LINNET_TASKS_DOWNLOADS_H_
