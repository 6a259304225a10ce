#include "linnet/server/batcher.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "linnet/error.h"

namespace linnet::server {

namespace {

// Tokens of prompts that begin before the running sequences go on: a millisecond or two of hashing.
constexpr size_t kTokensBegun = 1 << 16;

}  // namespace

struct Batcher::Job {
  uint64_t id = 0;  // number of the request
  Work work;
  struct Sequence {
    std::optional<uint64_t> scheduled;   // the scheduler's id
    bool failed = false, ended = false;  // next() failed; End() was called
    std::string why;                     // reason of the failure
  };
  std::vector<Sequence> sequences;
  std::vector<Snapshots::Stop> stops;  // prefixes of the prompt that get a snapshot
  size_t left = 0;                     // number of sequences still running or waiting
  size_t known = 0;                    // prompt tokens restored from a snapshot
  size_t tokens = 0;                   // in the prompt
  std::atomic<bool> begun{false};      // work.begun() was called
};

Batcher::Batcher(std::shared_ptr<const Model> model, const BatcherOptions& options)
    : model_(std::move(model)),
      engine_(model_, {.threads = options.threads}),
      options_(options),
      snapshots_(model_, options.snapshots),
      scheduler_(engine_, {.sequences = options.sequences,
                           .queue = options.sequences + options.queue,
                           .parallel_next = true}),
      thread_([this] { Loop(); }) {}

Batcher::~Batcher() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

std::optional<uint64_t> Batcher::Submit(std::vector<Work> prompts) {
  size_t sequences = 0, tokens = 0;
  for (const Work& work : prompts) {
    tokens += work.prompt.size();
    if (work.sequences == 0) throw InputError("a prompt without a sequence");
    sequences += work.sequences;
    const size_t most = Scheduler::MostPositions(model());
    const size_t read = work.from ? work.from->state.position() : 0;
    const bool continues = work.from && !work.from->outputs.empty();
    if ((work.prompt.empty() && !continues) || read > most || work.prompt.size() > most - read) {
      throw InputError("a prompt of ", work.prompt.size(), " tokens",
                       read > 0 ? StrCat(" after a state of ", read) : "", "; the model has ", most,
                       " positions");
    }
  }
  if (sequences == 0 || sequences > most_sequences()) {
    throw InputError(sequences, " sequences in one request; 1 to ", most_sequences(),
                     " are possible");
  }
  std::vector<std::shared_ptr<Job>> jobs;
  for (Work& work : prompts) {
    jobs.push_back(std::make_shared<Job>());
    jobs.back()->left = work.sequences;
    jobs.back()->sequences.resize(work.sequences);
    jobs.back()->tokens = work.prompt.size();
    jobs.back()->work = std::move(work);
  }
  const std::lock_guard lock(mutex_);
  if (stop_ || outstanding_ + sequences > most_sequences()) return {};
  if (outstanding_ > 0 && prompt_tokens_ + tokens > options_.prompt_tokens) return {};
  outstanding_ += sequences, prompt_tokens_ += tokens;
  ++last_;
  for (const auto& job : jobs) {
    job->id = last_;
    inbox_.push_back(job);
  }
  wake_.notify_all();
  return last_;
}

void Batcher::Cancel(uint64_t request) {
  const std::lock_guard lock(mutex_);
  cancels_.push_back(request);
  wake_.notify_all();
}

void Batcher::CancelAll() {
  const std::lock_guard lock(mutex_);
  cancel_all_ = true;
  wake_.notify_all();
}

Batcher::Counts Batcher::counts() const {
  Counts counts;
  counts.running = running_;
  const size_t all = outstanding_;
  counts.waiting = all - std::min(all, counts.running);
  counts.capacity = options_.sequences;
  counts.generated = generated_, counts.read = read_, counts.known = known_;
  counts.hits = hits_, counts.misses = misses_;
  counts.snapshots = snapshots_.count(), counts.snapshot_bytes = snapshots_.bytes();
  counts.evictions = snapshots_.evictions();
  return counts;
}

void Batcher::Loop() {
  bool busy = false;
  while (true) {
    std::vector<std::shared_ptr<Job>> jobs;
    std::vector<uint64_t> cancels;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] {
        return busy || stop_ || cancel_all_ || !inbox_.empty() || !cancels_.empty();
      });
      std::swap(jobs, inbox_), std::swap(cancels, cancels_);
      if (stop_ || std::exchange(cancel_all_, false)) {
        for (const auto& [id, job] : jobs_) cancels.push_back(id);
        for (const auto& job : jobs) cancels.push_back(job->id);
      }
    }
    for (const auto& job : jobs) jobs_.emplace(job->id, job);
    waiting_.insert(waiting_.end(), jobs.begin(), jobs.end());
    for (const uint64_t id : cancels) CancelNow(id);
    BeginSome();
    try {
      busy = scheduler_.Run() || !waiting_.empty();
    } catch (const std::exception&) {  // from the engine: the callbacks of Start() do not throw
      for (const auto& [id, job] : std::unordered_multimap(jobs_)) CancelNow(id);
      busy = true;
    }
    running_ = scheduler_.running();
    const std::lock_guard lock(mutex_);
    if (stop_ && inbox_.empty() && jobs_.empty()) return;
  }
}

