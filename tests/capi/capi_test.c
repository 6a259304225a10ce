/* Tests models, engines, states and vocabularies, and how tokens are read and chosen. The argument
 * is a folder for files that the test writes. The test runs in the root of the source tree. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <pthread.h>
#include <stdint.h>

#include "test_util.h"

#define TEXT "tests/checkpoints/text-byte.safetensors"
#define IMAGES "tests/checkpoints/images-causal-linear.safetensors"
#define CHARACTERS "tests/checkpoints/text-character-tied-full.safetensors"

/* WIDTH: outputs of TEXT per position. MOST: largest batch of step_all(). */
enum { WIDTH = 259, MOST = 16 };

static const char* folder;

static int same(const float* a, const float* b, size_t count) {
  return memcmp(a, b, count * sizeof *a) == 0;
}
static int close_to(const float* a, const float* b, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (!(fabsf(a[i] - b[i]) <= 1e-4f * (1 + fabsf(b[i])))) return 0;
  }
  return 1;
}

/* Token t of sequence i. */
static int32_t token_of(size_t i, size_t t) { return (int32_t)((i * 31 + t * 7 + 3) % WIDTH); }

/* The bytes of a file. */
static unsigned char* read_file(const char* path, size_t* size) {
  FILE* file = fopen(path, "rb");
  CHECK(file != NULL && fseek(file, 0, SEEK_END) == 0);
  *size = (size_t)ftell(file);
  rewind(file);
  unsigned char* bytes = (unsigned char*)allocate(*size, 1);
  CHECK(fread(bytes, 1, *size, file) == *size);
  fclose(file);
  return bytes;
}

static void test_errors(void) {
  CHECK(linnet_last_status() == LINNET_OK && linnet_last_error()[0] == '\0');
  CHECK(strncmp(linnet_version(), "0.", 2) == 0);
  CHECK_FAILS(linnet_model_open(NULL, NULL) == NULL, LINNET_ERROR_INPUT, "path is NULL");
  /* linnet_version() and linnet_model_free() keep the last error. */
  CHECK(linnet_version() != NULL);
  linnet_model_free(NULL);
  check_last(LINNET_ERROR_INPUT, "path is NULL", __FILE__, __LINE__);
  CHECK_FAILS(linnet_model_open("/nowhere", NULL) == NULL, LINNET_ERROR_INPUT, "/nowhere");
  CHECK_FAILS(linnet_model_open("README.md", NULL) == NULL, LINNET_ERROR_INPUT, "README.md");
  CHECK_FAILS(linnet_model_open(TEXT, "int4") == NULL, LINNET_ERROR_INPUT, "int4");
  CHECK_FAILS(linnet_model_open_memory(NULL, 5, NULL, NULL) == NULL, LINNET_ERROR_INPUT, "NULL");
  CHECK_FAILS(linnet_model_open_memory("hello", 5, "greeting", NULL) == NULL, LINNET_ERROR_INPUT,
              "greeting");
  CHECK_FAILS(linnet_model_open_memory("", 0, NULL, NULL) == NULL, LINNET_ERROR_INPUT, "memory");
}

static void test_text_model(void) {
  linnet_model* model = open_model(TEXT);
  CHECK_OK(strcmp(linnet_model_path(model), TEXT) == 0);
  CHECK_OK(strcmp(linnet_model_task(model), "text") == 0);
  CHECK_OK(strcmp(linnet_model_precision(model), "f32") == 0);
  CHECK_OK(strstr(linnet_model_spec(model), "\"task\":\"text\"") != NULL);
  CHECK_OK(linnet_model_training(model) != NULL);
  CHECK_OK(linnet_model_parameters(model) == 5019);
  CHECK_OK(linnet_model_weight_bytes(model) == 13632);
  CHECK_OK(linnet_model_vocabulary(model) == WIDTH);
  CHECK_OK(linnet_model_inputs(model) == 0);
  CHECK_OK(linnet_model_outputs(model) == WIDTH);
  CHECK_OK(linnet_model_positions(model) == 48);
  CHECK_OK(linnet_model_limited(model) == 0);
  CHECK_OK(linnet_model_state_kind(model) == LINNET_STATE_CONSTANT);
  CHECK_OK(linnet_model_state_bytes(model) == 6400);
  CHECK_OK(linnet_model_image_bytes(model) == 0 && linnet_model_image_width(model) == 0);
  CHECK_OK(linnet_model_image_height(model) == 0 && linnet_model_image_channels(model) == 0);
  CHECK_OK(linnet_model_sample_rate(model) == 0);
  CHECK_OK(strcmp(linnet_model_phones(model), "") == 0);
  linnet_model_free(model);

  model = linnet_model_open(TEXT, "int8");
  CHECK_OK(strcmp(linnet_model_precision(model), "int8") == 0);
  linnet_model_free(model);
}

