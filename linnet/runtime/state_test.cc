#include "linnet/state.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "linnet/engine.h"
#include "linnet/io/file.h"
#include "linnet/runtime/test_models.h"

namespace linnet {
namespace {

TEST(State, SequencesAtDifferentPositionsStepTogether) {
  for (const TestModel* of : {&Grid(), &Wide()}) {
    Engine engine(of->model, {.threads = 2});
    const size_t width = engine.output_size(), steps = 5;
    const std::vector<size_t> read = {7, 0, of == &Grid() ? size_t{200} : size_t{13}, 1};
    State together;
    Floats alone(read.size() * steps * width), got = alone;
    std::vector<Tokens> tokens;
    for (size_t i = 0; i < read.size(); ++i) {
      tokens.push_back(of->RandomTokens(read[i] + steps, i));
      State state = engine.NewState(1);
      if (read[i] > 0) engine.Prefix(state, std::span(tokens[i]).first(read[i]), read[i], {});
      together.Append(state);
      for (size_t t = 0; t < steps; ++t) {
        engine.Step(state, std::span(tokens[i]).subspan(read[i] + t, 1),
                    std::span(alone).subspan((i * steps + t) * width, width));
      }
    }
    Floats out(read.size() * width);
    for (size_t t = 0; t < steps; ++t) {
      Tokens column;
      for (size_t i = 0; i < read.size(); ++i) column.push_back(tokens[i][read[i] + t]);
      engine.Step(together, column, out);
      for (size_t i = 0; i < read.size(); ++i) {
        std::copy_n(out.begin() + static_cast<ptrdiff_t>(i * width), width,
                    got.begin() + static_cast<ptrdiff_t>((i * steps + t) * width));
      }
    }
    EXPECT_EQ(got, alone);
    for (size_t i = 0; i < read.size(); ++i) EXPECT_EQ(together.position(i), read[i] + steps);
  }
}

// Assign() takes over the positions that were read, not the capacity of the other state.
TEST(State, AssignGrowsOnlyForThePositions) {
  for (const char* kind : {"full", "reformer"}) {  // a cache; kept tokens
    SCOPED_TRACE(kind);
    ModelSpec spec = LongCopy();
    spec.stack.mixer().kind = kind;
    const TestModel of(spec);
    Engine engine(of.model, {.threads = 1});
    const size_t width = engine.output_size();
    State grown = engine.NewState(1), two = engine.NewState(2);
    const size_t before = two.bytes();
    engine.Prefix(grown, of.RandomTokens(400, 0), 400, {});
    ASSERT_GT(grown.bytes(), before / 2);
    for (const size_t read : {7, 400}) {
      grown.Reset();
      engine.Prefix(grown, of.RandomTokens(read, 1), read, {});
      two.Assign(1, grown);
      EXPECT_EQ(two.position(1), read);
      EXPECT_EQ(two.bytes() > before, read == 400);
      Floats out(width), want(width);
      engine.Step(two, std::vector<size_t>{1}, Tokens{3}, out);
      engine.Step(grown, Tokens{3}, want);
      EXPECT_EQ(out, want);
    }
  }
}

// Pieces of unequal length give the same bits in outputs and states, whether the engine reads them
// together or one by one.
TEST(State, PiecesOfUnequalLengthAreReadTogether) {
  ModelSpec spec = LongCopy();
  spec.stack.mixer().kind = "full";
  const TestModel softmax(spec);
  spec = LongCopy(), spec.stack.mixer().feature_map = "rff";
  const TestModel features(spec);
  for (const auto& [of, model] :
       std::vector<std::pair<const TestModel*, std::shared_ptr<const Model>>>{
           {&Grid(), Grid().model},
           {&Grid(), Grid().In(Precision::kInt8)},
           {&Copy(), Copy().model},
           {&softmax, softmax.model},
           {&features, features.model}}) {
    for (const int threads : {1, 2, 3}) {
      for (const std::vector<size_t>& lengths : std::vector<std::vector<size_t>>{
               {5, 2, 40, 3, 17, 9}, {4, 4}, {3, 1, 6}, {2, 7, 191, 60, 130}, {11}}) {
        Engine engine(model, {.threads = threads});
        const size_t width = engine.output_size(), batch = lengths.size();
        State state = engine.NewState(batch + 1);
        engine.Prefix(state, of->RandomTokens((batch + 1) * 6, 0), 6, {});
        State apart = state.Clone();
        std::vector<size_t> chosen;
        for (size_t i = batch; i-- > 0;) chosen.push_back(i + 1);
        size_t all = 0;
        for (const size_t length : lengths) all += length;
        const Tokens tokens = of->RandomTokens(all, 1), next = of->RandomTokens(batch, 2);
        Floats got(batch * width), want = got, after = got, after_want = got;
        engine.Prefix(state, chosen, lengths, tokens, got);
        for (size_t i = 0, at = 0; i < batch; at += lengths[i++]) {
          engine.Prefix(apart, {&chosen[i], 1}, std::span(tokens).subspan(at, lengths[i]),
                        lengths[i], std::span(want).subspan(i * width, width));
        }
        EXPECT_EQ(got, want);
        engine.Step(state, chosen, next, after);
        engine.Step(apart, chosen, next, after_want);
        EXPECT_EQ(after, after_want);
        for (size_t i = 0; i < batch; ++i) EXPECT_EQ(state.position(chosen[i]), 7 + lengths[i]);
        EXPECT_EQ(state.position(0), 6u);
      }
    }
  }
  Engine engine(Grid().model, {.threads = 2});
  State state = engine.NewState(2);
  const Tokens tokens(5, 1);
  const std::vector<size_t> both = {0, 1}, same = {1, 1}, off = {1, 2};
  const auto refuses = [&](const std::vector<size_t>& chosen, const std::vector<size_t>& lengths) {
    EXPECT_THROW(engine.Prefix(state, chosen, lengths, tokens, {}), Error);
    EXPECT_EQ(state.position(0) + state.position(1), 0u);
  };
  refuses(both, {2, 2}), refuses(both, {5, 0}), refuses(both, {5}), refuses(same, {2, 3});
  refuses(off, {2, 3});
}

// Chosen sequences of a state continue with the outputs that they have alone; the state's other
// sequences do not change.
TEST(State, StepsOfChosenSequencesLeaveTheOthersUnchanged) {
  for (const size_t batch : {5, 40}) {
    Engine engine(Grid().model, {.threads = 2});
    const size_t width = engine.output_size();
    State state = engine.NewState(batch);
    engine.Prefix(state, Grid().RandomTokens(batch * 20, 0), 20, {});
    const State before = state.Clone();
    std::vector<size_t> chosen;
    for (size_t i = batch; i-- > 1;) chosen.push_back(i);  // all but the first, in reverse order
    const Tokens piece = Grid().RandomTokens(chosen.size() * 3, 1), next = Tokens(chosen.size(), 7);
    Floats out(chosen.size() * width), want = out;
    engine.Prefix(state, chosen, piece, 3, {});
    engine.Step(state, chosen, next, out);
    State alone = before.Select(chosen);
    engine.Prefix(alone, piece, 3, {});
    engine.Step(alone, next, want);
    EXPECT_EQ(out, want);
    EXPECT_EQ(state.position(0), 20u);
    EXPECT_EQ(state.position(1), 24u);
    Floats first(width), same(width);
    State stayed = before.Select(std::vector<size_t>{0});
    engine.Step(state, std::vector<size_t>{0}, Tokens{1}, first);
    engine.Step(stayed, Tokens{1}, same);
    EXPECT_EQ(first, same);
    state.Reset(2);
    EXPECT_EQ(state.position(2), 0u);
    State fresh = engine.NewState(1);
    engine.Step(state, std::vector<size_t>{2}, Tokens{1}, first);
    engine.Step(fresh, Tokens{1}, same);
    EXPECT_EQ(first, same);
    const State kept = state.Clone();
    EXPECT_THROW(engine.Step(state, std::vector<size_t>{1, 3, 1}, Tokens(3, 1), out), Error);
    EXPECT_THROW(engine.Step(state, std::vector<size_t>{batch}, Tokens{1}, first), Error);
    EXPECT_THROW(engine.Step(state, std::vector<size_t>{}, Tokens{}, first), Error);
    EXPECT_EQ(state.position(1), kept.position(1));
    engine.Step(state, std::vector<size_t>{1, 3}, Tokens(2, 1), std::span(out).first(2 * width));
  }
}

TEST(State, ForkSelectAndAppendAreCopiesOfSequences) {
  Engine engine(Grid().model, {.threads = 1});
  const size_t width = engine.output_size();
  State state = engine.NewState(2);
  engine.Prefix(state, Grid().RandomTokens(2 * 40, 0), 40, {});
  State forks = state.Fork(3);
  EXPECT_EQ(forks.batch(), 6u);
  State chosen = forks.Select(std::vector<size_t>{4, 0, 4});
  chosen.Append(state);
  Floats two(2 * width), five(5 * width);
  engine.Step(state, Tokens{3, 3}, two);
  engine.Step(chosen, Tokens(5, 3), five);
  for (size_t i = 0; const size_t from : {1, 0, 1, 0, 1}) {
    EXPECT_TRUE(std::equal(five.begin() + static_cast<ptrdiff_t>(i * width),
                           five.begin() + static_cast<ptrdiff_t>((i + 1) * width),
                           two.begin() + static_cast<ptrdiff_t>(from * width)))
        << i;
    ++i;
  }
  EXPECT_THROW(state.Fork(0), Error);
  EXPECT_THROW(state.Select(std::vector<size_t>{2}), Error);
  EXPECT_THROW(state.position(2), Error);
  Engine other(Copy().model, {.threads = 1});
  EXPECT_THROW(state.Append(other.NewState(1)), Error);
  EXPECT_THROW(other.Step(state, Tokens{1, 1}, two), Error);
  // A model with fewer positions, which the position of `state` could exceed.
  ModelSpec shorter = GridImages();
  shorter.image()->height = 4, shorter.input.max_length = 59;
  Engine short_one(TestModel(shorter).model, {.threads = 1});
  engine.Prefix(state, Grid().RandomTokens(2 * 30, 1), 30, {});
  EXPECT_THROW(short_one.Step(state, Tokens{1, 1}, two), Error);
  EXPECT_THROW(state.Save("/tmp/none.state", *Grid().In(Precision::kBf16)), Error);
  EXPECT_THROW(state.Fork(size_t{1} << 63), Error);
  EXPECT_THROW(state.Fork(size_t{1} << 40), Error);
}

TEST(State, BytesEqualTheFile) {
  const std::string path =
      (std::filesystem::temp_directory_path() / StrCat("linnet_state_test.", getpid())).string();
  const auto model = Grid().In(Precision::kF32);
  Engine engine(model, {.threads = 1});
  State state = engine.NewState(2);
  engine.Prefix(state, Grid().RandomTokens(2 * 50, 0), 50, {});
  state.Save(path, *model);
  const std::string file = ReadFile(path);
  std::filesystem::remove(path);
  std::vector<std::byte> bytes = state.ToBytes(*model);
  ASSERT_EQ(bytes.size(), file.size());
  EXPECT_EQ(std::memcmp(bytes.data(), file.data(), file.size()), 0);
  State loaded = State::FromBytes(bytes, "memory", *model);
  Floats a(2 * engine.output_size()), b = a;
  engine.Step(state, Tokens{3, 4}, a);
  engine.Step(loaded, Tokens{3, 4}, b);
  EXPECT_EQ(a, b);
  EXPECT_THROW(State::FromBytes(bytes, "memory", *Images().model), Error);
  bytes.back() ^= std::byte{1};
  EXPECT_THROW(State::FromBytes(bytes, "memory", *model), Error);
}

// One process writes a state, another continues it bit for bit.
TEST(State, SavedStatesContinueInAnotherProcess) {
  const std::string path =
      (std::filesystem::temp_directory_path() / StrCat("linnet_state_test.", getpid())).string();
  for (const Precision precision : {Precision::kF32, Precision::kInt8}) {
    const auto model = Grid().In(precision);
    const Tokens prefix = Grid().RandomTokens(2 * 50, 0), next = Grid().RandomTokens(2 * 10, 1);
    const pid_t child = fork();
    if (child == 0) {
      Engine engine(model, {.threads = 1});
      State state = engine.NewState(2);
      engine.Prefix(state, prefix, 50, {});
      state.Save(path, *model);
      _exit(0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    ASSERT_EQ(status, 0);
    Engine engine(model, {.threads = 2});
    State stayed = engine.NewState(2), loaded = State::Load(path, *model);
    engine.Prefix(stayed, prefix, 50, {});
    Floats a(2 * engine.output_size()), b = a;
    for (size_t t = 0; t < 10; ++t) {
      engine.Step(stayed, std::span(next).subspan(2 * t, 2), a);
      engine.Step(loaded, std::span(next).subspan(2 * t, 2), b);
      EXPECT_EQ(a, b);
    }
    EXPECT_THROW(State::Load(path, *Images().model), Error);
    EXPECT_THROW(State::Load(path, *Grid().In(Precision::kBf16)), Error);
  }
  std::filesystem::remove(path);
}

TEST(State, RefusesOtherFilesAndStatesOfOtherModels) {
  const std::string path =
      (std::filesystem::temp_directory_path() / StrCat("linnet_state_test.", getpid())).string();
  const Model& model = *Grid().model;
  // Whether Load() throws an error that names the file and contains `why`.
  const auto refused = [&](const std::string& why = "") {
    try {
      State::Load(path, model);
    } catch (const Error& error) {
      const std::string what = error.what();
      return what.find(path) == 0 && what.find(why) != std::string::npos;
    }
    return false;
  };
  EXPECT_TRUE(refused());  // missing
  { std::ofstream(path) << "no state"; }
  EXPECT_TRUE(refused());
  {
    std::ofstream out(path, std::ios::binary);
    out.write(Grid().file.data(), static_cast<std::streamsize>(Grid().file.size()));
  }
  EXPECT_TRUE(refused());  // a model
  Engine engine(Grid().model, {.threads = 1});
  State state = engine.NewState(1);
  engine.Prefix(state, Grid().RandomTokens(50, 0), 50, {});
  state.Save(path, model);
  EXPECT_EQ(State::Load(path, model).position(), 50u);
  // write() makes a file of the same form with other contents. Most calls below make one of them
  // invalid: the position, the token, the value, the shape or the number of waiting keys.
  const SafetensorsFile good = SafetensorsFile::Open(path);
  const auto metadata = good.metadata().at("linnet.state");
  const size_t floats = good.Get("state").data.size() / 4,
               reach = good.Get("recent").data.size() / 4;
  const auto write = [&](int64_t position, float value, int32_t token, int64_t rows,
                         uint8_t waiting = 0) {
    const std::vector<uint8_t> keys(static_cast<size_t>(rows), waiting);
    const std::vector<int64_t> positions(static_cast<size_t>(rows), position);
    const Floats values(floats, value);
    const Tokens tokens(reach, token);
    SafetensorsWriter writer;
    writer.SetMetadata("linnet.state", metadata);
    writer.Add("position", DType::kI64, {rows}, positions.data());
    writer.Add("waiting", DType::kU8, {rows}, keys.data());
    writer.Add("state", DType::kF32, {1, static_cast<int64_t>(floats)}, values.data());
    writer.Add("recent", DType::kI32, {1, static_cast<int64_t>(reach)}, tokens.data());
    writer.Write(path);
  };
  // This file differs from a valid state only by its checksum, which is checked last.
  write(50, 1.0f, 3, 1);
  EXPECT_TRUE(refused("checksum"));
  write(-1, 1.0f, 3, 1);
  EXPECT_TRUE(refused("has read -1"));
  write(300, 1.0f, 3, 1);
  EXPECT_TRUE(refused("has read 300"));
  write(50, NAN, 3, 1);
  EXPECT_TRUE(refused("NaN"));
  write(50, 1.0f, -1, 1);
  EXPECT_TRUE(refused("token -1"));
  write(50, 1.0f, 256, 1);
  EXPECT_TRUE(refused("token 256"));
  write(50, 1.0f, 3, 2);
  EXPECT_TRUE(refused("tensors"));
  write(50, 1.0f, 3, 1, 7);
  EXPECT_TRUE(refused("checksum"));
  write(50, 1.0f, 3, 1, 8);
  EXPECT_TRUE(refused("8 keys wait"));
  write(5, 1.0f, 3, 1, 6);
  EXPECT_TRUE(refused("6 keys wait"));
  // Flip one bit of each tensor: the result is still plausible (50 or 51 tokens read, a waiting key
  // more or less, other tokens).
  state.Save(path, model);
  std::string bytes = ReadFile(path);
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof(header));
  const auto offsets = nlohmann::json::parse(bytes.substr(sizeof(header), header));
  for (const char* name : {"position", "waiting", "state", "recent"}) {
    const size_t at =
        sizeof(header) + header + offsets.at(name).at("data_offsets").at(0).get<size_t>();
    bytes[at] ^= 1;
    WriteFileAtomically(path, bytes);
    EXPECT_TRUE(refused("checksum")) << name;
    bytes[at] ^= 1;
  }
  WriteFileAtomically(path, bytes);
  EXPECT_FALSE(refused());
  std::filesystem::remove(path);
}

TEST(State, ClonesAreIndependentAndResetStartsOver) {
  Engine engine(Images().model, {.threads = 1});
  const Tokens tokens = Images().RandomTokens(6, 0);
  Floats a(engine.output_size()), b = a, c = a, first = a;
  State state = engine.NewState(1);
  EXPECT_EQ(state.bytes(), StateBytes(RaggedImages(), Precision::kF32));
  engine.Step(state, std::span(tokens).first(1), first);
  State fork = state.Clone();
  EXPECT_EQ(fork.bytes(), state.bytes());
  engine.Step(state, Tokens{1}, a);
  engine.Step(fork, Tokens{2}, b);
  EXPECT_NE(a, b);
  EXPECT_EQ(fork.position(), 2u);
  state.Reset();
  EXPECT_EQ(state.position(), 0u);
  engine.Step(state, std::span(tokens).first(1), c);
  EXPECT_EQ(c, first);
  const State moved = std::move(fork);
  EXPECT_EQ(moved.position(), 2u);
  EXPECT_EQ(fork.batch() + fork.bytes(), 0u);  // NOLINT: a moved-from State is empty
  engine.Step(state, Tokens{2}, c);
  EXPECT_EQ(c, b);
}

// The state's size is constant and the outputs are correct far beyond the window and the training
// length.
TEST(State, AWindowsStateIsConstant) {
  EXPECT_EQ(StateKindOf(HybridText()), StateKind::kConstant);
  ModelSpec whole = HybridText();
  whole.stack.mixer(1).window = 0;
  EXPECT_EQ(StateKindOf(whole), StateKind::kCache);
  constexpr size_t kLength = 700;
  const TestModel hybrid(HybridText(), /*wide=*/1);  // the default magnifies rounding errors
  const Tokens tokens = hybrid.RandomTokens(kLength, 0);
  const std::vector<Doubles> want = hybrid.Outputs(tokens);
  Engine engine(hybrid.model, {.threads = 1});
  State state = engine.NewState(1);
  const size_t bytes = state.bytes();
  EXPECT_EQ(bytes, StateBytes(HybridText(), Precision::kF32));
  Floats out(engine.output_size()), all;
  for (size_t t = 0; t < kLength; ++t) {
    engine.Step(state, std::span(tokens).subspan(t, 1), out);
    ASSERT_EQ(state.bytes(), bytes) << t;
    all.insert(all.end(), out.begin(), out.end());
  }
  double largest = 0;  // magnitude of an output
  for (const Doubles& row : want) {
    for (const double x : row) largest = std::max(largest, std::abs(x));
  }
  EXPECT_LT(Worst(all, want), 2e-5 * largest);
  EXPECT_EQ(state.position(), kLength);
}

}  // namespace
}  // namespace linnet
