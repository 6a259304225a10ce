/* Runs linnet's models from C, and from any language that calls C. docs/c.md describes every
 * function with examples.
 *
 *   #include <linnet/linnet.h>               find_package(linnet); link linnet::linnet
 *   #include <stdio.h>
 *   #include <stdlib.h>
 *
 *   int main(void) {
 *     linnet_model* model = linnet_model_open("models/digits.safetensors", NULL);
 *     linnet_engine* engine = linnet_engine_new(model, 0);
 *     linnet_state* state = linnet_state_new(engine, 1);
 *     float* outputs = malloc(linnet_model_outputs(model) * sizeof *outputs);
 *     const int32_t token = 0;
 *     if (linnet_step(engine, state, &token, outputs) != LINNET_OK) puts(linnet_last_error());
 *     free(outputs);
 *     linnet_state_free(state);
 *     linnet_engine_free(engine);
 *     linnet_model_free(model);
 *   }
 *
 * Errors. Functions that return an int return a linnet_status, unless their comment describes the
 * int: LINNET_OK, which is 0, or the kind of failure. On failure, functions that return a pointer
 * return NULL, and functions that return another value return 0 (linnet_model_end(): -1). After any
 * failure, linnet_last_status() and linnet_last_error() give the kind and the reason. An argument
 * that is NULL without a documented meaning is LINNET_ERROR_INPUT. No function prints, exits or
 * throws. A failed call leaves states unchanged unless memory runs out; its output arrays are
 * unspecified.
 *
 * Ownership. The caller frees each object that a function returns, with the ..._free() of its type,
 * which accepts NULL. Exception: the result of linnet_transcriber_transcript() belongs to its
 * transcriber. Objects may be freed in any order: engines and transcribers keep their model alive.
 * A returned string belongs to the object that was passed to the function, and is valid until that
 * object is freed.
 *
 * Threads. Any number of threads, and engines, may use one model at once. An engine, a state or a
 * transcriber is for one thread at a time. A state belongs to a model in one precision, and works
 * with every engine of that model.
 *
 * Arrays are row-major. Brackets give their shapes, in which "outputs" and "inputs" are the numbers
 * linnet_model_outputs() and linnet_model_inputs().
 *
 * Text is UTF-8. Text arguments have a size in bytes, since a text may contain NUL; paths and names
 * end with NUL.
 *
 * ABI. Structs begin with their size, set by their ..._init() function. New fields are added at the
 * end; zero in a new field selects the behavior of older versions. Enums grow at the end. Until
 * version 1.0 the library's soname changes with each minor version. */
#ifndef LINNET_LINNET_H_
#define LINNET_LINNET_H_

#include <stddef.h>
#include <stdint.h>

#include "linnet/export.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A trained model. Immutable. */
typedef struct linnet_model linnet_model;
/* Runs one model: its threads and working memory. */
typedef struct linnet_engine linnet_engine;
/* The recurrent state of some sequences. */
typedef struct linnet_state linnet_state;
/* Second lines of a couplet. */
typedef struct linnet_couplets linnet_couplets;
/* Phones recognized in audio. */
typedef struct linnet_transcript linnet_transcript;
/* Recognizes phones in audio as it arrives. */
typedef struct linnet_transcriber linnet_transcriber;

/* ---- Version and errors ---------------------------------------------------------------------- */

typedef enum linnet_status {
  LINNET_OK = 0,
  LINNET_ERROR_INPUT = 1,    /* a bad argument, file or setting: the caller can correct it */
  LINNET_ERROR_RUNTIME = 2,  /* a failure during work: a full disk, a NaN in a result */
  LINNET_ERROR_MEMORY = 3,   /* out of memory */
  LINNET_ERROR_INTERNAL = 4, /* a defect of linnet */
  LINNET_CANCELLED = 5       /* the caller's linnet_progress function returned nonzero */
} linnet_status;

/* The library's version, "0.2.0". Never fails. */
LINNET_API const char* linnet_version(void);
/* The status of this thread's last call, except calls of linnet_version(), linnet_last_...() and
 * ..._free(). LINNET_OK before the first call. */
