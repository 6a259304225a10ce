#include "linnet/scheduler.h"

#include <algorithm>
#include <deque>
#include <exception>
#include <utility>

#include "linnet/base/hidden.h"
#include "linnet/base/thread_pool.h"
#include "linnet/engine.h"
#include "linnet/error.h"
#include "linnet/runtime/packed_model.h"
#include "linnet/runtime/state_data.h"

namespace linnet {

size_t Scheduler::Fitting(const Model& model, double bytes) {
  const double count = bytes / static_cast<double>(StateBytes(model.spec(), model.precision()));
  return count >= 1 ? static_cast<size_t>(std::min(count, 1e15)) : 0;  // 0 for NaN, too
}

size_t Scheduler::MostPositions(const Model& model) {
  const size_t trained = static_cast<size_t>(model.spec().input.max_length);
  if (StateKindOf(model) != StateKind::kConstant) return trained;
  return model.most_positions().value_or(SIZE_MAX);
}

struct LINNET_HIDDEN Scheduler::Impl {
  Impl(Engine& engine, const SchedulerOptions& options);

  // As in Scheduler.
  std::optional<uint64_t> Submit(Request&& request);
  bool Cancel(uint64_t id);
  bool Run();

  // A waiting or running request.
  struct Entry {
    uint64_t id = 0;
    Request request;
    size_t read = 0;               // tokens of the prompt read so far
    size_t stop = 0;               // index of the next stop
    std::optional<int32_t> token;  // next token to read, once the prompt is read
  };

  void Admit();
  // Calls admitted() of the request in this slot.
  void Start(size_t slot);
  void ReadPrompts();
  // Length of the next piece of the prompt in this slot; 0: it is read, or there is none.
  size_t PieceOf(size_t slot) const;
  // Counts a piece as read. Calls passed() if the piece ends at a stop.
  void Read(size_t slot, size_t piece);
  void Generate();
  // Calls one of the request's callbacks that take a state.
  using TakesState = std::function<void(State, std::span<const float>)>;
  void Pass(size_t slot, const TakesState& to, std::span<const float> outputs);
  // Result of next(), or its exception.
  struct Drawn {
    std::optional<int32_t> token;
    std::exception_ptr error;
  };
  Drawn Draw(const Entry& entry, std::span<const float> outputs) const;
  // Draws a token for the request in each of these slots, and continues or ends the request:
  // outputs [slots, width]. If `passes`, calls passed() in between, because the copy of the state
  // should not delay the token.
  void Deliver(std::span<const size_t> slots, std::span<const float> outputs, bool passes = false);
  // Continues the request with the token drawn from the outputs, or ends it. If `passes`, calls
  // passed() before.
  void Take(size_t slot, const std::shared_ptr<Entry>& entry, const Drawn& drawn,
            std::span<const float> outputs, bool passes);
  // Ends a running request. Reports `why`, if there is one.
  void End(size_t slot, std::optional<Finished> why);
  // Calls `finished`; Run() rethrows its exception at the end of the round.
  void Report(const std::function<void(Finished)>& finished, Finished why);

