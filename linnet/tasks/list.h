// Every task, once: kNameTask in tasks/NAME/task.cc, and train::kNameTask in train/NAME.cc. No include
// guard: define LINNET_TASK(Name), then include this.
#ifndef LINNET_TASK
#define LINNET_TASK(Name)
#endif

LINNET_TASK(Images)
LINNET_TASK(Copy)
LINNET_TASK(Text)
LINNET_TASK(Couplet)
#ifndef LINNET_WITHOUT_SPEECH  // a training without libraries for sound
LINNET_TASK(Speech)
#endif

#undef LINNET_TASK
