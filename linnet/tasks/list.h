// All tasks, as an X-macro list: each includer defines LINNET_TASK, so there is no include guard.
// Name stands for kNameTask in tasks/*/task.cc and for train::kNameTask in train/*.cc.
LINNET_TASK(Images)
LINNET_TASK(Copy)
LINNET_TASK(Text)
LINNET_TASK(Couplet)
#ifndef LINNET_WITHOUT_SPEECH  // defined in training programs without the audio libraries
LINNET_TASK(Speech)
#endif
