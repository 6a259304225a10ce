/* Runs linnet's models from C, and from any language that calls C.
 *
 *   #include <linnet/linnet.h>               find_package(linnet); link linnet::shared
 *
 *   linnet_model* model = linnet_model_open("digits.safetensors", NULL);
 *   linnet_engine* engine = linnet_engine_new(model, 0);
 *   linnet_state* state = linnet_state_new(engine, 1);
 *   if (linnet_step(engine, state, &token, outputs) != 0) puts(linnet_last_error());
 *
 * Functions that return a pointer return NULL on failure; functions that return an int return 0 on
 * success. After a failure linnet_last_error() gives the reason in one line. No function prints,
 * exits or throws. Every ..._free() accepts NULL. Engines in several threads may share a model; an
 * engine or a state may be used by one thread at a time. An engine keeps its model alive. A state
 * may outlive its model, but only engines of that model accept it. */
#ifndef LINNET_EMBED_LINNET_H_
#define LINNET_EMBED_LINNET_H_

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define LINNET_API __attribute__((visibility("default")))
#else
#define LINNET_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct linnet_model linnet_model;
typedef struct linnet_engine linnet_engine;
typedef struct linnet_state linnet_state;

/* "0.1.0". */
LINNET_API const char* linnet_version(void);
/* The error of this thread's last call, or "" if it succeeded. Valid until this thread's next
 * call. */
LINNET_API const char* linnet_last_error(void);

/* precision: "f32", "bf16", "int8", or NULL for the file's own. */
LINNET_API linnet_model* linnet_model_open(const char* path, const char* precision);
LINNET_API void linnet_model_free(linnet_model* model);
/* vocabulary: tokens are 0 .. vocabulary - 1. positions: length of the training sequences; longer
 * ones are an error for image models and for models whose position table does not hold sines.
 * outputs: floats per position. state_bytes: bytes of one sequence's state. They do not depend on
 * its length; with softmax attention the state has room for `positions` and grows beyond. */
LINNET_API int32_t linnet_model_vocabulary(const linnet_model* model);
LINNET_API size_t linnet_model_positions(const linnet_model* model);
LINNET_API size_t linnet_model_outputs(const linnet_model* model);
LINNET_API size_t linnet_model_state_bytes(const linnet_model* model);
/* Bytes per image of an image model: height x width x channels; 0 for other models. */
LINNET_API size_t linnet_model_image_bytes(const linnet_model* model);

/* threads: 0 for one per processor available to this process. */
LINNET_API linnet_engine* linnet_engine_new(const linnet_model* model, int threads);
LINNET_API void linnet_engine_free(linnet_engine* engine);

/* A state for `batch` sequences at position 0. */
LINNET_API linnet_state* linnet_state_new(const linnet_engine* engine, size_t batch);
LINNET_API void linnet_state_free(linnet_state* state);
/* A state with `copies` copies of each sequence, for several continuations of one prefix. */
LINNET_API linnet_state* linnet_state_fork(const linnet_state* state, size_t copies);
LINNET_API size_t linnet_state_batch(const linnet_state* state);
/* Number of tokens that a sequence has read; 0 if there is no such sequence. */
LINNET_API size_t linnet_state_position(const linnet_state* state, size_t sequence);
LINNET_API int linnet_state_save(const linnet_state* state, const linnet_engine* engine,
                                 const char* path);
LINNET_API linnet_state* linnet_state_load(const linnet_engine* engine, const char* path);

/* Reads one token per sequence: tokens [batch], outputs [batch, outputs]. */
LINNET_API int linnet_step(linnet_engine* engine, linnet_state* state, const int32_t* tokens,
                           float* outputs);
/* Reads `length` tokens per sequence at once, tokens [batch, length]. outputs: those of the last
 * position, [batch, outputs], or NULL. */
LINNET_API int linnet_prefix(linnet_engine* engine, linnet_state* state, const int32_t* tokens,
                             size_t length, float* outputs);

/* Draws `count` images from an image model into pixels [count, image bytes]. The same seed draws
 * the same images. */
LINNET_API int linnet_sample_images(linnet_engine* engine, size_t count, uint64_t seed,
                                    uint8_t* pixels);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* LINNET_EMBED_LINNET_H_ */