LINNET_API int linnet_last_status(void);
/* One line that describes the failure of the call whose status linnet_last_status() returns, or ""
 * if that call succeeded. Valid until this thread's next call. */
LINNET_API const char* linnet_last_error(void);

/* ---- Models ---------------------------------------------------------------------------------- */

/* The kind of state that a model keeps for a sequence. */
typedef enum linnet_state_kind {
  LINNET_STATE_NONE = 0,     /* none: the model reads whole sequences only */
  LINNET_STATE_CONSTANT = 1, /* one size at any length */
  LINNET_STATE_CACHE = 2,    /* keys and values of every position */
  LINNET_STATE_TOKENS = 3    /* all tokens, which are read again at each step */
} linnet_state_kind;

/* Opens a model file, or the folder of a training run. precision of the matrix products: "f32",
 * "bf16", "int8", or NULL for the file's own. LINNET_ERROR_INPUT: no such file, not a model, an
 * unknown precision. */
LINNET_API linnet_model* linnet_model_open(const char* path, const char* precision);
/* The same for a model file in memory, which may be freed after the call. label: the name of the
 * model in messages and in linnet_model_path(); NULL for "memory". */
LINNET_API linnet_model* linnet_model_open_memory(const void* bytes, size_t size, const char* label,
                                                  const char* precision);
LINNET_API void linnet_model_free(linnet_model* model);

/* The path or label that the model was opened with; for a folder, the path of the model file in
 * it. */
LINNET_API const char* linnet_model_path(const linnet_model* model);
/* "images", "text", "couplet", "speech", "copy", or another registered task. */
LINNET_API const char* linnet_model_task(const linnet_model* model);
/* "f32", "bf16" or "int8". */
LINNET_API const char* linnet_model_precision(const linnet_model* model);
/* The description of the model: one JSON object. */
LINNET_API const char* linnet_model_spec(const linnet_model* model);
/* The record of the training: JSON, or "" if the file has none. */
LINNET_API const char* linnet_model_training(const linnet_model* model);
/* The number of trained parameters. */
LINNET_API uint64_t linnet_model_parameters(const linnet_model* model);
/* Bytes of the packed weights, without embedding tables. */
LINNET_API size_t linnet_model_weight_bytes(const linnet_model* model);

/* The size n of the vocabulary: tokens are 0 .. n - 1. 0 for models that read frames. */
LINNET_API int32_t linnet_model_vocabulary(const linnet_model* model);
/* Floats per position that a model of frames reads; 0 for models that read tokens. */
LINNET_API size_t linnet_model_inputs(const linnet_model* model);
/* Floats that the model returns per position. Image models with the head "logistics" return the
 * logits, means and log-scales of a mixture of logistics (and coefficients, if they read whole
 * pixels); all other models return logits of the bytes, tokens or phones. */
LINNET_API size_t linnet_model_outputs(const linnet_model* model);
/* Maximum length of the training sequences. */
LINNET_API size_t linnet_model_positions(const linnet_model* model);
/* 1 if sequences longer than linnet_model_positions() are an error, 0 if the model continues beyond
 * them. */
LINNET_API int linnet_model_limited(const linnet_model* model);
/* A linnet_state_kind. */
LINNET_API int linnet_model_state_kind(const linnet_model* model);
/* Bytes of the state of one sequence that has read nothing. States of kind LINNET_STATE_CACHE or
 * LINNET_STATE_TOKENS grow once the sequence exceeds linnet_model_positions(); the others never
 * grow. 0 for LINNET_STATE_NONE. */
LINNET_API size_t linnet_model_state_bytes(const linnet_model* model);

/* The image size of an image model; 0 for other models. An image has height x width x channels
 * bytes, in this order; linnet_model_image_bytes() is their number. */
LINNET_API size_t linnet_model_image_width(const linnet_model* model);
LINNET_API size_t linnet_model_image_height(const linnet_model* model);
LINNET_API size_t linnet_model_image_channels(const linnet_model* model);
LINNET_API size_t linnet_model_image_bytes(const linnet_model* model);

