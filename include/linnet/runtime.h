// The inference part of linnet in one header: models, states, and the tasks' generation.
//
//   #include <linnet/runtime.h>                // find_package(linnet); link linnet::tasks
//
//   auto model = linnet::Model::Open("digits.safetensors");
//   linnet::Engine engine(model);
//   const std::vector<uint8_t> digits = linnet::SampleImages(engine, 16, {.seed = 7});
//
// Transcriber and PhoneStream need linnet::speech too, which is missing if linnet was built with
// LINNET_SPEECH=OFF.
#ifndef LINNET_RUNTIME_H_
#define LINNET_RUNTIME_H_

#include "linnet/base/error.h"
#include "linnet/model/vocabulary.h"
#include "linnet/runtime/choice.h"
#include "linnet/runtime/engine.h"
#include "linnet/runtime/model.h"
#include "linnet/runtime/narrow.h"
#include "linnet/runtime/scheduler.h"
#include "linnet/runtime/state.h"
#include "linnet/tasks/copy/copy.h"
#include "linnet/tasks/couplet/couplet.h"
#include "linnet/tasks/images/images.h"
#include "linnet/tasks/speech/transcriber.h"
#include "linnet/tasks/text/text.h"

#endif  // LINNET_RUNTIME_H_