static void test_other_models(void) {
  linnet_model* images = open_model("tests/checkpoints/images-full.safetensors");
  CHECK_OK(linnet_model_image_width(images) == 28 && linnet_model_image_height(images) == 28);
  CHECK_OK(linnet_model_image_channels(images) == 1 && linnet_model_image_bytes(images) == 784);
  CHECK_OK(linnet_model_limited(images) == 1);
  CHECK_OK(linnet_model_state_kind(images) == LINNET_STATE_CACHE);
  linnet_model_free(images);

  linnet_model* reformer = open_model("tests/checkpoints/text-character-reformer.safetensors");
  CHECK_OK(linnet_model_state_kind(reformer) == LINNET_STATE_TOKENS);
  linnet_model_free(reformer);

  linnet_model* speech = open_model("tests/checkpoints/speech-full.safetensors");
  CHECK_OK(linnet_model_sample_rate(speech) == 16000);
  CHECK_OK(linnet_model_inputs(speech) == 80 && linnet_model_vocabulary(speech) == 0);
  CHECK_OK(strncmp(linnet_model_phones(speech), "AA AE ", 6) == 0);
  CHECK_OK(linnet_model_state_kind(speech) == LINNET_STATE_NONE);
  CHECK_OK(linnet_model_state_bytes(speech) == 0);
  linnet_engine* engine = linnet_engine_new(speech, 1);
  CHECK_FAILS(linnet_state_new(engine, 1) == NULL, LINNET_ERROR_INPUT, "not causal");
  linnet_engine_free(engine);
  linnet_model_free(speech);
}

static void test_no_model(void) {
  CHECK_FAILS(linnet_model_path(NULL) == NULL, LINNET_ERROR_INPUT, "model is NULL");
  CHECK_FAILS(linnet_model_task(NULL) == NULL, LINNET_ERROR_INPUT, "model is NULL");
  CHECK_FAILS(linnet_model_precision(NULL) == NULL, LINNET_ERROR_INPUT, "model is NULL");
  CHECK_FAILS(linnet_model_spec(NULL) == NULL, LINNET_ERROR_INPUT, "model is NULL");
  CHECK_FAILS(linnet_model_training(NULL) == NULL, LINNET_ERROR_INPUT, "model is NULL");
  CHECK_FAILS(linnet_model_phones(NULL) == NULL, LINNET_ERROR_INPUT, "model is NULL");
  CHECK_FAILS(linnet_model_parameters(NULL) == 0, LINNET_ERROR_INPUT, "model is NULL");
  CHECK_FAILS(linnet_model_weight_bytes(NULL) == 0, LINNET_ERROR_INPUT, "model is NULL");
  CHECK_FAILS(linnet_model_vocabulary(NULL) == 0, LINNET_ERROR_INPUT, "model is NULL");
  CHECK_FAILS(linnet_model_inputs(NULL) == 0, LINNET_ERROR_INPUT, "model is NULL");
  CHECK_FAILS(linnet_model_outputs(NULL) == 0, LINNET_ERROR_INPUT, "model is NULL");
  CHECK_FAILS(linnet_model_positions(NULL) == 0, LINNET_ERROR_INPUT, "model is NULL");
  CHECK_FAILS(linnet_model_limited(NULL) == 0, LINNET_ERROR_INPUT, "model is NULL");
  CHECK_FAILS(linnet_model_state_kind(NULL) == 0, LINNET_ERROR_INPUT, "model is NULL");
  CHECK_FAILS(linnet_model_state_bytes(NULL) == 0, LINNET_ERROR_INPUT, "model is NULL");
  CHECK_FAILS(linnet_model_image_width(NULL) == 0, LINNET_ERROR_INPUT, "model is NULL");
  CHECK_FAILS(linnet_model_image_height(NULL) == 0, LINNET_ERROR_INPUT, "model is NULL");
  CHECK_FAILS(linnet_model_image_channels(NULL) == 0, LINNET_ERROR_INPUT, "model is NULL");
  CHECK_FAILS(linnet_model_image_bytes(NULL) == 0, LINNET_ERROR_INPUT, "model is NULL");
  CHECK_FAILS(linnet_model_sample_rate(NULL) == 0, LINNET_ERROR_INPUT, "model is NULL");
  CHECK_FAILS(linnet_engine_new(NULL, 1) == NULL, LINNET_ERROR_INPUT, "model is NULL");
}

static void test_engine(void) {
  linnet_model* model = open_model(TEXT);
  CHECK_FAILS(linnet_engine_new(model, -1) == NULL, LINNET_ERROR_INPUT, "-1");
  CHECK_FAILS(linnet_engine_new(model, 1025) == NULL, LINNET_ERROR_INPUT, "1025");
  linnet_engine* engine = linnet_engine_new(model, 3);
  CHECK_OK(linnet_engine_threads(engine) == 3);
  linnet_engine_free(engine);
  engine = linnet_engine_new(model, 0);
  CHECK_OK(linnet_engine_threads(engine) >= 1);
  linnet_engine_free(engine);
  linnet_model_free(model);
  linnet_engine_free(NULL);
  CHECK_FAILS(linnet_engine_threads(NULL) == 0, LINNET_ERROR_INPUT, "engine is NULL");
}

