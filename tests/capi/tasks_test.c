/* Tests the C functions for images, text and couplets. Run it without arguments, in the root of
 * the source tree. */
#include <math.h>
#include <stdint.h>

#include "test_util.h"

#define TEXT "tests/checkpoints/text-byte.safetensors"
#define CHARACTERS "tests/checkpoints/text-character-tied-full.safetensors"
#define IMAGES "tests/checkpoints/images-causal-linear.safetensors"
#define DIGITS "models/digits.safetensors"
#define COUPLET "models/couplet.safetensors"

#define STATUS_FAILS(call, part) CHECK_FAILS((call) == LINNET_ERROR_INPUT, LINNET_ERROR_INPUT, part)

enum { PIXELS = 784, WIDTH = 259 };

/* ---- Images ---------------------------------------------------------------------------------- */

/* The arguments of the latest call of record(). Call number `stop_after` cancels; 0: none does. */
struct progress {
  size_t calls, done, total, stop_after;
};
static int record(void* data, size_t done, size_t total) {
  struct progress* progress = (struct progress*)data;
  ++progress->calls;
  CHECK(done > progress->done && done <= total);
  progress->done = done, progress->total = total;
  return progress->calls == progress->stop_after;
}

static void test_image_options(void) {
  linnet_image_options options;
  CHECK_OK(linnet_image_options_init(&options, sizeof options) == LINNET_OK);
  CHECK(options.size == sizeof options && options.seed == 0 && options.first_stream == 0);
  CHECK(options.temperature == 1 && options.reference_scale == 0 && options.batch == 64);
  CHECK(options.progress == NULL && options.progress_data == NULL);
  STATUS_FAILS(linnet_image_options_init(NULL, sizeof options), "is NULL");
  STATUS_FAILS(linnet_image_options_init(&options, 0), "size is 0");
}

static void test_sampling_images(void) {
  enum { COUNT = 5 };
  linnet_engine* engine = open_engine(IMAGES, 2);
  uint8_t *images = (uint8_t*)allocate(COUNT, PIXELS), *other = (uint8_t*)allocate(COUNT, PIXELS);
  struct progress progress = {0, 0, 0, 0};
  linnet_image_options options;
  linnet_image_options_init(&options, sizeof options);
  options.batch = 2, options.progress = record, options.progress_data = &progress;
  CHECK_OK(linnet_sample_images(engine, COUNT, &options, images) == LINNET_OK);
  CHECK(progress.calls == 3 && progress.done == COUNT && progress.total == COUNT);
  /* NULL means the default options: the same seed, and a batch that holds all images. */
  CHECK_OK(linnet_sample_images(engine, COUNT, NULL, other) == LINNET_OK);
  CHECK(memcmp(images, other, COUNT * PIXELS) == 0);
  /* Image 3 comes from stream 3. */
  linnet_image_options_init(&options, sizeof options);
  options.first_stream = 3;
  CHECK_OK(linnet_sample_images(engine, 1, &options, other) == LINNET_OK);
  CHECK(memcmp(images + 3 * PIXELS, other, PIXELS) == 0);
  options.seed = 1;
  CHECK_OK(linnet_sample_images(engine, 1, &options, other) == LINNET_OK);
  CHECK(memcmp(images + 3 * PIXELS, other, PIXELS) != 0);
  /* The callback cancels after the first batch. */
  linnet_image_options_init(&options, sizeof options);
  memset(&progress, 0, sizeof progress);
  progress.stop_after = 1;
  options.batch = 2, options.progress = record, options.progress_data = &progress;
  CHECK_FAILS(linnet_sample_images(engine, COUNT, &options, other) == LINNET_CANCELLED,
              LINNET_CANCELLED, "canceled");
  CHECK(progress.calls == 1);
  free(images), free(other);
  linnet_engine_free(engine);
}

