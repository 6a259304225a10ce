# cmake -D OUT=pages.cc -D FOLDER=pages -P embed_pages.cmake
#   writes the files of a folder as C++ (linnet/server/pages.h).
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
file(WRITE ${OUT} "// Made from linnet/server/pages by cmake/embed_pages.cmake.
#include \"linnet/server/pages.h\"

namespace linnet::server {
namespace {

${arrays}
constexpr Page kPages[] = {
${entries}};

}  // namespace

std::span<const Page> Pages() { return kPages; }

}  // namespace linnet::server
")