/* A model in memory gives the outputs of its file, also after the memory is overwritten. */
static void test_memory(void) {
  size_t size = 0;
  unsigned char* bytes = read_file(TEXT, &size);
  linnet_model* model = linnet_model_open_memory(bytes, size, "copy", NULL);
  CHECK_OK(strcmp(linnet_model_path(model), "copy") == 0);
  CHECK_FAILS(linnet_model_open_memory(bytes, size / 2, "half", NULL) == NULL, LINNET_ERROR_INPUT,
              "half");
  memset(bytes, 0xff, size);
  free(bytes);
  linnet_engine *own = linnet_engine_new(model, 1), *other = open_engine(TEXT, 1);
  linnet_model_free(model); /* the engine keeps the model alive */
  const int32_t tokens[3] = {0, 75, 76};
  float *a = floats(WIDTH), *b = floats(WIDTH);
  CHECK_OK(linnet_whole(own, tokens, 1, 3, a) == LINNET_OK);
  CHECK_OK(linnet_whole(other, tokens, 1, 3, b) == LINNET_OK);
  CHECK(same(a, b, WIDTH));
  free(a), free(b);
  linnet_engine_free(own), linnet_engine_free(other);
}

/* Whole sequences, steps and prefixes give the same outputs, up to rounding. */
static void test_reading(linnet_engine* engine) {
  enum { BATCH = 3, LENGTH = 9 };
  int32_t tokens[BATCH * LENGTH], column[BATCH];
  for (size_t i = 0; i < BATCH * LENGTH; ++i) tokens[i] = token_of(i / LENGTH, i % LENGTH);
  float *all = floats(BATCH * LENGTH * WIDTH), *out = floats(BATCH * LENGTH * WIDTH);
  CHECK_OK(linnet_whole_all(engine, tokens, BATCH, LENGTH, all) == LINNET_OK);
  CHECK_OK(linnet_whole(engine, tokens, BATCH, LENGTH, out) == LINNET_OK);
  for (size_t i = 0; i < BATCH; ++i) {
    CHECK(close_to(out + i * WIDTH, all + (i * LENGTH + LENGTH - 1) * WIDTH, WIDTH));
  }
  linnet_state* state = linnet_state_new(engine, BATCH);
  CHECK_OK(linnet_state_batch(state) == BATCH);
  for (size_t t = 0; t < LENGTH; ++t) {
    for (size_t i = 0; i < BATCH; ++i) column[i] = tokens[i * LENGTH + t];
    CHECK_OK(linnet_step(engine, state, column, out) == LINNET_OK);
    for (size_t i = 0; i < BATCH; ++i) {
      CHECK(close_to(out + i * WIDTH, all + (i * LENGTH + t) * WIDTH, WIDTH));
    }
  }
  CHECK_OK(linnet_state_position(state, 2) == LENGTH);
  CHECK_OK(linnet_state_reset(state) == LINNET_OK && linnet_state_position(state, 2) == 0);
  CHECK_OK(linnet_prefix_all(engine, state, tokens, LENGTH, out) == LINNET_OK);
  CHECK(close_to(out, all, BATCH * LENGTH * WIDTH));
  CHECK_OK(linnet_state_reset(state) == LINNET_OK);
  CHECK_OK(linnet_prefix(engine, state, tokens, LENGTH, NULL) == LINNET_OK);
  CHECK_OK(linnet_state_position(state, 0) == LENGTH);
  CHECK_OK(linnet_prefix(engine, state, tokens, LENGTH, out) == LINNET_OK);
  CHECK_OK(linnet_state_position(state, 0) == 2 * LENGTH);
  linnet_state_free(state);
  free(all), free(out);
}

/* Sequences of one state read different numbers of tokens, with the outputs of separate states. */
static void test_reading_sequences(linnet_engine* engine) {
  const size_t chosen[2] = {3, 1}, lengths[2] = {5, 2};
  int32_t tokens[7];
  for (size_t t = 0; t < 7; ++t) tokens[t] = token_of(0, t);
  float *out = floats(2 * WIDTH), *alone = floats(2 * WIDTH);
  linnet_state *state = linnet_state_new(engine, 4), *one = linnet_state_new(engine, 1);
  linnet_state* two = linnet_state_new(engine, 1);
  CHECK_OK(linnet_prefix_sequences(engine, state, chosen, lengths, 2, tokens, out) == LINNET_OK);
  CHECK_OK(linnet_prefix(engine, one, tokens, 5, alone) == LINNET_OK);
  CHECK_OK(linnet_prefix(engine, two, tokens + 5, 2, alone + WIDTH) == LINNET_OK);
  CHECK(same(out, alone, 2 * WIDTH));
  CHECK_OK(linnet_step_sequences(engine, state, chosen, 2, tokens, out) == LINNET_OK);
  CHECK_OK(linnet_step(engine, one, tokens, alone) == LINNET_OK);
  CHECK_OK(linnet_step(engine, two, tokens + 1, alone + WIDTH) == LINNET_OK);
  CHECK(same(out, alone, 2 * WIDTH));
  CHECK(linnet_state_position(state, 0) == 0 && linnet_state_position(state, 1) == 3);
  CHECK(linnet_state_position(state, 2) == 0 && linnet_state_position(state, 3) == 6);
  CHECK_OK(linnet_prefix_sequences(engine, state, chosen, lengths, 2, tokens, NULL) == LINNET_OK);
  linnet_state_free(state), linnet_state_free(one), linnet_state_free(two);
  free(out), free(alone);
}