static void test_completing_images(void) {
  enum { KNOWN = 300 };
  linnet_engine* engine = open_engine(IMAGES, 1);
  uint8_t *images = (uint8_t*)allocate(2, PIXELS), *pixels = (uint8_t*)allocate(2, PIXELS);
  for (size_t i = 0; i < 2 * PIXELS; ++i) images[i] = (uint8_t)(i * 37);
  CHECK_OK(linnet_complete_images(engine, images, 2, KNOWN, NULL, pixels) == LINNET_OK);
  for (size_t i = 0; i < 2; ++i) {
    CHECK(memcmp(pixels + i * PIXELS, images + i * PIXELS, KNOWN) == 0);
    CHECK(memcmp(pixels + i * PIXELS, images + i * PIXELS, PIXELS) != 0);
  }
  /* `pixels` may be `images` itself. */
  CHECK_OK(linnet_complete_images(engine, images, 2, KNOWN, NULL, images) == LINNET_OK);
  CHECK(memcmp(pixels, images, 2 * PIXELS) == 0);
  STATUS_FAILS(linnet_complete_images(engine, images, 2, 0, NULL, pixels), "between 1 and 784");
  STATUS_FAILS(linnet_complete_images(engine, images, 2, 785, NULL, pixels), "between 1 and 784");
  STATUS_FAILS(linnet_complete_images(engine, images, 0, 1, NULL, pixels), "images");
  STATUS_FAILS(linnet_complete_images(engine, NULL, 2, 1, NULL, pixels), "images is NULL");
  STATUS_FAILS(linnet_complete_images(engine, images, 2, 1, NULL, NULL), "pixels is NULL");
  free(images), free(pixels);
  linnet_engine_free(engine);
}

/* The model gives few bits per dimension to a digit that it drew, and many to noise. */
static void test_bits_per_dim(void) {
  linnet_engine* engine = open_engine(DIGITS, 0);
  uint8_t* images = (uint8_t*)allocate(2, PIXELS);
  CHECK_OK(linnet_sample_images(engine, 1, NULL, images) == LINNET_OK);
  for (size_t i = 0; i < PIXELS; ++i) images[PIXELS + i] = (uint8_t)(i * i * 31 + i * 17);
  double mean = 0, each[2] = {0, 0}, first = 0;
  CHECK_OK(linnet_bits_per_dim(engine, images, 2, NULL, &mean, each) == LINNET_OK);
  CHECK(fabs(mean - (each[0] + each[1]) / 2) < 1e-9);
  CHECK(each[0] > 0 && each[0] < 2 && each[1] > 6);
  CHECK_OK(linnet_bits_per_dim(engine, images, 1, NULL, &first, NULL) == LINNET_OK);
  CHECK(fabs(first - each[0]) < 1e-6);
  STATUS_FAILS(linnet_bits_per_dim(engine, images, 0, NULL, &mean, NULL), "images");
  STATUS_FAILS(linnet_bits_per_dim(engine, images, SIZE_MAX / 2, NULL, &mean, NULL), "smaller");
  STATUS_FAILS(linnet_bits_per_dim(engine, images, 1, NULL, NULL, NULL), "mean is NULL");
  free(images);
  linnet_engine_free(engine);
}

/* Draws image 1 byte by byte. It equals image 1 of linnet_sample_images() with the same seed, and
 * its mean bits per byte, without byte 0, equal the result of linnet_bits_per_dim(). */
