// The inference part of linnet in one header, installed as <linnet/runtime.h>: load a model,
// generate with it, save its state.
//
//   #include <linnet/runtime.h>                // find_package(linnet); link linnet::tasks
//
//   auto model = linnet::Model::Open("digits.safetensors");
//   linnet::Engine engine(model);
//   const std::vector<uint8_t> digits = linnet::SampleImages(engine, 16, {.seed = 7});
#ifndef LINNET_EMBED_RUNTIME_H_
#define LINNET_EMBED_RUNTIME_H_

#include "linnet/error.h"
#include "linnet/engine.h"
#include "linnet/model.h"
#include "linnet/runtime/narrow.h"
#include "linnet/scheduler.h"
#include "linnet/state.h"
#include "linnet/tasks/copy/copy.h"
#include "linnet/tasks/images/images.h"

#endif  // LINNET_EMBED_RUNTIME_H_
