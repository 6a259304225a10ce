// Tests every registered mixer in every form in which the engine runs it: whole, in pieces, in
// steps, packed, batched, forked, saved and restored, in each precision.
//
// Outputs are compared with ModelRef. Forms that do the same computation must agree bit for bit.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "linnet/engine.h"
#include "linnet/kernels/test_util.h"
#include "linnet/runtime/test_mixers.h"
#include "linnet/runtime/test_models.h"
#include "linnet/vocabulary.h"

namespace linnet {
namespace {

using Pieces = ModelRef::Pieces;

constexpr Precision kPrecisions[] = {Precision::kF32, Precision::kBf16, Precision::kInt8};

// Tokens or frames of some sequences, consecutively.
struct Input {
  Tokens tokens;
  Floats frames;
  size_t width = 1;  // floats per frame

  Input Slice(size_t begin, size_t count) const {
    const auto cut = [&](const auto& from, size_t each) {
      if (from.empty()) return from;
      const auto first = from.begin() + static_cast<ptrdiff_t>(begin * each);
      return std::decay_t<decltype(from)>(first, first + static_cast<ptrdiff_t>(count * each));
    };
    return {cut(tokens, 1), cut(frames, width), width};
  }
  void Append(const Input& other) {
    tokens.insert(tokens.end(), other.tokens.begin(), other.tokens.end());
    frames.insert(frames.end(), other.frames.begin(), other.frames.end());
    width = other.width;
  }
};

// Whether the model has a recurrent state. Other models of tokens keep their tokens as state.
bool IsRnn(const ModelSpec& spec) {
  if (!spec.Causal()) return false;
  return std::all_of(spec.stack.pattern.begin(), spec.stack.pattern.end(),
                     [](const MixerSpec& mixer) { return FindMixer(mixer.kind).recurrent; });
}

// A case's model in each precision, its inputs and its reference outputs. Subjects are cached, so
// that the tests of all instruction sets share them.
class Subject {
 public:
  static Subject& Of(const std::string& name) {
    static std::map<std::string, std::unique_ptr<Subject>> known;
    std::unique_ptr<Subject>& subject = known[name];
    for (const MixerCase& one : Cases()) {
      if (!subject && one.name == name) subject = std::make_unique<Subject>(one.spec);
    }
    return *subject;
  }
  // `wide` is the norm1 weight of one channel (TestModel). A small value keeps the norms of queries
  // and keys moderate. With large norms, similarities overflow or vanish, and rounding errors grow.
  explicit Subject(const ModelSpec& spec) : spec_(spec), model_(spec, /*wide=*/2) {
    for (const Precision precision : kPrecisions) models_[precision] = model_.In(precision);
  }

  const ModelSpec& spec() const { return spec_; }
  std::shared_ptr<const Model> In(Precision precision) const { return models_.at(precision); }
  bool frames() const { return spec_.ReadsFrames(); }
  bool hashes() const {
    return std::any_of(spec_.stack.pattern.begin(), spec_.stack.pattern.end(),
                       [](const MixerSpec& mixer) { return mixer.kind == "reformer"; });
  }

  // kLongest positions. For encoder-decoders, the length before the separator depends on `stream`.
  Input Sequence(uint64_t stream) const {
    if (frames()) {
      return {
          {}, model_.RandomFrames(kLongest, stream), static_cast<size_t>(spec_.speech()->Inputs())};
    }
    Tokens tokens = model_.RandomTokens(kLongest, stream);
    if (spec_.encoder_decoder()) {
      constexpr size_t kFirstParts[] = {5, 0, 26, 1, kMaxLength};
      const size_t first = kFirstParts[stream % std::size(kFirstParts)];
      std::replace(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(first),
                   Vocabulary::kSeparator, Vocabulary::kFirst);
      tokens[first] = Vocabulary::kSeparator;
    }
    return {tokens, {}, 1};
  }