static void test_drawing_bytes(void) {
  linnet_model* model = linnet_model_open(DIGITS, NULL);
  linnet_engine* engine = open_engine(DIGITS, 0);
  linnet_state* state = linnet_state_new(engine, 1);
  uint8_t* images = (uint8_t*)allocate(2, PIXELS);
  float* outputs = (float*)allocate(linnet_model_outputs(model), sizeof(float));
  linnet_image_options options;
  linnet_image_options_init(&options, sizeof options);
  options.seed = 5;
  CHECK_OK(linnet_sample_images(engine, 2, &options, images) == LINNET_OK);
  uint8_t byte = 255;
  double nats = 0, bits = 0, want = 0;
  CHECK_OK(linnet_draw_byte(model, NULL, 1, 0, &options, &byte) == LINNET_OK);
  CHECK_OK(linnet_byte_nats(model, NULL, byte, 0, &nats) == LINNET_OK);
  CHECK(nats >= 0);
  int same = byte == images[PIXELS];
  for (size_t p = 1; p < PIXELS; ++p) {
    const int32_t token = byte;
    CHECK_OK(linnet_step(engine, state, &token, outputs) == LINNET_OK);
    CHECK_OK(linnet_draw_byte(model, outputs, 1, p, &options, &byte) == LINNET_OK);
    CHECK_OK(linnet_byte_nats(model, outputs, byte, p, &nats) == LINNET_OK);
    same += byte == images[PIXELS + p];
    bits += nats / log(2) / (PIXELS - 1);
  }
  CHECK(same == PIXELS);
  CHECK_OK(linnet_bits_per_dim(engine, images + PIXELS, 1, NULL, &want, NULL) == LINNET_OK);
  CHECK(fabs(bits - want) < 1e-3);

  STATUS_FAILS(linnet_draw_byte(NULL, outputs, 0, 1, NULL, &byte), "model is NULL");
  STATUS_FAILS(linnet_draw_byte(model, NULL, 0, 1, NULL, &byte), "outputs is NULL");
  STATUS_FAILS(linnet_draw_byte(model, outputs, 0, PIXELS, NULL, &byte), "byte 784");
  STATUS_FAILS(linnet_draw_byte(model, outputs, 0, 1, NULL, NULL), "byte is NULL");
  STATUS_FAILS(linnet_byte_nats(model, outputs, 0, PIXELS, &nats), "byte 784");
  uint8_t rgb[3] = {0};
  STATUS_FAILS(linnet_draw_pixel(model, outputs, 0, 0, NULL, rgb), "single bytes");
  STATUS_FAILS(linnet_draw_pixel(model, outputs, 0, 0, NULL, NULL), "rgb is NULL");
  STATUS_FAILS(linnet_pixel_nats(model, outputs, rgb, &nats), "single bytes");
  STATUS_FAILS(linnet_pixel_nats(model, NULL, rgb, &nats), "outputs is NULL");
  STATUS_FAILS(linnet_byte_nats(model, outputs, 0, 1, NULL), "nats is NULL");
  options.temperature = 0;
  STATUS_FAILS(linnet_draw_byte(model, outputs, 0, 1, &options, &byte), "temperature");
  linnet_model* text = linnet_model_open(TEXT, NULL);
  STATUS_FAILS(linnet_draw_byte(text, NULL, 0, 0, NULL, &byte), "not of images");
  free(images), free(outputs);
  linnet_model_free(model), linnet_model_free(text);
  linnet_state_free(state);
  linnet_engine_free(engine);
}

static void test_image_errors(void) {
  linnet_engine *engine = open_engine(IMAGES, 1), *text = open_engine(TEXT, 1);
  uint8_t pixels[PIXELS] = {0};
  double mean = 0;
  linnet_image_options options;
  STATUS_FAILS(linnet_sample_images(NULL, 1, NULL, pixels), "engine is NULL");
  STATUS_FAILS(linnet_sample_images(engine, 1, NULL, NULL), "pixels is NULL");
  STATUS_FAILS(linnet_sample_images(engine, SIZE_MAX / 2, NULL, pixels), "smaller");
  STATUS_FAILS(linnet_sample_images(text, 1, NULL, pixels), "not of images");
  /* A sanitizer would end the program at an allocation of this size. */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  CHECK_FAILS(
      linnet_sample_images(engine, SIZE_MAX / 32 / PIXELS, NULL, pixels) == LINNET_ERROR_MEMORY,
      LINNET_ERROR_MEMORY, "out of memory");
#endif
  STATUS_FAILS(linnet_complete_images(text, pixels, 1, 1, NULL, pixels), "not of images");
  STATUS_FAILS(linnet_bits_per_dim(text, pixels, 1, NULL, &mean, NULL), "not of images");
  linnet_image_options_init(&options, sizeof options);
  options.batch = 0;
  STATUS_FAILS(linnet_sample_images(engine, 1, &options, pixels), "batch");
  linnet_image_options_init(&options, sizeof options);
  options.temperature = NAN;
  STATUS_FAILS(linnet_sample_images(engine, 1, &options, pixels), "temperature");
  options.size = 3;
  STATUS_FAILS(linnet_sample_images(engine, 1, &options, pixels), "linnet_image_options_init()");
  linnet_engine_free(engine), linnet_engine_free(text);
}

/* ---- Text ------------------------------------------------------------------------------------ */

struct written {
  char text[4096];
  size_t bytes, calls, stop_after;
};
static int append(void* data, const char* text, size_t bytes) {
  struct written* written = (struct written*)data;
  CHECK(bytes > 0 && written->bytes + bytes < sizeof written->text);
  memcpy(written->text + written->bytes, text, bytes);
  written->bytes += bytes;
  return ++written->calls == written->stop_after;
}

