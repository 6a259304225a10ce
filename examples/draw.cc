// Draws a digit, then another one with the same upper half, and prints both as text:
// draw MODEL [SEED]
#include <linnet/runtime.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <vector>

static void Print(const std::vector<uint8_t>& image, const linnet::ModelSpec& spec) {
  for (int y = 0; y < spec.image()->height; ++y) {
    for (int x = 0; x < spec.image()->width; ++x) {
      const auto at = static_cast<size_t>((y * spec.image()->width + x) * spec.image()->channels);
      std::putchar(" .:+*#"[image[at] * 6 / 256]);
    }
    std::putchar('\n');
  }
}

int main(int argc, char** argv) try {
  if (argc < 2) return std::fprintf(stderr, "usage: draw MODEL [SEED]\n"), 2;
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  const auto model = linnet::Model::Open(argv[1]);
  linnet::Engine engine(model);
  const std::vector<uint8_t> digit = linnet::SampleImages(engine, 1, {.seed = seed});
  Print(digit, model->spec());
  // Reads the upper half at once, as a prefix, and draws a new lower half.
  Print(linnet::CompleteImages(engine, digit, digit.size() / 2, {.seed = seed + 1}), model->spec());
} catch (const std::exception& error) {
  return std::fprintf(stderr, "draw: %s\n", error.what()), 1;
}
