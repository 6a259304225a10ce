#include "linnet/speech.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "linnet/base/hidden.h"
#include "linnet/base/thread_pool.h"
#include "linnet/error.h"
#include "linnet/model/spec.h"
#include "linnet/tasks/speech/ctc.h"
#include "linnet/tasks/speech/filterbank.h"
#include "linnet/tasks/speech/speech_encoder.h"

namespace linnet {
namespace {

constexpr int kBlank = 0;

FilterbankOptions BankOf(const ModelSpec& spec) {
  return {.rate = spec.speech()->sample_rate, .bins = spec.speech()->bands};
}

// The filterbank of a speech model. Throws InputError for a model of another task.
Filterbank BankFor(const ModelSpec& spec) {
  if (spec.speech() == nullptr) {
    throw InputError("a model of the task '", spec.task, "' hears no audio; open a speech model");
  }
  return Filterbank(BankOf(spec));
}

size_t Size(int n) { return static_cast<size_t>(n); }

// The inputs [count, Inputs()] of `count` positions from position `first` on. A position's input is
// spec.stack consecutive rows of `frames` [N, bands]. Rows out of range are zeros (StackFrames()).
std::vector<float> Stack(const SpeechSpec& spec, std::span<const float> frames, size_t first,
                         size_t count) {
  const size_t width = Size(spec.Inputs());
  std::vector<float> inputs(count * width);
  for (size_t p = 0; p < count; ++p) {
    StackFrames(frames, Size(spec.bands),
                static_cast<ptrdiff_t>((first + p) * Size(spec.stride)) + spec.FirstFrame(),
                Size(spec.stack), std::span(inputs).subspan(p * width, width));
  }
  return inputs;
}

size_t PositionsOf(const SpeechSpec& spec, size_t frames) {
  return (frames + Size(spec.stride) - 1) / Size(spec.stride);
}

// The time in the audio at which a position's stride begins.
double SecondsOf(const SpeechSpec& spec, size_t position) {
  return static_cast<double>(position * Size(spec.stride)) * FilterbankOptions().step_ms / 1000;
}

// A range of positions that the network encodes as one sequence. Only a part of the outputs is
// used, since neighboring windows overlap.
struct Window {
  size_t begin, end;            // positions
  size_t keep_begin, keep_end;  // positions whose outputs are used
};

// Number of positions that neighboring windows of `most` positions share.
size_t Shared(size_t most) { return most / 4; }

// Divides `positions` positions into overlapping windows of at most `most` positions. In the
// overlap of two windows, the first half of the outputs comes from the earlier window and the
// second half from the later one; if `causal`, all of them come from the earlier window.
std::vector<Window> Windows(size_t positions, size_t most, bool causal) {
  if (positions <= most) return {{0, positions, 0, positions}};
  const size_t stride = most - Shared(most);
  const size_t count = (positions - most + stride - 1) / stride + 1;
  std::vector<Window> windows;
  for (size_t i = 0; i < count; ++i) {
    // The windows are spread evenly, so that the last one is as long as the others. If causal, they
    // have a fixed stride instead, because PhoneStream, which must give the same phones, does not
    // know the end of its audio.
    const size_t begin = causal ? i * stride : (positions - most) * i / (count - 1);
    const size_t end = std::min(positions, begin + most);
    windows.push_back({begin, end, begin, end});
  }
  for (size_t i = 1; i < count; ++i) {
    Window &before = windows[i - 1], &window = windows[i];
    window.keep_begin = causal ? before.end : (window.begin + before.end) / 2;
    before.keep_end = window.keep_begin;
  }
  return windows;
}

}  // namespace

std::vector<std::string> PhonesOf(const ModelSpec& spec) { return Words(spec.speech()->phones); }

std::vector<float> SpeechFrames(const ModelSpec& spec, std::span<const float> samples) {
  return BankFor(spec).Compute(samples);
}

size_t SpeechFrameCount(const ModelSpec& spec, size_t samples) {
  return BankFor(spec).Frames(samples);
}

struct LINNET_HIDDEN Transcriber::Impl {
  Impl(std::shared_ptr<const Model> of, const TranscriberOptions& options)
      : model(std::move(of)), options(options), pool(options.threads) {
    for (int i = 0; i < pool.size(); ++i) {
      encoders.push_back(std::make_unique<SpeechEncoder>(model));  // throws for another task
    }
    names = PhonesOf(model->spec());
  }