/* Generates `count` tokens after a prompt with linnet_prefix() and linnet_step(). test_writing()
 * expects the same text from linnet_write_text(). */
static void write_by_steps(linnet_engine* engine, const linnet_model* model, const char* prompt,
                           const linnet_sampling* sampling, size_t count, char* text) {
  int32_t tokens[64] = {LINNET_TOKEN_END}, drawn[64];
  const size_t width = linnet_model_outputs(model);
  size_t length = 0, bytes = 0;
  float logits[WIDTH];
  CHECK(width <= WIDTH);
  CHECK(linnet_encode(model, prompt, strlen(prompt), tokens + 1, 63, &length) == LINNET_OK);
  linnet_state* state = linnet_state_new(engine, 1);
  CHECK(linnet_prefix(engine, state, tokens, length + 1, logits) == LINNET_OK);
  for (size_t i = 0; i < count; ++i) {
    logits[LINNET_TOKEN_SEPARATOR] = logits[LINNET_TOKEN_UNKNOWN] = -INFINITY;
    CHECK(linnet_choose(logits, width, sampling, i, &drawn[i]) == LINNET_OK);
    CHECK(drawn[i] != LINNET_TOKEN_END); /* the comparison needs `count` tokens of text */
    CHECK(linnet_step(engine, state, &drawn[i], logits) == LINNET_OK);
  }
  CHECK(linnet_decode(model, drawn, count, text, 64, &bytes) == LINNET_OK);
  linnet_state_free(state);
}

static void test_writing(void) {
  enum { TOKENS = 24 };
  linnet_model* model = open_model(CHARACTERS);
  linnet_engine* engine = linnet_engine_new(model, 1);
  linnet_sampling sampling;
  linnet_text_options options;
  CHECK_OK(linnet_text_options_init(&options, sizeof options) == LINNET_OK);
  CHECK(options.size == sizeof options && options.tokens == 256 && options.sampling == NULL);
  CHECK(options.stop == NULL && options.stop_count == 0);
  linnet_sampling_init(&sampling, sizeof sampling);
  sampling.temperature = 0.7f, sampling.top_k = 40, sampling.seed = 5, sampling.stream = 2;
  options.tokens = TOKENS, options.sampling = &sampling;
  struct written written = {"", 0, 0, 0};
  int end = -1;
  CHECK_OK(linnet_write_text(engine, "ROMEO:", 6, &options, append, &written, &end) == LINNET_OK);
  CHECK(end == LINNET_TEXT_TOKENS && written.bytes > 0);
  char expected[64];
  write_by_steps(engine, model, "ROMEO:", &sampling, TOKENS, expected);
  const size_t length = strlen(expected);
  CHECK(length >= TOKENS && written.bytes == length);
  CHECK(memcmp(written.text, expected, length) == 0);

  /* The text ends before the first stop string. */
  const char stop[2] = {expected[length / 2], '\0'};
  const char* const stops[2] = {"never written", stop};
  const size_t before = (size_t)(strchr(expected, stop[0]) - expected);
  memset(&written, 0, sizeof written);
  options.stop = stops, options.stop_count = 2;
  CHECK_OK(linnet_write_text(engine, "ROMEO:", 6, &options, append, &written, &end) == LINNET_OK);
  CHECK(end == LINNET_TEXT_STOP && written.bytes == before);
  CHECK(memcmp(written.text, expected, before) == 0);

  /* The prompt, the options and `end` may be NULL. */
  memset(&written, 0, sizeof written);
  written.stop_after = 1;
  options.stop_count = 0;
  CHECK_OK(linnet_write_text(engine, NULL, 0, &options, append, &written, NULL) == LINNET_OK);
  CHECK_OK(linnet_write_text(engine, NULL, 0, NULL, append, &written, &end) == LINNET_OK);
  linnet_engine_free(engine), linnet_model_free(model);
}

