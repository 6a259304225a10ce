#include "linnet/server/site.h"

#include <algorithm>
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

constexpr size_t kLargestSite = 1'000'000'000;  // bytes, which stay in memory

std::string ContentType(std::string_view path) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 15> kTypes = {{
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
      {".jpg", "image/jpeg"},
      {".gif", "image/gif"},
      {".webp", "image/webp"},
      {".woff2", "font/woff2"},
      {".wav", "audio/wav"},
  }};
  for (const auto& [end, type] : kTypes) {
    if (path.ends_with(end)) return std::string(type);
  }
  return "application/octet-stream";
}

// Content-Security-Policy: of the built-in pages, and of others, which may have WebAssembly,
// workers, fonts and sounds.
#define LINNET_POLICY                                                                         \
  "default-src 'none'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri " \
  "'none'; form-action 'none'; frame-ancestors 'none'; script-src 'self'"
constexpr char kStrict[] = LINNET_POLICY;
constexpr char kForSites[] =
    LINNET_POLICY " 'wasm-unsafe-eval'; worker-src 'self'; font-src 'self'; media-src 'self'";

Page MakePage(std::string_view path, std::string bytes, const char* policy) {
  const uint64_t hash = Hash(std::as_bytes(std::span(bytes)));
  return {ContentType(path), policy, StrCat('"', HashDigits(hash), '"'),
          std::make_shared<const std::string>(std::move(bytes))};
}

// Whether the client has the page with this tag. Proxies that compress mark a tag as weak: W/"TAG".
bool Has(const HttpRequest& request, std::string_view tag) {
  std::string_view rest = request.Field("If-None-Match");
  while (!rest.empty()) {
    std::string_view one = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), one.size() + 1));
    one.remove_prefix(std::min(one.size(), one.find_first_not_of(" \t")));
    one = one.substr(0, one.find_last_not_of(" \t") + 1);
    if (one.starts_with("W/")) one.remove_prefix(2);
    if (one == "*" || one == tag) return true;
  }
  return false;
}

}  // namespace

Site BuiltInSite() {
  Site site;
  for (const EmbeddedFile& file : Pages()) {
    site[StrCat("/", file.name)] = MakePage(file.name, std::string(file.bytes), kStrict);
  }
  site["/"] = site.at("/couplet.html");
  return site;
}

Site ReadSite(const std::string& folder) {
  Site site;
  size_t bytes = 0;
  try {
    const fs::path index = fs::path(folder) / "index.html";
    if (!fs::is_directory(folder)) {
      throw InputError(folder, ": is no folder; --site takes the folder of a site");
    }
    if (!fs::is_regular_file(fs::symlink_status(index))) {
      throw InputError(folder, fs::is_symlink(index)
                                   ? ": index.html is a link, and links are not served"
                                   : ": has no index.html; give the folder of a site, as "
                                     "web/build makes");
    }
    for (auto file = fs::recursive_directory_iterator(folder); file != end(file); ++file) {
      if (file->path().filename().native().starts_with('.')) {
        file.disable_recursion_pending();
        continue;
      }
      if (file->symlink_status().type() != fs::file_type::regular) continue;
      const std::string path = StrCat("/", file->path().lexically_relative(folder).native());
      if (path.starts_with("/v1/")) continue;
      if (bytes + file->file_size() > kLargestSite) {
        throw InputError(folder, ": has files of more than ", FormatBytes(kLargestSite),
                         ", which do not stay in memory; give the folder of a smaller site");
      }
      Page page = MakePage(path, ReadRegularFile(file->path(), kLargestSite - bytes), kForSites);
      bytes += page.bytes->size();
      site[path] = std::move(page);
    }
  } catch (const fs::filesystem_error& error) {
    throw InputError(error.path1().native(), ": cannot be read: ", error.code().message());
  }
  site["/"] = site.at("/index.html");
  return site;
}

HttpResponse PageResponse(const Page& page, const HttpRequest& request) {
  // Clients ask again each time, and get the page only if it has changed.
  HttpResponse response{.type = {}, .fields = {{"Cache-Control", "no-cache"}, {"ETag", page.tag}}};
  if (Has(request, page.tag)) {
    response.status = 304;
    return response;
  }
  response.type = page.type;
  response.fields.insert(response.fields.end(), {{"Content-Security-Policy", page.policy},
                                                 {"X-Content-Type-Options", "nosniff"},
                                                 {"Referrer-Policy", "no-referrer"}});
  response.file = page.bytes;
  return response;
}

}  // namespace linnet::server
