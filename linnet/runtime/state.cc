#include "linnet/runtime/state.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>

#include "linnet/base/error.h"
#include "linnet/base/hash.h"
#include "linnet/base/units.h"
#include "linnet/io/json.h"
#include "linnet/io/safetensors.h"
#include "linnet/runtime/packed_model.h"

namespace linnet {
namespace {

constexpr const char* kMetadata = "linnet.state";
constexpr int kFormat = 3;  // 1 lacked waiting keys, 2 a checksum

// Over positions, waiting keys, floats and tokens.
uint64_t Checksum(std::initializer_list<std::span<const std::byte>> parts) {
  uint64_t hash = 0;
  for (const std::span<const std::byte> part : parts) hash = Hash(part, hash);
  return hash;
}

double MachineMemory() {
  return static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
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

State::State(const Model& model, size_t batch)
    : model_(model.fingerprint()),
      layout_(model.packed().layout),
      capacity_(layout_->grows() ? layout_->first_capacity : 0),
      positions_(batch),
      waiting_(batch),
      data_(batch * per_sequence()),
      recent_(batch * tokens()) {
  for (size_t i = 0; layout_->source > 0 && i < batch; ++i) source_length(i) = -1;
}

size_t State::per_sequence() const { return layout_ ? layout_->Floats(capacity_) : 0; }
size_t State::tokens() const { return layout_ ? layout_->Tokens(capacity_) : 0; }

size_t State::position(size_t sequence) const {
  if (sequence >= batch()) {
    throw InputError("a state of ", batch(), " sequences has no sequence ", sequence);
  }
  return positions_[sequence];
}

size_t State::bytes() const {
  return data_.size() * sizeof(float) + recent_.size() * sizeof(recent_[0]);
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
  State copy;
  copy.model_ = model_, copy.layout_ = layout_, copy.capacity_ = capacity_;
  copy.positions_ = positions_, copy.waiting_ = waiting_;
  copy.data_ = data_.Copy();
  copy.recent_ = recent_;
  return copy;
}

void State::Reset() {
  for (size_t i = 0; i < batch(); ++i) Reset(i);
}

// A cache needs no reset: only rows before the position are read.
void State::Reset(size_t sequence) {
  position(sequence);  // throws if it does not exist
  positions_[sequence] = 0, waiting_[sequence] = 0;
  float* at = data_.data() + sequence * per_sequence();
  for (const MixerStateSize& part : layout_->parts) {
    std::fill_n(at, part.fixed, 0.0f);
    at += part.Floats(capacity_);
  }
  if (layout_->source > 0) source_length(sequence) = -1;
}

void State::Reserve(size_t positions) {
  if (!layout_->grows() || positions <= capacity_) return;
  // Grow by half, so that steps seldom copy.
  const size_t capacity = RoundUp(std::max(positions, capacity_ + capacity_ / 2), kCapacityStep);
  State larger;
  larger.model_ = model_, larger.layout_ = layout_, larger.capacity_ = capacity;
  const double bytes = static_cast<double>(batch()) * sizeof(float) *
                       static_cast<double>(larger.per_sequence() + larger.tokens());
  if (bytes > MachineMemory()) {
    throw InputError("a state of ", batch(), " sequences of ", capacity, " positions takes ",
                     FormatBytes(bytes), ", and this machine has ", FormatBytes(MachineMemory()));
  }
  larger.positions_.resize(batch()), larger.waiting_.resize(batch());
  larger.data_ = AlignedBuffer<float>(batch() * larger.per_sequence());
  larger.recent_.resize(batch() * larger.tokens());
  for (size_t i = 0; i < batch(); ++i) larger.Copy(*this, i, i);
  *this = std::move(larger);
}

void State::Copy(const State& other, size_t from, size_t to) {
  positions_[to] = other.positions_[from], waiting_[to] = other.waiting_[from];
  const float* source = other.data_.data() + from * other.per_sequence();
  float* target = data_.data() + to * per_sequence();
  if (capacity_ == other.capacity_) {
    std::copy_n(source, per_sequence(), target);
  } else {
    layout_->Move(source, other.capacity_, target, capacity_, other.positions_[from]);
  }
  std::copy_n(other.recent_.data() + from * other.tokens(), other.tokens(),
              recent_.data() + to * tokens());
}

State State::Fork(size_t copies) const {
  if (copies == 0) throw InputError("a state must be forked into at least one copy");
  const double needed = static_cast<double>(copies) * static_cast<double>(bytes() + 8 * batch());
  if (needed > MachineMemory()) {
    throw InputError("a state cannot be forked into ", copies, " copies: they take ",
                     FormatBytes(needed), " and this machine has ", FormatBytes(MachineMemory()));
  }
  std::vector<size_t> sequences;
  for (size_t i = 0; i < batch() * copies; ++i) sequences.push_back(i / copies);
  return Select(sequences);
}

State State::Select(std::span<const size_t> sequences) const {
  State chosen;
  for (const size_t from : sequences) position(from);  // throws if one does not exist
  chosen.model_ = model_, chosen.layout_ = layout_, chosen.capacity_ = capacity_;
  chosen.positions_.resize(sequences.size()), chosen.waiting_.resize(sequences.size());
  chosen.data_ = AlignedBuffer<float>(sequences.size() * per_sequence());
  chosen.recent_.resize(sequences.size() * tokens());
  for (size_t i = 0; i < sequences.size(); ++i) chosen.Copy(*this, sequences[i], i);
  return chosen;
}

void State::Append(const State& other) {
  if (other.batch() == 0) return;
  if (batch() > 0 && model_ != other.model_) {
    throw InputError("a state of one model cannot be appended to a state of another");
  }
  State both;
  both.model_ = other.model_, both.layout_ = other.layout_;
  both.capacity_ = std::max(capacity_, other.capacity_);
  const size_t own = batch(), count = own + other.batch();
  both.positions_.resize(count), both.waiting_.resize(count);
  both.data_ = AlignedBuffer<float>(count * both.per_sequence());
  both.recent_.resize(count * both.tokens());
  for (size_t i = 0; i < own; ++i) both.Copy(*this, i, i);
  for (size_t i = 0; i < other.batch(); ++i) both.Copy(other, i, own + i);
  *this = std::move(both);
}

void State::Assign(size_t sequence, const State& other) {
  position(sequence);  // throws if it does not exist
  if (other.batch() != 1 || model_ != other.model_) {
    throw InputError("Assign() takes a state of one sequence, of the same model");
  }
  Reserve(other.capacity_);
  Copy(other, 0, sequence);
}

void State::CheckFits(const Model& model) const {
  if (batch() == 0 || model_ != model.fingerprint()) {
    throw InputError(model.path(), ": the state was not made for this model; use NewState()");
  }
}

void State::Save(const std::string& path, const Model& model) const {
  Export(model, [&](const SafetensorsWriter& writer) { writer.Write(path); });
}

std::vector<std::byte> State::ToBytes(const Model& model) const {
  std::vector<std::byte> bytes;
  Export(model, [&](const SafetensorsWriter& writer) {
    writer.Write("state", [&](std::span<const std::byte> piece) {
      bytes.insert(bytes.end(), piece.begin(), piece.end());
    });
  });
  return bytes;
}

void State::Export(const Model& model, FunctionRef<void(const SafetensorsWriter&)> write) const {
  CheckFits(model);
  const auto rows = static_cast<int64_t>(batch());
  const std::vector<int64_t> positions(positions_.begin(), positions_.end());
  const uint64_t checksum =
      Checksum({std::as_bytes(std::span(positions)), std::as_bytes(std::span(waiting_)),
                std::as_bytes(std::span(data_)), std::as_bytes(std::span(recent_))});
  SafetensorsWriter writer;
  writer.SetMetadata(kMetadata,
                     nlohmann::json{{"format", kFormat},
                                    {"model", HashDigits(model.fingerprint())},
                                    {"path", model.path()},
                                    {"precision", PrecisionName(model.precision())},
                                    {"capacity", capacity_},
                                    {"checksum", HashDigits(checksum)}}
                         .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  writer.Add("position", DType::kI64, {rows}, positions.data());
  writer.Add("waiting", DType::kU8, {rows}, waiting_.data());
  writer.Add("state", DType::kF32, {rows, static_cast<int64_t>(per_sequence())}, data_.data());
  writer.Add("recent", DType::kI32, {rows, static_cast<int64_t>(tokens())}, recent_.data());
  write(writer);
}

// Validates a loaded sequence, whose floats and tokens are already in place.
void State::LoadSequence(const std::string& path, const Model& model, size_t sequence,
                         int64_t position, uint8_t waiting) {
  const Model::Packed& packed = model.packed();
  const auto floats = std::span(data_).subspan(sequence * per_sequence(), per_sequence());
  size_t begin = 0;
  for (const PackedPart& part : packed.stack.parts) {
    if (part.state == SIZE_MAX) continue;
    const size_t size = layout_->parts[part.state].Floats(capacity_);
    const auto check = [&](size_t first, size_t count, bool narrow) {
      CheckNumbers(floats.subspan(begin + first, count), narrow, path);
    };
    if (part.mixer) {
      part.mixer->ForParts(capacity_, check);
    } else {
      check(0, size, false);
    }
    begin += size;
  }
  const std::optional<size_t> most = model.most_positions();
  if (position < 0 || position > int64_t{1} << 60 ||
      (most && static_cast<size_t>(position) > *most) ||
      (capacity_ > 0 && static_cast<size_t>(position) > capacity_ + layout_->source)) {
    throw InputError(path, ": a sequence has read ", position, " tokens, but the model has ",
                     most ? *most : capacity_, " positions");
  }
  positions_[sequence] = static_cast<size_t>(position);
  if (waiting >= layout_->fold_keys || waiting > position) {
    throw InputError(path, ": ", int{waiting}, " keys wait to be folded after ", position,
                     " tokens; the file is damaged");
  }
  waiting_[sequence] = waiting;
  auto tokens = std::span(recent_).subspan(sequence * this->tokens(), this->tokens());
  if (layout_->source > 0) {
    const int32_t length = source_length(sequence);
    if (length < -1 || length > position || length > static_cast<int32_t>(layout_->source)) {
      throw InputError(path, ": an encoder sequence of ", length, " tokens does not fit position ",
                       position);
    }
    tokens = tokens.subspan(1);
  }
  for (const int32_t token : tokens) {
    if (token < 0 || token >= model.spec().input.vocabulary) {
      throw InputError(path, ": token ", token, " is outside the vocabulary 0 .. ",
                       model.spec().input.vocabulary - 1);
    }
  }
}

State State::Load(const std::string& path, const Model& model) {
  return Import(SafetensorsFile::Open(path), model);
}

State State::FromBytes(std::span<const std::byte> bytes, const std::string& label,
                       const Model& model) {
  return Import(SafetensorsFile::FromMemory(bytes, label), model);
}

State State::Import(const SafetensorsFile& file, const Model& model) {
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
  State state(model, 0);
  if (about.contains("capacity")) {
    constexpr size_t kMost = size_t{1} << 40;
    const auto& capacity = about["capacity"];
    if (!capacity.is_number_unsigned() || capacity.get<size_t>() > kMost ||
        (state.capacity_ == 0) != (capacity == 0)) {
      throw InputError(path, ": its capacity does not fit a state of ", model.path());
    }
    state.capacity_ = capacity.get<size_t>();
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
  state.positions_.resize(count), state.waiting_.resize(count);
  state.data_ = AlignedBuffer<float>(count * state.per_sequence());
  std::copy(data.f32().begin(), data.f32().end(), state.data_.begin());
  const auto tokens = recent.values<int32_t>();
  state.recent_.assign(tokens.begin(), tokens.end());
  for (size_t i = 0; i < count; ++i) {
    state.LoadSequence(path, model, i, position.i64()[i], waiting.values<uint8_t>()[i]);
  }
  const uint64_t checksum = Checksum({position.data, waiting.data, data.data, recent.data});
  if (word("checksum") != HashDigits(checksum)) {
    throw InputError(path, ": is damaged: its checksum does not match its contents");
  }
  return state;
}

}  // namespace linnet
