// All tasks, as an X-macro list without include guard: define LINNET_TASK(Name), then include this.
// Name stands for kNameTask in tasks/*/task.cc and for train::kNameTask in train/*.cc.
#ifndef LINNET_TASK
#define LINNET_TASK(Name)
#endif

LINNET_TASK(Images)
LINNET_TASK(Copy)
LINNET_TASK(Recall)
LINNET_TASK(Text)
LINNET_TASK(Couplet)
#ifndef LINNET_WITHOUT_SPEECH  // defined in training programs without the audio libraries
LINNET_TASK(Speech)
#endif

#undef LINNET_TASK
