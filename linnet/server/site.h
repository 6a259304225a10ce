// The web pages of the server: those built into it, or the files of a folder, such as the studio
// that web/build makes.
#ifndef LINNET_SERVER_SITE_H_
#define LINNET_SERVER_SITE_H_

#include <map>
#include <memory>
#include <string>

#include "linnet/server/http_server.h"

namespace linnet::server {

struct Page {
  std::string type;    // Content-Type
  const char* policy;  // Content-Security-Policy
  std::string tag;     // ETag: differs if the bytes differ
  std::shared_ptr<const std::string> bytes;
};

// By path: "/couplet.js". index.html, or couplet.html if it is built in, is also at "/".
using Site = std::map<std::string, Page>;

Site BuiltInSite();

// Reads all files in `folder`, and in the folders below it. Leaves out names that begin with a
// dot, links, and files under /v1/, whose paths belong to the models. Throws InputError if the
// folder has no index.html, cannot be read, or has files of more than 1 GB together.
Site ReadSite(const std::string& folder);

// The page; or status 304 if the client has it already, as its If-None-Match says.
HttpResponse PageResponse(const Page& page, const HttpRequest& request);

}  // namespace linnet::server

#endif  // LINNET_SERVER_SITE_H_