static void test_reading_errors(linnet_engine* engine) {
  float out[4 * WIDTH];
  const int32_t good[4] = {1, 2, 3, 4}, bad[2] = {1, WIDTH};
  const size_t chosen[2] = {0, 1}, twice[2] = {1, 1}, missing[2] = {0, 2}, lengths[2] = {1, 1};
  const size_t none[2] = {1, 0}, huge[2] = {SIZE_MAX, 2};
  linnet_state* state = linnet_state_new(engine, 2);
#define STATE_FAILS(call, part) CHECK_FAILS((call) == LINNET_ERROR_INPUT, LINNET_ERROR_INPUT, part)
  STATE_FAILS(linnet_step(NULL, state, good, out), "engine is NULL");
  STATE_FAILS(linnet_step(engine, NULL, good, out), "state is NULL");
  STATE_FAILS(linnet_step(engine, state, NULL, out), "tokens is NULL");
  STATE_FAILS(linnet_step(engine, state, good, NULL), "outputs is NULL");
  STATE_FAILS(linnet_step(engine, state, bad, out), "token 259");
  STATE_FAILS(linnet_step_sequences(engine, state, chosen, 0, good, out), "at least one");
  STATE_FAILS(linnet_step_sequences(engine, state, NULL, 2, good, out), "sequences is NULL");
  STATE_FAILS(linnet_step_sequences(engine, state, twice, 2, good, out), "twice");
  STATE_FAILS(linnet_step_sequences(engine, state, missing, 2, good, out), "no sequence 2");
  STATE_FAILS(linnet_prefix(engine, state, good, 0, out), "");
  STATE_FAILS(linnet_prefix(engine, state, good, SIZE_MAX / 2, out), "smaller");
  STATE_FAILS(linnet_prefix(engine, state, bad, 1, NULL), "token 259");
  STATE_FAILS(linnet_prefix_all(engine, state, good, 2, NULL), "outputs is NULL");
  STATE_FAILS(linnet_prefix_sequences(engine, state, chosen, NULL, 2, good, out), "lengths");
  STATE_FAILS(linnet_prefix_sequences(engine, state, chosen, lengths, 0, good, out), "at least");
  STATE_FAILS(linnet_prefix_sequences(engine, state, chosen, none, 2, good, out), "at least one");
  STATE_FAILS(linnet_prefix_sequences(engine, state, chosen, huge, 2, good, out), "too large");
  STATE_FAILS(linnet_prefix_frames(engine, state, out, 1, out), "not frames");
  STATE_FAILS(linnet_whole(engine, NULL, 1, 2, out), "tokens is NULL");
  STATE_FAILS(linnet_whole(engine, good, 2, 2, NULL), "outputs is NULL");
  STATE_FAILS(linnet_whole(engine, good, 0, 2, out), "");
  STATE_FAILS(linnet_whole_all(engine, good, SIZE_MAX, 2, out), "smaller");
  STATE_FAILS(linnet_whole_frames(engine, out, 1, 1, out), "not frames");
  CHECK(linnet_state_position(state, 0) == 0 && linnet_state_position(state, 1) == 0);
  linnet_engine* other = open_engine(IMAGES, 1);
  STATE_FAILS(linnet_step(other, state, good, out), "this model");
  linnet_engine_free(other);
  linnet_state_free(state);
}

/* Every sequence of the state reads token 97. Outputs: out [batch, WIDTH]. */
static void step_all(linnet_engine* engine, linnet_state* state, float* out) {
  int32_t tokens[MOST];
  for (size_t i = 0; i < MOST; ++i) tokens[i] = 97;
  CHECK(linnet_state_batch(state) <= MOST);
  CHECK_OK(linnet_step(engine, state, tokens, out) == LINNET_OK);
}

