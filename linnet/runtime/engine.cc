#include "linnet/engine.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "linnet/base/hidden.h"
#include "linnet/base/peak_memory.h"
#include "linnet/base/thread_pool.h"
#include "linnet/base/units.h"
#include "linnet/error.h"
#include "linnet/runtime/packed_model.h"
#include "linnet/runtime/reader.h"
#include "linnet/runtime/state_data.h"
#include "linnet/vocabulary.h"

namespace linnet {

class LINNET_HIDDEN Engine::Impl {
 public:
  Impl(std::shared_ptr<const Model> model, const EngineOptions& options);

  const Model& model() const { return *model_; }
  ThreadPool& pool() { return reader_.pool(); }
  size_t output_size() const { return model_->packed().outputs; }
  // The contents of a state. Throws InputError if it is not of this model.
  StateData& Of(State& state) const;

  // As in Engine.
  StateData NewState(size_t batch) const;
  void Read(StateData& state, const size_t* chosen, size_t batch, std::span<const int32_t> tokens,
            size_t length, std::span<float> outputs, Reading reading = Reading::kPieces);
  void Prefix(StateData& state, std::span<const size_t> sequences, std::span<const size_t> lengths,
              std::span<const int32_t> tokens, std::span<float> outputs);
  void Prefix(StateData& state, std::span<const float> frames, size_t length,
              std::span<float> outputs);
  void Whole(size_t batch, std::span<const int32_t> tokens, size_t length,
             std::span<float> outputs);
  void Whole(size_t batch, std::span<const float> frames, size_t length, std::span<float> outputs);

 private:
  void ReadAgain(const ReaderCall& call);
  void StepAgain(const ReaderCall& call);
  void ReadPair(const ReaderCall& call);
  void CheckPlaces(const StateData& state, const size_t* chosen, size_t batch, size_t length);
  void CheckTokens(std::span<const int32_t> tokens) const;
  void CheckLength(size_t length) const;
  // `place` is the index of a sequence in the state.
  void CheckFirstPart(StateData& state, size_t place, std::span<const int32_t> tokens) const;
  size_t CheckFrames(size_t batch, std::span<const float> frames, size_t length,
                     std::span<const float> outputs) const;
  bool CheckOutputs(size_t batch, size_t length, std::span<const float> outputs) const;

