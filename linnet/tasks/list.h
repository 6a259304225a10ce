// Every task, once (no include guard: each user defines LINNET_TASK): kNameTask in tasks/*/task.cc, and train::kNameTask in train/*.cc.
LINNET_TASK(Images)
LINNET_TASK(Copy)
LINNET_TASK(Text)
LINNET_TASK(Couplet)
#ifndef LINNET_WITHOUT_SPEECH  // a training without libraries for sound
LINNET_TASK(Speech)
#endif