static void test_states(linnet_engine* engine) {
  const int32_t tokens[6] = {10, 20, 30, 40, 50, 60};
  const size_t order[3] = {1, 0, 1};
  float *first = floats(2 * WIDTH), *out = floats(MOST * WIDTH);
  linnet_state* state = linnet_state_new(engine, 2);
  CHECK_OK(linnet_prefix(engine, state, tokens, 3, NULL) == LINNET_OK);
  CHECK_OK(linnet_state_bytes(state) >= 2 * 6400);
  linnet_state *clone = linnet_state_clone(state), *fork = linnet_state_fork(state, 2);
  linnet_state* chosen = linnet_state_select(state, order, 3);
  step_all(engine, state, first);
  step_all(engine, clone, out);
  CHECK(same(out, first, 2 * WIDTH));
  step_all(engine, fork, out);
  for (size_t i = 0; i < 4; ++i) CHECK(same(out + i * WIDTH, first + i / 2 * WIDTH, WIDTH));
  step_all(engine, chosen, out);
  for (size_t i = 0; i < 3; ++i) CHECK(same(out + i * WIDTH, first + order[i] * WIDTH, WIDTH));

  /* `one` has read the same tokens as the second sequence of `state`. */
  linnet_state *one = linnet_state_new(engine, 1), *both = linnet_state_new(engine, 1);
  CHECK_OK(linnet_prefix(engine, one, tokens + 3, 3, NULL) == LINNET_OK);
  CHECK_OK(linnet_state_append(both, one) == LINNET_OK && linnet_state_batch(both) == 2);
  CHECK_OK(linnet_state_position(both, 0) == 0 && linnet_state_position(both, 1) == 3);
  CHECK_OK(linnet_state_assign(both, 0, one) == LINNET_OK);
  step_all(engine, both, out);
  CHECK(same(out, first + WIDTH, WIDTH) && same(out + WIDTH, first + WIDTH, WIDTH));
  CHECK_OK(linnet_state_reset_sequence(both, 0) == LINNET_OK);
  CHECK(linnet_state_position(both, 0) == 0 && linnet_state_position(both, 1) == 4);
  linnet_state_free(state), linnet_state_free(clone), linnet_state_free(fork);
  linnet_state_free(chosen), linnet_state_free(one), linnet_state_free(both);
  linnet_state_free(NULL);
  free(first), free(out);
}

static void test_state_errors(linnet_engine* engine) {
  const size_t missing[1] = {2};
  linnet_state *state = linnet_state_new(engine, 2), *two = linnet_state_new(engine, 2);
  CHECK_FAILS(linnet_state_new(NULL, 1) == NULL, LINNET_ERROR_INPUT, "engine is NULL");
  CHECK_FAILS(linnet_state_new(engine, 0) == NULL, LINNET_ERROR_INPUT, "at least one");
  CHECK_FAILS(linnet_state_new(engine, SIZE_MAX / 8) == NULL, LINNET_ERROR_INPUT, "machine");
  CHECK_FAILS(linnet_state_clone(NULL) == NULL, LINNET_ERROR_INPUT, "state is NULL");
  CHECK_FAILS(linnet_state_fork(state, 0) == NULL, LINNET_ERROR_INPUT, "at least one");
  CHECK_FAILS(linnet_state_fork(state, SIZE_MAX / 2) == NULL, LINNET_ERROR_INPUT, "machine");
  CHECK_FAILS(linnet_state_select(state, missing, 1) == NULL, LINNET_ERROR_INPUT, "no sequence 2");
  CHECK_FAILS(linnet_state_select(state, missing, 0) == NULL, LINNET_ERROR_INPUT, "at least one");
  CHECK_FAILS(linnet_state_select(state, NULL, 1) == NULL, LINNET_ERROR_INPUT, "is NULL");
  STATE_FAILS(linnet_state_append(state, NULL), "other state is NULL");
  STATE_FAILS(linnet_state_assign(state, 0, two), "one sequence");
  STATE_FAILS(linnet_state_assign(NULL, 0, two), "state is NULL");
  STATE_FAILS(linnet_state_reset(NULL), "state is NULL");
  STATE_FAILS(linnet_state_reset_sequence(state, 2), "no sequence 2");
  CHECK_FAILS(linnet_state_position(state, 2) == 0, LINNET_ERROR_INPUT, "no sequence 2");
  CHECK_FAILS(linnet_state_batch(NULL) == 0, LINNET_ERROR_INPUT, "state is NULL");
  CHECK_FAILS(linnet_state_bytes(NULL) == 0, LINNET_ERROR_INPUT, "state is NULL");
  linnet_engine* images = open_engine(IMAGES, 1);
  linnet_state* other = linnet_state_new(images, 1);
  STATE_FAILS(linnet_state_append(state, other), "another");
  STATE_FAILS(linnet_state_assign(state, 0, other), "same model");
  linnet_state_free(other), linnet_engine_free(images);
  linnet_state_free(state), linnet_state_free(two);
}

static void test_saved_states(linnet_engine* engine) {
  char path[1024];
  snprintf(path, sizeof path, "%s/capi_test.state", folder);
  const int32_t tokens[6] = {10, 20, 30, 40, 50, 60};
  float *a = floats(2 * WIDTH), *b = floats(2 * WIDTH);
  linnet_state* state = linnet_state_new(engine, 2);
  CHECK_OK(linnet_prefix(engine, state, tokens, 3, NULL) == LINNET_OK);
  CHECK_OK(linnet_state_save(state, engine, path) == LINNET_OK);
  linnet_state* loaded = linnet_state_load(engine, path);
  CHECK_OK(linnet_state_position(loaded, 1) == 3);
  step_all(engine, state, a);
  step_all(engine, loaded, b);
  CHECK(same(a, b, 2 * WIDTH));
  STATE_FAILS(linnet_state_save(state, engine, NULL), "path is NULL");
  STATE_FAILS(linnet_state_save(state, engine, "/nowhere/capi_test.state"), "/nowhere");
  CHECK_FAILS(linnet_state_load(engine, NULL) == NULL, LINNET_ERROR_INPUT, "path is NULL");
  CHECK_FAILS(linnet_state_load(engine, TEXT) == NULL, LINNET_ERROR_INPUT, "not a saved state");
  linnet_engine* images = open_engine(IMAGES, 1);
  CHECK_FAILS(linnet_state_load(images, path) == NULL, LINNET_ERROR_INPUT, "another model");
  linnet_engine_free(images);
  linnet_state_free(state), linnet_state_free(loaded);
  CHECK(remove(path) == 0);
  free(a), free(b);
}

