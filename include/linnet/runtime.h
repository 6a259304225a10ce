// The inference half of linnet in one header: models, states, and the tasks' generation.
//
//   #include <linnet/runtime.h>                // find_package(linnet); link linnet::linnet
//
//   auto model = linnet::Model::Open("digits.safetensors");
//   linnet::Engine engine(model);
//   const std::vector<uint8_t> digits = linnet::SampleImages(engine, 16, {.seed = 7});
//
#ifndef LINNET_RUNTIME_H_
#define LINNET_RUNTIME_H_

#include "linnet/couplet.h"
#include "linnet/engine.h"
#include "linnet/error.h"
#include "linnet/grammar.h"
#include "linnet/history.h"
#include "linnet/images.h"
#include "linnet/model.h"
#include "linnet/precision.h"
#include "linnet/rng.h"
#include "linnet/sampling.h"
#include "linnet/scheduler.h"
#include "linnet/spec.h"
#include "linnet/speech.h"
#include "linnet/state.h"
#include "linnet/text.h"
#include "linnet/version.h"
#include "linnet/vocabulary.h"

#endif  // LINNET_RUNTIME_H_