  // Reference outputs of the first positions of Sequence(stream), read in these pieces.
  const std::vector<Doubles>& Want(Precision precision, uint64_t stream, const Pieces& pieces) {
    std::vector<Doubles>& want = wants_[{precision, stream, pieces}];
    if (!want.empty()) return want;
    size_t length = 0;
    for (const size_t piece : pieces) length += piece;
    if (precision == Precision::kF32 && IsRnn(spec_) && !spec_.encoder_decoder() &&
        length < kLongest) {
      // The outputs of an RNN in fp32 do not depend on later positions, nor on the pieces: only
      // narrow models round at the ends of pieces.
      want = Want(precision, stream, {kLongest});
      want.resize(length);
      return want;
    }
    const Input input = Sequence(stream).Slice(0, length);
    ModelRef ref(model_.checkpoint(), *In(precision));
    want = frames() ? ref.Outputs(input.frames, pieces) : ref.Outputs(input.tokens, pieces);
    return want;
  }

 private:
  ModelSpec spec_;
  TestModel model_;
  std::map<Precision, std::shared_ptr<const Model>> models_;
  std::map<std::tuple<Precision, uint64_t, Pieces>, std::vector<Doubles>> wants_;
};

double Tolerance(Precision precision) {
  return precision == Precision::kF32 ? 1e-4 : precision == Precision::kBf16 ? 0.02 : 0.05;
}

// The largest difference from the reference. In bf16 and int8, a value may round the other way
// depending on the order of a sum, and normalizing a head's small outputs magnifies the difference.
// So the largest 1% of the differences are divided by 10.
double Off(std::span<const float> got, std::span<const Doubles> want, Precision precision) {
  const double worst = Worst(got, want);
  if (precision == Precision::kF32 || !std::isfinite(worst)) return worst;
  const size_t width = want[0].size();
  Doubles all;
  for (size_t i = 0; i < got.size(); ++i) {
    all.push_back(std::abs(got[i] - want[i / width][i % width]));
  }
  std::sort(all.begin(), all.end());
  return std::max(all[all.size() - 1 - all.size() / 100], worst / 10);
}

void Whole(Engine& engine, size_t batch, const Input& input, size_t length, std::span<float> out) {
  if (input.frames.empty()) return engine.Whole(batch, input.tokens, length, out);
  engine.Whole(batch, input.frames, length, out);
}
// Reads the next positions: one as a step, unless it is a prefix, too; several as a prefix.
void Read(Engine& engine, State& state, const Input& input, size_t length, std::span<float> out,
          bool prefix = false) {
  if (!input.frames.empty()) return engine.Prefix(state, input.frames, length, out);
  if (length == 1 && !prefix) return engine.Step(state, input.tokens, out);
  engine.Prefix(state, input.tokens, length, out);
}

// Outputs of one sequence, read in pieces and continuing from the state.
Floats InPieces(Engine& engine, State& state, const Input& input, const Pieces& pieces,
                bool prefixes = false) {
  const size_t width = engine.output_size();
  Floats all;
  size_t at = 0;
  for (const size_t piece : pieces) {
    Floats out(piece * width);
    Read(engine, state, input.Slice(at, piece), piece, out, prefixes);
    all.insert(all.end(), out.begin(), out.end());
    at += piece;
  }
  return all;
}

Floats Row(const Floats& rows, size_t row, size_t width) {
  const auto begin = rows.begin() + static_cast<ptrdiff_t>(row * width);
  return {begin, begin + static_cast<ptrdiff_t>(width)};
}

class Conformance : public testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  void SetUp() override { kernels::ForceIsa(std::get<1>(GetParam())); }
  void TearDown() override { kernels::ForceIsa(""); }
  Subject& subject() const { return Subject::Of(std::get<0>(GetParam())); }
};
class RnnConformance : public Conformance {};
class NoRnnConformance : public Conformance {};
class TokenConformance : public Conformance {};
class StateConformance : public Conformance {};

// All cases for which `applies` is true, on the best instruction set, and every eighth of them on
// each other instruction set, starting from a different case for each set. The kernels' own tests
// compare all instruction sets. If $LINNET_ISA names one, all cases run on that one alone.
template <class Applies>
auto CasesWhere(Applies applies) {
  std::vector<Conformance::ParamType> cases;
  const char* const only = std::getenv("LINNET_ISA");
  const std::vector<std::string> isas =
      only ? std::vector<std::string>{only} : kernels::AvailableIsas();
  size_t turn = 0;
  for (const MixerCase& one : Cases()) {
    if (!applies(one.spec)) continue;
    for (size_t i = 0; i < isas.size(); ++i) {
      if (i == 0 || (i + turn) % 8 == 0) cases.emplace_back(one.name, isas[i]);
    }
    ++turn;
  }
  return testing::ValuesIn(cases);
}
std::string NameOfTest(const testing::TestParamInfo<Conformance::ParamType>& info) {
  return std::get<0>(info.param) + "_" + kernels::TestName(std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(Mixers, Conformance, CasesWhere([](const ModelSpec&) { return true; }),
                         NameOfTest);
INSTANTIATE_TEST_SUITE_P(Mixers, RnnConformance, CasesWhere(IsRnn), NameOfTest);
INSTANTIATE_TEST_SUITE_P(Mixers, NoRnnConformance,
                         CasesWhere([](const ModelSpec& spec) { return !IsRnn(spec); }),
                         NameOfTest);
INSTANTIATE_TEST_SUITE_P(Mixers, TokenConformance,
                         CasesWhere([](const ModelSpec& spec) { return !spec.ReadsFrames(); }),
                         NameOfTest);
INSTANTIATE_TEST_SUITE_P(Mixers, StateConformance, CasesWhere([](const ModelSpec& spec) {
                           return IsRnn(spec) || !spec.ReadsFrames();
                         }),
                         NameOfTest);

// Whether outputs are compared with the reference. In narrow models that hash, a rounded query may
// fall on the other side of a hash plane than the reference's query, and its position then attends
// to other keys. So for these models the tests only compare forms with each other, bit for bit.
bool Compares(const Subject& subject, Precision precision) {
  return precision == Precision::kF32 || !subject.hashes();
}

TEST_P(Conformance, WholeSequencesMatchTheReferenceInAnyBatch) {
  Subject& of = subject();
  EXPECT_EQ(of.In(Precision::kF32)->steps(), IsRnn(of.spec()));
  for (const Precision precision : kPrecisions) {
    SCOPED_TRACE(PrecisionName(precision));
    Engine one(of.In(precision), {.threads = 1}), two(of.In(precision), {.threads = 2});
    const size_t width = one.output_size();
    for (const size_t length : {size_t{1}, size_t{2}, size_t{7}, size_t{33}, kLongest}) {
      SCOPED_TRACE(length);
      std::vector<Floats> alone;
      Input together;
      for (uint64_t i = 0; i < 3; ++i) {
        const Input input = of.Sequence(i).Slice(0, length);
        together.Append(input);
        Floats& out = alone.emplace_back(length * width);
        Whole(one, 1, input, length, out);
        if (i > 0 || !Compares(of, precision)) continue;
        EXPECT_LT(Off(out, of.Want(precision, i, {length}), precision), Tolerance(precision));
      }
      for (Engine* engine : {&one, &two}) {
        for (const size_t batch : {1, 3}) {
          if (engine == &one && (batch == 1 || length == kLongest)) continue;
          Floats all(batch * length * width), last(batch * width);
          const Input input = together.Slice(0, batch * length);
          Whole(*engine, batch, input, length, all);
          for (size_t i = 0; i < batch; ++i) {
            const auto begin = all.begin() + static_cast<ptrdiff_t>(i * length * width);
            EXPECT_EQ(Floats(begin, begin + static_cast<ptrdiff_t>(length * width)), alone[i]) << i;
          }
          if (batch == 3 && length == kLongest) continue;
          Whole(*engine, batch, input, length, last);
          for (size_t i = 0; i < batch; ++i) {
            EXPECT_EQ(Row(last, i, width), Row(alone[i], length - 1, width)) << i;
          }
        }
      }
    }
  }
}

// Pieces of length one are steps. ResultsDoNotDependOnThreadsOrBatch varies the threads.
TEST_P(RnnConformance, PiecesAndStepsMatchTheReference) {
  Subject& of = subject();
  const std::vector<Pieces> cuts = {Pieces(33, 1), {7, 26}, {4, 1, 2, 1, 25}, {60, 100}, {153, 7}};
  std::vector<uint64_t> streams = {0};
  if (of.spec().encoder_decoder()) streams.push_back(2);
  for (const Precision precision : kPrecisions) {
    for (const Pieces& pieces : cuts) {
      SCOPED_TRACE(StrCat(PrecisionName(precision), ", ", pieces.size(), " pieces, the first of ",
                          pieces[0]));
      size_t length = 0;
      for (const size_t piece : pieces) length += piece;
      for (const uint64_t stream : streams) {
        Engine engine(of.In(precision), {.threads = length > kMaxLength ? 2 : 1});
        State state = engine.NewState(1);
        const Floats got = InPieces(engine, state, of.Sequence(stream).Slice(0, length), pieces);
        EXPECT_EQ(state.position(), length);
        EXPECT_LT(Off(got, of.Want(precision, stream, pieces), precision), Tolerance(precision));
      }
    }
  }
}

// Also checks batches of sequences at different positions.
TEST_P(TokenConformance, StepsInOneCallHaveTheBitsOfSteps) {
  Subject& of = subject();
  for (const Precision precision : kPrecisions) {
    for (const int threads : {1, 2}) {
      Engine engine(of.In(precision), {.threads = threads});
      const size_t width = engine.output_size();
      for (const size_t batch : {1, 3}) {
        SCOPED_TRACE(StrCat(PrecisionName(precision), ", ", threads, " threads, batch ", batch));
        State state = engine.NewState(batch), apart = engine.NewState(batch);
        // The last sequence is one position ahead.
        const size_t ahead = batch - 1;
        Floats last(width);
        engine.Step(state, {&ahead, 1}, of.Sequence(ahead).Slice(0, 1).tokens, last);
        engine.Step(apart, {&ahead, 1}, of.Sequence(ahead).Slice(0, 1).tokens, last);
        size_t read = 0;
        for (const size_t count : {1, 5, 20, 2, 3}) {
          Input piece;
          for (size_t i = 0; i < batch; ++i) {
            piece.Append(of.Sequence(i).Slice(read + (i == ahead), count));
          }
          Floats got(batch * count * width), want = got;
          last.resize(batch * width);
          State fork = state.Clone();
          engine.Steps(state, piece.tokens, count, got);
          for (size_t t = 0; t < count; ++t) {
            Tokens one;
            for (size_t i = 0; i < batch; ++i) one.push_back(piece.tokens[i * count + t]);
            engine.Step(apart, one, last);
            for (size_t i = 0; i < batch; ++i) {
              std::copy_n(last.data() + i * width, width, want.data() + (i * count + t) * width);
            }
          }
          EXPECT_EQ(got, want) << count << " steps from position " << read;
          read += count;
          EXPECT_EQ(state.position(ahead), read + 1);
          // The same without outputs or, for 20 steps, with those of the last positions only.
          Floats only(count < 20 ? 0 : batch * width);
          engine.Steps(fork, piece.tokens, count, only);
          EXPECT_EQ(only, count < 20 ? Floats{} : last);
          EXPECT_EQ(fork.ToBytes(engine.model()), state.ToBytes(engine.model()));
        }
        EXPECT_EQ(state.ToBytes(engine.model()), apart.ToBytes(engine.model()));
      }
    }
  }
}

// A text may be divided at any multiple of kCutPositions.
TEST_P(RnnConformance, CutsAtMultiplesChangeNoBit) {
  Subject& of = subject();
  for (const Precision precision : kPrecisions) {
    for (const int threads : {1, 2}) {
      Engine engine(of.In(precision), {.threads = threads});
      for (const uint64_t stream : {0, 1, 2}) {   // of pairs, parted at different places
        const size_t last = of.frames() ? 2 : 1;  // a single frame is a step
        const Pieces cuts[] = {{32, last}, {64, 13}, {32, 64, 96, 6}};
        const Pieces& pieces = cuts[stream];
        SCOPED_TRACE(StrCat(PrecisionName(precision), ", ", threads, " threads, ", pieces.size(),
                            " pieces, the first of ", pieces[0]));
        size_t length = 0;
        for (const size_t piece : pieces) length += piece;
        const Input input = of.Sequence(stream), after = input.Slice(length, 2);
        State once = engine.NewState(1), cut = engine.NewState(1);
        EXPECT_EQ(InPieces(engine, cut, input, pieces, /*prefixes=*/true),
                  InPieces(engine, once, input, {length}));
        EXPECT_EQ(InPieces(engine, cut, after, {2}), InPieces(engine, once, after, {2}));
      }
    }
  }
}

// Sequences whose positions differ are cut at different places.
TEST_P(TokenConformance, LongPrefixesAtDifferentPositionsEqualSeparateOnes) {
  Subject& of = subject();
  Engine engine(of.In(Precision::kBf16), {.threads = 2});
  constexpr size_t kLength = 195;
  const size_t width = engine.output_size();
  State state = engine.NewState(3);
  for (size_t i = 1; i < 3; ++i) {
    engine.Prefix(state, {&i, 1}, of.Sequence(i).Slice(0, i).tokens, i, {});
  }
  State apart = state.Clone();
  Input all;
  Floats got(3 * kLength * width), want(got);
  for (size_t i = 0; i < 3; ++i) {
    const Input own = of.Sequence(i).Slice(i, kLength);
    all.Append(own);
    engine.Prefix(apart, {&i, 1}, own.tokens, kLength,
                  std::span(want).subspan(i * kLength * width, kLength * width));
  }
  engine.Prefix(state, all.tokens, kLength, got);
  EXPECT_EQ(got, want);
}

TEST_P(TokenConformance, ABlockOfStepsHasTheBitsOfSteps) {
  Subject& of = subject();
  Engine engine(of.In(Precision::kF32), {.threads = 2});
  const size_t width = engine.output_size();
  State state = engine.NewState(1), apart = engine.NewState(1);
  const Input input = of.Sequence(0);
  Floats got(kLongest * width), last(width);
  engine.Steps(state, input.Slice(0, kLongest - 1).tokens, kLongest - 1,
               std::span(got).first((kLongest - 1) * width));
  engine.Steps(state, input.Slice(kLongest - 1, 1).tokens, 1, std::span(got).last(width));
  for (size_t t = 0; t < kLongest; ++t) {
    engine.Step(apart, input.Slice(t, 1).tokens, last);
    ASSERT_EQ(Row(got, t, width), last) << t;
  }
}

// A model without recurrent state reads all its tokens again. Each piece must give the outputs that
// Whole() gives for the sequence up to the piece's end. A longer sequence may give other outputs at
// these positions: if the model hashes, its chunks depend on the number of positions.
TEST_P(NoRnnConformance, PiecesEqualTheWholeSequenceSoFar) {
  Subject& of = subject();
  for (const Precision precision : kPrecisions) {
    SCOPED_TRACE(PrecisionName(precision));
    Engine engine(of.In(precision), {.threads = 1});
    if (of.frames()) {
      EXPECT_THROW(engine.NewState(1), Error);
      continue;
    }
    const size_t width = engine.output_size();
    const Input input = of.Sequence(0);
    for (const Pieces& pieces : std::vector<Pieces>{{1, 1, 1, 6, 1, 23}, {50, 1, 109}}) {
      State state = engine.NewState(1);
      size_t read = 0;
      for (const size_t piece : pieces) {
        Floats got(piece * width), last(width), whole((read + piece) * width);
        State fork = state.Clone();
        Read(engine, state, input.Slice(read, piece), piece, got);
        Read(engine, fork, input.Slice(read, piece), piece, last);
        read += piece;
        Whole(engine, 1, input.Slice(0, read), read, whole);
        EXPECT_EQ(got, Floats(whole.end() - static_cast<ptrdiff_t>(piece * width), whole.end()))
            << read;
        EXPECT_EQ(last, Row(whole, read - 1, width)) << read;
        EXPECT_EQ(state.position(), read);
        if (!Compares(of, precision)) continue;
        const std::vector<Doubles>& want = of.Want(precision, 0, {read});
        EXPECT_LT(Off(got, std::span(want).last(piece), precision), Tolerance(precision)) << read;
      }
    }
  }
}

// Reads pieces of unequal length in one call, then a step, which tests the state.
TEST_P(TokenConformance, PackedPiecesEqualSeparateOnes) {
  Subject& of = subject();
  for (const Precision precision : kPrecisions) {
    for (const int threads : {1, 3}) {
      Engine engine(of.In(precision), {.threads = threads});
      for (const std::vector<size_t>& lengths : std::vector<std::vector<size_t>>{
               {5, 2, 40, 3, 17, 9}, {4, 4}, {3, 1, 6}, {2, 7, 150, 60}}) {
        const size_t width = engine.output_size(), batch = lengths.size();
        // Sequences 0 and `batch` have read 9 tokens. The packed call leaves out sequence `batch`,
        // whose position must stay 9.
        State state = engine.NewState(batch + 1);
        const std::vector<size_t> older = {0, batch};
        Input begun = of.Sequence(0).Slice(0, 9);
        begun.Append(of.Sequence(batch).Slice(0, 9));
        engine.Prefix(state, older, begun.tokens, 9, {});
        State apart = state.Clone();
        std::vector<size_t> chosen, own;
        Input packed, next;
        for (size_t i = batch; i-- > 0;) {
          chosen.push_back(i), own.push_back(lengths[i]);
          const size_t at = i == 0 ? 9 : 0;
          packed.Append(of.Sequence(i).Slice(at, lengths[i]));
          next.Append(of.Sequence(i).Slice(at + lengths[i], 1));
        }
        Floats got(batch * width), want = got, after = got, after_want = got;
        engine.Prefix(state, chosen, own, packed.tokens, got);
        for (size_t i = 0, at = 0; i < batch; at += own[i++]) {
          engine.Prefix(apart, {&chosen[i], 1}, packed.Slice(at, own[i]).tokens, own[i],
                        std::span(want).subspan(i * width, width));
        }
        EXPECT_EQ(got, want) << PrecisionName(precision) << " " << threads << " " << batch;
        engine.Step(state, chosen, next.tokens, after);
        engine.Step(apart, chosen, next.tokens, after_want);
        EXPECT_EQ(after, after_want) << PrecisionName(precision) << " " << threads << " " << batch;
        EXPECT_EQ(state.position(batch), 9u);
      }
    }
  }
}

// Reads a piece, steps, a piece and a step, in batches and with several threads.
TEST_P(StateConformance, ResultsDoNotDependOnThreadsOrBatch) {
  Subject& of = subject();
  const Pieces pieces = {7, 1, 1, 25, 1};
  for (const Precision precision : kPrecisions) {
    SCOPED_TRACE(PrecisionName(precision));
    std::map<uint64_t, Floats> alone;
    for (const int threads : {1, 2, 3}) {
      Engine engine(of.In(precision), {.threads = threads});
      const size_t width = engine.output_size();
      for (const size_t batch : {1, 3, 17}) {
        if (batch == 17 && threads != 2) continue;  // enough for 2 threads to work separately
        State state = engine.NewState(batch);
        std::vector<Input> inputs;
        for (size_t i = 0; i < batch; ++i) inputs.push_back(of.Sequence(i));
        std::vector<Floats> got(batch);
        size_t at = 0;
        for (const size_t piece : pieces) {
          Input block;
          for (const Input& input : inputs) block.Append(input.Slice(at, piece));
          Floats out(batch * piece * width);
          Read(engine, state, block, piece, out);
          for (size_t i = 0; i < batch; ++i) {
            const auto begin = out.begin() + static_cast<ptrdiff_t>(i * piece * width);
            got[i].insert(got[i].end(), begin, begin + static_cast<ptrdiff_t>(piece * width));
          }
          at += piece;
        }
        for (const size_t i : {size_t{0}, batch / 2, batch - 1}) {
          if (!alone.count(i)) {
            Engine single(of.In(precision), {.threads = 1});
            State own = single.NewState(1);
            alone[i] = InPieces(single, own, inputs[i], pieces);
          }
          EXPECT_EQ(got[i], alone[i]) << threads << " threads, " << i << " of " << batch;
        }
      }
    }
  }
}

// Copies continue like the original at any position: before and after the separator of a pair, and
// past the initial capacity of a cache.
TEST_P(StateConformance, CopiesContinueBitForBit) {
  Subject& of = subject();
  const std::string path =
      (std::filesystem::temp_directory_path() / StrCat("linnet_conformance_test.", getpid()))
          .string();
  for (const Precision precision : kPrecisions) {
    const auto model = of.In(precision);
    Engine engine(model, {.threads = 1});
    const size_t width = engine.output_size();
    for (const Pieces& before : std::vector<Pieces>{{4}, {25, 1, 1}, {90, 1}}) {
      SCOPED_TRACE(StrCat(PrecisionName(precision), ", ", before.size(), " pieces, the first of ",
                          before[0]));
      size_t read = 0;
      for (const size_t piece : before) read += piece;
      const Pieces after = {1, 1, 9, 1};
      std::vector<Floats> want;
      State state;
      for (uint64_t i = 0; i < 2; ++i) {
        State own = engine.NewState(1);
        InPieces(engine, own, of.Sequence(i), before);
        state.Append(own);
        want.push_back(InPieces(engine, own, of.Sequence(i).Slice(read, 12), after));
      }
      // Sequence i of `copy` continues as sequence which[i] does.
      const auto check = [&](State copy, const std::vector<size_t>& which) {
        ASSERT_EQ(copy.batch(), which.size());
        std::vector<Floats> got(which.size());
        size_t at = read;
        for (const size_t piece : after) {
          Input block;
          for (const size_t i : which) block.Append(of.Sequence(i).Slice(at, piece));
          Floats out(which.size() * piece * width);
          Read(engine, copy, block, piece, out);
          for (size_t i = 0; i < which.size(); ++i) {
            const auto begin = out.begin() + static_cast<ptrdiff_t>(i * piece * width);
            got[i].insert(got[i].end(), begin, begin + static_cast<ptrdiff_t>(piece * width));
          }
          at += piece;
        }
        for (size_t i = 0; i < which.size(); ++i) EXPECT_EQ(got[i], want[which[i]]) << i;
      };
      check(state.Clone(), {0, 1});
      check(state.Fork(2), {0, 0, 1, 1});
      check(state.Select(std::vector<size_t>{1, 0, 1}), {1, 0, 1});
      State both = state.Clone();
      both.Append(state.Select(std::vector<size_t>{1}));
      check(std::move(both), {0, 1, 1});
      // Assign over a sequence that is further on, or that has read nothing.
      State assigned = engine.NewState(2);
      assigned.Assign(1, state.Select(std::vector<size_t>{0}));
      check(assigned.Select(std::vector<size_t>{1}), {0});
      State further = engine.NewState(1);
      InPieces(engine, further, of.Sequence(3), {120});
      further.Assign(0, state.Select(std::vector<size_t>{1}));
      check(std::move(further), {1});
      state.Save(path, *model);
      check(State::Load(path, *model), {0, 1});
      // A reset sequence reads as a new one.
      State again = state.Clone();
      again.Reset(0);
      EXPECT_EQ(again.position(0), 0u);
      State fresh = engine.NewState(1), chosen = again.Select(std::vector<size_t>{0});
      EXPECT_EQ(InPieces(engine, chosen, of.Sequence(4), {3, 1, 1, 20}),
                InPieces(engine, fresh, of.Sequence(4), {3, 1, 1, 20}));
    }
  }
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace linnet
