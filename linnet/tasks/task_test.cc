#include "linnet/tasks/task.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "linnet/error.h"
#include "linnet/runtime/test_util.h"

namespace linnet {
namespace {

// A task that the library does not contain. Its evaluation counts the tokens after which the model
// predicts the same token again.
Evaluation EvalToy(const EvalOptions& options, Engine& engine, const EvalProgress& report) {
  const auto vocabulary = static_cast<int32_t>(engine.model().spec().input.vocabulary);
  const size_t count = options.limit > 0 ? options.limit : static_cast<size_t>(vocabulary);
  size_t repeated = 0;
  std::vector<float> scores(engine.output_size());
  for (size_t i = 0; i < count; ++i) {
    const int32_t token = static_cast<int32_t>(i) % vocabulary;
    State state = engine.NewState(1);
    engine.Step(state, {&token, 1}, scores);
    repeated += std::max_element(scores.begin(), scores.end()) - scores.begin() == token;
    report(i + 1, count);
  }
  return {.record = {{"repeated", repeated}, {"tokens", count}, {"seconds", 0.0}},
          .summary = StrCat(repeated, " of ", count, " tokens repeated")};
}

struct Nothing : server::Endpoint {
  server::Reply Answer(const nlohmann::ordered_json&, std::shared_ptr<server::Account>) override {
    throw server::Refusal{501, "a toy"};
  }
};

constexpr Task kToy = {
    .name = "toy",
    .description = "tokens repeated",
    .evaluating = "playing",
    .evaluate = EvalToy,
    .describe = [](const ModelSpec& spec) -> TaskLines {
      return {{"task", StrCat(" of ", spec.input.vocabulary)}, {"price", "none"}};
    },
    .path = "/v1/toys",
    .endpoint = [](std::vector<server::ServedModel>, const server::EndpointLimits&)
        -> std::unique_ptr<server::Endpoint> { return std::make_unique<Nothing>(); },
};

// Registers the task once per process.
const Task& Toy() {
  static const Task added = (AddTask(kToy), kToy);
  return added;
}

TEST(Task, EachHasItsOwnNameAndPath) {
  std::set<std::string_view> names;
  std::set<std::string> paths;
  for (const Task& task : Tasks()) {
    EXPECT_TRUE(names.insert(task.name).second) << task.name;
    EXPECT_FALSE(task.description.empty()) << task.name;
    EXPECT_EQ(task.endpoint != nullptr, task.path != nullptr) << task.name;
    if (task.path) {
      EXPECT_TRUE(paths.insert(task.path).second) << task.path;
    }
  }
  for (const char* name : {"images", "copy", "text", "couplet", "speech"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
  EXPECT_FALSE(FindTask("Images"));
  EXPECT_FALSE(FindTask(""));
}

TEST(Task, RegisteredTasksAreEvaluated) {
  Toy();
  const auto model = RandomModel("toy", "character");
  const auto task = FindTask(model->spec().task);
  ASSERT_TRUE(task);
  Engine engine(model, {.threads = 1});
  EvalOptions options;
  options.limit = 5;
  size_t reports = 0, last = 0;
  const auto report = [&](size_t done, size_t total) {
    ++reports, last = done;
    EXPECT_EQ(total, 5u);
  };
  const Evaluation result = task->evaluate(options, engine, report);
  EXPECT_EQ(result.record.at("tokens"), 5);
  EXPECT_EQ(reports, 5u);
  EXPECT_EQ(last, 5u);
  EXPECT_EQ(result.summary,
            StrCat(result.record.at("repeated").get<size_t>(), " of 5 tokens repeated"));
}

TEST(Task, RegisteredTasksAreDescribedAndServed) {
  Toy();
  const auto model = RandomModel("toy", "byte");
  EXPECT_TRUE(IsOf(model->spec(), Toy()));
  EXPECT_NO_THROW(CheckTask(*model, Toy(), "play"));
  EXPECT_THROW(CheckTask(*model, kTextTask, "generate"), Error);
  EXPECT_EQ(
      DescribeTask(model->spec()),
      (TaskLines{{"task", StrCat("toy of ", model->spec().input.vocabulary)}, {"price", "none"}}));
  const auto endpoint = FindTask("toy")->endpoint({}, {});
  EXPECT_THROW(endpoint->Answer({}, nullptr), server::Refusal);
}

TEST(Task, NamesAreUnique) {
  Toy();
  const size_t count = Tasks().size();
  EXPECT_THROW(AddTask(kToy), Error);
  EXPECT_THROW(AddTask({.name = "images", .description = "other images"}), Error);
  EXPECT_EQ(Tasks().size(), count);
}

TEST(Task, DescribesUnknownTasks) {
  const auto model = RandomModel("stranger", "character");
  EXPECT_EQ(DescribeTask(model->spec()), (TaskLines{{"task", "stranger"}}));
}

TEST(Task, BrokenWeightsAreAnError) {
  const auto model = RandomModel("text", "character");
  EXPECT_NO_THROW(CheckMean(*model, 1.5));
  EXPECT_THROW(CheckMean(*model, NAN), Error);
  EXPECT_THROW(CheckMean(*model, INFINITY), Error);
}

}  // namespace
}  // namespace linnet
