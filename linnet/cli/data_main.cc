// linnet-data: downloads data sets. `linnet data` runs it. It is a separate program, so that linnet
// does not link libcurl.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "linnet/base/progress.h"
#include "linnet/base/units.h"
#include "linnet/error.h"
#include "linnet/io/download.h"
#include "linnet/io/gzip.h"
#include "linnet/io/sha256.h"
#include "linnet/io/tar.h"
#include "linnet/program/program.h"
#include "linnet/program/signals.h"
#include "linnet/tasks/downloads.h"

namespace linnet {
namespace {

// Quotes a path for a shell.
std::string ShellWord(const std::string& text) {
  const bool plain = !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::strchr("_-+./,:@%", c) != nullptr;
  });
  if (plain) return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

struct DataCommand {
  const DownloadableSet* set = nullptr;
  std::string to;
  std::vector<std::string> mirrors;
  bool force = false, json = false;
};

// The progress line of a download: "3.1 MB of 9.91 MB, 1.2 MB/s, 6s left".
class Rate {
 public:
  // Returns the line; "" in the first second, since short work needs no progress.
  std::string Line(uint64_t done, uint64_t total) {
    // Measures the rate from the first call on, since a resumed download begins with `done` > 0. If
    // the download restarts, `done` falls, and the measurement begins again.
    if (first_ == kNone || done < first_) {
      first_ = done;
      start_ = Clock::now();
    }
    const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
    if (seconds < 1 || done == first_) return "";
    const double rate = static_cast<double>(done - first_) / seconds;
    const std::string speed = StrCat(", ", FormatBytes(rate), "/s");
    if (total < done) return FormatBytes(static_cast<double>(done)) + speed;
    return StrCat(FormatBytes(static_cast<double>(done)), " of ",
                  FormatBytes(static_cast<double>(total)), speed, ", ",
                  FormatSeconds(static_cast<double>(total - done) / rate), " left");
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr uint64_t kNone = ~uint64_t{0};
  uint64_t first_ = kNone;  // bytes at start_
  Clock::time_point start_{};
};

DownloadOutcome Fetch(const DataCommand& command, const RemoteFile& file) {
  ProgressLine progress(std::cerr, isatty(STDERR_FILENO) == 1);
  Rate rate;
  const auto show = [&](uint64_t done, uint64_t total) {
    const std::string line = rate.Line(done, total);
    if (!line.empty()) progress.Update(StrCat(file.name, ": ", line));
  };
  const auto failed = [&](const std::string& line) { progress.Finish(line); };
  const DownloadOptions options = {
      .mirrors = command.mirrors.empty() ? command.set->mirrors : command.mirrors,
      .force = command.force};
  return Download(file, command.to, options,
                  {.stop = cli::StopAsked, .progress = show, .failed = failed});
}

// Unpacks the data set's archive into the archive's folder. Returns the number of files. Throws
// InputError if the archive lacks the set's `contains` file, or if that file's checksum is wrong.
size_t Unpack(const DataCommand& command) {
  const DownloadableSet& set = *command.set;
  const std::string path = (std::filesystem::path(command.to) / set.files[0].name).string();
  const std::vector<uint8_t> archive = ReadGzipOrPlain(path, size_t{1} << 30);
  const RemoteFile& known = set.contains;
  if (!known.name.empty()) {
    Sha256 hash;
    for (const TarFile& file : ReadTar(archive, path)) {
      if (file.name == set.unpack + known.name) hash.Update(std::as_bytes(file.bytes));
    }
    if (hash.Hex() != known.sha256) {
      throw InputError(path, ": its file '", known.name, "' is missing, or is not the one of ",
                       set.name, "; remove the archive and download it again");
    }
  }
  return UnpackTar(archive, path, set.unpack, command.to);
}

int Run(const DataCommand& command) {
  cli::StopAtSignals();
  std::signal(SIGPIPE, SIG_IGN);  // a server may close the connection
  nlohmann::ordered_json files = nlohmann::ordered_json::array();
  for (const RemoteFile& file : command.set->files) {
    const DownloadOutcome outcome = Fetch(command, file);
    if (outcome == DownloadOutcome::kStopped) {
      std::cerr << "stopped; the downloaded part of " << file.name
                << " is kept, and the same command resumes it" << std::endl;
      return 130;
    }
    const char* what = outcome == DownloadOutcome::kPresent ? "present" : "downloaded";
    const auto size = std::filesystem::file_size(std::filesystem::path(command.to) / file.name);
    files.push_back({{"name", file.name}, {"bytes", size}, {"outcome", what}});
    if (!command.json) {
      std::cout << StrCat(file.name, ": ", what, ", ", FormatBytes(static_cast<double>(size)),
                          file.sha256.empty() ? "" : ", SHA-256 matches", "\n")
                << std::flush;
    }
  }
  if (!command.set->unpack.empty()) {
    const size_t unpacked = Unpack(command);
    if (!command.json) std::cout << StrCat(unpacked, " files unpacked\n");
  }
  std::string next = command.set->next, folder = command.to;
  if (next.find("DIR/") != std::string::npos && folder.size() > 1 && folder.ends_with('/')) {
    folder.pop_back();
  }
  next.replace(next.find("DIR"), 3, ShellWord(folder));
  if (command.json) {
    const nlohmann::ordered_json result = {{"dataset", command.set->name},
                                           {"terms", command.set->terms},
                                           {"folder", command.to},
                                           {"files", files},
                                           {"next", next}};
    // Paths are as the user typed them; they need not be UTF-8.
    std::cout << result.dump(2, ' ', /*ensure_ascii=*/false,
                             nlohmann::ordered_json::error_handler_t::replace)
              << "\n";
  } else {
    std::cout << StrCat(command.to, ": complete; next: ", next, "\n");
  }
  return 0;
}

std::string CheckUrl(std::string& url) {
  if (url.starts_with("http://") || url.starts_with("https://")) return "";
  return "'" + url + "' is not a URL that begins with http:// or https://";
}

CLI::App* Register(CLI::App& root, DataCommand& command) {
  const DownloadableSet& set = *command.set;
  uint64_t bytes = 0;
  for (const RemoteFile& file : set.files) bytes += file.size;
  const std::string size = bytes > 0 ? FormatBytes(static_cast<double>(bytes)) + "; " : "";
  CLI::App* app =
      root.add_subcommand(set.name, StrCat(set.description, " (", size, set.terms, ")"));
  app->add_option("--to", command.to, "Folder for the files; created if it is missing")
      ->type_name("DIR")
      ->required();
  app->add_option("--mirror", command.mirrors,
                  "URL of a folder with the files, instead of the mirrors below; may be repeated")
      ->type_name("URL")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false)
      ->check(CLI::Validator(CheckUrl, ""));
  app->add_flag("--force", command.force, "Replace existing files whose checksum is wrong");
  app->add_flag("--json", command.json, "Print JSON for machines, and nothing else, on stdout");

