// The speech functions of a library that is built without speech. All of them fail, except the
// ..._free() functions, which have nothing to free.
#include <cstddef>

#include "linnet/capi/capi.h"

namespace linnet::capi {
namespace {

// Records LINNET_ERROR_UNSUPPORTED as the last status and returns `failure`.
template <class Result>
Result WithoutSpeech(Result failure) {
  return ValueOf(failure, [&]() -> Result {
    throw Unsupported(
        "this library was built without speech; build linnet with -DLINNET_SPEECH=ON");
  });
}

// WithoutSpeech() for functions that return a status.
int NoStatus() {
  WithoutSpeech(0);
  return linnet_last_status();
}

}  // namespace
}  // namespace linnet::capi

using namespace linnet::capi;

extern "C" {

linnet_transcript* linnet_transcribe(linnet_engine*, const float*, size_t, size_t) {
  return WithoutSpeech<linnet_transcript*>(nullptr);
}
void linnet_transcript_free(linnet_transcript*) {}
size_t linnet_transcript_count(const linnet_transcript*) { return WithoutSpeech<size_t>(0); }
const char* linnet_transcript_phone(const linnet_transcript*, size_t) {
  return WithoutSpeech<const char*>(nullptr);
}
double linnet_transcript_start(const linnet_transcript*, size_t) { return WithoutSpeech(0.0); }
double linnet_transcript_probability(const linnet_transcript*, size_t) {
  return WithoutSpeech(0.0);
}
double linnet_transcript_seconds(const linnet_transcript*) { return WithoutSpeech(0.0); }

linnet_transcriber* linnet_transcriber_new(const linnet_engine*) {
  return WithoutSpeech<linnet_transcriber*>(nullptr);
}
void linnet_transcriber_free(linnet_transcriber*) {}
int linnet_transcriber_accept(linnet_transcriber*, const float*, size_t) { return NoStatus(); }
int linnet_transcriber_finish(linnet_transcriber*) { return NoStatus(); }
const linnet_transcript* linnet_transcriber_transcript(const linnet_transcriber*) {
  return WithoutSpeech<const linnet_transcript*>(nullptr);
}
double linnet_transcriber_delay(const linnet_transcriber*) { return WithoutSpeech(0.0); }

}  // extern "C"
