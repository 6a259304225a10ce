#include "linnet/state.h"
#include "linnet/model/checkpoint.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>

#include "linnet/base/function_ref.h"
#include "linnet/base/hash.h"
#include "linnet/base/peak_memory.h"
#include "linnet/base/units.h"
#include "linnet/error.h"
#include "linnet/io/json.h"
#include "linnet/io/safetensors.h"
#include "linnet/runtime/packed_model.h"
#include "linnet/runtime/state_data.h"
#include "linnet/vocabulary.h"

namespace linnet {
namespace {

constexpr const char* kMetadata = "linnet.state";
constexpr int kFormat = 3;  // format 1 lacked the waiting keys, formats 1 and 2 the checksum

// The checksum of a state: over its positions, waiting keys, floats and tokens.
uint64_t Checksum(std::initializer_list<std::span<const std::byte>> parts) {
  uint64_t hash = 0;
  for (const std::span<const std::byte> part : parts) hash = Hash(part, hash);
  return hash;
}

// Throws unless all values are finite. If `narrow`, each float holds two bfloat16; a number whose
// exponent bits are all set is infinite or NaN.
void CheckNumbers(std::span<const float> values, bool narrow, const std::string& path) {
  if (!narrow) return CheckFinite(values, path, "state");
  for (const float pair : values) {
    const uint32_t bits = std::bit_cast<uint32_t>(pair);
    if ((bits & 0x7f80) == 0x7f80 || (bits & 0x7f800000) == 0x7f800000) {
      throw InputError(path, ": the state holds NaN or infinity; the file is damaged");
    }
  }
}

}  // namespace

StateData::StateData(const Model& model, size_t batch)
    : model(model.fingerprint()),
      layout(model.packed().layout),
      capacity(layout->grows() ? layout->first_capacity : 0) {
  Resize(batch);
  for (size_t i = 0; layout->source > 0 && i < batch; ++i) source_length(i) = -1;
}

void CheckSource(const Model& model, size_t read, std::span<const int32_t> tokens) {
  const size_t most = model.packed().layout->source;
  const auto end = std::find(tokens.begin(), tokens.end(), Vocabulary::kSeparator);
  const size_t length = read + static_cast<size_t>(end - tokens.begin());
  if (length > most) {
    throw InputError(model.path(), ": ", length, " tokens before the separator exceed the ", most,
                     " positions of the encoder");
  }
}

const StateData& StateData::Of(const std::unique_ptr<StateData>& data) {
  static const StateData empty;
  return data ? *data : empty;
}

StateData StateData::Like(const StateData& other, size_t capacity) {
  StateData made;
  made.model = other.model, made.layout = other.layout, made.capacity = capacity;
  return made;
}

void StateData::Resize(size_t batch) {
  positions.resize(batch), waiting.resize(batch);
  data = AlignedBuffer<float>(batch * per_sequence());
  recent.resize(batch * tokens());
}

void StateData::CheckSequence(size_t sequence) const {
  if (sequence >= batch()) {
    throw InputError("a state of ", batch(), " sequences has no sequence ", sequence);
  }
}

void StateData::CheckFits(const Model& model) const {
  if (batch() == 0 || this->model != model.fingerprint()) {
    throw InputError(model.path(), ": the state was not made for this model; use NewState()");
  }
}

// Caches are not reset: only their rows before the position are read.
void StateData::Reset(size_t sequence) {
  CheckSequence(sequence);
  positions[sequence] = 0, waiting[sequence] = 0;
  float* at = data.data() + sequence * per_sequence();
  for (const MixerStateSize& part : layout->parts) {
    std::fill_n(at, part.fixed, 0.0f);
    at += part.Floats(capacity);
  }
  if (layout->source > 0) source_length(sequence) = -1;
}

void StateData::Reserve(size_t most) {
  const size_t needed = layout->Capacity(most);
  if (!layout->grows() || needed <= capacity) return;
  // Grow by half, so that steps seldom copy.
  StateData larger = Like(*this, RoundUp(std::max(needed, capacity + capacity / 2), kCapacityStep));
  const double bytes = static_cast<double>(batch()) * sizeof(float) *
                       static_cast<double>(larger.per_sequence() + larger.tokens());
  if (bytes > static_cast<double>(MachineMemory())) {
    throw InputError("a state of ", batch(), " sequences of ", larger.capacity, " positions takes ",
                     FormatBytes(bytes), ", and this machine has ",
                     FormatBytes(static_cast<double>(MachineMemory())));
  }
  larger.Resize(batch());
  for (size_t i = 0; i < batch(); ++i) larger.Copy(*this, i, i);
  *this = std::move(larger);
}

void StateData::Copy(const StateData& other, size_t from, size_t to) {
  positions[to] = other.positions[from], waiting[to] = other.waiting[from];
  const float* source = other.data.data() + from * other.per_sequence();
  float* target = data.data() + to * per_sequence();
  if (capacity == other.capacity) {
    std::copy_n(source, per_sequence(), target);
  } else {
    layout->Move(source, other.capacity, target, capacity,
                 std::min({layout->Capacity(other.positions[from]), other.capacity, capacity}));
  }
  std::copy_n(other.recent.data() + from * other.tokens(), std::min(other.tokens(), tokens()),
              recent.data() + to * tokens());
}

StateData StateData::Select(std::span<const size_t> sequences) const {
  for (const size_t from : sequences) CheckSequence(from);
  StateData chosen = Like(*this, capacity);
  chosen.Resize(sequences.size());
  for (size_t i = 0; i < sequences.size(); ++i) chosen.Copy(*this, sequences[i], i);
  return chosen;
}

State::State() = default;
State::State(StateData data) : data_(std::make_unique<StateData>(std::move(data))) {}
State::State(State&& other) noexcept = default;
State& State::operator=(State&& other) noexcept = default;
State::~State() = default;

size_t State::batch() const { return data_ ? data_->batch() : 0; }

size_t State::position(size_t sequence) const {
  StateData::Of(data_).CheckSequence(sequence);
  return data_->positions[sequence];
}

size_t State::bytes() const {
  const StateData& data = StateData::Of(data_);
  return data.data.size() * sizeof(float) + data.recent.size() * sizeof(data.recent[0]);
}

size_t StateBytes(const ModelSpec& spec, Precision precision) {
  const auto layout = MakeStateLayout(spec, precision);
  const size_t capacity = layout->first_capacity;
  return sizeof(float) * (layout->Floats(capacity) + layout->Tokens(capacity));
}

namespace {

StateKind KindOf(const ModelSpec& spec, const StateLayout& layout) {
  if (!spec.Causal()) return StateKind::kNone;
  if (layout.keeps_tokens) return StateKind::kTokens;
  if (layout.parts.empty()) return StateKind::kNone;
  return layout.grows() ? StateKind::kCache : StateKind::kConstant;
}

}  // namespace

StateKind StateKindOf(const ModelSpec& spec) {
  return KindOf(spec, *MakeStateLayout(spec, Precision::kF32));
}

StateKind StateKindOf(const Model& model) { return KindOf(model.spec(), *model.packed().layout); }

State State::Clone() const {
  const StateData& data = StateData::Of(data_);
  StateData copy = StateData::Like(data, data.capacity);
  copy.positions = data.positions, copy.waiting = data.waiting;
  copy.data = data.data.Copy();
  copy.recent = data.recent;
  return State(std::move(copy));
}

void State::Reset() {
  for (size_t i = 0; i < batch(); ++i) data_->Reset(i);
}

void State::Reset(size_t sequence) {
  StateData::Of(data_).CheckSequence(sequence);
  data_->Reset(sequence);
}

State State::Fork(size_t copies) const {
  if (copies == 0) throw InputError("a state must be forked into at least one copy");
  const double needed = static_cast<double>(copies) * static_cast<double>(bytes() + 8 * batch());
  if (needed > static_cast<double>(MachineMemory())) {
    throw InputError("a state cannot be forked into ", copies, " copies: they take ",
                     FormatBytes(needed), " and this machine has ",
                     FormatBytes(static_cast<double>(MachineMemory())));
  }
  std::vector<size_t> sequences;
  for (size_t i = 0; i < batch() * copies; ++i) sequences.push_back(i / copies);
  return Select(sequences);
}

State State::Select(std::span<const size_t> sequences) const {
  return State(StateData::Of(data_).Select(sequences));
}

void State::Append(const State& other) {
  if (other.batch() == 0) return;
  const StateData &first = StateData::Of(data_), &second = *other.data_;
  const size_t own = first.batch(), more = second.batch();
  if (own > 0 && first.model != second.model) {
    throw InputError("a state of one model cannot be appended to a state of another");
  }
  StateData both = StateData::Like(second, std::max(first.capacity, second.capacity));
  both.Resize(own + more);
  for (size_t i = 0; i < own; ++i) both.Copy(first, i, i);
  for (size_t i = 0; i < more; ++i) both.Copy(second, i, own + i);
  *this = State(std::move(both));
}

void State::Assign(size_t sequence, const State& other) {
  StateData::Of(data_).CheckSequence(sequence);
  if (other.batch() != 1 || data_->model != other.data_->model) {
    throw InputError("Assign() takes a state of one sequence, of the same model");
  }
  data_->Reserve(other.position());
  data_->Copy(*other.data_, 0, sequence);
}

namespace {

// Calls write(writer) with a writer that holds the contents of the state's file.
void Export(const StateData& state, const Model& model,
            FunctionRef<void(const SafetensorsWriter&)> write) {
  state.CheckFits(model);
  const auto rows = static_cast<int64_t>(state.batch());
  const std::vector<int64_t> positions(state.positions.begin(), state.positions.end());
  const uint64_t checksum =
      Checksum({std::as_bytes(std::span(positions)), std::as_bytes(std::span(state.waiting)),
                std::as_bytes(std::span(state.data.data(), state.data.size())),
                std::as_bytes(std::span(state.recent))});
  SafetensorsWriter writer;
  writer.SetMetadata(kMetadata,
                     nlohmann::json{{"format", kFormat},
                                    {"model", HashDigits(model.fingerprint())},
                                    {"path", model.path()},
                                    {"precision", PrecisionName(model.precision())},
                                    {"capacity", state.capacity},
                                    {"checksum", HashDigits(checksum)}}
                         .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  writer.Add("position", DType::kI64, {rows}, positions.data());
  writer.Add("waiting", DType::kU8, {rows}, state.waiting.data());
  writer.Add("state", DType::kF32, {rows, static_cast<int64_t>(state.per_sequence())},
             state.data.data());
  writer.Add("recent", DType::kI32, {rows, static_cast<int64_t>(state.tokens())},
             state.recent.data());
  write(writer);
}

}  // namespace

void State::Save(const std::string& path, const Model& model) const {
  Export(StateData::Of(data_), model, [&](const SafetensorsWriter& writer) { writer.Write(path); });
}

std::vector<std::byte> State::ToBytes(const Model& model) const {
  std::vector<std::byte> bytes;
  Export(StateData::Of(data_), model, [&](const SafetensorsWriter& writer) {
    writer.Write("state", [&](std::span<const std::byte> piece) {
      bytes.insert(bytes.end(), piece.begin(), piece.end());
    });
  });
  return bytes;
}

void StateData::LoadSequence(const std::string& path, const Model& of, size_t sequence,
                             int64_t position, uint8_t keys) {
  const Model::Packed& packed = of.packed();
  const std::span<float> floats(data.data() + sequence * per_sequence(), per_sequence());
  size_t begin = 0;
  for (const PackedPart& part : packed.stack.parts) {
    if (part.state == SIZE_MAX) continue;
    const size_t size = layout->parts[part.state].Floats(capacity);
    const auto check = [&](size_t first, size_t count, bool narrow) {
      CheckNumbers(floats.subspan(begin + part.shift_floats + first, count), narrow, path);
    };
    CheckNumbers(floats.subspan(begin, part.shift_floats), /*narrow=*/false, path);
    if (part.mixer) {
      part.mixer->ForParts(capacity, check);
    } else {
      check(0, size - part.shift_floats, false);
    }
    begin += size;
  }
  CheckNumbers(floats.subspan(begin), /*narrow=*/false, path);  // those of a stem and of patches
  const std::optional<size_t> most = of.most_positions();
  if (position < 0 || position > int64_t{1} << 60 ||
      (most && static_cast<size_t>(position) > *most) ||
      (capacity > 0 &&
       layout->Capacity(static_cast<size_t>(position)) > capacity + layout->source)) {
    throw InputError(path, ": a sequence has read ", position, " tokens, but the model has ",
                     most ? *most : capacity, " positions");
  }
  positions[sequence] = static_cast<size_t>(position);
  if (keys >= layout->fold_keys || keys > layout->patches.Before(positions[sequence])) {
    throw InputError(path, ": ", int{keys}, " keys wait to be folded after ", position,
                     " tokens; the file is damaged");
  }
  waiting[sequence] = keys;
  auto tokens = std::span(recent).subspan(sequence * this->tokens(), this->tokens());
  if (layout->source > 0) {
    const int32_t length = source_length(sequence);
    if (length < -1 || length > position || length > static_cast<int32_t>(layout->source)) {
      throw InputError(path, ": an encoder sequence of ", length, " tokens does not fit position ",
                       position);
    }
    tokens = tokens.subspan(1);
  }
  for (const int32_t token : tokens) {
    if (token < 0 || token >= of.spec().input.vocabulary) {
      throw InputError(path, ": token ", token, " is outside the vocabulary 0 .. ",
                       of.spec().input.vocabulary - 1);
    }
  }
}

namespace {

StateData Import(const SafetensorsFile& file, const Model& model) {
  const std::string& path = file.path();
  const auto found = file.metadata().find(kMetadata);
  if (found == file.metadata().end()) {
    throw InputError(path, ": not a saved state (its metadata has no '", kMetadata, "' entry)");
  }
  std::string fault;
  const nlohmann::json about = ParseJson(found->second, 8, fault);
  const auto word = [&](const char* field) {
    const bool there = about.is_object() && about.contains(field) && about[field].is_string();
    return there ? about[field].get<std::string>() : std::string("?");
  };
  if (word("model") != HashDigits(model.fingerprint())) {
    throw InputError(path, ": the state of another model (", Quote(word("path")), " in ",
                     Quote(word("precision")), "), not of ", model.path(), " in ",
                     PrecisionName(model.precision()));
  }
  if (!about.contains("format") || about["format"] != kFormat) {
    throw InputError(
        path, ": saved by another version of linnet in a format that this version cannot ", "read");
  }
  const Tensor &position = file.Get("position"), &data = file.Get("state"),
               &recent = file.Get("recent"), &waiting = file.Get("waiting");
  const int64_t rows = position.shape.size() == 1 ? position.shape[0] : 0;
  StateData state(model, 0);
  if (about.contains("capacity")) {
    constexpr uint64_t kMost = std::min<uint64_t>(uint64_t{1} << 40, SIZE_MAX >> 4);
    const auto& capacity = about["capacity"];
    if (!capacity.is_number_unsigned() || capacity.get<uint64_t>() > kMost ||
        (state.capacity == 0) != (capacity == 0)) {
      throw InputError(path, ": its capacity does not fit a state of ", model.path());
    }
    state.capacity = capacity.get<size_t>();
  }
  const auto has = [&](const Tensor& tensor, DType type, size_t width) {
    return tensor.dtype == type &&
           tensor.shape == std::vector<int64_t>{rows, static_cast<int64_t>(width)};
  };
  if (rows < 1 || position.dtype != DType::kI64 || waiting.dtype != DType::kU8 ||
      waiting.shape != position.shape || !has(data, DType::kF32, state.per_sequence()) ||
      !has(recent, DType::kI32, state.tokens())) {
    throw InputError(path, ": its tensors do not match a state of ", model.path());
  }
  const auto count = static_cast<size_t>(rows);
  state.positions.resize(count), state.waiting.resize(count);
  state.data = AlignedBuffer<float>(count * state.per_sequence());
  std::copy(data.f32().begin(), data.f32().end(), state.data.begin());
  const auto tokens = recent.values<int32_t>();
  state.recent.assign(tokens.begin(), tokens.end());
  for (size_t i = 0; i < count; ++i) {
    state.LoadSequence(path, model, i, position.i64()[i], waiting.values<uint8_t>()[i]);
  }
  const uint64_t checksum = Checksum({position.data, waiting.data, data.data, recent.data});
  if (word("checksum") != HashDigits(checksum)) {
    throw InputError(path, ": is damaged: its checksum does not match its contents");
  }
  return state;
}

}  // namespace

State State::Load(const std::string& path, const Model& model) {
  return State(Import(SafetensorsFile::Open(path), model));
}

State State::FromBytes(std::span<const std::byte> bytes, const std::string& label,
                       const Model& model) {
  return State(Import(SafetensorsFile::FromMemory(bytes, label), model));
}

}  // namespace linnet
