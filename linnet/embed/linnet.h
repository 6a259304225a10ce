/* Generating with linnet's models from C, and from whatever calls C.
 *
 *   #include <linnet/linnet.h>               find_package(linnet); link linnet::shared
 *
 *   linnet_model* model = linnet_model_open("digits.safetensors", NULL);
 *   linnet_engine* engine = linnet_engine_new(model, 0);
 *   linnet_state* state = linnet_state_new(engine, 1);
 *   if (linnet_step(engine, state, &token, outputs) != 0) puts(linnet_last_error());
 *
 * What returns a pointer returns NULL on failure, what returns an int 0 on success; then
 * linnet_last_error() says in one line what is wrong. Nothing prints, exits or throws. NULL may be given
 * to every ..._free(). A model may be shared by engines in any threads; an engine and a state are for
 * one thread at a time. An engine keeps its model alive, a state does not need it to live; but it belongs
 * to that model, and engines of others refuse it. */
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
/* Of this thread's last call, where it failed; "" where it did not. Valid until the next call. */
LINNET_API const char* linnet_last_error(void);

/* precision: "f32", "bf16", "int8", or NULL for what the file has. */
LINNET_API linnet_model* linnet_model_open(const char* path, const char* precision);
LINNET_API void linnet_model_free(linnet_model* model);
/* Symbols are 0 .. vocabulary - 1; positions: the most that a sequence can have; outputs: floats a
 * position; state_bytes: what a sequence's state takes, however long it is. */
LINNET_API int32_t linnet_model_vocabulary(const linnet_model* model);
LINNET_API size_t linnet_model_positions(const linnet_model* model);
LINNET_API size_t linnet_model_outputs(const linnet_model* model);
LINNET_API size_t linnet_model_state_bytes(const linnet_model* model);
/* Bytes of an image that an image model makes: height x width x channels; 0 for another model. */
LINNET_API size_t linnet_model_image_bytes(const linnet_model* model);

/* threads: 0 for every processor. */
LINNET_API linnet_engine* linnet_engine_new(const linnet_model* model, int threads);
LINNET_API void linnet_engine_free(linnet_engine* engine);

/* `batch` sequences that have read nothing. */
LINNET_API linnet_state* linnet_state_new(const linnet_engine* engine, size_t batch);
LINNET_API void linnet_state_free(linnet_state* state);
/* Each sequence `copies` times: two continuations of one past. */
LINNET_API linnet_state* linnet_state_fork(const linnet_state* state, size_t copies);
LINNET_API size_t linnet_state_batch(const linnet_state* state);
/* Symbols that a sequence has read; 0 where there is none of that number. */
LINNET_API size_t linnet_state_position(const linnet_state* state, size_t sequence);
LINNET_API int linnet_state_save(const linnet_state* state, const linnet_engine* engine,
                                 const char* path);
LINNET_API linnet_state* linnet_state_load(const linnet_engine* engine, const char* path);

/* Reads one symbol of each sequence, tokens [batch]; outputs [batch, outputs]. */
LINNET_API int linnet_step(linnet_engine* engine, linnet_state* state, const int32_t* tokens,
                           float* outputs);
/* Reads `length` symbols of each at once, tokens [batch, length]; outputs of the last one,
 * [batch, outputs], or NULL. */
LINNET_API int linnet_prefix(linnet_engine* engine, linnet_state* state, const int32_t* tokens,
                             size_t length, float* outputs);

/* Draws `count` images of an image model into pixels [count, image bytes]. The same seed draws the same
 * images. */
LINNET_API int linnet_sample_images(linnet_engine* engine, size_t count, uint64_t seed,
                                    uint8_t* pixels);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* LINNET_EMBED_LINNET_H_ */