  Engine& engine_;
  SchedulerOptions options_;
  size_t most_positions_;
  State state_;
  // The running request of each sequence of state_; null: none. A slot is an index both in slots_
  // and of a sequence of state_. Entries are shared with the running callback, which may cancel its
  // own request.
  std::vector<std::shared_ptr<Entry>> slots_;
  std::deque<Entry> waiting_;
  // Number of running requests; slot at which ReadPrompts() begins its search.
  size_t running_ = 0, first_prompt_ = 0;
  uint64_t last_id_ = 0;
  std::exception_ptr error_;
  // Buffers of one round.
  std::vector<size_t> stepping_, reading_, lengths_;
  std::vector<Drawn> drawn_;
  std::vector<int32_t> tokens_;
  std::vector<float> outputs_;
};

Scheduler::Impl::Impl(Engine& engine, const SchedulerOptions& options)
    : engine_(engine), options_(options), most_positions_(MostPositions(engine.model())) {
  if (options.sequences == 0) throw InputError("a scheduler needs room for at least one sequence");
  state_ = engine.NewState(options.sequences);
  slots_.resize(options.sequences);
  stepping_.reserve(options.sequences);
  tokens_.reserve(options.sequences);
  outputs_.resize(options.sequences * engine.output_size());
}

std::optional<uint64_t> Scheduler::Impl::Submit(Request&& request) {
  const Model& model = engine_.model();
  const ModelSpec& spec = model.spec();
  // Whether `from` has already read the whole prompt.
  const bool read = request.prompt.empty() && request.from && request.outputs &&
                    request.outputs->size() == engine_.output_size();
  if (request.prompt.empty() && !read) {
    throw InputError("a request needs a prompt of at least one token");
  }
  if (!request.next) throw InputError("a request needs next(), which draws its tokens");
  for (const int32_t token : request.prompt) {
    if (token < 0 || token >= spec.input.vocabulary) {
      throw InputError(model.path(), ": token ", token, " is outside its vocabulary 0 .. ",
                       spec.input.vocabulary - 1);
    }
  }
  size_t begin = 0;
  bool encoded = false;  // an encoder-decoder has read the separator
  const size_t source = model.packed().layout->source;
  if (request.from) {
    if (request.from->batch() != 1) {
      throw InputError("a request begins with the state of one sequence; this state has ",
                       request.from->batch(), " sequences");
    }
    const StateData& from = StateData::Of(request.from->data_);
    from.CheckFits(model);
    begin = request.from->position();
    encoded = source > 0 && from.source_length(0) >= 0;
  }
  const size_t positions = most_positions_;
  if (begin > positions || request.prompt.size() > positions - begin) {
    throw InputError(model.path(), ": the model has ", positions, " positions; ", begin,
                     " are read, and a prompt of ", request.prompt.size(), " tokens does not fit");
  }
  if (source > 0 && !encoded) CheckSource(model, begin, request.prompt);
  size_t before = begin;
  for (const size_t stop : request.stops) {
    if (stop <= before || stop >= begin + request.prompt.size() ||
        stop % Engine::kCutPositions != 0) {
      throw InputError("a stop at position ", stop, "; stops ascend, lie between positions ", begin,
                       " and ", begin + request.prompt.size(), ", and are multiples of ",
                       Engine::kCutPositions);
    }
    before = stop;
  }
  const size_t free = slots_.size() - running_;
  if (waiting_.size() >= free && waiting_.size() - free >= options_.queue) return {};
  waiting_.push_back({.id = ++last_id_, .request = std::move(request), .read = 0, .token = {}});
  return last_id_;
}

bool Scheduler::Impl::Cancel(uint64_t id) {
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

bool Scheduler::Impl::Run() {
  Admit();
  ReadPrompts();
  Generate();
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  return running_ > 0 || !waiting_.empty();
}

void Scheduler::Impl::Admit() {
  for (size_t slot = 0; slot < slots_.size() && !waiting_.empty(); ++slot) {
    if (slots_[slot]) continue;
    Entry& entry = waiting_.front();
    if (entry.request.from) {
      state_.Assign(slot, *entry.request.from);  // may run out of memory: the entry still waits
      entry.request.from.reset();
    } else {
      state_.Reset(slot);
    }
    slots_[slot] = std::make_shared<Entry>(std::move(entry));
    waiting_.pop_front();
    ++running_;
    Start(slot);
    if (slots_[slot] && slots_[slot]->request.prompt.empty()) {
      const auto outputs = std::move(slots_[slot]->request.outputs);
      Deliver({&slot, 1}, *outputs);
    }
  }
}

void Scheduler::Impl::Start(size_t slot) {
  const std::shared_ptr<Entry> entry = slots_[slot];
  if (!entry->request.admitted) return;
  try {
    entry->request.admitted();
  } catch (...) {
    if (!error_) error_ = std::current_exception();
    if (slots_[slot] == entry) End(slot, {});
  }
}

size_t Scheduler::Impl::PieceOf(size_t slot) const {
  if (!slots_[slot]) return 0;
  const Entry& entry = *slots_[slot];
  const size_t rest = entry.request.prompt.size() - entry.read;
  const size_t at = state_.position(slot);
  size_t most = kPiece - at % Engine::kCutPositions;
  if (entry.stop < entry.request.stops.size()) {
    most = std::min(most, entry.request.stops[entry.stop] - at);
  }
  return std::min(most, rest);
}

// Reads prompts in turn, so that none starves. Each pass of the outer loop reads, in one call of
// the engine, the next piece of one prompt, and pieces of other prompts as far as the budget lasts.
// All pieces of a call end their prompts, or none does.
void Scheduler::Impl::ReadPrompts() {
  const size_t width = engine_.output_size();
  size_t budget = options_.prompt_tokens;
  for (bool any = false; budget > 0 || !any; any = true) {
    reading_.clear(), lengths_.clear();
    tokens_.clear();
    bool last = false;
    const size_t first = first_prompt_;
    for (size_t i = 0; i < slots_.size(); ++i) {
      const size_t slot = (first + i) % slots_.size();
      const size_t piece = PieceOf(slot);
      if (piece == 0) continue;
      const Entry& entry = *slots_[slot];
      const bool ends = entry.read + piece == entry.request.prompt.size();
      if (reading_.empty()) {
        last = ends;
        // A long prompt continues only after the other prompts have had their turn.
        first_prompt_ = (slot + 1) % slots_.size();
      } else if (ends != last || tokens_.size() + piece > budget) {
        continue;
      }
      reading_.push_back(slot), lengths_.push_back(piece);
      const std::span tokens = std::span(entry.request.prompt).subspan(entry.read, piece);
      tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    }
    if (reading_.empty()) return;
    const std::span<float> outputs = std::span(outputs_).first(last ? reading_.size() * width : 0);
    engine_.Prefix(state_, reading_, lengths_, tokens_, outputs);
    budget -= std::min(budget, tokens_.size());
    for (size_t i = 0; i < reading_.size(); ++i) Read(reading_[i], lengths_[i]);
    if (last) Deliver(reading_, outputs, /*passes=*/true);
  }
}

void Scheduler::Impl::Read(size_t slot, size_t piece) {
  if (!slots_[slot]) return;  // another callback has canceled it
  Entry& entry = *slots_[slot];
  entry.read += piece;
  const std::vector<size_t>& stops = entry.request.stops;
  if (entry.stop < stops.size() && stops[entry.stop] == state_.position(slot)) {
    ++entry.stop;
    Pass(slot, entry.request.passed, {});
  }
}

void Scheduler::Impl::Pass(size_t slot, const TakesState& to, std::span<const float> outputs) {
  const std::shared_ptr<Entry> entry = slots_[slot];
  if (!to) return;
  try {
    to(state_.Select(std::span(&slot, 1)), outputs);
  } catch (...) {
    if (!error_) error_ = std::current_exception();
    if (slots_[slot] == entry) End(slot, {});
  }
}

void Scheduler::Impl::Generate() {
  stepping_.clear();
  tokens_.clear();
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    if (!slots_[slot] || !slots_[slot]->token) continue;
    stepping_.push_back(slot);
    tokens_.push_back(*slots_[slot]->token);
  }
  if (stepping_.empty()) return;
  const size_t width = engine_.output_size();
  const std::span<float> outputs = std::span(outputs_).first(stepping_.size() * width);
  engine_.Step(state_, stepping_, tokens_, outputs);
  Deliver(stepping_, outputs);
}

Scheduler::Impl::Drawn Scheduler::Impl::Draw(const Entry& entry,
                                             std::span<const float> outputs) const {
  Drawn drawn;
  try {
    drawn.token = entry.request.next(outputs);
    const int32_t vocabulary = engine_.model().spec().input.vocabulary;
    if (drawn.token && (*drawn.token < 0 || *drawn.token >= vocabulary)) {
      throw InputError("next() returned the token ", *drawn.token, ", outside the vocabulary 0 .. ",
                       vocabulary - 1);
    }
  } catch (...) {
    drawn.error = std::current_exception();
  }
  return drawn;
}

void Scheduler::Impl::Deliver(std::span<const size_t> slots, std::span<const float> outputs,
                              bool passes) {
  const size_t width = engine_.output_size();
  if (!options_.parallel_next) {
    for (size_t i = 0; i < slots.size(); ++i) {
      const std::shared_ptr<Entry> entry = slots_[slots[i]];
      // A callback may have canceled the request. Its slot is then null, since only Admit() refills
      // slots.
      const auto own = outputs.subspan(i * width, width);
      if (entry) Take(slots[i], entry, Draw(*entry, own), own, passes);
    }
    return;
  }
  drawn_.resize(slots.size());
  engine_.pool().For(slots.size(), [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const std::shared_ptr<Entry>& entry = slots_[slots[i]];
      if (entry) drawn_[i] = Draw(*entry, outputs.subspan(i * width, width));
    }
  });
  for (size_t i = 0; i < slots.size(); ++i) {
    const std::shared_ptr<Entry> entry = slots_[slots[i]];
    if (entry) Take(slots[i], entry, drawn_[i], outputs.subspan(i * width, width), passes);
  }
}

