// The data sets that can be downloaded: their files, and where they lie.
//
//   for (const DownloadableSet& set : DownloadableSets()) std::cout << set.name << "\n";
//
// A new one is a new entry in downloads.cc; `linnet data NAME` follows.
#ifndef LINNET_TASKS_DOWNLOADS_H_
#define LINNET_TASKS_DOWNLOADS_H_

#include <string>
#include <vector>

#include "linnet/io/download.h"

namespace linnet {

struct DownloadableSet {
  std::string name;  // for an image data set, its ImageDataset's
  std::string description;
  std::vector<RemoteFile> files;     // as the readers take them: nothing is unpacked
  std::vector<std::string> mirrors;  // URLs of folders, the first choice first
  std::string next;                  // what to do with it: a command, in which DIR is the folder
};

const std::vector<DownloadableSet>& DownloadableSets();

}  // namespace linnet

#endif  // LINNET_TASKS_DOWNLOADS_H_