/* Samples per second of a speech model's audio; 0 for other models. */
LINNET_API int32_t linnet_model_sample_rate(const linnet_model* model);
/* The phones of a speech model, separated by a space; "" for other models. Output 0 is the blank,
 * output 1 the first phone. */
LINNET_API const char* linnet_model_phones(const linnet_model* model);

/* ---- Engines --------------------------------------------------------------------------------- */

/* threads: 1 to 1024, or 0 for one per processor available to this process. */
LINNET_API linnet_engine* linnet_engine_new(const linnet_model* model, int threads);
LINNET_API void linnet_engine_free(linnet_engine* engine);
/* The number of the engine's threads. */
LINNET_API int linnet_engine_threads(const linnet_engine* engine);

/* ---- States ---------------------------------------------------------------------------------- */

/* A state for `batch` sequences at position 0. LINNET_ERROR_INPUT: batch is 0, the state exceeds
 * this machine's memory, or the model has LINNET_STATE_NONE. */
LINNET_API linnet_state* linnet_state_new(const linnet_engine* engine, size_t batch);
LINNET_API void linnet_state_free(linnet_state* state);
LINNET_API linnet_state* linnet_state_clone(const linnet_state* state);
/* A state with `copies` >= 1 copies of each sequence side by side (two copies: 0 0 1 1 ...), for
 * several continuations of one prefix. */
LINNET_API linnet_state* linnet_state_fork(const linnet_state* state, size_t copies);
/* A state with sequences[0], .., sequences[count - 1] of `state`, in this order. count: at least 1.
 * A sequence may be listed more than once. */
LINNET_API linnet_state* linnet_state_select(const linnet_state* state, const size_t* sequences,
                                             size_t count);
/* Appends copies of the sequences of `other`, a state of the same model. */
LINNET_API int linnet_state_append(linnet_state* state, const linnet_state* other);
/* Replaces a sequence by the one sequence of `other`, a state of the same model. */
LINNET_API int linnet_state_assign(linnet_state* state, size_t sequence, const linnet_state* other);
/* Returns all sequences, or one, to position 0. */
LINNET_API int linnet_state_reset(linnet_state* state);
LINNET_API int linnet_state_reset_sequence(linnet_state* state, size_t sequence);

/* The number of sequences. */
LINNET_API size_t linnet_state_batch(const linnet_state* state);
/* The number of tokens or frames that a sequence has read. 0 and LINNET_ERROR_INPUT if there is no
 * such sequence. */
LINNET_API size_t linnet_state_position(const linnet_state* state, size_t sequence);
/* Bytes of memory of all sequences. */
LINNET_API size_t linnet_state_bytes(const linnet_state* state);

/* linnet_state_save() writes a state to a file, atomically; linnet_state_load() reads one. A loaded
 * state continues bit for bit like the saved one. LINNET_ERROR_INPUT: not a state, damaged, or of
 * another model or precision than the engine's. */
LINNET_API int linnet_state_save(const linnet_state* state, const linnet_engine* engine,
                                 const char* path);
LINNET_API linnet_state* linnet_state_load(const linnet_engine* engine, const char* path);
/* The same in memory. Saving sets *size to the file's size in bytes. bytes: room for `capacity`
 * bytes, or NULL to ask for the size only. LINNET_ERROR_INPUT: the capacity is below the size;
 * *size is then set, but no bytes are written. */
LINNET_API int linnet_state_save_memory(const linnet_state* state, const linnet_engine* engine,
                                        void* bytes, size_t capacity, size_t* size);
LINNET_API linnet_state* linnet_state_load_memory(const linnet_engine* engine, const void* bytes,
                                                  size_t size);

/* ---- Reading tokens and frames --------------------------------------------------------------- */

/* The results of a sequence do not depend on the other sequences of a call or on the number of
 * threads, bit for bit. LINNET_ERROR_INPUT, in all functions of this section: a token outside the
 * vocabulary, a position past the last one of a limited model, a state of another model, a batch,
 * length or count of 0, tokens for a model that reads frames, or frames for a model that reads
 * tokens. */

/* Reads one token per sequence: tokens [batch], outputs [batch, outputs]. */
LINNET_API int linnet_step(linnet_engine* engine, linnet_state* state, const int32_t* tokens,
                           float* outputs);
