#include "linnet/runtime/scheduler.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "linnet/base/error.h"

namespace linnet {
size_t Scheduler::Fitting(const Model& model, double bytes) {
  const double count = bytes / static_cast<double>(StateBytes(model.spec(), model.precision()));
  return count >= 1 ? static_cast<size_t>(std::min(count, 1e15)) : 0;  // 0 for NaN, too
}

Scheduler::Scheduler(Engine& engine, const SchedulerOptions& options)
    : engine_(engine), options_(options) {
  if (options.sequences == 0) throw InputError("a scheduler needs room for at least one sequence");
  state_ = engine.NewState(options.sequences);
  slots_.resize(options.sequences);
  stepping_.reserve(options.sequences);
  symbols_.reserve(options.sequences);
  outputs_.resize(options.sequences * engine.output_size());
}

std::optional<uint64_t> Scheduler::Submit(Request&& request) {
  const Model& model = engine_.model();
  const ModelSpec& spec = model.spec();
  const bool read = request.prompt.empty() && request.from.batch() > 0 &&
                    request.outputs.size() == engine_.output_size();
  if (request.prompt.empty() && !read) {
    throw InputError("a request needs a prompt of at least one symbol");
  }
  if (!request.next) throw InputError("a request needs next(), which draws its symbols");
  for (const int32_t symbol : request.prompt) {
    if (symbol < 0 || symbol >= spec.vocabulary) {
      throw InputError(model.path(), ": symbol ", symbol, " is outside its vocabulary 0 .. ",
                       spec.vocabulary - 1);
    }
  }
  size_t begin = 0;
  if (request.from.batch() > 0) {
    if (request.from.batch() != 1) {
      throw InputError("a request begins with the state of one sequence; this one has ",
                       request.from.batch());
    }
    request.from.CheckFits(model);
    begin = request.from.position();
  }
  const auto positions = static_cast<size_t>(spec.max_length);
  if (begin > positions || request.prompt.size() > positions - begin) {
    throw InputError(model.path(), ": the model has ", positions, " positions; ", begin,
                     " are read and a prompt of ", request.prompt.size(), " does not fit");
  }
  const size_t free = slots_.size() - running_;
  if (waiting_.size() >= free && waiting_.size() - free >= options_.queue) return {};
  waiting_.push_back({.id = ++last_id_, .request = std::move(request), .read = 0, .symbol = {}});
  return last_id_;
}

bool Scheduler::Cancel(uint64_t id) {
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    if (slots_[slot] && slots_[slot]->id == id) {
      End(slot, Finished::kCancelled);
      return true;
    }
  }
  const auto found = std::find_if(waiting_.begin(), waiting_.end(),
                                  [&](const Entry& entry) { return entry.id == id; });
  if (found == waiting_.end()) return false;
  const auto finished = std::move(found->request.finished);
  waiting_.erase(found);
  Report(finished, Finished::kCancelled);
  return true;
}

bool Scheduler::Run() {
  Admit();
  ReadPrompts();
  Generate();
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  return running_ > 0 || !waiting_.empty();
}

void Scheduler::Admit() {
  for (size_t slot = 0; slot < slots_.size() && !waiting_.empty(); ++slot) {
    if (slots_[slot]) continue;
    Entry entry = std::move(waiting_.front());
    waiting_.pop_front();
    if (entry.request.from.batch() > 0) {
      state_.Assign(slot, entry.request.from);
      entry.request.from = State();
    } else {
      state_.Reset(slot);
    }
    slots_[slot] = std::make_shared<Entry>(std::move(entry));
    ++running_;
    if (slots_[slot]->request.prompt.empty()) {
      const std::vector<float> outputs = std::move(slots_[slot]->request.outputs);
      Deliver(slot, outputs);
    }
  }
}

// In turn, so that none waits for ever.
void Scheduler::ReadPrompts() {
  size_t budget = options_.prompt_symbols;
  bool any = false;
  const size_t first = first_prompt_;
  for (size_t i = 0; i < slots_.size() && (budget > 0 || !any); ++i) {
    const size_t slot = (first + i) % slots_.size();
    while (slots_[slot] && slots_[slot]->read < slots_[slot]->request.prompt.size() &&
           (budget > 0 || !any)) {
      Entry& entry = *slots_[slot];
      const std::vector<int32_t>& prompt = entry.request.prompt;
      const size_t piece = std::min(kPiece, prompt.size() - entry.read);
      const bool last = entry.read + piece == prompt.size();
      const std::span<float> outputs = std::span(outputs_).first(last ? engine_.output_size() : 0);
      engine_.Prefix(state_, std::span(&slot, 1), std::span(prompt).subspan(entry.read, piece),
                     piece, outputs);
      entry.read += piece;
      budget -= std::min(budget, piece);
      any = true;
      // A long prompt goes on in the next round, but after a turn of the others.
      first_prompt_ = (slot + 1) % slots_.size();
      Pass(slot, outputs);
      if (last && slots_[slot]) Deliver(slot, outputs);
    }
  }
}

void Scheduler::Pass(size_t slot, std::span<const float> outputs) {
  const std::shared_ptr<Entry> entry = slots_[slot];
  if (!entry->request.passed) return;
  try {
    entry->request.passed(state_.Select(std::span(&slot, 1)), outputs);
  } catch (...) {
    if (!error_) error_ = std::current_exception();
    if (slots_[slot] == entry) End(slot, {});
  }
}

void Scheduler::Generate() {
  stepping_.clear();
  symbols_.clear();
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    if (!slots_[slot] || !slots_[slot]->symbol) continue;
    stepping_.push_back(slot);
    symbols_.push_back(*slots_[slot]->symbol);
  }
  if (stepping_.empty()) return;
  const size_t width = engine_.output_size();
  const std::span<float> outputs = std::span(outputs_).first(stepping_.size() * width);
  engine_.Step(state_, stepping_, symbols_, outputs);
  for (size_t i = 0; i < stepping_.size(); ++i) {
    // A callback may have cancelled it, and another request taken its place only in Admit().
    if (slots_[stepping_[i]]) Deliver(stepping_[i], outputs.subspan(i * width, width));
  }
}

void Scheduler::Deliver(size_t slot, std::span<const float> outputs) {
  const std::shared_ptr<Entry> entry = slots_[slot];
  std::optional<int32_t> symbol;
  try {
    symbol = entry->request.next(outputs);
    const int32_t vocabulary = engine_.model().spec().vocabulary;
    if (symbol && (*symbol < 0 || *symbol >= vocabulary)) {
      throw InputError("next() gave the symbol ", *symbol, ", outside the vocabulary 0 .. ",
                       vocabulary - 1);
    }
  } catch (...) {
    if (!error_) error_ = std::current_exception();
    if (slots_[slot] == entry) End(slot, {});
    return;
  }
  if (slots_[slot] != entry) return;  // it cancelled itself
  if (!symbol) return End(slot, Finished::kEnded);
  if (state_.position(slot) >= static_cast<size_t>(engine_.model().spec().max_length)) {
    return End(slot, Finished::kFull);
  }
  entry->symbol = symbol;
}

void Scheduler::End(size_t slot, std::optional<Finished> why) {
  // The place is free before the callback, which may submit.
  const auto finished = std::move(slots_[slot]->request.finished);
  slots_[slot].reset();
  --running_;
  if (why) Report(finished, *why);
}

void Scheduler::Report(const std::function<void(Finished)>& finished, Finished why) {
  if (!finished) return;
  try {
    finished(why);
  } catch (...) {
    if (!error_) error_ = std::current_exception();
  }
}

}  // namespace linnet
