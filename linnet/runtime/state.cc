#include "linnet/runtime/state.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "linnet/base/error.h"
#include "linnet/base/hash.h"
#include "linnet/base/units.h"
#include "linnet/io/json.h"
#include "linnet/io/safetensors.h"
#include "linnet/runtime/packed_model.h"

namespace linnet {
namespace {

constexpr const char* kMetadata = "linnet.state";
constexpr int kFormat = 3;  // 1 had no keys that wait, 2 no checksum

// Of positions, keys that wait, floats and symbols.
uint64_t Checksum(std::initializer_list<std::span<const std::byte>> parts) {
  uint64_t hash = 0;
  for (const std::span<const std::byte> part : parts) hash = Hash(part, hash);
  return hash;
}

double MachineMemory() {
  return static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
}

}  // namespace

State::State(const Model& model, size_t batch)
    : model_(model.fingerprint()),
      per_sequence_(model.packed().layout.floats),
      cleared_(model.packed().layout.softmax
                   ? 0
                   : per_sequence_),  // a cache is read as far as it is filled
      reach_(static_cast<size_t>(model.spec().Reach())),
      positions_(batch),
      waiting_(batch),
      data_(batch * per_sequence_),
      recent_(batch * reach_) {}

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
  return sizeof(float) * (StateLayout(spec, precision).floats + static_cast<size_t>(spec.Reach()));
}

State State::Clone() const {
  State copy;
  copy.model_ = model_, copy.per_sequence_ = per_sequence_, copy.cleared_ = cleared_,
  copy.reach_ = reach_;
  copy.positions_ = positions_, copy.waiting_ = waiting_;
  copy.data_ = data_.Copy();
  copy.recent_ = recent_;
  return copy;
}

void State::Reset() {
  std::fill(positions_.begin(), positions_.end(), 0);
  std::fill(waiting_.begin(), waiting_.end(), uint8_t{0});
  if (cleared_ > 0) std::fill(data_.begin(), data_.end(), 0.0f);
}

void State::Reset(size_t sequence) {
  position(sequence);  // is it there?
  positions_[sequence] = 0, waiting_[sequence] = 0;
  std::fill_n(data_.data() + sequence * per_sequence_, cleared_, 0.0f);
}

State State::Fork(size_t copies) const {
  if (copies == 0) throw InputError("a state cannot be forked into no copies");
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
  chosen.model_ = model_, chosen.per_sequence_ = per_sequence_;
  chosen.cleared_ = cleared_, chosen.reach_ = reach_;
  chosen.data_ = AlignedBuffer<float>(sequences.size() * per_sequence_);
  chosen.recent_.resize(sequences.size() * reach_);
  for (size_t i = 0; i < sequences.size(); ++i) {
    const size_t from = sequences[i];
    chosen.positions_.push_back(position(from));
    chosen.waiting_.push_back(waiting_[from]);
    std::copy_n(data_.data() + from * per_sequence_, per_sequence_,
                chosen.data_.data() + i * per_sequence_);
    std::copy_n(recent_.data() + from * reach_, reach_, chosen.recent_.data() + i * reach_);
  }
  return chosen;
}

void State::Append(const State& other) {
  if (other.batch() == 0) return;
  if (batch() > 0 && model_ != other.model_) {
    throw InputError("states of two models cannot be put together");
  }
  AlignedBuffer<float> data(data_.size() + other.data_.size());
  const auto end = std::copy(data_.begin(), data_.end(), data.begin());
  std::copy(other.data_.begin(), other.data_.end(), end);
  recent_.insert(recent_.end(), other.recent_.begin(), other.recent_.end());
  positions_.insert(positions_.end(), other.positions_.begin(), other.positions_.end());
  waiting_.insert(waiting_.end(), other.waiting_.begin(), other.waiting_.end());
  data_ = std::move(data);
  model_ = other.model_, per_sequence_ = other.per_sequence_;
  cleared_ = other.cleared_, reach_ = other.reach_;
}

void State::Assign(size_t sequence, const State& other) {
  position(sequence);  // is it there?
  if (other.batch() != 1 || model_ != other.model_) {
    throw InputError("one sequence of a state is replaced by one of the same model");
  }
  positions_[sequence] = other.positions_[0], waiting_[sequence] = other.waiting_[0];
  std::copy(other.data_.begin(), other.data_.end(), data_.begin() + sequence * per_sequence_);
  std::copy(other.recent_.begin(), other.recent_.end(),
            recent_.begin() + static_cast<ptrdiff_t>(sequence * reach_));
}

