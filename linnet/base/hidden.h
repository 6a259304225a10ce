// LINNET_HIDDEN keeps a class nested in an exported class out of the exported symbols of
// liblinnet.so.
//
//   struct LINNET_HIDDEN Engine::Impl { ... };
#ifndef LINNET_BASE_HIDDEN_H_
#define LINNET_BASE_HIDDEN_H_

#if defined(__GNUC__)
#define LINNET_HIDDEN __attribute__((visibility("hidden")))
#else
#define LINNET_HIDDEN
#endif

#endif  // LINNET_BASE_HIDDEN_H_
