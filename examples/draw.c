/* Reads three tokens and prints the model's first output after each, then draws an image:
 * draw_c MODEL [SEED] */
#include <linnet/linnet.h>

#include <stdio.h>
#include <stdlib.h>

static int fail(const char* what) {
  fprintf(stderr, "%s: %s\n", what, linnet_last_error());
  return 1;
}

int main(int argc, char** argv) {
  if (argc < 2) return fprintf(stderr, "usage: draw_c MODEL [SEED]\n"), 2;
  linnet_model* model = linnet_model_open(argv[1], "int8");
  if (model == NULL) return fail(argv[1]);
  linnet_engine* engine = linnet_engine_new(model, 0);
  linnet_state* state = engine ? linnet_state_new(engine, 1) : NULL;
  if (state == NULL) return fail("linnet");
  const size_t outputs = linnet_model_outputs(model);
  const size_t bytes = linnet_model_image_bytes(model);
  float* out = malloc(outputs * sizeof(float));
  for (int32_t token = 0; token < 3; ++token) {
    if (linnet_step(engine, state, &token, out) != LINNET_OK) return fail("step");
    printf("after %zu tokens: first output %.4f\n", linnet_state_position(state, 0), out[0]);
  }
  unsigned char* pixels = malloc(bytes + 1);
  linnet_image_options options;
  linnet_image_options_init(&options, sizeof options);
  options.seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
  if (bytes > 0 && linnet_sample_images(engine, 1, &options, pixels) != LINNET_OK)
    return fail("sample");
  for (size_t i = 0; i < bytes; ++i)
    printf("%c%s", " .:+*#"[pixels[i] * 6 / 256], bytes == 784 && i % 28 == 27 ? "\n" : "");
  printf("the state of a sequence takes %zu bytes\n", linnet_model_state_bytes(model));
  free(pixels), free(out);
  linnet_state_free(state), linnet_engine_free(engine), linnet_model_free(model);
  return 0;
}