/* The same for `count` distinct sequences of the state: tokens [count], outputs [count, outputs],
 * both in the order of `sequences`. The state's other sequences are unchanged. */
LINNET_API int linnet_step_sequences(linnet_engine* engine, linnet_state* state,
                                     const size_t* sequences, size_t count, const int32_t* tokens,
                                     float* outputs);
/* Reads `length` tokens per sequence at once: tokens [batch, length]. outputs: receives the outputs
 * of each sequence's last position, [batch, outputs]; or NULL. */
LINNET_API int linnet_prefix(linnet_engine* engine, linnet_state* state, const int32_t* tokens,
                             size_t length, float* outputs);
/* The same, with the outputs of every position: [batch, length, outputs]. */
LINNET_API int linnet_prefix_all(linnet_engine* engine, linnet_state* state, const int32_t* tokens,
                                 size_t length, float* outputs);
/* Reads prefixes of different lengths: sequence sequences[i] reads the next lengths[i] elements of
 * `tokens`, an array as long as the sum of the lengths. outputs: receives the outputs of each
 * sequence's last position, [count, outputs]; or NULL. */
LINNET_API int linnet_prefix_sequences(linnet_engine* engine, linnet_state* state,
                                       const size_t* sequences, const size_t* lengths, size_t count,
                                       const int32_t* tokens, float* outputs);
/* Read whole sequences without a state, with any model of tokens: tokens [batch, length].
 * linnet_whole() returns outputs [batch, outputs] of the last position, linnet_whole_all()
 * [batch, length, outputs] of all positions. */
LINNET_API int linnet_whole(linnet_engine* engine, const int32_t* tokens, size_t batch,
                            size_t length, float* outputs);
LINNET_API int linnet_whole_all(linnet_engine* engine, const int32_t* tokens, size_t batch,
                                size_t length, float* outputs);

/* linnet_prefix_all() and linnet_whole_all() for models that read frames: frames [batch, length,
 * inputs], outputs [batch, length, outputs], which are logits. linnet_transcribe() and
 * linnet_transcriber_accept() make frames from audio. */
LINNET_API int linnet_prefix_frames(linnet_engine* engine, linnet_state* state, const float* frames,
                                    size_t length, float* outputs);
LINNET_API int linnet_whole_frames(linnet_engine* engine, const float* frames, size_t batch,
                                   size_t length, float* outputs);

/* ---- Choosing tokens ------------------------------------------------------------------------- */

typedef struct linnet_sampling {
  size_t size;       /* of this struct, in bytes */
  float temperature; /* 0 .. 1e6, default 1; 0: the most likely token */
  float top_p;       /* in (0, 1]; only the smallest set of most likely tokens whose probabilities
                        sum to at least top_p; default 1: all */
  size_t top_k;      /* only the k most likely tokens; default 0: all */
  uint64_t seed;     /* default 0. The draws are a function of seed and stream. */
  uint64_t stream;   /* default 0. Streams of one seed are independent. Couplets ignore it. */
} linnet_sampling;

/* Sets the defaults. size: sizeof(linnet_sampling). */
LINNET_API int linnet_sampling_init(linnet_sampling* sampling, size_t size);

/* Draws a token from logits [count] with random numbers `draw` of the sampling's stream: 0 for the
 * first token, then 1, and so on. Never chooses a token with a logit of -infinity. sampling: NULL
 * for the defaults. LINNET_ERROR_INPUT: an option out of range, all logits -infinity, or a logit
 * that is NaN or +infinity (not checked if the most likely token is taken without drawing). */
LINNET_API int linnet_choose(const float* logits, size_t count, const linnet_sampling* sampling,
                             uint64_t draw, int32_t* token);

/* ---- Vocabularies ---------------------------------------------------------------------------- */

/* The unit of a text model's tokens: "byte", "character", or "token" for a byte-pair vocabulary,
 * which came from a tokenizer.json. "" for models without text. */
LINNET_API const char* linnet_model_unit(const linnet_model* model);
/* The token that ends a text; -1 for models without text. */
LINNET_API int32_t linnet_model_end(const linnet_model* model);