  std::string mirrors;
  for (const std::string& mirror : set.mirrors) mirrors += "  " + mirror + "\n";
  app->footer(
      StrCat("\nTerms: ", set.terms, ".\n\nMirrors, tried in this order:\n", mirrors,
             "\nAn existing file is kept if its checksum is right. A partial download stays as "
             "NAME.part,\n"
             "and the same command resumes it. ",
             set.unpack.empty() ? "linnet reads the files as they are: nothing needs\nunpacking."
                                : "The archive is unpacked into the\nsame folder.",
             "\n\nExamples:\n  linnet data ", set.name, " --to ", set.name, "/\n  linnet data ",
             set.name, " --to ", set.name, "/ --mirror http://localhost:8000/\n"));
  return app;
}

}  // namespace
}  // namespace linnet

int main(int argc, char** argv) {
  using namespace linnet;
  CLI::App app("Download a data set", "linnet data");
  cli::SetUp(app);
  std::string examples = "\nExamples:\n";
  int exit_code = 0;
  std::vector<DataCommand> commands(DownloadableSets().size());
  for (size_t i = 0; i < commands.size(); ++i) {
    commands[i].set = &DownloadableSets()[i];
    Register(app, commands[i])->callback([&, i] { exit_code = Run(commands[i]); });
    examples +=
        StrCat("  linnet data ", commands[i].set->name, " --to ", commands[i].set->name, "/\n");
  }
  app.footer(examples);
  const int failed = cli::RunProgram(app, argc, argv);
  return failed != 0 ? failed : exit_code;
}