void Scheduler::Impl::Take(size_t slot, const std::shared_ptr<Entry>& entry, const Drawn& drawn,
                           std::span<const float> outputs, bool passes) {
  if (passes && slots_[slot] == entry) Pass(slot, entry->request.passed, outputs);
  if (drawn.error) {
    if (!error_) error_ = drawn.error;
    if (slots_[slot] == entry) End(slot, {});
    return;
  }
  if (slots_[slot] != entry) return;  // its own callback canceled it
  if (!drawn.token) {
    Pass(slot, entry->request.at_end, outputs);
    if (slots_[slot] == entry) End(slot, Finished::kEnded);
    return;
  }
  if (state_.position(slot) >= most_positions_) {
    return End(slot, Finished::kFull);
  }
  entry->token = drawn.token;
}

void Scheduler::Impl::End(size_t slot, std::optional<Finished> why) {
  // Free the slot before the callback, which may submit.
  const auto finished = std::move(slots_[slot]->request.finished);
  slots_[slot].reset();
  --running_;
  if (why) Report(finished, *why);
}

void Scheduler::Impl::Report(const std::function<void(Finished)>& finished, Finished why) {
  if (!finished) return;
  try {
    finished(why);
  } catch (...) {
    if (!error_) error_ = std::current_exception();
  }
}

Scheduler::Scheduler(Engine& engine, const SchedulerOptions& options)
    : impl_(std::make_unique<Impl>(engine, options)) {}
Scheduler::~Scheduler() = default;

std::optional<uint64_t> Scheduler::Submit(Request&& request) {
  return impl_->Submit(std::move(request));
}
bool Scheduler::Cancel(uint64_t id) { return impl_->Cancel(id); }
bool Scheduler::Run() { return impl_->Run(); }
size_t Scheduler::running() const { return impl_->running_; }
size_t Scheduler::waiting() const { return impl_->waiting_.size(); }
size_t Scheduler::capacity() const { return impl_->slots_.size(); }

}  // namespace linnet