/* Special tokens of byte and character vocabularies. */
enum {
  LINNET_TOKEN_END = 0,       /* begins and ends a text */
  LINNET_TOKEN_SEPARATOR = 1, /* separates the parts of a text */
  LINNET_TOKEN_UNKNOWN = 2    /* a character outside the vocabulary */
};

/* Encodes text as tokens, without the tokens that begin a text. Sets *count to their number.
 * tokens: room for `capacity` tokens, or NULL to ask for the number only. LINNET_ERROR_INPUT: a
 * model without a vocabulary of text (tasks other than text and couplet), text that is not UTF-8
 * (unless the vocabulary is of bytes), or a capacity below the number of tokens; *count is then
 * set, but no token is written. */
LINNET_API int linnet_encode(const linnet_model* model, const char* text, size_t bytes,
                             int32_t* tokens, size_t capacity, size_t* count);
/* The same, but first adds the tokens that the model reads before a text (at least one). */
LINNET_API int linnet_encode_prompt(const linnet_model* model, const char* text, size_t bytes,
                                    int32_t* tokens, size_t capacity, size_t* count);
/* Decodes tokens as text. Sets *bytes to its size without the final NUL. text: room for `capacity`
 * bytes, at least *bytes + 1, or NULL to ask for the size only. LINNET_TOKEN_UNKNOWN decodes to
 * U+FFFD. Other special tokens, and numbers outside the vocabulary, are skipped. Tokens of bytes
 * may decode to text that is not UTF-8. Errors as for linnet_encode(). */
LINNET_API int linnet_decode(const linnet_model* model, const int32_t* tokens, size_t count,
                             char* text, size_t capacity, size_t* bytes);
/* The same for one token that is not at the beginning of a text. (At the beginning, byte-pair
 * vocabularies may drop a space.) */
LINNET_API int linnet_token_text(const linnet_model* model, int32_t token, char* text,
                                 size_t capacity, size_t* bytes);

/* ---- Images ---------------------------------------------------------------------------------- */

/* Receives `done`, the number of finished images, `total`, the number of all images, and `data`,
 * the options' progress_data. Returns 0 to continue; otherwise the call that reports the progress
 * ends with LINNET_CANCELLED. It must not throw, or use the engine. */
typedef int (*linnet_progress)(void* data, size_t done, size_t total);

typedef struct linnet_image_options {
  size_t size;              /* of this struct, in bytes */
  uint64_t seed;            /* default 0 */
  uint64_t first_stream;    /* image i draws from stream first_stream + i of the seed, whatever the
                            batch; default 0 */
  float temperature;        /* above 0; 1, the default: the predicted distribution; near 0: the
                            likeliest byte, or the mean of a mixture's likeliest component */
  int reference_scale;      /* 1: a logistic with log-scale s has the scale elu(s) + 1.0001, as in
                            fast-transformers, in place of exp(s); default 0. Not for categorical
                            heads: LINNET_ERROR_INPUT */
  size_t batch;             /* images generated together, at least 1; default 64 */
  linnet_progress progress; /* called after each batch; default NULL */
  void* progress_data;
} linnet_image_options;

/* Sets the defaults. size: sizeof(linnet_image_options). */
LINNET_API int linnet_image_options_init(linnet_image_options* options, size_t size);

/* Draws `count` new images into pixels [count, image bytes]. options: NULL for the defaults.
 * LINNET_ERROR_INPUT: not an image model, or an option out of range. */
LINNET_API int linnet_sample_images(linnet_engine* engine, size_t count,
                                    const linnet_image_options* options, uint8_t* pixels);
/* Keeps the first `known` bytes, at least 1, of each image and draws the rest. count: at least 1.
 * (For models that read whole pixels, known is a multiple of 3.)
 * images and pixels: [count, image bytes]; they may be the same array. */
LINNET_API int linnet_complete_images(linnet_engine* engine, const uint8_t* images, size_t count,
                                      size_t known, const linnet_image_options* options,
                                      uint8_t* pixels);
