// linnet reproduce table4: images a second with a state beside softmax's too (appendix C.1), and the memory of
// an image from its first byte to its last.
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "linnet/base/error.h"
#include "linnet/base/thread_pool.h"
#include "linnet/base/units.h"
#include "linnet/cli/bench.h"
#include "linnet/cli/experiment.h"
#include "linnet/cli/generate_lab.h"
#include "linnet/cli/page.h"
#include "linnet/cli/reproduce.h"

namespace linnet::cli {
namespace {

using nlohmann::json;

struct Method : GenerateMethod {
  const char* name;
  int batch[2];     // images together, MNIST and CIFAR-10; 0: as many as threads
  double paper[2];  // images a second
};
constexpr Method kMethods[] = {
    {{"softmax", "full", 0, true}, "softmax", {0, 0}, {0.45, 0.004}},
    {{"stateful softmax", "full", 0, false}, "stateful", {16, 4}, {7.56, 0.32}},
    {{"LSH-1", "reformer", 1, true}, "lsh-1", {0, 0}, {0.68, 0.015}},
    {{"LSH-4", "reformer", 4, true}, "lsh-4", {0, 0}, {0.27, 0.005}},
    {{"linear", "causal-linear", 0, false}, "linear", {64, 32}, {142.8, 17.85}},
};

json Measure(const GenerateOptions& options) {
  json all = {{"machine", MachineName()},
              {"date", Today()},
              {"precision", options.precision},
              {"records", json::array()}};
  const int threads = options.threads > 0 ? options.threads : ThreadPool::AvailableProcessors();
  for (size_t d = 0; d < 2; ++d) {
    if (!Wants(options, ImagesName(d))) continue;
    for (const Method& method : kMethods) {
      const int batch = method.batch[d] > 0 ? method.batch[d] : threads;
      for (json& record : BenchGenerate("table4", options, method, d, batch)) {
        record["method"] = method.name, record["dataset"] = ImagesName(d);
        all["records"].push_back(std::move(record));
      }
    }
  }
  return all;
}

const json* Find(const json& all, const char* method, size_t dataset) {
  for (const json& record : all.at("records")) {
    if (record.at("method") == method && record.at("dataset") == ImagesName(dataset))
      return &record;
  }
  return nullptr;
}

plot::Figure DrawTable(const json& all) {
  plot::Figure figure{.title = "Images a second, the paper's networks",
                      .subtitle = "with a line: here; pale and alone: the paper, on its GPU",
                      .panels = {}};
  plot::Plot panel{.x = {"bytes of an image", /*log=*/true},
                   .y = {"images a second", /*log=*/true}};
  for (const Method& method : kMethods) {
    plot::Series ours = MethodSeries(method.label, plot::Style::kLineAndPoints);
    plot::Series paper = ours;
    paper.style = plot::Style::kPoints, paper.label = "", paper.faint = true;
    for (size_t d = 0; d < 2; ++d) {
      const double bytes = d == 0 ? 784 : 3072;
      paper.x.push_back(bytes), paper.y.push_back(method.paper[d]);
      const json* record = Find(all, method.name, d);
      if (record == nullptr) continue;
      ours.x.push_back(bytes), ours.y.push_back(record->at("images_per_second"));
    }
    if (!ours.x.empty()) panel.series.push_back(ours);
    panel.series.push_back(paper);
  }
  figure.panels = {panel};
  return figure;
}

std::string Page(const json& all) {
  const json& first = all.at("records").at(0);
  std::string page = StrCat(
      "# Table 4: images a second, with a state for softmax too\n\n```\n", CommandOf("table4", all),
      "\n```\n\n",
      Wrapped(StrCat(
          all.at("machine").get<std::string>(), ", ", first.at("threads").get<int>(),
          first.at("threads") == 1 ? " thread, " : " threads, ", first.at("isa").get<std::string>(),
          ", ", all.at("precision").get<std::string>(),
          all.at("precision") == "f32" ? ", " : " (LSH: f32), ", all.at("date").get<std::string>(),
          ". The paper's networks with random weights, as in [table 5](table5.md), but "
          "many images together. Bits/dim of softmax do not depend on whether it keeps a "
          "state: see [table 1](table1.md) and [table 2](table2.md).")),
      "\n", PictureTag("table4", "Images a second of five methods, MNIST and CIFAR-10"), "\n");
  for (size_t d = 0; d < 2; ++d) {
    const json* softmax = Find(all, kMethods[0].name, d);
    if (softmax == nullptr) continue;
    page += StrCat("## ", ImagesTitle(d),
                   "\n\n| | images together | images/s | times softmax's | memory of an image | of "
                   "it the past, after the first byte | after the last | paper: images/s | times "
                   "softmax's |\n|---|---|---|---|---|---|---|---|---|\n");
    for (const Method& method : kMethods) {
      const json* record = Find(all, method.name, d);
      if (record == nullptr) continue;
      const double rate = record->at("images_per_second");
      const double batch = record->at("batch");
      const double memory = record->at("memory_last_bytes").get<double>() / batch;
      // A cache has room for all from the beginning, and is filled byte by byte.
      const double state = record->at("state_bytes"), bytes = record->at("N");
      const bool cache = method.name == std::string("stateful");
      page +=
          StrCat("| ", method.label, " | ", record->at("batch").get<int>(), " | ", Digits(rate),
                 " | ", Digits(rate / softmax->at("images_per_second").get<double>()), " | ",
                 FormatBytes(memory), " | ",
                 method.stateless ? "– | – | "
                                  : StrCat(FormatBytes(cache ? state / (bytes - 1) : state), " | ",
                                           FormatBytes(state), " | "),
                 method.paper[d], " | ", Digits(method.paper[d] / kMethods[0].paper[d]), " |\n");
    }
    page += "\n";
  }
  page += Wrapped(
      "Memory is what the process holds at most beside the weights until the last byte, scratch "
      "included, divided by the images. The past is what must be kept of an image to go on: "
      "linear's does not grow; stateful softmax keeps keys and values, whose room this engine "
      "takes "
      "whole at the beginning; without a state nothing is kept, and everything is read again (by "
      "softmax through the same room). The paper's GPU held 10,000 images of MNIST at once with "
      "linear attention.");
  return page + "\nThe command wrote this page.\n";
}

void Run(const GenerateOptions& options) {
  Results results("table4", options.out, {"table4"});
  const json all = Obtain(
      "table4", options, GenerateCommand("table4", options), [&] { return Measure(options); },
      [](const json& record) {
        Page(record);
        DrawTable(record);
      });
  results.Write(all.dump(1) + "\n", Page(all), {DrawTable(all)});
  results.Print(options.json);
}

void Add(CLI::App& verb) {
  auto options = std::make_shared<GenerateOptions>();
  AddGenerateOptions(verb, "table4", *options);
  verb.callback([options, &verb] {
    CheckFrom(verb);
    Run(*options);
  });
}

}  // namespace

const Experiment kTable4 = {
    "table4", "Images a second and memory, with a state for softmax too (appendix C.1)",
    "Runs 'linnet bench generate' for softmax, stateful softmax, LSH-1, LSH-4 and linear "
    "attention,\n"
    "with the paper's networks for MNIST and CIFAR-10; some ten minutes.",
    "  linnet reproduce table4 --out docs/results\n"
    "  linnet reproduce table4 --dataset mnist\n",
    Add};

}  // namespace linnet::cli