void Batcher::BeginSome() {
  for (size_t tokens = 0; !waiting_.empty() && tokens < kTokensBegun;) {
    const std::shared_ptr<Job> job = std::move(waiting_.front());
    waiting_.pop_front();
    if (job->left == 0) continue;  // canceled
    tokens += job->tokens;
    try {
      Begin(job);
    } catch (const std::exception& error) {  // out of memory
      Fail(job, error.what());
    }
  }
}

// The first sequence reads the rest of the prompt after the snapshot. The others start from the
// state after the prompt.
void Batcher::Begin(const std::shared_ptr<Job>& job) {
  const std::vector<int32_t>& prompt = job->work.prompt;
  if (job->work.from) {
    read_ += prompt.size();
    Start(job, 0, job->work.from, prompt);
    if (prompt.empty()) StartRest(job, job->work.from);
    return;
  }
  Snapshots::Found found = snapshots_.Find(prompt, job->work.owner);
  found.length > 0 ? ++hits_ : ++misses_;
  job->known = found.length;
  job->stops = std::move(found.stops);
  known_ += found.length, read_ += prompt.size() - found.length;
  const std::span rest = std::span(prompt).subspan(found.length);
  Start(job, 0, found.snapshot, {rest.begin(), rest.end()});
  if (rest.empty()) StartRest(job, found.snapshot);
}

void Batcher::StartRest(const std::shared_ptr<Job>& job,
                        const std::shared_ptr<const Snapshot>& from) {
  for (size_t i = 1; i < job->sequences.size(); ++i) {
    if (!job->sequences[i].ended) Start(job, i, from);
  }
}