  std::shared_ptr<const Model> model;
  TranscriberOptions options;
  std::vector<std::string> names;
  ThreadPool pool;
  std::vector<std::unique_ptr<SpeechEncoder>> encoders;  // one per thread
};

Transcriber::Transcriber(std::shared_ptr<const Model> model, const TranscriberOptions& options)
    : impl_(std::make_unique<Impl>(std::move(model), options)) {}
Transcriber::~Transcriber() = default;

const Model& Transcriber::model() const { return *impl_->model; }
int Transcriber::sample_rate() const { return impl_->model->spec().speech()->sample_rate; }
int Transcriber::threads() const { return impl_->pool.size(); }

std::vector<float> Transcriber::LogProbabilities(const Audio& audio) {
  const Model& model = *impl_->model;
  ThreadPool& pool = impl_->pool;
  const SpeechSpec& spec = *model.spec().speech();
  if (audio.rate != spec.sample_rate) {
    throw InputError("audio at ", audio.rate, " samples per second, but ", model.path(), " needs ",
                     spec.sample_rate);
  }
  const size_t bands = Size(spec.bands), workers = Size(pool.size());
  const Filterbank sizes(BankOf(model.spec()));
  const size_t count = sizes.Frames(audio.samples.size());
  if (count == 0) {
    throw InputError("too short for speech: ", audio.samples.size(), " samples, but a frame needs ",
                     sizes.window());
  }
  std::vector<float> frames(count * bands);
  const size_t threads = std::min(workers, 1 + count / 200);  // 1, plus 1 for every 200 frames
  pool.Run([&](int worker) {
    const size_t w = Size(worker);
    if (w >= threads) return;
    const size_t begin = count * w / threads, end = count * (w + 1) / threads;
    Filterbank bank(BankOf(model.spec()));
    for (size_t i = begin; i < end; ++i) {
      bank.Frame(std::span(audio.samples).subspan(i * bank.step(), bank.window()),
                 std::span(frames).subspan(i * bands, bands));
    }
  });
  const bool corpus = spec.normalization == BandNorm::kCorpus;
  if (corpus) NormalizeFrames(frames, model.input_mean(), model.input_deviation());

  const size_t classes = impl_->encoders[0]->classes(), stride = Size(spec.stride);
  const size_t positions = PositionsOf(spec, count);
  std::vector<float> log_probs(positions * classes);
  const std::vector<Window> windows =
      Windows(positions, impl_->encoders[0]->max_positions(), model.spec().Causal());
  pool.Run([&](int worker) {
    SpeechEncoder& encoder = *impl_->encoders[Size(worker)];
    for (size_t i = Size(worker); i < windows.size(); i += workers) {
      const Window& window = windows[i];
      const size_t first = window.begin * stride, last = std::min(count, window.end * stride);
      // heard: the frames from which the window's inputs are stacked. from: the window's first
      // position, counted from the beginning of `heard`.
      std::vector<float> own;
      std::span<const float> heard = frames;
      size_t from = window.begin;
      if (!corpus) {  // the window is normalized by its own statistics, like an utterance
        own.assign(frames.begin() + static_cast<ptrdiff_t>(first * bands),
                   frames.begin() + static_cast<ptrdiff_t>(last * bands));
        NormalizeFrames(own, bands);
        heard = own;
        from = 0;
      }
      const size_t length = window.end - window.begin;
      std::vector<float> out(length * classes);
      const std::vector<float> inputs = Stack(spec, heard, from, length);
      encoder.Encode(inputs, out);
      std::copy(out.begin() + static_cast<ptrdiff_t>((window.keep_begin - window.begin) * classes),
                out.begin() + static_cast<ptrdiff_t>((window.keep_end - window.begin) * classes),
                log_probs.begin() + static_cast<ptrdiff_t>(window.keep_begin * classes));
    }
  });
  return log_probs;
}

Transcript Transcriber::Transcribe(const Audio& audio) {
  const std::vector<float> log_probs = LogProbabilities(audio);
  const size_t classes = impl_->encoders[0]->classes();
  const Decoded decoded =
      impl_->options.beam > 1
          ? std::move(BeamDecode(log_probs, classes, kBlank, impl_->options.beam)[0])
          : GreedyDecode(log_probs, classes, kBlank);
  Transcript transcript{.seconds = audio.seconds(), .log_probability = decoded.log_probability};
  for (size_t i = 0; i < decoded.labels.size(); ++i) {
    const size_t label = Size(decoded.labels[i]), position = decoded.frames[i];
    transcript.classes.push_back(decoded.labels[i] - 1);
    transcript.phones.push_back(
        {.name = impl_->names[label - 1],
         .seconds = SecondsOf(*impl_->model->spec().speech(), position),
         .probability = std::exp(static_cast<double>(log_probs[position * classes + label]))});
  }
  return transcript;
}

struct LINNET_HIDDEN PhoneStream::Inside {
  explicit Inside(const std::shared_ptr<const Model>& model)
      : encoder(model),
        spec(*model->spec().speech()),
        mean(model->input_mean()),
        deviation(model->input_deviation()),
        names(PhonesOf(model->spec())),
        bank(BankOf(model->spec())),
        lead(encoder.NewState()),
        next(encoder.NewState()) {}

  // Computes a frame from one window of samples, and appends it with Push().
  void Frame(std::span<const float> samples) {
    const size_t bands = Size(spec.bands);
    std::vector<float> frame(bands);
    bank.Frame(samples, frame);
    NormalizeFrames(frame, mean, deviation);
    Push(frame);
  }
  // Appends a frame to `last`, which keeps the last `stack` frames. If this frame completes the
  // stacked frames of a position, adds them to `ready`.
  void Push(std::span<const float> frame) {
    const size_t bands = Size(spec.bands), stack = Size(spec.stack);
    if (last.empty()) last.assign(stack * bands, 0.0f);
    std::move(last.begin() + static_cast<ptrdiff_t>(bands), last.end(), last.begin());
    std::copy(frame.begin(), frame.end(), last.end() - static_cast<ptrdiff_t>(bands));
    ++frames;
    // The stacked frames of position p end with frame p * stride + stride - 1 + lookahead.
    const size_t ahead = Size(spec.stride) + Size(spec.lookahead);
    if (frames >= ahead && (frames - ahead) % Size(spec.stride) == 0) {
      ready.insert(ready.end(), last.begin(), last.end());
      ++begun;
    }
  }

