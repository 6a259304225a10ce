#include "linnet/scheduler.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <stdexcept>
#include <string>

#include "linnet/error.h"
#include "linnet/model/checkpoint.h"
#include "linnet/rng.h"
#include "linnet/runtime/test_models.h"
#include "linnet/vocabulary.h"

namespace linnet {
namespace {

using Floats = std::vector<float>;
using Tokens = std::vector<int32_t>;

// A model over 11 tokens with 300 positions.
ModelSpec SmallSpec() {
  ModelSpec spec;
  spec.task = "copy", spec.part = std::monostate(), spec.head.kind = HeadKind::kCategorical;
  spec.input.vocabulary = spec.head.classes = 11;
  spec.stack.repeat = 2, spec.stack.mixer().heads = 3, spec.stack.mixer().query_dim = 5,
  spec.stack.mixer().value_dim = 7, spec.stack.d_model = 24;
  spec.stack.d_ff = 50, spec.input.value_embedding = 14, spec.input.max_length = 300;
  return spec;
}

std::shared_ptr<const Model> SmallModel(Precision precision = Precision::kF32,
                                        const ModelSpec& spec = SmallSpec()) {
  const std::string path =
      (std::filesystem::temp_directory_path() / StrCat("linnet_scheduler_test.", getpid()))
          .string();
  std::map<std::string, Floats> tensors;
  WriteCheckpoint(path, spec, "", [&](const TensorInfo& info) {
    size_t size = 1;
    for (int64_t n : info.shape) size *= static_cast<size_t>(n);
    Philox rng(9, tensors.size());
    Floats& values = tensors[info.name];
    for (size_t i = 0; i < size; ++i) values.push_back(0.3f * rng.Normal());
    return std::span<const float>(values);
  });
  auto model = Model::Open(path, {precision});
  std::filesystem::remove(path);
  return model;
}

int32_t Likeliest(std::span<const float> outputs) {
  return static_cast<int32_t>(std::max_element(outputs.begin(), outputs.end()) - outputs.begin());
}

// Random prompts: every fifth has up to 270 tokens, the others up to 20.
Tokens Prompt(size_t which) {
  Philox rng(4, which);
  Tokens prompt(1 + rng.Below(which % 5 == 0 ? 270 : 20));
  for (int32_t& token : prompt) token = static_cast<int32_t>(rng.Below(11));
  return prompt;
}

// A request's outputs in order, and the reason it ended.
struct Seen {
  Floats outputs;
  std::optional<Finished> why;
  size_t times = 0;  // calls of next()
};

// A request whose next() is called `tokens` times and records its outputs in `seen`.
Request Asking(const Tokens& prompt, size_t tokens, Seen& seen) {
  return {.prompt = prompt,
          .next = [&seen, tokens](std::span<const float> outputs) -> std::optional<int32_t> {
            seen.outputs.insert(seen.outputs.end(), outputs.begin(), outputs.end());
            if (++seen.times == tokens) return {};
            return Likeliest(outputs);
          },
          .finished = [&seen](Finished why) { seen.why = why; },
          .from = {}};
}

TEST(Scheduler, ResultsDoNotDependOnOtherRequests) {
  for (const Precision precision : {Precision::kF32, Precision::kInt8}) {
    const auto model = SmallModel(precision);
    constexpr size_t kRequests = 25;
    std::vector<Seen> alone(kRequests), together(kRequests);
    for (size_t i = 0; i < kRequests; ++i) {
      Engine engine(model, {.threads = 1});
      Scheduler scheduler(engine, {.sequences = 1});
      scheduler.Submit(Asking(Prompt(i), 1 + i * 2, alone[i]));
      while (scheduler.Run()) {
      }
    }
    Engine engine(model, {.threads = 2});
    Scheduler scheduler(engine, {.sequences = 4, .queue = 100, .prompt_tokens = 50});
    EXPECT_EQ(scheduler.capacity(), 4u);
    size_t submitted = 0;
    for (bool left = true; left || submitted < kRequests;) {
      if (submitted < kRequests) {
        ASSERT_TRUE(
            scheduler.Submit(Asking(Prompt(submitted), 1 + submitted * 2, together[submitted])));
        ++submitted;
      }
      left = scheduler.Run();
      EXPECT_LE(scheduler.running(), 4u);
    }
    for (size_t i = 0; i < kRequests; ++i) {
      EXPECT_EQ(together[i].outputs, alone[i].outputs) << i;
      EXPECT_EQ(together[i].why, alone[i].why);
      EXPECT_EQ(together[i].times, alone[i].times);
    }
    EXPECT_EQ(scheduler.running() + scheduler.waiting(), 0u);
  }
}

TEST(Scheduler, ContinuesFromAState) {
  const auto model = SmallModel();
  Engine engine(model, {.threads = 1});
  const Tokens prompt = Prompt(1);
  State state = engine.NewState(1);
  engine.Prefix(state, std::span(prompt).first(prompt.size() - 1), prompt.size() - 1, {});
  Floats want(engine.output_size());
  State went = state.Clone();
  engine.Prefix(went, std::span(prompt).last(1), 1, want);
  Scheduler scheduler(engine, {.sequences = 2});
  Seen seen[2];
  for (Seen& each : seen) {
    Request request = Asking({prompt.back()}, 1, each);
    request.from = std::make_shared<State>(state.Clone());
    scheduler.Submit(std::move(request));
  }
  while (scheduler.Run()) {
  }
  EXPECT_EQ(seen[0].outputs, want);
  EXPECT_EQ(seen[1].outputs, want);
}

// The scheduler allocates memory for states once, even if a request's state has a larger capacity.
TEST(Scheduler, StatesOfLargerCapacityTakeNoMoreMemory) {
  ModelSpec spec = LongCopy();
  spec.stack.mixer().kind = "full";
  const TestModel of(spec);
  Engine engine(of.model, {.threads = 1});
  const size_t bytes = engine.NewState(1).bytes();
  State state = engine.NewState(1);
  engine.Prefix(state, of.RandomTokens(400, 0), 400, {});
  state.Reset();
  engine.Prefix(state, of.RandomTokens(9, 1), 9, {});
  ASSERT_GT(state.bytes(), bytes);
  Scheduler scheduler(engine, {.sequences = 2});
  Seen seen;
  Request request = Asking({1}, 1, seen);
  request.from = std::make_shared<State>(state.Clone());
  size_t running = 0;
  request.passed = [&](State its, std::span<const float>) { running = its.bytes(); };
  ASSERT_TRUE(scheduler.Submit(std::move(request)));
  while (scheduler.Run()) {
  }
  EXPECT_EQ(running, bytes);
  Floats want(engine.output_size());
  engine.Prefix(state, Tokens{1}, 1, want);
  EXPECT_EQ(seen.outputs, want);
  EXPECT_EQ(seen.why, Finished::kEnded);
}

// Requests that continue from the states given to `passed` get the same bits as a request with the
// whole prompt. The last of these states has read the prompt to its end, so its request also gets
// the outputs there.
TEST(Scheduler, SharedPromptsAreReadOnce) {
  const auto model = SmallModel();
  for (const bool parallel : {false, true}) {
    Engine engine(model, {.threads = 2});
    Scheduler scheduler(engine, {.sequences = 3, .queue = 20, .parallel_next = parallel});
    Tokens prompt;
    for (size_t i = 0; i < 270; ++i) prompt.push_back(static_cast<int32_t>(i * i % 11));
    Seen whole;
    std::vector<State> states;
    Floats outputs;
    Request request = Asking(prompt, 12, whole);
    request.stops = {32, 160, 256};
    request.passed = [&](State state, std::span<const float> last) {
      states.push_back(std::move(state));
      outputs.assign(last.begin(), last.end());
    };
    ASSERT_TRUE(scheduler.Submit(std::move(request)));
    while (scheduler.Run()) {
    }
    ASSERT_EQ(states.size(), 4u);  // after each stop, and at the end
    const size_t positions[] = {32, 160, 256, 270};
    std::vector<Seen> rest(states.size());
    for (size_t i = 0; i < states.size(); ++i) {
      const size_t read = states[i].position();
      EXPECT_EQ(read, positions[i]);
      Request more =
          Asking({prompt.begin() + static_cast<ptrdiff_t>(read), prompt.end()}, 12, rest[i]);
      more.from = std::make_shared<State>(std::move(states[i]));
      if (read == prompt.size()) more.outputs = std::make_shared<Floats>(outputs);
      ASSERT_TRUE(scheduler.Submit(std::move(more)));
    }
    while (scheduler.Run()) {
    }
    for (const Seen& seen : rest) EXPECT_TRUE(seen.outputs == whole.outputs);
    Seen none;
    Request empty = Asking({}, 1, none);
    EXPECT_THROW(scheduler.Submit(std::move(empty)), Error);
    for (const std::vector<size_t>& stops :
         std::vector<std::vector<size_t>>{{0}, {33}, {64, 64}, {96, 64}, {288}}) {
      Request wrong = Asking(prompt, 1, none);
      wrong.stops = stops;
      EXPECT_THROW(scheduler.Submit(std::move(wrong)), Error);
    }
  }
}

TEST(Scheduler, RefusesRequestsBeyondTheQueue) {
  const auto model = SmallModel();
  Engine engine(model, {.threads = 1});
  Scheduler scheduler(engine, {.sequences = 2, .queue = 3});
  std::vector<Seen> seen(20);
  size_t taken = 0;
  for (size_t i = 0; i < 10; ++i) taken += scheduler.Submit(Asking({1, 2}, 4, seen[i])).has_value();
  EXPECT_EQ(taken, 5u);  // two will run, three wait
  EXPECT_EQ(scheduler.waiting(), 5u);
  EXPECT_TRUE(scheduler.Run());
  EXPECT_EQ(scheduler.running(), 2u);
  EXPECT_EQ(scheduler.waiting(), 3u);
  EXPECT_FALSE(scheduler.Submit(Asking({1}, 1, seen[10])));
  while (scheduler.Run()) {
  }
  for (size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(seen[i].why.has_value(), i < 5) << i;
    EXPECT_EQ(seen[i].times, i < 5 ? 4u : 0u);
  }
  EXPECT_TRUE(scheduler.Submit(Asking({1}, 1, seen[10])));
}

TEST(Scheduler, RefusedRequestsAreUnchanged) {
  const auto model = SmallModel();
  Engine engine(model, {.threads = 1});
  Scheduler scheduler(engine, {.sequences = 1, .queue = 0});
  Seen seen[2];
  EXPECT_TRUE(scheduler.Submit(Asking({1}, 1, seen[0])));
  Request second = Asking({2, 3}, 1, seen[1]);
  second.from = std::make_shared<State>(engine.NewState(1));
  EXPECT_FALSE(scheduler.Submit(std::move(second)));
  EXPECT_EQ(second.prompt, (Tokens{2, 3}));  // NOLINT: a refused request is not moved from
  EXPECT_EQ(second.from->batch(), 1u);
  while (scheduler.Run()) {
  }
  EXPECT_TRUE(scheduler.Submit(std::move(second)));
  Scheduler endless(engine, {.sequences = 1, .queue = SIZE_MAX});
  EXPECT_TRUE(endless.Submit(Asking({1}, 1, seen[0])));
}

// A long prompt is read although shorter prompts keep arriving. This holds for any number of tokens
// per round.
TEST(Scheduler, EveryPromptIsReadEventually) {
  const auto model = SmallModel();
  Engine engine(model, {.threads = 1});
  for (const size_t tokens : {0, 1, 128, 200}) {
    Scheduler scheduler(engine, {.sequences = 3, .queue = 10, .prompt_tokens = tokens});
    Seen patient;
    std::vector<Seen> others(200);
    scheduler.Submit(Asking(Tokens(128, 1), 1, others[0]));
    scheduler.Submit(Asking(Tokens(290, 2), 1, patient));
    for (size_t i = 1; i < 40; ++i) {
      scheduler.Submit(Asking(Tokens(128, 3), 1, others[i]));
      scheduler.Run();
    }
    EXPECT_EQ(patient.why, Finished::kEnded) << tokens;
  }
}

TEST(Scheduler, EndsAtTheModelsLastPosition) {
  const auto model = SmallModel();
  Engine engine(model, {.threads = 1});
  Scheduler scheduler(engine, {.sequences = 2});
  Seen endless, full;
  scheduler.Submit(Asking({1}, 1'000'000, endless));
  scheduler.Submit(Asking(Tokens(300, 2), 2, full));
  while (scheduler.Run()) {
  }
  EXPECT_EQ(endless.why, Finished::kFull);
  EXPECT_EQ(endless.times, 300u);  // one for each token read
  EXPECT_EQ(full.why, Finished::kFull);
  EXPECT_EQ(full.times, 1u);
}

TEST(Scheduler, RefusesAPromptThatDoesNotFitIntoTheEncoder) {
  ModelSpec spec = SmallSpec();
  spec.task = "text", spec.part = TextSpec{.unit = TextUnit::kCharacter, .characters = "abcdefgh"};
  spec.network = NetworkKind::kEncoderDecoder;
  spec.input.value_embedding = spec.stack.d_model;  // no positions, so sequences have no end
  const auto model = SmallModel(Precision::kF32, spec);
  Engine engine(model, {.threads = 1});
  Scheduler scheduler(engine, {.sequences = 2});
  Seen seen;
  EXPECT_THROW(scheduler.Submit(Asking(Tokens(301, 5), 1, seen)), InputError);
  Tokens prompt(302, 5);
  prompt[300] = Vocabulary::kSeparator;
  ASSERT_TRUE(scheduler.Submit(Asking(prompt, 2, seen)));
  while (scheduler.Run()) {
  }
  EXPECT_EQ(seen.why, Finished::kEnded);
  State read = engine.NewState(1);
  std::vector<float> outputs(engine.output_size());
  engine.Prefix(read, Tokens(299, 5), 299, outputs);
  Request more = Asking({5, 5}, 1, seen);
  more.from = std::make_shared<const State>(std::move(read));
  EXPECT_THROW(scheduler.Submit(std::move(more)), InputError);
}

TEST(Scheduler, CancelsRunningAndWaitingRequests) {
  const auto model = SmallModel();
  Engine engine(model, {.threads = 1});
  Scheduler scheduler(engine, {.sequences = 2});
  std::vector<Seen> seen(5);
  std::vector<uint64_t> ids;
  for (size_t i = 0; i < 4; ++i) ids.push_back(*scheduler.Submit(Asking({1, 2}, 50, seen[i])));
  scheduler.Run();
  EXPECT_TRUE(scheduler.Cancel(ids[0]));   // running
  EXPECT_TRUE(scheduler.Cancel(ids[3]));   // waiting
  EXPECT_FALSE(scheduler.Cancel(ids[0]));  // already gone
  EXPECT_FALSE(scheduler.Cancel(12345));
  EXPECT_EQ(scheduler.running(), 1u);
  EXPECT_EQ(seen[0].why, Finished::kCancelled);
  EXPECT_EQ(seen[3].why, Finished::kCancelled);
  // From within a callback: cancel itself and another, and submit a new one.
  uint64_t own = 0;
  Request request = Asking({3}, 50, seen[4]);
  request.next = [&](std::span<const float>) -> std::optional<int32_t> {
    EXPECT_TRUE(scheduler.Cancel(ids[1]));
    EXPECT_TRUE(scheduler.Cancel(own));
    EXPECT_TRUE(scheduler.Submit(Asking({4}, 3, seen[0])));
    return 1;
  };
  own = *scheduler.Submit(std::move(request));
  EXPECT_TRUE(scheduler.Cancel(ids[2]));
  seen[0] = {};
  while (scheduler.Run()) {
  }
  EXPECT_EQ(seen[1].why, Finished::kCancelled);
  EXPECT_EQ(seen[4].why, Finished::kCancelled);
  EXPECT_EQ(seen[0].why, Finished::kEnded);
  EXPECT_EQ(seen[0].times, 3u);
}

TEST(Scheduler, ReportsWhenARequestIsAdmitted) {
  const auto model = SmallModel();
  Engine engine(model, {.threads = 1});
  Scheduler scheduler(engine, {.sequences = 1});
  Seen seen[3];
  std::vector<size_t> admitted;
  uint64_t second = 0;
  for (size_t i = 0; i < 3; ++i) {
    Request request = Asking({1, 2}, 4, seen[i]);
    request.admitted = [&, i] {
      EXPECT_EQ(seen[i].times, 0u);
      EXPECT_TRUE(i == 0 || seen[i - 1].why) << "it waits for the one before";
      admitted.push_back(i);
      EXPECT_TRUE(i != 1 || scheduler.Cancel(second));
    };
    const auto id = scheduler.Submit(std::move(request));
    if (i == 1) second = *id;
  }
  scheduler.Run();
  EXPECT_EQ(admitted, std::vector<size_t>({0}));
  while (scheduler.Run()) {
  }
  EXPECT_EQ(admitted, std::vector<size_t>({0, 1, 2}));
  EXPECT_EQ(seen[0].why, Finished::kEnded);
  EXPECT_EQ(seen[1].why, Finished::kCancelled);
  EXPECT_EQ(seen[1].times, 0u);
  EXPECT_EQ(seen[2].times, 4u);
}

TEST(Scheduler, AnExceptionEndsOnlyItsRequest) {
  const auto model = SmallModel();
  Engine engine(model, {.threads = 1});
  Scheduler scheduler(engine, {.sequences = 3});
  Seen good, odd;
  Request bad = Asking({1}, 5, odd);
  bad.next = [](std::span<const float>) -> std::optional<int32_t> {
    throw std::runtime_error("told so");
  };
  Request early = Asking({1}, 5, odd);
  early.admitted = [] { throw std::runtime_error("told so"); };
  Request outside = Asking({1}, 5, odd);
  outside.next = [](std::span<const float>) -> std::optional<int32_t> { return 11; };
  scheduler.Submit(std::move(bad));
  scheduler.Submit(Asking({1, 2, 3}, 5, good));
  EXPECT_THROW(scheduler.Run(), std::runtime_error);
  EXPECT_EQ(scheduler.running(), 1u);
  scheduler.Submit(std::move(early));
  EXPECT_THROW(scheduler.Run(), std::runtime_error);
  EXPECT_EQ(scheduler.running(), 1u);
  scheduler.Submit(std::move(outside));
  EXPECT_THROW(scheduler.Run(), Error);
  while (scheduler.Run()) {
  }
  EXPECT_EQ(good.why, Finished::kEnded);
  EXPECT_EQ(good.times, 5u);
  EXPECT_FALSE(odd.why);
}

TEST(Scheduler, RefusesInvalidRequests) {
  const auto model = SmallModel();
  Engine engine(model, {.threads = 1});
  EXPECT_THROW(Scheduler(engine, {.sequences = 0}), Error);
  EXPECT_THROW(Scheduler(engine, {.sequences = size_t{1} << 50}), Error);
  Scheduler scheduler(engine, {.sequences = 2});
  Seen seen;
  EXPECT_THROW(scheduler.Submit(Asking({}, 1, seen)), Error);
  EXPECT_THROW(scheduler.Submit(Asking({11}, 1, seen)), Error);
  EXPECT_THROW(scheduler.Submit(Asking({-1}, 1, seen)), Error);
  EXPECT_THROW(scheduler.Submit(Asking(Tokens(301, 1), 1, seen)), Error);
  Request request = Asking({1}, 1, seen);
  request.from = std::make_shared<State>(engine.NewState(2));
  EXPECT_THROW(scheduler.Submit(std::move(request)), Error);
  request = Asking({1}, 1, seen);
  request.next = nullptr;
  EXPECT_THROW(scheduler.Submit(std::move(request)), Error);
  EXPECT_EQ(scheduler.waiting(), 0u);
  EXPECT_FALSE(scheduler.Run());
  EXPECT_EQ(Scheduler::Fitting(*model, 0), 0u);
  EXPECT_EQ(Scheduler::Fitting(
                *model, 10.5 * static_cast<double>(StateBytes(model->spec(), model->precision()))),
            10u);
}

}  // namespace
}  // namespace linnet
