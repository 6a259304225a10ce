// A file embedded in a program (cmake/embed_files.cmake).
#ifndef LINNET_BASE_EMBEDDED_FILE_H_
#define LINNET_BASE_EMBEDDED_FILE_H_

#include <span>
#include <string_view>

namespace linnet {

struct EmbeddedFile {
  std::string_view name;  // "shell.css"
  std::string_view bytes;
};

}  // namespace linnet

#endif  // LINNET_BASE_EMBEDDED_FILE_H_