  std::shared_ptr<const Model> model_;
  SequenceReader reader_;
  // Working memory of calls.
  std::vector<uint8_t> named_;   // per sequence: 1 if it occurs in the arguments (CheckPlaces())
  std::vector<size_t> offsets_;  // of each sequence's tokens in a call of Prefix()
  std::vector<WholeSequence> sequences_;
  std::vector<float> outputs_;
};

Engine::Impl::Impl(std::shared_ptr<const Model> model, const EngineOptions& options)
    : model_(std::move(model)), reader_(model_->packed(), options.threads) {}

StateData& Engine::Impl::Of(State& state) const {
  StateData::Of(state.data_).CheckFits(*model_);
  return *state.data_;
}

StateData Engine::Impl::NewState(size_t batch) const {
  const Model::Packed& model = model_->packed();
  if (!model.spec.Causal()) {
    throw InputError(
        model_->path(), ": ", model.spec.lstm() ? "a bidirectional LSTM" : "",
        model.spec.lstm() ? "" : StrCat("attention '", model.spec.stack.mixer().kind, "'"),
        " is not causal, so it reads only whole sequences; to transcribe a stream, train a "
        "model with --attention causal-linear");
  }
  if (model.spec.ReadsFrames() && !model.steps()) {
    throw InputError(model_->path(), ": attention '", model.spec.stack.mixer().kind,
                     "' has no recurrent state, so it reads only whole utterances");
  }
  if (batch == 0) throw InputError("a state needs at least one sequence");
  const size_t capacity = model.layout->first_capacity;
  const double bytes =
      static_cast<double>(batch) *
      (static_cast<double>(model.layout->Floats(capacity) + model.layout->Tokens(capacity)) *
           sizeof(float) +
       8);
  const auto memory = static_cast<double>(MachineMemory());
  if (bytes > memory) {
    throw InputError(model_->path(), ": cannot make a state of ", batch, " sequences: it takes ",
                     FormatBytes(bytes), " and this machine has ", FormatBytes(memory),
                     "; choose a smaller batch");
  }
  return StateData(*model_, batch);
}

void Engine::Impl::Prefix(StateData& state, std::span<const size_t> sequences,
                          std::span<const size_t> lengths, std::span<const int32_t> tokens,
                          std::span<float> outputs) {
  const size_t batch = sequences.size(), width = output_size();
  std::vector<size_t>& offsets = offsets_;
  offsets.assign(1, 0);
  for (const size_t length : lengths) offsets.push_back(offsets.back() + length);
  if (batch == 0 || lengths.size() != batch || offsets.back() != tokens.size()) {
    throw InputError("cannot read ", tokens.size(), " tokens as ", batch, " sequences with ",
                     lengths.size(), " lengths that add up to ", offsets.back());
  }
  if (!outputs.empty() && outputs.size() != batch * width) {
    throw InputError("outputs need ", batch, " x ", width, " floats; got ", outputs.size());
  }
  CheckTokens(tokens);
  for (size_t i = 0; i < batch; ++i) {
    CheckPlaces(state, &sequences[i], 1, lengths[i]);
    if (lengths[i] == 0) throw InputError("each sequence must read at least one token");
    CheckFirstPart(state, sequences[i], tokens.subspan(offsets[i], lengths[i]));
  }
  CheckPlaces(state, sequences.data(), batch, 0);
  const size_t longest = *std::max_element(lengths.begin(), lengths.end());
  const size_t shortest = *std::min_element(lengths.begin(), lengths.end());
  if (shortest == longest) return Read(state, sequences.data(), batch, tokens, longest, outputs);
  // The sequences are read one at a time if one is longer than a block (blocks split it), if there
  // are fewer sequences than threads (all threads together are faster), or if the model keeps its
  // tokens or has an encoder.
  const StateLayout& layout = *model_->packed().layout;
  if (longest > kBlockRows || batch < static_cast<size_t>(pool().size()) || layout.keeps_tokens ||
      layout.source > 0) {
    for (size_t i = 0; i < batch; ++i) {
      Read(state, &sequences[i], 1, tokens.subspan(offsets[i], lengths[i]), lengths[i],
           outputs.empty() ? outputs : outputs.subspan(i * width, width));
    }
    return;
  }
  size_t furthest = 0;
  for (size_t i = 0; i < batch; ++i) {
    furthest = std::max(furthest, state.positions[sequences[i]] + lengths[i]);
  }
  state.Reserve(furthest);
  reader_.ReadUnequal(state, sequences, offsets, tokens, outputs);
}

void Engine::Impl::CheckTokens(std::span<const int32_t> tokens) const {
  const ModelSpec& spec = model_->spec();
  if (spec.ReadsFrames()) {
    throw InputError(model_->path(), ": a model of the task '", spec.task,
                     "' reads frames of audio, ",
                     "not tokens; run it with linnet transcribe (from C++: SpeechEncoder)");
  }
  for (const int32_t token : tokens) {
    if (token < 0 || token >= spec.input.vocabulary) {
      throw InputError(model_->path(), ": token ", token, " is outside its vocabulary 0 .. ",
                       spec.input.vocabulary - 1);
    }
  }
}

// Checks that these sequences exist, are distinct, and have room for `length` more positions.
void Engine::Impl::CheckPlaces(const StateData& state, const size_t* chosen, size_t batch,
                               size_t length) {
  const auto place = [&](size_t i) { return chosen ? chosen[i] : i; };
  size_t furthest = 0;
  std::vector<uint8_t>& named = named_;  // all zero between calls
  if (chosen) named.resize(std::max(named.size(), state.batch()));
  size_t twice = SIZE_MAX;
  for (size_t i = 0; i < batch; ++i) {
    if (place(i) >= state.batch()) break;  // refused below
    if (chosen && std::exchange(named[chosen[i]], 1) != 0) twice = chosen[i];
  }
  for (size_t i = 0; chosen && i < batch && chosen[i] < named.size(); ++i) named[chosen[i]] = 0;
  for (size_t i = 0; i < batch; ++i) {
    state.CheckSequence(place(i));
    furthest = std::max(furthest, state.positions[place(i)]);
  }
  // Otherwise two threads might write the same sequence's state.
  if (twice != SIZE_MAX) throw InputError("sequence ", twice, " is chosen twice");
  const std::optional<size_t> most = model_->most_positions();
  if (most && (furthest > *most || length > *most - furthest)) {
    throw InputError(model_->path(), ": the model has ", *most, " positions; ", furthest,
                     " are read and ", length, " more do not fit");
  }
  constexpr size_t kMost = SIZE_MAX >> 4;
  if (length > kMost - furthest) {
    throw InputError("the length exceeds ", kMost, " positions; pass a smaller one");
  }
}

bool Engine::Impl::CheckOutputs(size_t batch, size_t length, std::span<const float> outputs) const {
  const size_t width = output_size();
  const bool every = outputs.size() == batch * length * width;
  if (!every && !outputs.empty() && outputs.size() != batch * width) {
    throw InputError("outputs need ", batch, " x ", width, " floats (last position) or ", batch,
                     " x ", length, " x ", width, " (all positions); got ", outputs.size());
  }
  return every;
}

// Checks that the encoder has room for the tokens before the separator.
void Engine::Impl::CheckFirstPart(StateData& state, size_t place,
                                  std::span<const int32_t> tokens) const {
  if (model_->packed().layout->source == 0 || state.source_length(place) >= 0) return;
  CheckSource(*model_, state.positions[place], tokens);
}

void Engine::Impl::Read(StateData& state, const size_t* chosen, size_t batch,
                        std::span<const int32_t> tokens, size_t length, std::span<float> outputs,
                        Reading reading) {
  if (batch == 0 || length == 0 || tokens.size() / length != batch || tokens.size() % length != 0) {
    throw InputError("cannot read ", tokens.size(), " tokens as ", batch, " sequences of ", length,
                     " each");
  }
  CheckPlaces(state, chosen, batch, length);
  CheckOutputs(batch, length, outputs);
  CheckTokens(tokens);
  const StateLayout& layout = *model_->packed().layout;
  for (size_t i = 0; layout.source > 0 && i < batch; ++i) {
    CheckFirstPart(state, chosen ? chosen[i] : i, tokens.subspan(i * length, length));
  }
  size_t furthest = 0;
  for (size_t i = 0; i < batch; ++i) {
    furthest = std::max(furthest, state.positions[chosen ? chosen[i] : i]);
  }
  state.Reserve(furthest + length);
  const ReaderCall call = {state,  chosen,  batch,  {.tokens = tokens.data()},
                           length, outputs, reading};
  if (layout.keeps_tokens && length > 1 && reading == Reading::kSteps) return StepAgain(call);
  if (layout.keeps_tokens) return ReadAgain(call);
  if (layout.source > 0) return ReadPair(call);
  reader_.Read(call);
}

// For models without recurrent state: their StateData holds the tokens. Reads all tokens again and
// returns the outputs of the new ones.
void Engine::Impl::ReadAgain(const ReaderCall& call) {
  StateData& state = call.state;
  const size_t batch = call.batch, length = call.length, width = output_size();
  const size_t room = state.tokens();
  const bool every = call.outputs.size() == batch * length * width;
  size_t floats = 0;
  std::vector<WholeSequence>& sequences = sequences_;
  sequences.clear();
  for (size_t i = 0; i < batch; ++i) {
    const size_t place = call.Place(i), before = state.positions[place];
    int32_t* kept = state.recent.data() + place * room;
    std::copy_n(call.input.tokens + i * length, length, kept + before);
    state.positions[place] += length;
    sequences.push_back({{.tokens = kept}, before + length, nullptr, !every});
    floats += (every ? before + length : 1) * width;
  }
  if (call.outputs.empty()) return;
  outputs_.resize(floats);
  float* to = outputs_.data();
  for (WholeSequence& sequence : sequences) {
    sequence.outputs = to;
    to += (every ? sequence.length : 1) * width;
  }
  reader_.ReadWhole(sequences);
  const size_t rows = every ? length : 1;
  for (size_t i = 0; i < batch; ++i) {
    const WholeSequence& sequence = sequences[i];
    const float* last = sequence.outputs + ((every ? sequence.length : 1) - rows) * width;
    std::copy_n(last, rows * width, call.outputs.data() + i * rows * width);
  }
}

// Calls ReadAgain() once per position, because outputs may depend on the number of tokens so far.
void Engine::Impl::StepAgain(const ReaderCall& call) {
  const size_t batch = call.batch, length = call.length, width = output_size();
  const size_t rows = call.outputs.size() / batch / width;
  std::vector<int32_t> tokens(batch);
  std::vector<float> found(call.outputs.empty() ? 0 : batch * width);
  ReaderCall step = call;
  step.input.tokens = tokens.data(), step.length = 1, step.outputs = found;
  for (size_t t = 0; t < length; ++t) {
    for (size_t i = 0; i < batch; ++i) tokens[i] = call.input.tokens[i * length + t];
    ReadAgain(step);
    if (t + rows < length) continue;
    for (size_t i = 0; i < batch; ++i) {
      std::copy_n(found.data() + i * width, width,
                  call.outputs.data() + (i * rows + t - (length - rows)) * width);
    }
  }
}

// Encoder-decoders: stores the tokens before the separator, encodes them when it arrives, then
// decodes from the separator on.
void Engine::Impl::ReadPair(const ReaderCall& call) {
  StateData& state = call.state;
  const size_t batch = call.batch, length = call.length, width = output_size();
  bool decoding = true;
  for (size_t i = 0; i < batch; ++i) decoding = decoding && state.source_length(call.Place(i)) >= 0;
  if (decoding) return reader_.Read(call);
  const size_t rows = call.outputs.size() == batch * length * width ? length : 1;
  std::fill(call.outputs.begin(), call.outputs.end(), 0.0f);
  for (size_t i = 0; i < batch; ++i) {
    const size_t at = call.Place(i);
    const int32_t* own = call.input.tokens + i * length;
    size_t t = 0;
    for (; t < length && state.source_length(at) < 0; ++t) {
      if (own[t] == Vocabulary::kSeparator) {
        state.source_length(at) = static_cast<int32_t>(state.positions[at]);
        reader_.Encode(state, at);
        break;
      }
      state.source(at)[state.positions[at]++] = own[t];
    }
    if (t == length) continue;
    // If the caller wants the outputs of all positions, the outputs before the separator stay 0.
    const size_t skipped = rows == length ? t : 0;
    const std::span<float> outputs =
        call.outputs.empty()
            ? call.outputs
            : call.outputs.subspan((i * rows + skipped) * width, (rows - skipped) * width);
    reader_.Read(call.Of(&at, i, t, outputs));
  }
}

void Engine::Impl::Whole(size_t batch, std::span<const int32_t> tokens, size_t length,
                         std::span<float> outputs) {
  const Model::Packed& model = model_->packed();
  if (model.steps()) {
    StateData state = NewState(batch);
    return Read(state, nullptr, batch, tokens, length, outputs);
  }
  if (batch == 0 || length == 0 || tokens.size() / length != batch || tokens.size() % length != 0) {
    throw InputError("cannot read ", tokens.size(), " tokens as ", batch, " sequences of ", length,
                     " each");
  }
  CheckLength(length);
  if (outputs.empty()) return;
  const bool every = CheckOutputs(batch, length, outputs);
  CheckTokens(tokens);
  std::vector<WholeSequence>& sequences = sequences_;
  sequences.clear();
  for (size_t i = 0; i < batch; ++i) {
    sequences.push_back({{.tokens = tokens.data() + i * length},
                         length,
                         outputs.data() + i * (every ? length : 1) * model.outputs,
                         !every});
  }
  reader_.ReadWhole(sequences);
}

// Checks that the model has this many positions.
void Engine::Impl::CheckLength(size_t length) const {
  const std::optional<size_t> most = model_->most_positions();
  if (most && length > *most) {
    throw InputError(model_->path(), ": the model has ", *most, " positions; ", length,
                     " do not fit");
  }
}

size_t Engine::Impl::CheckFrames(size_t batch, std::span<const float> frames, size_t length,
                                 std::span<const float> outputs) const {
  const SpeechSpec* speech = model_->spec().speech();
  if (speech == nullptr) throw InputError(model_->path(), ": reads tokens, not frames");
  const auto width = static_cast<size_t>(speech->Inputs());
  if (batch == 0 || length == 0 || frames.size() / length / width != batch ||
      frames.size() != batch * length * width) {
    throw InputError(model_->path(), ": ", frames.size(), " floats are not ", batch, " x ", length,
                     " positions of ", width);
  }
  CheckOutputs(batch, length, outputs);
  return width;
}

void Engine::Impl::Prefix(StateData& state, std::span<const float> frames, size_t length,
                          std::span<float> outputs) {
  const size_t width = CheckFrames(state.batch(), frames, length, outputs);
  CheckPlaces(state, nullptr, state.batch(), length);
  size_t furthest = 0;
  for (const size_t position : state.positions) furthest = std::max(furthest, position);
  state.Reserve(furthest + length);
  reader_.Read({.state = state,
                .batch = state.batch(),
                .input = {.frames = frames.data(), .width = width},
                .length = length,
                .outputs = outputs,
                .reading = length == 1 ? Reading::kSteps : Reading::kPieces});
}

void Engine::Impl::Whole(size_t batch, std::span<const float> frames, size_t length,
                         std::span<float> outputs) {
  const size_t width = CheckFrames(batch, frames, length, outputs);
  CheckLength(length);
  if (outputs.empty()) return;
  const bool every = outputs.size() == batch * length * output_size();
  std::vector<WholeSequence>& sequences = sequences_;
  sequences.clear();
  const ReaderInput input{.frames = frames.data(), .width = width};
  for (size_t i = 0; i < batch; ++i) {
    sequences.push_back({input.From(i * length), length,
                         outputs.data() + i * (every ? length : 1) * output_size(), !every});
  }
  reader_.ReadWhole(sequences);
}

Engine::Engine(std::shared_ptr<const Model> model, const EngineOptions& options)
    : impl_(std::make_unique<Impl>(std::move(model), options)) {}
Engine::~Engine() = default;

const Model& Engine::model() const { return impl_->model(); }
int Engine::threads() const { return impl_->pool().size(); }
size_t Engine::output_size() const { return impl_->output_size(); }
ThreadPool& Engine::pool() { return impl_->pool(); }

State Engine::NewState(size_t batch) const { return State(impl_->NewState(batch)); }

void Engine::Step(State& state, std::span<const int32_t> tokens, std::span<float> outputs) {
  if (outputs.empty()) throw InputError("a step needs room for its outputs");
  impl_->Read(impl_->Of(state), nullptr, state.batch(), tokens, 1, outputs, Reading::kSteps);
}

void Engine::Step(State& state, std::span<const size_t> sequences, std::span<const int32_t> tokens,
                  std::span<float> outputs) {
  if (outputs.empty()) throw InputError("a step needs room for its outputs");
  impl_->Read(impl_->Of(state), sequences.data(), sequences.size(), tokens, 1, outputs,
              Reading::kSteps);
}

void Engine::Prefix(State& state, std::span<const int32_t> tokens, size_t length,
                    std::span<float> outputs) {
  impl_->Read(impl_->Of(state), nullptr, state.batch(), tokens, length, outputs);
}

void Engine::Prefix(State& state, std::span<const size_t> sequences,
                    std::span<const int32_t> tokens, size_t length, std::span<float> outputs) {
  impl_->Read(impl_->Of(state), sequences.data(), sequences.size(), tokens, length, outputs);
}

void Engine::Steps(State& state, std::span<const int32_t> tokens, size_t length,
                   std::span<float> outputs) {
  impl_->Read(impl_->Of(state), nullptr, state.batch(), tokens, length, outputs, Reading::kSteps);
}

void Engine::Prefix(State& state, std::span<const size_t> sequences,
                    std::span<const size_t> lengths, std::span<const int32_t> tokens,
                    std::span<float> outputs) {
  impl_->Prefix(impl_->Of(state), sequences, lengths, tokens, outputs);
}

void Engine::Prefix(State& state, std::span<const float> frames, size_t length,
                    std::span<float> outputs) {
  impl_->Prefix(impl_->Of(state), frames, length, outputs);
}

void Engine::Whole(size_t batch, std::span<const int32_t> tokens, size_t length,
                   std::span<float> outputs) {
  impl_->Whole(batch, tokens, length, outputs);
}

void Engine::Whole(size_t batch, std::span<const float> frames, size_t length,
                   std::span<float> outputs) {
  impl_->Whole(batch, frames, length, outputs);
}

}  // namespace linnet
