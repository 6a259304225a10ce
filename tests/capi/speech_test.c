/* Tests transcription. Ignores arguments. Runs in the root of the source tree. */
#include <math.h>

#include "test_util.h"

#define CAUSAL "models/phones-causal.safetensors"
#define WHOLE "models/phones.safetensors"

#define STATUS_FAILS(call, status, part) CHECK_FAILS((call) == (status), status, part)

enum { RATE = 16000, SAMPLES = 2 * RATE };

/* Two seconds of buzzes at changing pitches, with low noise. */
static float* make_sound(void) {
  float* samples = floats(SAMPLES);
  unsigned noise = 1;
  for (size_t i = 0; i < SAMPLES; ++i) {
    const double t = (double)i / RATE, pitch = 110 + 30 * sin(3 * t);
    noise = noise * 1664525u + 1013904223u;
    double sum = 0.02 * ((double)(noise >> 8) / (1 << 24) - 0.5);
    for (int k = 1; k < 30; ++k) {
      const double peak = k * pitch < 1200 ? 1 : 0.2;
      sum += 0.05 * peak * sin(6.283185307179586 * k * pitch * t) * fabs(sin(8 * t));
    }
    samples[i] = (float)sum;
  }
  return samples;
}

static void test_whole(const float* sound) {
  linnet_engine *one = open_engine(WHOLE, 1), *two = open_engine(WHOLE, 2);
  linnet_transcript* a = linnet_transcribe(one, sound, SAMPLES, 1);
  CHECK_OK(a != NULL);
  linnet_transcript* b = linnet_transcribe(two, sound, SAMPLES, 1);
  const size_t count = linnet_transcript_count(a);
  CHECK_OK(count > 0 && linnet_transcript_count(b) == count);
  CHECK_OK(linnet_transcript_seconds(a) == 2);
  for (size_t i = 0; i < count; ++i) {
    CHECK_OK(strcmp(linnet_transcript_phone(a, i), linnet_transcript_phone(b, i)) == 0);
    const double start = linnet_transcript_start(a, i);
    CHECK_OK(start >= (i == 0 ? 0 : linnet_transcript_start(a, i - 1)) && start < 2);
    const double p = linnet_transcript_probability(a, i);
    CHECK_OK(p > 0 && p <= 1 && p == linnet_transcript_probability(b, i));
  }
  CHECK_FAILS(linnet_transcript_phone(a, count) == NULL, LINNET_ERROR_INPUT, "no phone");
  CHECK_FAILS(linnet_transcript_start(a, count) == 0, LINNET_ERROR_INPUT, "no phone");
  CHECK_FAILS(linnet_transcript_probability(a, count) == 0, LINNET_ERROR_INPUT, "no phone");
  linnet_transcript_free(a), linnet_transcript_free(b);
  a = linnet_transcribe(one, sound, SAMPLES, 8); /* the same engine, a beam of 8 */
  CHECK_OK(a != NULL && linnet_transcript_count(a) > 0);
  linnet_transcript_free(a);
  linnet_transcript_free(NULL);
  linnet_engine_free(one), linnet_engine_free(two);
}

/* A stream gives the same phones as the whole recording, and the first of them before half of the
 * recording has been read. */
static void test_stream(const float* sound) {
  linnet_engine* engine = open_engine(CAUSAL, 1);
  linnet_transcript* whole = linnet_transcribe(engine, sound, SAMPLES, 1);
  linnet_transcriber* stream = linnet_transcriber_new(engine);
  CHECK_OK(stream != NULL);
  linnet_engine_free(engine); /* the stream keeps the model alive */
  CHECK_OK(linnet_transcriber_delay(stream) > 0 && linnet_transcriber_delay(stream) < 1);
  const linnet_transcript* heard = linnet_transcriber_transcript(stream);
  CHECK_OK(heard != NULL && linnet_transcript_count(heard) == 0);
  const char* first = NULL;
  for (size_t at = 0; at < SAMPLES; at += 1000) {
    CHECK_OK(linnet_transcriber_accept(stream, sound + at, 1000) == LINNET_OK);
    CHECK(heard == linnet_transcriber_transcript(stream));
    if (first == NULL && linnet_transcript_count(heard) > 0) {
      CHECK(at < SAMPLES / 2);
      first = linnet_transcript_phone(heard, 0);
    }
  }
  CHECK_OK(linnet_transcriber_accept(stream, NULL, 0) == LINNET_OK);
  CHECK_OK(linnet_transcriber_finish(stream) == LINNET_OK);
  const size_t count = linnet_transcript_count(whole);
  CHECK_OK(count > 0 && linnet_transcript_count(heard) == count);
  CHECK(first == linnet_transcript_phone(heard, 0)); /* the pointer to a name stays valid */
  CHECK_OK(linnet_transcript_seconds(heard) == 2);
  for (size_t i = 0; i < count; ++i) {
    CHECK(strcmp(linnet_transcript_phone(whole, i), linnet_transcript_phone(heard, i)) == 0);
    CHECK(linnet_transcript_start(whole, i) == linnet_transcript_start(heard, i));
  }
  STATUS_FAILS(linnet_transcriber_accept(stream, sound, 1), LINNET_ERROR_INPUT, "finished");
  STATUS_FAILS(linnet_transcriber_finish(stream), LINNET_ERROR_INPUT, "finished");
  linnet_transcript_free(whole);
  linnet_transcriber_free(stream);
  linnet_transcriber_free(NULL);
}