/* A text with a grammar, by linnet_write_text() and token by token with a matcher. */
static void test_grammar(void) {
  const char* const notation = "root ::= [a-c]{4} (\"-\" [a-c])+";
  const char* const schema =
      "{\"type\": \"array\", \"items\": {\"enum\": [1, 2]}, \"maxItems\": 2}";
  linnet_model* model = open_model(TEXT);
  linnet_engine* engine = linnet_engine_new(model, 1);
  linnet_grammar* grammar = linnet_grammar_new(notation, strlen(notation));
  linnet_grammar* json = linnet_grammar_of_json_schema(schema, strlen(schema));
  CHECK(grammar && json);
  linnet_text_options options;
  linnet_sampling sampling;
  linnet_text_options_init(&options, sizeof options);
  linnet_sampling_init(&sampling, sizeof sampling);
  sampling.seed = 3;
  options.tokens = 10, options.sampling = &sampling, options.grammar = grammar;
  struct written written = {"", 0, 0, 0};
  int end = -1;
  CHECK_OK(linnet_write_text(engine, "A", 1, &options, append, &written, &end) == LINNET_OK);
  CHECK(end == LINNET_TEXT_TOKENS || end == LINNET_TEXT_END_TOKEN);
  linnet_matcher* matcher = linnet_matcher_new(grammar, model);
  linnet_grammar_free(grammar);
  linnet_state* state = linnet_state_new(engine, 1);
  const size_t width = linnet_model_outputs(model);
  float logits[WIDTH];
  int32_t tokens[2] = {LINNET_TOKEN_END}, token = 0;
  size_t count = 0, bytes = 0;
  CHECK(linnet_encode(model, "A", 1, tokens + 1, 1, &count) == LINNET_OK);
  CHECK(linnet_prefix(engine, state, tokens, 2, logits) == LINNET_OK);
  for (size_t i = 0; i < written.bytes; ++i) {
    char text[8];
    int finished = -1;
    CHECK(linnet_matcher_mask(matcher, logits, width) == LINNET_OK);
    CHECK(linnet_choose(logits, width, &sampling, i, &token) == LINNET_OK);
    CHECK(linnet_matcher_add(matcher, token, &finished) == LINNET_OK && finished == 0);
    CHECK(linnet_token_text(model, token, text, sizeof text, &bytes) == LINNET_OK);
    CHECK(bytes == 1 && text[0] == written.text[i]);
    CHECK(i % 2 == 0 || i < 4 || text[0] != '-');
    CHECK(linnet_step(engine, state, &token, logits) == LINNET_OK);
  }
  linnet_state_free(state);

  memset(&written, 0, sizeof written);
  options.grammar = json;
  CHECK_OK(linnet_write_text(engine, "A", 1, &options, append, &written, &end) == LINNET_OK);
  CHECK(end == LINNET_TEXT_GRAMMAR && written.text[0] == '[' &&
        written.text[written.bytes - 1] == ']');

  STATUS_FAILS(linnet_matcher_add(matcher, LINNET_TOKEN_END, NULL), "cannot follow");
  STATUS_FAILS(linnet_matcher_mask(matcher, logits, 3), "3 logits");
  STATUS_FAILS(linnet_matcher_mask(matcher, NULL, width), "logits is NULL");
  STATUS_FAILS(linnet_matcher_mask(NULL, logits, width), "matcher is NULL");
  linnet_matcher_free(matcher), linnet_grammar_free(json);
  linnet_model* images = open_model(IMAGES);
  grammar = linnet_grammar_new(notation, strlen(notation));
  CHECK_FAILS(linnet_matcher_new(grammar, images) == NULL, LINNET_ERROR_INPUT, "no vocabulary");
  CHECK_FAILS(linnet_matcher_new(NULL, model) == NULL, LINNET_ERROR_INPUT, "grammar is NULL");
  CHECK_FAILS(linnet_grammar_new("root", 4) == NULL, LINNET_ERROR_INPUT, "expected '::='");
  CHECK_FAILS(linnet_grammar_of_json_schema("{", 1) == NULL, LINNET_ERROR_INPUT, "not valid JSON");
  linnet_grammar_free(grammar), linnet_grammar_free(NULL), linnet_matcher_free(NULL);
  linnet_engine_free(engine), linnet_model_free(model), linnet_model_free(images);
}

static void test_reader_stops(void) {
  linnet_engine* engine = open_engine(TEXT, 1);
  struct written written = {"", 0, 0, 1};
  int end = -1;
  CHECK_OK(linnet_write_text(engine, "A", 1, NULL, append, &written, &end) == LINNET_OK);
  CHECK(end == LINNET_TEXT_READER && written.calls == 1);
  linnet_engine_free(engine);
}

