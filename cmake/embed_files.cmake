# cmake -D OUT=pages.cc -D FOLDER=pages -D NAMESPACE=linnet::server -P embed_files.cmake
#   Writes a C++ file that contains the files of a folder and defines
#   std::span<const EmbeddedFile> Pages() (linnet/base/embedded_file.h).
file(GLOB files ${FOLDER}/*)
list(SORT files)
set(arrays "")
set(entries "")
set(number 0)
foreach(path IN LISTS files)
  cmake_path(GET path FILENAME name)
  file(READ ${path} hex HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "'\\\\x\\1'," bytes "${hex}")
  string(REGEX REPLACE "(('[^']*',){16})" "\\1\n    " bytes "${bytes}")
  string(APPEND arrays "constexpr char kFile${number}[] = {\n    ${bytes}};\n")
  string(APPEND entries "    {\"${name}\", {kFile${number}, sizeof(kFile${number})}},\n")
  math(EXPR number "${number} + 1")
endforeach()
file(WRITE ${OUT} "// Made by cmake/embed_files.cmake.
#include \"linnet/base/embedded_file.h\"

namespace ${NAMESPACE} {
namespace {

${arrays}
constexpr EmbeddedFile kFiles[] = {
${entries}};

}  // namespace

std::span<const EmbeddedFile> Pages();
std::span<const EmbeddedFile> Pages() { return kFiles; }

}  // namespace ${NAMESPACE}
")