void State::CheckFits(const Model& model) const {
  if (batch() == 0 || model_ != model.fingerprint()) {
    throw InputError(model.path(), ": the state was not made for this model; use NewState()");
  }
}

void State::Save(const std::string& path, const Model& model) const {
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
                                    {"checksum", HashDigits(checksum)}}
                         .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  writer.Add("position", DType::kI64, {rows}, positions.data());
  writer.Add("waiting", DType::kU8, {rows}, waiting_.data());
  writer.Add("state", DType::kF32, {rows, static_cast<int64_t>(per_sequence_)}, data_.data());
  writer.Add("recent", DType::kI32, {rows, static_cast<int64_t>(reach_)}, recent_.data());
  writer.Write(path);
}

State State::Load(const std::string& path, const Model& model) {
  const SafetensorsFile file = SafetensorsFile::Open(path);
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
    throw InputError(path, ": a state that another version of linnet saved, which this one cannot ",
                     "read");
  }
  const ModelSpec& spec = model.spec();
  const StateLayout& layout = model.packed().layout;
  const Tensor &position = file.Get("position"), &data = file.Get("state"),
               &recent = file.Get("recent"), &waiting = file.Get("waiting");
  const int64_t rows = position.shape.size() == 1 ? position.shape[0] : 0;
  const auto has = [&](const Tensor& tensor, DType type, int64_t width) {
    return tensor.dtype == type && tensor.shape == std::vector<int64_t>{rows, width};
  };
  if (rows < 1 || position.dtype != DType::kI64 || waiting.dtype != DType::kU8 ||
      waiting.shape != position.shape ||
      !has(data, DType::kF32, static_cast<int64_t>(layout.floats)) ||
      !has(recent, DType::kI32, spec.Reach())) {
    throw InputError(path, ": its tensors are not those of a state of ", model.path());
  }
  State state(model, static_cast<size_t>(rows));
  for (size_t row = 0; row < state.batch(); ++row) {
    const auto floats = data.f32().subspan(row * layout.floats, layout.floats);
    layout.ForParts([&](size_t first, size_t count, bool narrow) {
      const auto part = floats.subspan(first, count);
      if (!narrow) return CheckFinite(part, path, data.name);
      // Each float is two bfloat16, of which all bits of the exponent make no number.
      for (const float pair : part) {
        const uint32_t bits = std::bit_cast<uint32_t>(pair);
        if ((bits & 0x7f80) == 0x7f80 || (bits & 0x7f800000) == 0x7f800000) {
          throw InputError(path, ": ", data.name, " holds values that are no numbers");
        }
      }
    });
  }
  std::copy(data.f32().begin(), data.f32().end(), state.data_.begin());
  for (size_t i = 0; i < state.positions_.size(); ++i) {
    const int64_t at = position.i64()[i];
    if (at < 0 || at > spec.max_length) {
      throw InputError(path, ": a sequence has read ", at, " symbols, and the model has ",
                       spec.max_length, " positions");
    }
    state.positions_[i] = static_cast<size_t>(at);
    const uint8_t keys = waiting.values<uint8_t>()[i];
    if (keys >= layout.linear.RecentKeys() || keys > at) {
      throw InputError(path, ": ", int{keys}, " keys wait after ", at, " symbols");
    }
    state.waiting_[i] = keys;
  }
  const auto symbols = recent.values<int32_t>();
  for (size_t i = 0; i < symbols.size(); ++i) {
    if (symbols[i] < 0 || symbols[i] >= spec.vocabulary) {
      throw InputError(path, ": symbol ", symbols[i], " is outside the vocabulary 0 .. ",
                       spec.vocabulary - 1);
    }
    state.recent_[i] = symbols[i];
  }
  const uint64_t checksum = Checksum({position.data, waiting.data, data.data, recent.data});
  if (word("checksum") != HashDigits(checksum)) {
    throw InputError(path, ": is damaged: its checksum is not that of what it holds");
  }
  return state;
}

}  // namespace linnet
