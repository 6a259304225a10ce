/* Checks for tests in C. A failed check prints itself and ends the program with status 1. */
#ifndef LINNET_TESTS_CAPI_TEST_UTIL_H_
#define LINNET_TESTS_CAPI_TEST_UTIL_H_

#include <linnet/linnet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition) check((condition) != 0, #condition, __FILE__, __LINE__)
/* Checks that the condition holds and that the last call succeeded. */
#define CHECK_OK(condition)                        \
  do {                                             \
    CHECK(condition);                              \
    check_last(LINNET_OK, "", __FILE__, __LINE__); \
  } while (0)
/* Checks that the condition holds and that the last call failed with this status and a message
 * that contains `part`. */
#define CHECK_FAILS(condition, status, part)      \
  do {                                            \
    CHECK(condition);                             \
    check_last(status, part, __FILE__, __LINE__); \
  } while (0)

static inline void check(int good, const char* what, const char* file, int line) {
  if (good) return;
  fprintf(stderr, "%s:%d: failed: %s\n", file, line, what);
  fprintf(stderr, "last status %d, last error: %s\n", linnet_last_status(), linnet_last_error());
  exit(1);
}

static inline void check_last(int status, const char* part, const char* file, int line) {
  const char* error = linnet_last_error();
  check(linnet_last_status() == status, "the status of the last call", file, line);
  check(strstr(error, part) != NULL, part, file, line);
  check((status == LINNET_OK) == (error[0] == '\0'), "a message for errors only", file, line);
  check(strchr(error, '\n') == NULL, "a message of one line", file, line);
}

/* `count` elements of zeros, and one more: calloc() may return NULL for none. */
static inline void* allocate(size_t count, size_t size) {
  void* memory = calloc(count + 1, size);
  CHECK(memory != NULL);
  return memory;
}
static inline float* floats(size_t count) { return (float*)allocate(count, sizeof(float)); }

static inline linnet_model* open_model(const char* path) {
  linnet_model* model = linnet_model_open(path, NULL);
  CHECK_OK(model != NULL);
  return model;
}
/* An engine that keeps its model alive. */
static inline linnet_engine* open_engine(const char* path, int threads) {
  linnet_model* model = open_model(path);
  linnet_engine* engine = linnet_engine_new(model, threads);
  CHECK_OK(engine != NULL);
  linnet_model_free(model);
  return engine;
}

#endif /* LINNET_TESTS_CAPI_TEST_UTIL_H_ */