static void test_text_errors(void) {
  linnet_engine *engine = open_engine(TEXT, 1), *images = open_engine(IMAGES, 1);
  linnet_sampling sampling;
  linnet_text_options options;
  const char* const stops[1] = {NULL};
  double nats = 0;
  STATUS_FAILS(linnet_write_text(NULL, "A", 1, NULL, append, NULL, NULL), "engine is NULL");
  STATUS_FAILS(linnet_write_text(engine, NULL, 1, NULL, append, NULL, NULL), "prompt is NULL");
  STATUS_FAILS(linnet_write_text(engine, "A", 1, NULL, NULL, NULL, NULL), "reader is NULL");
  STATUS_FAILS(linnet_write_text(images, "A", 1, NULL, append, NULL, NULL), "no vocabulary");
  linnet_sampling_init(&sampling, sizeof sampling);
  linnet_text_options_init(&options, sizeof options);
  sampling.top_p = 0, options.sampling = &sampling;
  STATUS_FAILS(linnet_write_text(engine, "A", 1, &options, append, NULL, NULL), "top_p");
  linnet_text_options_init(&options, sizeof options);
  options.stop = stops, options.stop_count = 1;
  STATUS_FAILS(linnet_write_text(engine, "A", 1, &options, append, NULL, NULL), "stop string");
  options.size = 1;
  STATUS_FAILS(linnet_write_text(engine, "A", 1, &options, append, NULL, NULL), "_init()");
  STATUS_FAILS(linnet_text_options_init(NULL, sizeof options), "is NULL");
  STATUS_FAILS(linnet_text_nats(engine, "A", 1, NULL, NULL), "nats is NULL");
  STATUS_FAILS(linnet_text_nats(images, "A", 1, &nats, NULL), "no vocabulary");
  linnet_engine* characters = open_engine(CHARACTERS, 1);
  STATUS_FAILS(linnet_text_nats(characters, "\xff", 1, &nats, NULL), "UTF-8");
  STATUS_FAILS(linnet_write_text(characters, "\xff", 1, NULL, append, NULL, NULL), "UTF-8");
  linnet_engine_free(characters);
  linnet_engine_free(engine), linnet_engine_free(images);
}

/* The sum of -log p over tokens[first .. count - 1], from the outputs of all positions. */
static double expected_nats(linnet_engine* engine, const int32_t* tokens, size_t count,
                            size_t first) {
  float* outputs = floats(count * WIDTH);
  CHECK(linnet_whole_all(engine, tokens, 1, count - 1, outputs) == LINNET_OK);
  double nats = 0;
  for (size_t t = first; t < count; ++t) {
    const float* row = outputs + (t - 1) * WIDTH;
    double sum = 0;
    for (size_t i = 0; i < WIDTH; ++i) sum += exp((double)row[i]);
    nats += log(sum) - (double)row[tokens[t]];
  }
  free(outputs);
  return nats;
}

static void test_nats(void) {
  linnet_engine *engine = open_engine(TEXT, 1), *images = open_engine(IMAGES, 1);
  const int32_t tokens[5] = {LINNET_TOKEN_END, 3 + 'c', 3 + 'a', 3 + 't', 3 + 's'};
  const int32_t bad[2] = {0, WIDTH};
  double nats = 0, text = 0;
  size_t count = 0;
  CHECK_OK(linnet_nats(engine, tokens, 5, 3, &nats) == LINNET_OK);
  CHECK(fabs(nats - expected_nats(engine, tokens, 5, 3)) < 1e-3);
  CHECK_OK(linnet_nats(engine, tokens, 5, 1, &nats) == LINNET_OK);
  CHECK(fabs(nats - expected_nats(engine, tokens, 5, 1)) < 1e-3);
  CHECK_OK(linnet_text_nats(engine, "cats", 4, &text, &count) == LINNET_OK);
  CHECK(text == nats && count == 4);
  CHECK_OK(linnet_text_nats(engine, "", 0, &text, &count) == LINNET_OK);
  CHECK(text == 0 && count == 0);
  STATUS_FAILS(linnet_nats(engine, tokens, 5, 0, &nats), "index 1");
  STATUS_FAILS(linnet_nats(engine, bad, 2, 1, &nats), "token 259");
  STATUS_FAILS(linnet_nats(engine, NULL, 2, 1, &nats), "tokens is NULL");
  STATUS_FAILS(linnet_nats(engine, tokens, 5, 1, NULL), "nats is NULL");
  STATUS_FAILS(linnet_nats(images, tokens, 5, 1, &nats), "no probabilities");
  linnet_engine_free(engine), linnet_engine_free(images);
}