static void test_states_in_memory(linnet_engine* engine) {
  const int32_t tokens[6] = {10, 20, 30, 40, 50, 60};
  float *a = floats(2 * WIDTH), *b = floats(2 * WIDTH);
  linnet_state* state = linnet_state_new(engine, 2);
  CHECK_OK(linnet_prefix(engine, state, tokens, 3, NULL) == LINNET_OK);
  size_t size = 0, again = 0;
  CHECK_OK(linnet_state_save_memory(state, engine, NULL, 0, &size) == LINNET_OK);
  CHECK(size >= linnet_state_bytes(state));
  unsigned char* bytes = (unsigned char*)allocate(size, 1);
  STATE_FAILS(linnet_state_save_memory(state, engine, bytes, size - 1, &again), "room");
  CHECK(again == size && bytes[0] == 0 && bytes[size - 1] == 0);
  CHECK_OK(linnet_state_save_memory(state, engine, bytes + 1, size, &again) == LINNET_OK);
  linnet_state* loaded = linnet_state_load_memory(engine, bytes + 1, size); /* misaligned */
  CHECK_OK(loaded != NULL);
  step_all(engine, state, a);
  step_all(engine, loaded, b);
  CHECK(same(a, b, 2 * WIDTH));
  STATE_FAILS(linnet_state_save_memory(state, engine, bytes, size, NULL), "size is NULL");
  STATE_FAILS(linnet_state_save_memory(NULL, engine, bytes, size, &again), "state is NULL");
  bytes[size] ^= 1; /* the last byte of the saved state, which begins at bytes + 1 */
  CHECK_FAILS(linnet_state_load_memory(engine, bytes + 1, size) == NULL, LINNET_ERROR_INPUT,
              "memory");
  CHECK_FAILS(linnet_state_load_memory(engine, bytes + 1, size / 2) == NULL, LINNET_ERROR_INPUT,
              "memory");
  CHECK_FAILS(linnet_state_load_memory(engine, NULL, 8) == NULL, LINNET_ERROR_INPUT, "is NULL");
  linnet_state_free(state), linnet_state_free(loaded);
  free(bytes), free(a), free(b);
}

static void test_limited_model(void) {
  enum { POSITIONS = 783 };
  linnet_engine* engine = open_engine(IMAGES, 1);
  linnet_state* state = linnet_state_new(engine, 1);
  int32_t tokens[POSITIONS + 1] = {0};
  STATE_FAILS(linnet_prefix(engine, state, tokens, POSITIONS + 1, NULL), "783 positions");
  CHECK_OK(linnet_prefix(engine, state, tokens, POSITIONS, NULL) == LINNET_OK);
  float out[9];
  STATE_FAILS(linnet_step(engine, state, tokens, out), "783 positions");
  linnet_state_free(state);
  linnet_engine_free(engine);
}

/* Frames read in two calls give the outputs of the whole sequence. */
static void test_frames(void) {
  enum { LENGTH = 20, INPUTS = 80, OUTPUTS = 34 };
  linnet_engine* engine =
      open_engine("tests/checkpoints/speech-causal-linear-convolution.safetensors", 2);
  float *frames = floats(LENGTH * INPUTS), *whole = floats(LENGTH * OUTPUTS);
  float* pieces = floats(LENGTH * OUTPUTS);
  for (size_t i = 0; i < LENGTH * INPUTS; ++i) frames[i] = sinf(0.7f * (float)(i % 101));
  CHECK_OK(linnet_whole_frames(engine, frames, 1, LENGTH, whole) == LINNET_OK);
  linnet_state* state = linnet_state_new(engine, 1);
  CHECK_OK(linnet_prefix_frames(engine, state, frames, 7, pieces) == LINNET_OK);
  CHECK_OK(linnet_prefix_frames(engine, state, frames + 7 * INPUTS, LENGTH - 7,
                                pieces + 7 * OUTPUTS) == LINNET_OK);
  CHECK(close_to(pieces, whole, LENGTH * OUTPUTS));
  CHECK_OK(linnet_state_position(state, 0) == LENGTH);
  const int32_t token = 1;
  STATE_FAILS(linnet_step(engine, state, &token, pieces), "frames");
  STATE_FAILS(linnet_whole(engine, &token, 1, 1, pieces), "");
  STATE_FAILS(linnet_prefix_frames(engine, state, NULL, 1, pieces), "frames is NULL");
  STATE_FAILS(linnet_whole_frames(engine, frames, 1, 0, whole), "");
  linnet_state_free(state);
  linnet_engine_free(engine);
  free(frames), free(whole), free(pieces);
}

