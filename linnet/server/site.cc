#include "linnet/server/site.h"

#include <array>
#include <filesystem>
#include <span>
#include <string_view>
#include <utility>

#include "linnet/base/embedded_file.h"
#include "linnet/base/hash.h"
#include "linnet/base/units.h"
#include "linnet/error.h"
#include "linnet/io/file.h"

namespace linnet::server {

std::span<const EmbeddedFile> Pages();  // generated from pages/ (cmake/embed_files.cmake)

namespace {

namespace fs = std::filesystem;

constexpr size_t kLargestSite = size_t{1} << 30;  // bytes, which stay in memory

std::string ContentType(std::string_view path) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 10> kTypes = {{
      {".html", "text/html; charset=utf-8"},
      {".css", "text/css; charset=utf-8"},
      {".js", "text/javascript; charset=utf-8"},
      {".mjs", "text/javascript; charset=utf-8"},
      {".txt", "text/plain; charset=utf-8"},
      {".json", "application/json"},
      {".wasm", "application/wasm"},
      {".svg", "image/svg+xml"},
      {".png", "image/png"},
      {".ico", "image/x-icon"},
  }};
  for (const auto& [end, type] : kTypes) {
    if (path.ends_with(end)) return std::string(type);
  }
  return "application/octet-stream";
}

Page MakePage(std::string_view path, std::string bytes) {
  const uint64_t hash = Hash(std::as_bytes(std::span(bytes)));
  return {ContentType(path), StrCat('"', HashDigits(hash), '"'),
          std::make_shared<const std::string>(std::move(bytes))};
}

}  // namespace

Site BuiltInSite() {
  Site site;
  for (const EmbeddedFile& file : Pages()) {
    site[StrCat("/", file.name)] = MakePage(file.name, std::string(file.bytes));
  }
  site["/"] = site.at("/couplet.html");
  return site;
}

Site ReadSite(const std::string& folder) {
  Site site;
  size_t bytes = 0;
  try {
    for (auto file = fs::recursive_directory_iterator(folder); file != end(file); ++file) {
      if (file->path().filename().native().starts_with('.')) {
        file.disable_recursion_pending();
        continue;
      }
      if (!file->is_regular_file() || file->is_symlink()) continue;
      const std::string path = StrCat("/", file->path().lexically_relative(folder).native());
      if (path.starts_with("/v1/")) continue;
      bytes += file->file_size();
      if (bytes > kLargestSite) {
        throw InputError(folder, ": the site has more than ", FormatBytes(kLargestSite),
                         "; is this the folder of a site?");
      }
      site[path] = MakePage(path, ReadRegularFile(file->path(), kLargestSite));
    }
  } catch (const fs::filesystem_error& error) {
    throw InputError(folder, ": cannot be read as a site: ", error.code().message());
  }
  const auto first = site.find("/index.html");
  if (first == site.end()) {
    throw InputError(folder, ": has no index.html; give the folder of a site, as web/build makes");
  }
  site["/"] = first->second;
  return site;
}

HttpResponse PageResponse(const Page& page, const HttpRequest& request) {
  // Clients ask again each time, and get the page only if it has changed.
  HttpResponse response{.type = {}, .fields = {{"Cache-Control", "no-cache"}, {"ETag", page.tag}}};
  if (request.Field("If-None-Match") == page.tag) {
    response.status = 304;
    return response;
  }
  response.type = page.type;
  response.fields.insert(
      response.fields.end(),
      {{"Content-Security-Policy",
        "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; "
        "style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"},
       {"X-Content-Type-Options", "nosniff"},
       {"Referrer-Policy", "no-referrer"}});
  response.file = page.bytes;
  return response;
}

}  // namespace linnet::server