/* For programs that show an image while it is drawn. Draws byte `position` of image `image`, from
 * the outputs of linnet_step() for the byte before it; at position 0, outputs is NULL. From the
 * same outputs, linnet_sample_images() draws the same byte. The options batch and progress have no
 * effect. LINNET_ERROR_INPUT: not an image model or one that reads whole pixels, a position outside
 * the image, or an option out of range. */
LINNET_API int linnet_draw_byte(const linnet_model* model, const float* outputs, size_t image,
                                size_t position, const linnet_image_options* options,
                                uint8_t* byte);
/* Some models of color images read whole pixels: linnet_model_vocabulary() is
 * LINNET_BEGIN_PIXEL + 1. Their tokens are red << 16 | green << 8 | blue, and an image begins with
 * LINNET_BEGIN_PIXEL. */
#define LINNET_BEGIN_PIXEL 16777216
/* Like linnet_draw_byte(), for such a model: draws the three colors of pixel `pixel`, rgb [3], from
 * the outputs for the token before it. */
LINNET_API int linnet_draw_pixel(const linnet_model* model, const float* outputs, size_t image,
                                 size_t pixel, const linnet_image_options* options, uint8_t* rgb);
/* -log p of the colors rgb [3] of a pixel, in nats, given the pixels before it. */
LINNET_API int linnet_pixel_nats(const linnet_model* model, const float* outputs,
                                 const uint8_t* rgb, double* nats);
/* -log p of a byte, in nats, where p is its probability given the bytes before it. Arguments and
 * errors as for linnet_draw_byte(). */
LINNET_API int linnet_byte_nats(const linnet_model* model, const float* outputs, uint8_t byte,
                                size_t position, double* nats);
/* Bits per byte of `count` >= 1 images: the mean of -log2 p over all bytes of an image except the
 * first, with p the probability of a byte given all bytes before it. (A model that reads whole
 * pixels predicts the first byte too, which then counts.) *mean: the mean over all images. each
 * [count]: receives the value of every image; or NULL. Of the options, only batch and progress have
 * an effect. */
LINNET_API int linnet_bits_per_dim(linnet_engine* engine, const uint8_t* images, size_t count,
                                   const linnet_image_options* options, double* mean, double* each);

/* ---- Text ------------------------------------------------------------------------------------ */

/* The reason why a text ended. */
typedef enum linnet_text_end {
  LINNET_TEXT_TOKENS = 0,    /* the maximum number of tokens is written */
  LINNET_TEXT_STOP = 1,      /* a stop string came; the text ends before it */
  LINNET_TEXT_END_TOKEN = 2, /* the model ended the text */
  LINNET_TEXT_POSITIONS = 3, /* a limited model has no position left */
  LINNET_TEXT_READER = 4,    /* the caller's linnet_reader function returned nonzero */
  LINNET_TEXT_GRAMMAR = 5    /* nothing can follow in linnet_text_options.grammar */
} linnet_text_end;

/* Receives a piece of text: whole characters in valid UTF-8, without a final NUL. The pointer is
 * valid only during the call. Returns 0 to continue; otherwise the text ends. It must not throw or
 * use the engine. */
typedef int (*linnet_reader)(void* data, const char* text, size_t bytes);

/* A set of texts, such as the JSON of a schema, that restricts generated text. Immutable; several
 * threads may use it at the same time. docs/structured-output.md describes the notation. */
typedef struct linnet_grammar linnet_grammar;

/* A grammar in GBNF notation. NULL if it is invalid. */
LINNET_API linnet_grammar* linnet_grammar_new(const char* text, size_t bytes);
/* The JSON values that a JSON schema accepts. NULL if the schema is invalid or has a keyword that
 * is not supported. */
LINNET_API linnet_grammar* linnet_grammar_of_json_schema(const char* schema, size_t bytes);
/* Its matchers remain valid. */
LINNET_API void linnet_grammar_free(linnet_grammar* grammar);

/* The position of a text within a grammar, for programs that draw tokens themselves. */
typedef struct linnet_matcher linnet_matcher;

/* A matcher at the beginning of a text of this model's tokens. NULL if they are not text. */
LINNET_API linnet_matcher* linnet_matcher_new(const linnet_grammar* grammar,
                                              const linnet_model* model);