static void test_choose(void) {
  const float logits[4] = {0.5f, 3, -INFINITY, 2.5f}, none[2] = {-INFINITY, -INFINITY};
  linnet_sampling sampling;
  int32_t token = -1;
  CHECK_OK(linnet_sampling_init(&sampling, sizeof sampling) == LINNET_OK);
  CHECK(sampling.size == sizeof sampling && sampling.temperature == 1 && sampling.top_p == 1);
  CHECK(sampling.top_k == 0 && sampling.seed == 0 && sampling.stream == 0);
  sampling.temperature = 0;
  CHECK_OK(linnet_choose(logits, 4, &sampling, 0, &token) == LINNET_OK && token == 1);

  /* Draws follow the probabilities. A draw depends only on seed, stream and its number. */
  enum { DRAWS = 20000 };
  double sum = 0;
  for (size_t i = 0; i < 4; ++i) sum += exp((double)logits[i]);
  int counts[4] = {0};
  for (uint64_t draw = 0; draw < DRAWS; ++draw) {
    CHECK(linnet_choose(logits, 4, NULL, draw, &token) == LINNET_OK && token >= 0 && token < 4);
    ++counts[token];
  }
  for (size_t i = 0; i < 4; ++i) {
    const double p = exp((double)logits[i]) / sum;
    CHECK(fabs(counts[i] - DRAWS * p) <= 5 * sqrt(DRAWS * p * (1 - p)));
  }
  linnet_sampling_init(&sampling, sizeof sampling);
  int differ = 0;
  for (uint64_t draw = 0; draw < 100; ++draw) {
    int32_t again = -1, other = -1;
    sampling.stream = 0;
    CHECK(linnet_choose(logits, 4, NULL, draw, &token) == LINNET_OK);
    CHECK(linnet_choose(logits, 4, &sampling, draw, &again) == LINNET_OK && again == token);
    sampling.stream = 1;
    CHECK(linnet_choose(logits, 4, &sampling, draw, &other) == LINNET_OK);
    differ += other != token;
  }
  CHECK(differ > 10);
  sampling.top_k = 1;
  CHECK_OK(linnet_choose(logits, 4, &sampling, 7, &token) == LINNET_OK && token == 1);
  STATE_FAILS(linnet_choose(none, 2, NULL, 0, &token), "no token");
  STATE_FAILS(linnet_choose(logits, 0, NULL, 0, &token), "no token");
  STATE_FAILS(linnet_choose(NULL, 2, NULL, 0, &token), "logits is NULL");
  STATE_FAILS(linnet_choose(logits, 4, NULL, 0, NULL), "token is NULL");
  sampling.temperature = -1;
  STATE_FAILS(linnet_choose(logits, 4, &sampling, 0, &token), "temperature");
}

/* A larger struct, of a later version, is accepted if its unknown fields are zero. */
static void test_struct_sizes(void) {
  const float logits[2] = {0, 1};
  struct {
    linnet_sampling known;
    uint64_t later[2];
  } newer;
  int32_t token = -1;
  memset(&newer, 0xff, sizeof newer);
  CHECK_OK(linnet_sampling_init(&newer.known, sizeof newer) == LINNET_OK);
  CHECK(newer.known.size == sizeof newer && newer.later[0] == 0 && newer.later[1] == 0);
  CHECK_OK(linnet_choose(logits, 2, &newer.known, 0, &token) == LINNET_OK);
  newer.later[1] = 1;
  STATE_FAILS(linnet_choose(logits, 2, &newer.known, 0, &token), "does not know");
  newer.known.size = 0;
  STATE_FAILS(linnet_choose(logits, 2, &newer.known, 0, &token), "linnet_sampling_init() first");
  STATE_FAILS(linnet_sampling_init(NULL, sizeof newer), "linnet_sampling is NULL");
  STATE_FAILS(linnet_sampling_init(&newer.known, 4), "linnet_sampling");
}