/* ---- Couplets -------------------------------------------------------------------------------- */

static void test_couplets(void) {
  const char* const first = "\xe6\xb5\xb7\xe4\xb8\x8a\xe6\x98\x8e\xe6\x9c\x88"; /* 海上明月 */
  linnet_model* model = open_model(COUPLET);
  linnet_engine* engine = linnet_engine_new(model, 0);
  linnet_couplet_options options;
  CHECK_OK(linnet_couplet_options_init(&options, sizeof options) == LINNET_OK);
  CHECK(options.size == sizeof options && options.candidates == 1 && options.beam == 16);
  CHECK(options.sampling == NULL && options.free_form == 0);
  options.candidates = 4;
  linnet_couplets* couplets = linnet_write_couplets(engine, first, strlen(first), &options);
  CHECK_OK(couplets != NULL);
  CHECK_OK(linnet_couplets_count(couplets) == 4);
  int32_t tokens[9];
  size_t count = 0;
  for (size_t i = 0; i < 4; ++i) {
    const char* text = linnet_couplets_text(couplets, i);
    CHECK_OK(text != NULL && strcmp(text, first) != 0);
    CHECK_OK(linnet_encode(model, text, strlen(text), tokens + 5, 4, &count) == LINNET_OK);
    CHECK(count == 4); /* as many characters as the first line */
    /* The log-probability is that of the characters after the first line and the separator. */
    CHECK_OK(linnet_encode(model, first, strlen(first), tokens, 4, &count) == LINNET_OK);
    tokens[4] = LINNET_TOKEN_SEPARATOR;
    double nats = 0;
    CHECK_OK(linnet_nats(engine, tokens, 9, 5, &nats) == LINNET_OK);
    const double p = linnet_couplets_log_probability(couplets, i);
    CHECK_OK(fabs(p + nats) < 0.05 * nats); /* in int8, steps and prefixes round differently */
    CHECK(i == 0 || p <= linnet_couplets_log_probability(couplets, i - 1));
    const double* scores = linnet_couplets_scores(couplets, i, &count);
    CHECK_OK(scores != NULL && count == 4);
    CHECK(fabs(scores[0] + scores[1] + scores[2] + scores[3] - p) < 1e-6 * fabs(p));
  }
  CHECK_OK(strcmp(linnet_couplets_unknown(couplets), "") == 0);
  CHECK_FAILS(linnet_couplets_scores(couplets, 4, &count) == NULL, LINNET_ERROR_INPUT, "no line 4");
  CHECK_FAILS(linnet_couplets_scores(couplets, 0, NULL) == NULL, LINNET_ERROR_INPUT,
              "count is NULL");
  CHECK_FAILS(linnet_couplets_unknown(NULL) == NULL, LINNET_ERROR_INPUT, "couplets is NULL");
  CHECK_FAILS(linnet_couplets_text(couplets, 4) == NULL, LINNET_ERROR_INPUT, "no line 4");
  CHECK_FAILS(linnet_couplets_log_probability(couplets, 4) == 0, LINNET_ERROR_INPUT, "no line 4");
  linnet_couplets_free(couplets);
  linnet_couplets_free(NULL);

  /* The defaults give one line; drawn lines depend on the seed. */
  couplets = linnet_write_couplets(engine, first, strlen(first), NULL);
  CHECK_OK(linnet_couplets_count(couplets) == 1);
  linnet_couplets_free(couplets);
  couplets = linnet_write_couplets(engine, "QXQ", 3, NULL);
  CHECK_OK(strcmp(linnet_couplets_unknown(couplets), "Q X") == 0);
  linnet_couplets_free(couplets);
  linnet_sampling sampling;
  linnet_sampling_init(&sampling, sizeof sampling);
  options.candidates = 1, options.beam = 0, options.sampling = &sampling;
  char lines[2][64];
  for (int i = 0; i < 2; ++i) {
    sampling.seed = (uint64_t)i;
    couplets = linnet_write_couplets(engine, first, strlen(first), &options);
    CHECK_OK(linnet_couplets_count(couplets) == 1);
    snprintf(lines[i], sizeof lines[i], "%s", linnet_couplets_text(couplets, 0));
    linnet_couplets_free(couplets);
  }
  CHECK(strcmp(lines[0], lines[1]) != 0);
  options.free_form = 1;
  couplets = linnet_write_couplets(engine, first, strlen(first), &options);
  CHECK_OK(linnet_couplets_count(couplets) == 1);
  linnet_couplets_free(couplets);
  linnet_engine_free(engine), linnet_model_free(model);
}