LINNET_API void linnet_matcher_free(linnet_matcher* matcher);
/* Sets the logits [count] of tokens that cannot follow to -infinity. The end token can follow if
 * the text is complete. LINNET_ERROR_INPUT: fewer logits than tokens, or no token can follow. */
LINNET_API int linnet_matcher_mask(linnet_matcher* matcher, float* logits, size_t count);
/* Adds a token to the text. finished: receives 1 if nothing can follow, else 0; or NULL.
 * LINNET_ERROR_INPUT: the token cannot follow. */
LINNET_API int linnet_matcher_add(linnet_matcher* matcher, int32_t token, int* finished);

typedef struct linnet_text_options {
  size_t size;                     /* of this struct, in bytes */
  size_t tokens;                   /* maximum number of tokens; default 256 */
  const linnet_sampling* sampling; /* default NULL: the defaults of linnet_sampling */
  const char* const* stop;         /* strings that end the text [stop_count]; default NULL */
  size_t stop_count;               /* default 0 */
  const linnet_grammar* grammar;   /* the text follows this grammar; default NULL: any text */
} linnet_text_options;

/* Sets the defaults. size: sizeof(linnet_text_options). */
LINNET_API int linnet_text_options_init(linnet_text_options* options, size_t size);

/* Continues a prompt (0 bytes: begins a new text) and passes the new text to `reader` in pieces.
 * options: NULL for the defaults. end: receives a linnet_text_end, or NULL. LINNET_ERROR_INPUT: not
 * a model of text, a prompt that is not UTF-8 (unless the vocabulary is of bytes), a prompt that is
 * too long for a limited model, or an option out of range. */
LINNET_API int linnet_write_text(linnet_engine* engine, const char* prompt, size_t bytes,
                                 const linnet_text_options* options, linnet_reader reader,
                                 void* data, int* end);
/* The sum of -log p, in nats, over a text's tokens, where p is a token's probability given all
 * tokens before it, including the tokens that begin a text. tokens: receives the number of the
 * text's tokens; or NULL. Errors as for linnet_write_text(). */
LINNET_API int linnet_text_nats(linnet_engine* engine, const char* text, size_t bytes, double* nats,
                                size_t* tokens);
/* The same for tokens [count] of any model with a categorical head: the sum over the tokens from
 * index `first` >= 1 on. */
LINNET_API int linnet_nats(linnet_engine* engine, const int32_t* tokens, size_t count, size_t first,
                           double* nats);

/* ---- Couplets -------------------------------------------------------------------------------- */

typedef struct linnet_couplet_options {
  size_t size;                     /* of this struct, in bytes */
  size_t candidates;               /* maximum number of second lines, at least 1; default 1 */
  size_t beam;                     /* width of the beam search, and the maximum number of lines that
                                      it finds; 0: each line is drawn with `sampling`; default 16 */
  const linnet_sampling* sampling; /* default NULL: the defaults of linnet_sampling */
  int free_form;                   /* 1: lines are drawn without the rules of couplets, whatever
                                      `beam` is; default 0 */
} linnet_couplet_options;

/* Sets the defaults. size: sizeof(linnet_couplet_options). */
LINNET_API int linnet_couplet_options_init(linnet_couplet_options* options, size_t size);

/* Writes second lines for a first line. Blanks are ignored. The vocabulary may lack a character:
 * then a punctuation mark is read as a comma, a traditional character as its simplified form if the
 * vocabulary has that form, and any other character as unknown. options: NULL for the defaults.
 * LINNET_ERROR_INPUT: not a model of couplets; a line that is empty, is not UTF-8, has control
 * characters or is too long for the model; or an option out of range. */
LINNET_API linnet_couplets* linnet_write_couplets(linnet_engine* engine, const char* first,
                                                  size_t bytes,
                                                  const linnet_couplet_options* options);
