#include <algorithm>
#include <cmath>
#include <cstddef>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "linnet/capi/capi.h"
#include "linnet/speech.h"

struct linnet_transcript {
  // A deque, which never moves its elements: callers keep pointers to the phones' names.
  std::deque<linnet::Phone> phones;
  double seconds = 0;
};

struct linnet_transcriber {
  explicit linnet_transcriber(std::shared_ptr<const linnet::Model> model)
      : stream(std::move(model)) {}

  linnet::PhoneStream stream;
  linnet_transcript transcript = {};
  bool finished = false;
};

namespace linnet::capi {
namespace {

// The Transcriber of an engine, and the beam width with which it was made.
struct EngineSpeech {
  EngineSpeech(std::shared_ptr<const Model> model, const TranscriberOptions& options)
      : transcriber(std::move(model), options), beam(options.beam) {}

  Transcriber transcriber;
  size_t beam;
};

// Returns the engine's Transcriber. Makes a new one if there is none yet or its beam width differs.
Transcriber& TranscriberOf(linnet_engine& engine, size_t beam) {
  auto own = std::static_pointer_cast<EngineSpeech>(engine.speech);
  if (!own || own->beam != beam) {
    own = std::make_shared<EngineSpeech>(
        engine.model, TranscriberOptions{.threads = engine.threads, .beam = beam});
    engine.speech = own;
  }
  return own->transcriber;
}

// A caller's samples. Like ReadAudio() (tasks/speech/audio.h), throws InputError if a sample is
// NaN, infinite or too large.
std::span<const float> Samples(const float* samples, size_t count) {
  constexpr float kLoudest = 1e6f;
  const auto given = Array(samples, count, "samples");
  for (size_t i = 0; i < count; ++i) {
    if (!(std::abs(given[i]) <= kLoudest)) {
      throw InputError("sample ", i, " is ", given[i],
                       "; samples must be finite and at most 1e6 in magnitude (full scale is 1)");
    }
  }
  return given;
}

const linnet_transcript& TranscriptOf(const linnet_transcript* transcript) {
  return Given(transcript, "the transcript");
}

const Phone& PhoneOf(const linnet_transcript* transcript, size_t i) {
  const std::deque<Phone>& phones = TranscriptOf(transcript).phones;
  if (i >= phones.size()) {
    throw InputError("there is no phone ", i, "; there are ", phones.size());
  }
  return phones[i];
}

// A caller's transcriber. Throws InputError if it is finished.
linnet_transcriber& Listening(linnet_transcriber* transcriber) {
  linnet_transcriber& given = Given(transcriber, "the transcriber");
  if (given.finished) throw InputError("the transcriber is finished; make a new one");
  return given;
}

// Appends newly recognized phones to the transcript.
void Add(linnet_transcriber& to, const std::vector<Phone>& phones) {
  to.transcript.phones.insert(to.transcript.phones.end(), phones.begin(), phones.end());
  to.transcript.seconds = to.stream.seconds();
}

}  // namespace
}  // namespace linnet::capi

using namespace linnet::capi;

extern "C" {

linnet_transcript* linnet_transcribe(linnet_engine* engine, const float* samples, size_t count,
                                     size_t beam) {
  return ValueOf<linnet_transcript*>(nullptr, [&] {
    linnet_engine& given = Given(engine, "the engine");
    const auto sound = Samples(samples, count);
    if (beam == 0) throw linnet::InputError("the beam must be at least 1");
    linnet::Transcriber& transcriber = TranscriberOf(given, beam);
    const linnet::Transcript heard = transcriber.Transcribe(
        {.samples = {sound.begin(), sound.end()}, .rate = transcriber.sample_rate()});
    return new linnet_transcript{.phones = {heard.phones.begin(), heard.phones.end()},
                                 .seconds = heard.seconds};
  });
}
void linnet_transcript_free(linnet_transcript* transcript) { delete transcript; }

size_t linnet_transcript_count(const linnet_transcript* transcript) {
  return ValueOf<size_t>(0, [&] { return TranscriptOf(transcript).phones.size(); });
}
const char* linnet_transcript_phone(const linnet_transcript* transcript, size_t i) {
  return ValueOf<const char*>(nullptr, [&] { return PhoneOf(transcript, i).name.c_str(); });
}
double linnet_transcript_start(const linnet_transcript* transcript, size_t i) {
  return ValueOf(0.0, [&] { return PhoneOf(transcript, i).seconds; });
}
double linnet_transcript_probability(const linnet_transcript* transcript, size_t i) {
  return ValueOf(0.0, [&] { return PhoneOf(transcript, i).probability; });
}
double linnet_transcript_seconds(const linnet_transcript* transcript) {
  return ValueOf(0.0, [&] { return TranscriptOf(transcript).seconds; });
}

int linnet_speech_frames(const linnet_model* model, const float* samples, size_t count,
                         float* frames, size_t capacity, size_t* written) {
  return StatusOf([&] {
    const linnet::ModelSpec& spec = Given(model, "the model").model->spec();
    Given(written, "written");
    const auto sound = Samples(samples, count);
    const size_t number = linnet::SpeechFrameCount(spec, count);  // throws for other tasks
    *written = number * static_cast<size_t>(spec.speech()->bands);
    if (frames == nullptr) return;
    if (capacity < *written) {
      throw linnet::InputError("the frames have ", *written, " floats, but there is room for ",
                               capacity);
    }
    const std::vector<float> found = linnet::SpeechFrames(spec, sound);
    std::copy(found.begin(), found.end(), frames);
  });
}

linnet_transcriber* linnet_transcriber_new(const linnet_engine* engine) {
  return ValueOf<linnet_transcriber*>(
      nullptr, [&] { return new linnet_transcriber(Given(engine, "the engine").model); });
}
void linnet_transcriber_free(linnet_transcriber* transcriber) { delete transcriber; }

int linnet_transcriber_accept(linnet_transcriber* transcriber, const float* samples, size_t count) {
  return StatusOf([&] {
    linnet_transcriber& given = Listening(transcriber);
    Add(given, given.stream.Read(Samples(samples, count)));
  });
}
int linnet_transcriber_finish(linnet_transcriber* transcriber) {
  return StatusOf([&] {
    linnet_transcriber& given = Listening(transcriber);
    Add(given, given.stream.Finish());
    given.finished = true;
  });
}
const linnet_transcript* linnet_transcriber_transcript(const linnet_transcriber* transcriber) {
  return ValueOf<const linnet_transcript*>(
      nullptr, [&] { return &Given(transcriber, "the transcriber").transcript; });
}
double linnet_transcriber_delay(const linnet_transcriber* transcriber) {
  return ValueOf(0.0, [&] { return Given(transcriber, "the transcriber").stream.delay_seconds(); });
}

}  // extern "C"