static void test_couplet_errors(void) {
  linnet_engine* engine = open_engine("tests/checkpoints/couplet-causal-linear.safetensors", 1);
  linnet_engine* text = open_engine(TEXT, 1);
  linnet_couplet_options options;
  linnet_couplet_options_init(&options, sizeof options);
  CHECK_FAILS(linnet_write_couplets(NULL, "a", 1, NULL) == NULL, LINNET_ERROR_INPUT, "engine");
  CHECK_FAILS(linnet_write_couplets(engine, NULL, 1, NULL) == NULL, LINNET_ERROR_INPUT, "NULL");
  CHECK_FAILS(linnet_write_couplets(engine, "", 0, NULL) == NULL, LINNET_ERROR_INPUT, "empty");
  CHECK_FAILS(linnet_write_couplets(engine, "\xff", 1, NULL) == NULL, LINNET_ERROR_INPUT, "UTF-8");
  CHECK_FAILS(linnet_write_couplets(text, "a", 1, NULL) == NULL, LINNET_ERROR_INPUT, "'couplet'");
  options.candidates = 0;
  CHECK_FAILS(linnet_write_couplets(engine, "a", 1, &options) == NULL, LINNET_ERROR_INPUT,
              "candidates");
  options.size = 1;
  CHECK_FAILS(linnet_write_couplets(engine, "a", 1, &options) == NULL, LINNET_ERROR_INPUT, "_init");
  STATUS_FAILS(linnet_couplet_options_init(NULL, sizeof options), "is NULL");
  CHECK_FAILS(linnet_couplets_count(NULL) == 0, LINNET_ERROR_INPUT, "couplets is NULL");
  CHECK_FAILS(linnet_couplets_text(NULL, 0) == NULL, LINNET_ERROR_INPUT, "couplets is NULL");
  linnet_engine_free(engine), linnet_engine_free(text);
}

static void test_byte_pairs(void) {
  linnet_model* pairs = open_model("tests/golden/tokenizer/language_model.safetensors");
  linnet_model* bytes = open_model("tests/checkpoints/text-byte.safetensors");
  int32_t tokens[8];
  char text[16];
  size_t count = 0, size = 0;
  CHECK_OK(strcmp(linnet_model_unit(pairs), "token") == 0 && linnet_model_end(pairs) == 458);
  CHECK_OK(linnet_encode_prompt(pairs, "the", 3, tokens, 8, &count) == LINNET_OK);
  CHECK(count > 1 && tokens[0] == 457);
  CHECK_OK(linnet_decode(pairs, tokens, count, text, sizeof text, &size) == LINNET_OK);
  CHECK(strcmp(text, "the") == 0);
  CHECK_OK(linnet_token_text(pairs, tokens[1], text, sizeof text, &size) == LINNET_OK && size > 0);
  CHECK_OK(linnet_token_text(pairs, 457, text, sizeof text, &size) == LINNET_OK && size == 0);
  CHECK_OK(linnet_token_text(bytes, 3 + 'a', text, 2, &size) == LINNET_OK);
  CHECK(strcmp(text, "a") == 0 && size == 1);
  CHECK_FAILS(linnet_token_text(bytes, 3 + 'a', text, 1, &size) == LINNET_ERROR_INPUT,
              LINNET_ERROR_INPUT, "room for 2");
  CHECK_FAILS(linnet_encode(pairs, "a\xff", 2, tokens, 8, &count) == LINNET_ERROR_INPUT,
              LINNET_ERROR_INPUT, "UTF-8");
  linnet_model_free(pairs), linnet_model_free(bytes);
}

int main(void) {
  test_image_options();
  test_sampling_images();
  test_completing_images();
  test_bits_per_dim();
  test_drawing_bytes();
  test_image_errors();
  test_writing();
  test_byte_pairs();
  test_grammar();
  test_reader_stops();
  test_text_errors();
  test_nats();
  test_couplets();
  test_couplet_errors();
  return 0;
}