static void test_frames(const float* sound) {
  linnet_model* model = linnet_model_open(CAUSAL, NULL);
  size_t count = 0, shorter = 0;
  CHECK_OK(linnet_speech_frames(model, sound, SAMPLES, NULL, 0, &count) == LINNET_OK);
  CHECK(count == 40 * ((SAMPLES - 400) / 160 + 1));
  float *all = floats(count), *late = floats(count);
  CHECK_OK(linnet_speech_frames(model, sound, SAMPLES, all, count, &count) == LINNET_OK);
  /* A frame depends on its own samples only. */
  CHECK_OK(linnet_speech_frames(model, sound + 1600, 1600, late, count, &shorter) == LINNET_OK);
  CHECK(shorter == 40 * 8 && memcmp(late, all + 40 * 10, shorter * sizeof(float)) == 0);
  CHECK_OK(linnet_speech_frames(model, sound, 399, NULL, 0, &count) == LINNET_OK);
  CHECK(count == 0);
  linnet_model* text = linnet_model_open("tests/checkpoints/text-byte.safetensors", NULL);
  STATUS_FAILS(linnet_speech_frames(NULL, sound, 400, all, 40, &count), LINNET_ERROR_INPUT,
               "is NULL");
  STATUS_FAILS(linnet_speech_frames(model, sound, 400, all, 39, &count), LINNET_ERROR_INPUT,
               "room for 39");
  STATUS_FAILS(linnet_speech_frames(model, sound, 400, all, 40, NULL), LINNET_ERROR_INPUT,
               "is NULL");
  STATUS_FAILS(linnet_speech_frames(text, sound, 400, all, 40, &count), LINNET_ERROR_INPUT,
               "'text'");
  linnet_model_free(model), linnet_model_free(text);
  free(all), free(late);
}

static void test_errors(const float* sound) {
  linnet_engine *engine = open_engine(CAUSAL, 1), *whole = open_engine(WHOLE, 1);
  linnet_engine* text = open_engine("tests/checkpoints/text-byte.safetensors", 1);
  const float bad[2] = {0, NAN};
#define POINTER_FAILS(call, part) CHECK_FAILS((call) == NULL, LINNET_ERROR_INPUT, part)
  POINTER_FAILS(linnet_transcribe(NULL, sound, SAMPLES, 1), "engine is NULL");
  POINTER_FAILS(linnet_transcribe(engine, NULL, SAMPLES, 1), "samples is NULL");
  POINTER_FAILS(linnet_transcribe(engine, sound, 100, 1), "too short");
  POINTER_FAILS(linnet_transcribe(engine, sound, SAMPLES, 0), "beam");
  POINTER_FAILS(linnet_transcribe(engine, bad, 2, 1), "sample 1");
  POINTER_FAILS(linnet_transcribe(text, sound, SAMPLES, 1), "'speech'");
  POINTER_FAILS(linnet_transcriber_new(NULL), "engine is NULL");
  POINTER_FAILS(linnet_transcriber_new(text), "'speech'");
  POINTER_FAILS(linnet_transcriber_new(whole), "not causal");
  POINTER_FAILS(linnet_transcriber_transcript(NULL), "transcriber is NULL");
  POINTER_FAILS(linnet_transcript_phone(NULL, 0), "transcript is NULL");
  CHECK_FAILS(linnet_transcript_count(NULL) == 0, LINNET_ERROR_INPUT, "transcript is NULL");
  CHECK_FAILS(linnet_transcript_seconds(NULL) == 0, LINNET_ERROR_INPUT, "transcript is NULL");
  CHECK_FAILS(linnet_transcriber_delay(NULL) == 0, LINNET_ERROR_INPUT, "transcriber is NULL");
  linnet_transcriber* stream = linnet_transcriber_new(engine);
  STATUS_FAILS(linnet_transcriber_accept(NULL, sound, 1), LINNET_ERROR_INPUT, "is NULL");
  STATUS_FAILS(linnet_transcriber_accept(stream, NULL, 1), LINNET_ERROR_INPUT, "samples is NULL");
  STATUS_FAILS(linnet_transcriber_accept(stream, bad, 2), LINNET_ERROR_INPUT, "sample 1");
  STATUS_FAILS(linnet_transcriber_finish(NULL), LINNET_ERROR_INPUT, "is NULL");
  CHECK_OK(linnet_transcriber_finish(stream) == LINNET_OK); /* no audio was accepted */
  linnet_transcriber_free(stream);
  linnet_engine_free(engine), linnet_engine_free(whole), linnet_engine_free(text);
}

int main(void) {
  float* sound = make_sound();
  test_whole(sound);
  test_stream(sound);
  test_frames(sound);
  test_errors(sound);
  free(sound);
  return 0;
}
