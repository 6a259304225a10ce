// StartSample() of decode.h as a tile program (tile.h): draws from a mixture of logistics. A warp
// draws for one sequence, in double precision like the CPU's sampler.
#ifndef LINNET_KERNELS_CUDA_SAMPLE_TILE_H_
#define LINNET_KERNELS_CUDA_SAMPLE_TILE_H_

#include "linnet/kernels/cuda/decode.h"
#include "linnet/kernels/cuda/tile.h"

namespace linnet::kernels::cuda {

inline constexpr unsigned kSampleThreads = 128;

struct Uniforms {
  float first, second;
};

// The first two numbers of Philox(seed, stream, counter) (linnet/rng.h).
LINNET_TILE Uniforms PhiloxUniforms(uint64_t seed, uint64_t stream, uint64_t counter) {
  auto key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
  uint32_t x0 = static_cast<uint32_t>(counter), x1 = static_cast<uint32_t>(counter >> 32);
  uint32_t x2 = static_cast<uint32_t>(stream), x3 = static_cast<uint32_t>(stream >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * x0, b = uint64_t{0xCD9E8D57u} * x2;
    x0 = static_cast<uint32_t>(b >> 32) ^ x1 ^ key0;
    x1 = static_cast<uint32_t>(b);
    x2 = static_cast<uint32_t>(a >> 32) ^ x3 ^ key1;
    x3 = static_cast<uint32_t>(a);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  const auto uniform = [](uint32_t bits) {
    return (static_cast<float>(bits >> 9) + 0.5f) * 0x1p-23f;
  };
  return {uniform(x0), uniform(x1)};
}

// Draws the token at position `next` of sequence n. Its row of args.outputs holds the logits, the
// means and the log scales of the mixture components. `shared`: byte offset of the warp's shared
// memory, 8 bytes per component.
template <class Tile>
LINNET_TILE void SampleSequence(Tile& tile, const SampleArgs& args, unsigned n, unsigned next,
                                unsigned shared) {
  const DecodeControl& control = *args.control;
  const unsigned mixtures = args.mixtures;
  const auto weights = tile.template Shared<double>(shared, mixtures);
  const float* outputs = args.outputs + size_t{n} * args.output_stride;
  const double temperature = control.temperature;
  float largest = outputs[0];
  for (unsigned i = 1; i < mixtures; ++i) largest = outputs[i] > largest ? outputs[i] : largest;
  for (unsigned i = tile.lane(); i < mixtures; i += kWarp) {
    weights.Set(i, std::exp((outputs[i] - static_cast<double>(largest)) / temperature));
  }
  tile.WarpBarrier();
  if (tile.lane() != 0) return;
  const Uniforms u = PhiloxUniforms(control.seed, control.first_stream + n, next);
  double left = 0;  // inverse CDF: u.first * the sum of weights, less the weights already passed
  for (unsigned i = 0; i < mixtures; ++i) left += weights.Get(i);
  left *= u.first;
  unsigned chosen = 0;
  for (; chosen + 1 < mixtures; ++chosen) {
    left -= weights.Get(chosen);
    if (left < 0) break;
  }
  const double log_scale = outputs[2 * mixtures + chosen];
  const double least = -7.0;  // kMinLogScale of mixture_of_logistics.h
  const double scale = control.reference_scale != 0
                           ? (log_scale > 0 ? log_scale : std::expm1(log_scale)) + 1.0001
                           : std::exp(log_scale > least ? log_scale : least);
  const double value = u.second;
  const double x =
      outputs[mixtures + chosen] + temperature * scale * (std::log(value) - std::log1p(-value));
  const double byte = std::floor((x + 1) * 127.5 + 0.5);
  // A NaN, from a broken model, becomes 0.
  const double bounded = byte > 0 ? (byte < 255 ? byte : 255.0) : 0.0;
  args.tokens[size_t{next} * args.batch + n] = static_cast<int32_t>(bounded);
}

// Sets the next step's position and number of waiting keys (DecodeControl::waiting).
LINNET_TILE void AdvanceControl(DecodeControl* control) {
  control->next_position = control->position + 1;
  control->next_waiting = (control->waiting + 1) % control->recent_keys;
}

template <class Tile>
LINNET_TILE void SampleTile(Tile& tile, const SampleArgs& args) {
  const unsigned next = args.control->position + 1;
  if (tile.x() == 0 && tile.thread() == 0) AdvanceControl(args.control);
  const unsigned n = tile.x() * (tile.threads() / kWarp) + tile.warp();
  if (n >= args.batch || next < args.control->known) return;
  SampleSequence(tile, args, n, next, tile.warp() * args.mixtures * 8);
}

}  // namespace linnet::kernels::cuda

#endif  // LINNET_KERNELS_CUDA_SAMPLE_TILE_H_
