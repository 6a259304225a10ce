// The web pages of the server: the files of pages/, built into the program.
#ifndef LINNET_SERVER_PAGES_H_
#define LINNET_SERVER_PAGES_H_

#include "linnet/base/embedded_file.h"

namespace linnet::server {

std::span<const EmbeddedFile> Pages();

}  // namespace linnet::server

#endif  // LINNET_SERVER_PAGES_H_