void Batcher::Start(const std::shared_ptr<Job>& job, size_t sequence,
                    const std::shared_ptr<const Snapshot>& from, std::vector<int32_t> rest) {
  // If a sequence fails, it reports its reason, and the prompt's other sequences go on.
  const auto next = [this, job, sequence](std::span<const float> logits) -> std::optional<int32_t> {
    try {
      if (job->work.begun && !job->begun.exchange(true)) job->work.begun(job->known);
      const auto token = job->work.next(sequence, logits);
      if (token && (*token < 0 || *token >= model().spec().input.vocabulary)) {
        throw RuntimeError("the token ", *token, " is outside the vocabulary");
      }
      // Before at_end(), each drawn token is read, and a last call draws none.
      if (token || !job->work.at_end) ++generated_;
      return token;
    } catch (const std::exception& error) {
      job->sequences[sequence].failed = true;
      job->sequences[sequence].why = error.what();
      return {};
    }
  };
  const auto finished = [this, job, sequence](Finished how) {
    const Job::Sequence& one = job->sequences[sequence];
    End(job, sequence,
        one.failed                ? Ended::kFailed
        : how == Finished::kEnded ? Ended::kDone
        : how == Finished::kFull  ? Ended::kFull
                                  : Ended::kCancelled,
        one.why);
  };
  Request request{.prompt = std::move(rest), .next = next, .finished = finished};
  if (from) {  // aliasing pointers keep the whole snapshot alive
    request.from = std::shared_ptr<const State>(from, &from->state);
    if (request.prompt.empty()) {
      request.outputs = std::shared_ptr<const std::vector<float>>(from, &from->outputs);
    }
  }
  if (sequence == 0) request.admitted = job->work.admitted;
  if (job->work.at_end) {
    request.at_end = [job, sequence](State state, std::span<const float> outputs) {
      Job::Sequence& one = job->sequences[sequence];
      if (one.failed) return;
      try {
        job->work.at_end(sequence, Snapshot(std::move(state), {outputs.begin(), outputs.end()}));
      } catch (const std::exception& error) {  // out of memory
        one.failed = true, one.why = error.what();
      }
    };
  }
  // The snapshots of a prompt that continues another sequence would need that sequence's tokens.
  const bool keeps = !job->work.from && job->work.prompt.size() >= options_.snapshots.from;
  if (!request.prompt.empty() && (keeps || job->sequences.size() > 1)) {
    for (size_t i = 0; keeps && i < job->stops.size(); ++i) {
      request.stops.push_back(job->stops[i].length);
    }
    request.passed = KeepAndStart(job, keeps);
  }
  try {
    job->sequences[sequence].scheduled = scheduler_.Submit(std::move(request));
    // Impossible, because Batcher::Submit() has reserved a place.
    if (!job->sequences[sequence].scheduled) {
      throw RuntimeError("the queue is full");
    }
  } catch (const std::exception& error) {
    Fail(job, error.what());
  }
}

std::function<void(State, std::span<const float>)> Batcher::KeepAndStart(
    const std::shared_ptr<Job>& job, bool keeps) {
  return [this, job, keeps, stop = size_t{0}](State state, std::span<const float> logits) mutable {
    try {
      const auto prefix = std::span(job->work.prompt).first(keeps ? state.position() : 0);
      const auto use = logits.empty() ? job->stops[stop++].use : Snapshots::Use::kLikely;
      const auto snapshot = std::make_shared<const Snapshot>(
          std::move(state), std::vector<float>(logits.begin(), logits.end()));
      if (!logits.empty()) StartRest(job, snapshot);
      if (keeps) snapshots_.Keep(prefix, snapshot, use, job->work.owner);
    } catch (const std::exception& error) {  // out of memory
      Fail(job, error.what());
    }
  };
}

void Batcher::Fail(const std::shared_ptr<Job>& job, const std::string& why) {
  for (size_t i = 0; i < job->sequences.size(); ++i) {
    const auto scheduled = job->sequences[i].scheduled;
    End(job, i, Ended::kFailed, why);
    if (scheduled) scheduler_.Cancel(*scheduled);
  }
}

void Batcher::End(const std::shared_ptr<Job>& job, size_t sequence, Ended how,
                  const std::string& why) {
  if (std::exchange(job->sequences[sequence].ended, true)) return;
  --outstanding_;  // before the callback, which may submit the next request
  job->work.ended(sequence, how, why);
  if (--job->left > 0) return;
  prompt_tokens_ -= job->tokens;
  const auto [begin, end] = jobs_.equal_range(job->id);
  const auto found =
      std::find_if(begin, end, [&](const auto& entry) { return entry.second == job; });
  if (found != end) jobs_.erase(found);
}

void Batcher::CancelNow(uint64_t request) {
  std::vector<std::shared_ptr<Job>> jobs;  // End() removes them from jobs_
  const auto [begin, end] = jobs_.equal_range(request);
  for (auto it = begin; it != end; ++it) jobs.push_back(it->second);
  for (const auto& job : jobs) {
    for (size_t i = 0; i < job->sequences.size(); ++i) {
      if (job->sequences[i].scheduled) scheduler_.Cancel(*job->sequences[i].scheduled);
      End(job, i, Ended::kCancelled, "");
    }
  }
}

}  // namespace linnet::server