static void test_vocabularies(void) {
  linnet_model *bytes = open_model(TEXT), *characters = open_model(CHARACTERS);
  int32_t tokens[8];
  char text[16];
  size_t count = 99, size = 99;
  CHECK_OK(linnet_encode(bytes, "a\0b", 3, NULL, 0, &count) == LINNET_OK && count == 3);
  CHECK_OK(linnet_encode(bytes, "a\0b", 3, tokens, 3, &count) == LINNET_OK && count == 3);
  CHECK(tokens[0] == 3 + 'a' && tokens[1] == 3 && tokens[2] == 3 + 'b');
  CHECK_OK(linnet_decode(bytes, tokens, 3, NULL, 0, &size) == LINNET_OK && size == 3);
  CHECK_OK(linnet_decode(bytes, tokens, 3, text, 4, &size) == LINNET_OK && size == 3);
  CHECK(memcmp(text, "a\0b", 4) == 0);
  CHECK_OK(linnet_encode(bytes, NULL, 0, tokens, 8, &count) == LINNET_OK && count == 0);
  CHECK_OK(linnet_decode(bytes, NULL, 0, text, 1, &size) == LINNET_OK && size == 0);
  CHECK(text[0] == '\0');
  const int32_t special[4] = {LINNET_TOKEN_END, LINNET_TOKEN_SEPARATOR, LINNET_TOKEN_UNKNOWN, 999};
  CHECK_OK(linnet_decode(bytes, special, 4, text, sizeof text, &size) == LINNET_OK);
  CHECK(strcmp(text, "\xef\xbf\xbd") == 0);

  text[0] = 'x', tokens[0] = -5;
  STATE_FAILS(linnet_encode(bytes, "abc", 3, tokens, 2, &count), "room for 3");
  CHECK(count == 3 && tokens[0] == -5);
  tokens[0] = tokens[1] = tokens[2] = 3 + 'a';
  STATE_FAILS(linnet_decode(bytes, tokens, 3, text, 3, &size), "room for 4");
  CHECK(size == 3 && text[0] == 'x');
  STATE_FAILS(linnet_encode(bytes, NULL, 3, tokens, 8, &count), "text is NULL");
  STATE_FAILS(linnet_encode(bytes, "abc", 3, tokens, 8, NULL), "count is NULL");
  STATE_FAILS(linnet_decode(bytes, NULL, 3, text, 8, &size), "tokens is NULL");
  STATE_FAILS(linnet_encode(NULL, "abc", 3, tokens, 8, &count), "model is NULL");
  CHECK_OK(linnet_encode(characters, "a\n\xe2\x98\x83", 5, tokens, 8, &count) == LINNET_OK);
  CHECK(count == 3 && tokens[2] == LINNET_TOKEN_UNKNOWN);
  STATE_FAILS(linnet_encode(characters, "a\xff", 2, tokens, 8, &count), "UTF-8");
  CHECK_OK(strcmp(linnet_model_unit(bytes), "byte") == 0);
  CHECK_OK(strcmp(linnet_model_unit(characters), "character") == 0);
  CHECK_OK(linnet_model_end(bytes) == LINNET_TOKEN_END);
  CHECK_OK(linnet_encode_prompt(bytes, "a", 1, tokens, 8, &count) == LINNET_OK && count == 2);
  CHECK(tokens[0] == LINNET_TOKEN_END && tokens[1] == 3 + 'a');
  STATE_FAILS(linnet_encode_prompt(bytes, "abc", 3, tokens, 3, &count), "room for 4");

  linnet_model* images = open_model(IMAGES);
  CHECK_OK(strcmp(linnet_model_unit(images), "") == 0 && linnet_model_end(images) == -1);
  CHECK_FAILS(linnet_model_unit(NULL) == NULL, LINNET_ERROR_INPUT, "model is NULL");
  CHECK_FAILS(linnet_model_end(NULL) == -1, LINNET_ERROR_INPUT, "model is NULL");
  STATE_FAILS(linnet_encode(images, "abc", 3, tokens, 8, &count), "no vocabulary");
  linnet_model_free(images), linnet_model_free(bytes), linnet_model_free(characters);
}

/* Work of a thread of test_threads(): the outputs after three tokens. */
struct work {
  const linnet_model* model;
  float outputs[WIDTH];
};
static void* compute(void* data) {
  struct work* work = (struct work*)data;
  const int32_t tokens[3] = {LINNET_TOKEN_END, 100, 101};
  CHECK(linnet_last_status() == LINNET_OK && linnet_last_error()[0] == '\0');
  linnet_engine* engine = linnet_engine_new(work->model, 1);
  CHECK_OK(linnet_whole(engine, tokens, 1, 3, work->outputs) == LINNET_OK);
  linnet_engine_free(engine);
  CHECK_FAILS(linnet_engine_threads(NULL) == 0, LINNET_ERROR_INPUT, "engine is NULL");
  return NULL;
}

/* Threads share a model, and each has its own last error. */
static void test_threads(void) {
  enum { THREADS = 3 };
  linnet_model* model = open_model(TEXT);
  struct work works[THREADS];
  pthread_t threads[THREADS];
  CHECK_FAILS(linnet_state_batch(NULL) == 0, LINNET_ERROR_INPUT, "state is NULL");
  for (int i = 0; i < THREADS; ++i) {
    works[i].model = model;
    CHECK(pthread_create(&threads[i], NULL, compute, &works[i]) == 0);
  }
  for (int i = 0; i < THREADS; ++i) CHECK(pthread_join(threads[i], NULL) == 0);
  check_last(LINNET_ERROR_INPUT, "state is NULL", __FILE__, __LINE__);
  for (int i = 1; i < THREADS; ++i) CHECK(same(works[i].outputs, works[0].outputs, WIDTH));
  linnet_model_free(model);
}

int main(int argc, char** argv) {
  CHECK(argc == 2);
  folder = argv[1];
  test_errors();
  test_text_model();
  test_other_models();
  test_no_model();
  test_engine();
  test_memory();
  for (int threads = 1; threads <= 2; ++threads) {
    linnet_engine* engine = open_engine(TEXT, threads);
    test_reading(engine);
    test_reading_sequences(engine);
    test_reading_errors(engine);
    test_states(engine);
    test_state_errors(engine);
    test_saved_states(engine);
    test_states_in_memory(engine);
    linnet_engine_free(engine);
  }
  test_threads();
  test_limited_model();
  test_frames();
  test_choose();
  test_struct_sizes();
  test_vocabularies();
  return 0;
}