  // Encodes the positions that are ready. The outputs come from `lead`. Once `lead` has read
  // max_positions() positions, `next`, which has read only the last quarter of them, replaces it.
  void Hear() {
    // From position `warm` of `lead` on, `next` reads the same inputs.
    const size_t most = encoder.max_positions(), warm = most - Shared(most);
    const size_t width = encoder.inputs(), classes = encoder.classes();
    const size_t count = ready.size() / width;
    for (size_t at = 0; at < count;) {
      if (lead.position() == most) {
        std::swap(lead, next);
        next = encoder.NewState();
      }
      const bool both = lead.position() >= warm;
      const size_t rows = std::min(count - at, (both ? most : warm) - lead.position());
      const auto inputs = std::span(ready).subspan(at * width, rows * width);
      log_probs.resize(rows * classes);
      if (both) encoder.Extend(next, inputs, log_probs);
      encoder.Extend(lead, inputs, log_probs);
      for (size_t r = 0; r < rows; ++r) {
        Decode(std::span(log_probs).subspan(r * classes, classes));
      }
      at += rows;
    }
    ready.clear();
  }

  // Greedy CTC decoding of the next position.
  void Decode(std::span<const float> row) {
    const auto best = std::max_element(row.begin(), row.end());
    const int label = static_cast<int>(best - row.begin());
    if (label != kBlank && label != before) {
      heard.push_back({.name = names[Size(label - 1)],
                       .seconds = SecondsOf(spec, positions),
                       .probability = std::exp(static_cast<double>(*best))});
    }
    before = label;
    ++positions;
  }

  SpeechEncoder encoder;
  const SpeechSpec& spec;
  std::span<const float> mean, deviation;
  std::vector<std::string> names;
  Filterbank bank;
  State lead, next;
  std::vector<float> waiting;  // samples that later frames still need
  std::vector<float> last;     // [stack, bands]
  std::vector<float> ready;    // stacked frames of positions not encoded yet
  std::vector<float> log_probs;
  size_t samples = 0, frames = 0;  // numbers of samples read and of frames pushed
  // begun: number of positions that were added to `ready`; positions: number of positions encoded.
  size_t begun = 0, positions = 0;
  int before = kBlank;       // label of the previous position
  std::vector<Phone> heard;  // phones not returned yet
};

PhoneStream::PhoneStream(const std::shared_ptr<const Model>& model) {
  const ModelSpec& spec = model->spec();
  if (spec.task == "speech" && spec.Causal() && spec.speech()->normalization != BandNorm::kCorpus) {
    throw InputError(model->path(),
                     ": it normalizes each utterance by its own statistics, which a stream does ",
                     "not know; train it with --normalize corpus");
  }
  inside_ = std::make_unique<Inside>(model);
}

PhoneStream::~PhoneStream() = default;

double PhoneStream::delay_seconds() const {
  const SpeechSpec& spec = inside_->spec;
  const double frames = spec.stride - 1 + spec.lookahead;
  return (frames * FilterbankOptions().step_ms + FilterbankOptions().window_ms) / 1000;
}

double PhoneStream::seconds() const {
  return static_cast<double>(inside_->samples) / inside_->spec.sample_rate;
}

std::vector<Phone> PhoneStream::Read(std::span<const float> samples) {
  Inside& in = *inside_;
  in.samples += samples.size();
  const size_t window = in.bank.window(), step = in.bank.step();
  // One second at a time, to keep the buffers small.
  for (size_t at = 0; at < samples.size();) {
    const size_t count = std::min(samples.size() - at, Size(in.spec.sample_rate));
    in.waiting.insert(in.waiting.end(), samples.begin() + static_cast<ptrdiff_t>(at),
                      samples.begin() + static_cast<ptrdiff_t>(at + count));
    at += count;
    size_t used = 0;
    for (; used + window <= in.waiting.size(); used += step) {
      in.Frame(std::span(in.waiting).subspan(used, window));
    }
    in.waiting.erase(in.waiting.begin(), in.waiting.begin() + static_cast<ptrdiff_t>(used));
    in.Hear();
  }
  return std::exchange(in.heard, {});
}

std::vector<Phone> PhoneStream::Finish() {
  Inside& in = *inside_;
  // Pads the incomplete positions with frames of zeros, as StackFrames() does for whole audio.
  const std::vector<float> nothing(Size(in.spec.bands), 0.0f);
  const size_t wanted = PositionsOf(in.spec, in.frames);
  while (in.begun < wanted) in.Push(nothing);
  in.Hear();
  return std::exchange(in.heard, {});
}

}  // namespace linnet
