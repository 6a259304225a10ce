// The files of a snapshot: BASE.state and, if it has outputs, BASE.outputs (the floats, then their
// hash). BASE.outputs is written first, so BASE.state exists only for complete snapshots.
//
//   WriteSnapshot("folder/name", snapshot, model);
//   Snapshot snapshot = ReadSnapshot("folder/name", model, /*most=*/1 << 20);
#ifndef LINNET_SERVER_SNAPSHOT_FILES_H_
#define LINNET_SERVER_SNAPSHOT_FILES_H_

#include <cstddef>
#include <filesystem>
#include <string>

#include "linnet/base/function_ref.h"
#include "linnet/model.h"
#include "linnet/tasks/endpoint.h"

namespace linnet::server {

// The file that is begun, but not finished, to see whether a folder is writable.
inline constexpr char kProbe[] = "probe";

// Replaces each file atomically, once it is on the disk. Throws RuntimeError or InputError.
void WriteSnapshot(const std::string& base, const Snapshot& snapshot, const Model& model);

// Reads only regular files, of at most `most` bytes for the state. Throws InputError if a file is
// missing, damaged, of another kind or model, or holds several sequences.
Snapshot ReadSnapshot(const std::string& base, const Model& model, size_t most);

bool RemoveSnapshot(const std::string& base);    // returns whether no file is left
double SnapshotBytes(const std::string& base);   // the files' sizes
std::string StateFile(const std::string& base);  // the path of BASE.state

// Whether this is the name of a snapshot's file, with a stem for which is_stem() is true.
bool IsSnapshotFile(const std::string& name, FunctionRef<bool(const std::string&)> is_stem);

// Whether the file is a temporary file (AtomicFile) whose process has ended, so that nobody will
// rename or remove it, and would have become a file for whose name is_mine() is true.
bool IsOrphan(const std::filesystem::directory_entry& file,
              FunctionRef<bool(const std::string&)> is_mine);

}  // namespace linnet::server

#endif  // LINNET_SERVER_SNAPSHOT_FILES_H_
