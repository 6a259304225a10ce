// All tasks, as an X-macro list without include guard: define LINNET_TASK(Name), then include this
// file. Each Name has a kNameTask in tasks/*/task.cc and a train::kNameTask in train/*.cc.
#ifndef LINNET_TASK
#define LINNET_TASK(Name)
#endif

LINNET_TASK(Images)
LINNET_TASK(Copy)
LINNET_TASK(Recall)
LINNET_TASK(Text)
LINNET_TASK(Couplet)
#ifndef LINNET_WITHOUT_SPEECH  // set for training programs that are built without audio libraries
LINNET_TASK(Speech)
#endif

#undef LINNET_TASK
