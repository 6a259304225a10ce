#include "linnet/tasks/text/grammar_places.h"

#include <algorithm>

#include "linnet/grammar.h"

namespace linnet::grammar {
namespace {

// A step of work takes up to 100 ns. A text may take kFirstWork steps, and kMoreWork more for each
// token; what is not used is kept, up to kFirstWork.
constexpr size_t kFirstWork = 1 << 20, kMoreWork = 1 << 13;
// Beyond these numbers the grammar is too ambiguous, or places are forgotten after the token.
constexpr size_t kMostPlaces = 20'000, kManyPlaces = 2000;
constexpr size_t kMostReadings = 1 << 18, kManyReadings = 1 << 15;
constexpr int32_t kMostFrames = 1000;  // maximum nesting of rules in a text

uint64_t Key(int32_t a, int32_t b) {
  return static_cast<uint64_t>(static_cast<uint32_t>(a)) << 32 | static_cast<uint32_t>(b);
}

}  // namespace

Places::Places(std::shared_ptr<const Automaton> automaton)
    : automaton_(std::move(automaton)), work_(kFirstWork) {
  if (Close({{automaton_->start(), -1}}) == kNowhere) IndexOf({}, false);
}

bool Places::full() const { return places_.size() > kManyPlaces || readings_ > kManyReadings; }

void Places::AllowWork() { work_ = std::min(work_ + kMoreWork, kFirstWork); }

void Places::Work(size_t steps) {
  if (steps > work_ || places_.size() > kMostPlaces || readings_ > kMostReadings) {
    throw GrammarError("the grammar is too ambiguous: too many of its rules fit the text");
  }
  work_ -= steps;
}

int32_t Places::Next(int32_t place, uint8_t byte) {
  std::vector<int32_t>& next = places_[static_cast<size_t>(place)].next;
  if (next.empty()) next.assign(256, kUnknown);
  if (next[byte] != kUnknown) return next[byte];
  const int32_t found = Read(place, byte);  // may move places_
  places_[static_cast<size_t>(place)].next[byte] = found;
  return found;
}

int32_t Places::Keep(int32_t place) {
  const Place kept = std::move(places_[static_cast<size_t>(place)]);
  const std::vector<Frame> frames = std::move(frames_);
  places_.clear(), indices_.clear(), frames_.clear(), frame_indices_.clear();
  readings_ = 0;
  std::vector<Reading> readings;
  for (Reading reading : kept.readings) {
    std::vector<int32_t> returns;
    for (int32_t f = reading.frame; f >= 0; f = frames[static_cast<size_t>(f)].below) {
      returns.push_back(frames[static_cast<size_t>(f)].to);
    }
    reading.frame = -1;
    Work(returns.size() + 1);
    for (auto to = returns.rbegin(); to != returns.rend(); ++to) {
      reading.frame = Push(*to, reading.frame);
    }
    readings.push_back(reading);
  }
  std::sort(readings.begin(), readings.end());
  return IndexOf(std::move(readings), kept.complete);
}

int32_t Places::Push(int32_t to, int32_t below) {
  const auto index = static_cast<int32_t>(frames_.size());
  const auto [found, added] = frame_indices_.try_emplace(Key(to, below), index);
  if (added) {
    const int32_t depth = below < 0 ? 0 : frames_[static_cast<size_t>(below)].depth;
    frames_.push_back({to, below, depth + 1});
  }
  return found->second;
}

int32_t Places::Read(int32_t place, uint8_t byte) {
  std::vector<Reading> after;
  for (const Reading& reading : (*this)[place].readings) {
    const Automaton::State& state = automaton_->state(reading.state);
    Work(state.ranges.size());
    for (const Automaton::Range& range : state.ranges) {
      if (byte >= range.low && byte <= range.high) after.push_back({range.to, reading.frame});
    }
  }
  return after.empty() ? kNowhere : Close(std::move(after));
}

int32_t Places::Close(std::vector<Reading> open) {
  std::vector<Reading> readings;
  bool complete = false;
  seen_.clear();
  for (const Reading& reading : open) seen_.insert(Key(reading.state, reading.frame));
  const auto reach = [&](int32_t state, int32_t frame) {
    if (seen_.insert(Key(state, frame)).second) open.push_back({state, frame});
  };
  while (!open.empty()) {
    const Reading reading = open.back();
    open.pop_back();
    const Automaton::State& state = automaton_->state(reading.state);
    Work(1 + state.empty.size() + state.calls.size());
    if (!state.ranges.empty()) readings.push_back(reading);
    for (const int32_t to : state.empty) reach(to, reading.frame);
    for (const Automaton::Call& call : state.calls) {
      int32_t frame = reading.frame;
      if (!call.tail) {
        if (frame >= 0 && frames_[static_cast<size_t>(frame)].depth >= kMostFrames) continue;
        frame = Push(call.to, frame);
      }
      reach(call.rule, frame);
    }
    if (!state.last) continue;
    if (reading.frame < 0) {
      complete = true;
    } else {
      const Frame frame = frames_[static_cast<size_t>(reading.frame)];
      reach(frame.to, frame.below);
    }
  }
  if (readings.empty() && !complete) return kNowhere;
  std::sort(readings.begin(), readings.end());
  readings.erase(std::unique(readings.begin(), readings.end()), readings.end());
  return IndexOf(std::move(readings), complete);
}

int32_t Places::IndexOf(std::vector<Reading> readings, bool complete) {
  const auto index = static_cast<int32_t>(places_.size());
  const auto [found, added] = indices_.try_emplace({readings, complete}, index);
  if (added) {
    readings_ += readings.size();
    places_.push_back({std::move(readings), complete});
  }
  return found->second;
}

}  // namespace linnet::grammar
