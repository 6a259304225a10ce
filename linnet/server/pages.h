// The pages that the server shows: the files of pages/, built in.
#ifndef LINNET_SERVER_PAGES_H_
#define LINNET_SERVER_PAGES_H_

#include <span>
#include <string_view>

namespace linnet::server {

struct Page {
  std::string_view name;  // of the file: "shell.css"
  std::string_view bytes;
};

std::span<const Page> Pages();

}  // namespace linnet::server

#endif  // LINNET_SERVER_PAGES_H_