LINNET_API void linnet_couplets_free(linnet_couplets* couplets);
/* The number of distinct lines, possibly fewer than requested. Line 0 is the most likely. */
LINNET_API size_t linnet_couplets_count(const linnet_couplets* couplets);
/* Line `i`. */
LINNET_API const char* linnet_couplets_text(const linnet_couplets* couplets, size_t i);
/* The sum of log p, in nats, over line i's characters. Each p is the model's own probability, not
 * renormalized over the characters that the rules allow. */
LINNET_API double linnet_couplets_log_probability(const linnet_couplets* couplets, size_t i);
/* log p of each character of line `i`, 0 for copied punctuation. Sets *count to their number. They
 * are the terms of that sum, except that a line in free form also counts the end token. */
LINNET_API const double* linnet_couplets_scores(const linnet_couplets* couplets, size_t i,
                                                size_t* count);
/* The characters of the first line that the model read as unknown, separated by a space. */
LINNET_API const char* linnet_couplets_unknown(const linnet_couplets* couplets);

/* ---- Speech ---------------------------------------------------------------------------------- */

/* Audio is one channel of floats in -1 .. 1 at linnet_model_sample_rate(). */

/* Transcribes a whole recording with as many threads as the engine has. beam: 1 for the most likely
 * path, more for a prefix beam search of that width. LINNET_ERROR_INPUT: not a speech model, audio
 * shorter than a frame (25 ms), a sample that is not finite or above 1e6 in magnitude, or a beam of
 * 0. */
LINNET_API linnet_transcript* linnet_transcribe(linnet_engine* engine, const float* samples,
                                                size_t count, size_t beam);
LINNET_API void linnet_transcript_free(linnet_transcript* transcript);
/* The number of phones. */
LINNET_API size_t linnet_transcript_count(const linnet_transcript* transcript);
/* The name of phone `i`, the start of its first frame in seconds, and its probability in that
 * frame. */
LINNET_API const char* linnet_transcript_phone(const linnet_transcript* transcript, size_t i);
LINNET_API double linnet_transcript_start(const linnet_transcript* transcript, size_t i);
LINNET_API double linnet_transcript_probability(const linnet_transcript* transcript, size_t i);
/* The length of the audio in seconds. */
LINNET_API double linnet_transcript_seconds(const linnet_transcript* transcript);

/* Computes what the model hears of audio: the log energies [frames, bands] in the bands of its mel
 * filterbank, a frame of 25 ms every 10 ms, in nats. linnet_model_spec() has the number of bands.
 * Sets *written to the number of floats. frames: room for `capacity` floats, or NULL to ask for
 * their number only. LINNET_ERROR_INPUT: not a speech model, a sample that is not finite or above
 * 1e6 in magnitude, or too little room. */
LINNET_API int linnet_speech_frames(const linnet_model* model, const float* samples, size_t count,
                                    float* frames, size_t capacity, size_t* written);

/* Makes a transcriber for a stream. It works on the caller's thread. Its memory is constant except
 * for the list of phones. LINNET_ERROR_INPUT: not a speech model, a model that is not causal, or
 * one that normalizes each utterance by its own statistics. */
LINNET_API linnet_transcriber* linnet_transcriber_new(const linnet_engine* engine);
LINNET_API void linnet_transcriber_free(linnet_transcriber* transcriber);
/* Takes the next samples, in any number. Phones are recognized as soon as the model detects them.
 * LINNET_ERROR_INPUT: a sample that is not finite or above 1e6 in magnitude, or a transcriber that
 * is finished. */
LINNET_API int linnet_transcriber_accept(linnet_transcriber* transcriber, const float* samples,
                                         size_t count);
/* Ends the audio, and recognizes the remaining phones. Once per transcriber. */
LINNET_API int linnet_transcriber_finish(linnet_transcriber* transcriber);
/* The phones recognized so far. Belongs to the transcriber, which adds to it: do not free it. */
LINNET_API const linnet_transcript* linnet_transcriber_transcript(
    const linnet_transcriber* transcriber);
/* Delay from the beginning of a phone to its recognition, in seconds of audio. The actual delay may
 * be longer, by at most a stride of the model plus the length of the piece passed to
 * linnet_transcriber_accept(). */
LINNET_API double linnet_transcriber_delay(const linnet_transcriber* transcriber);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* LINNET_LINNET_H_ */
