// LINNET_HIDDEN marks a class that is nested in an exported class: liblinnet.so then does not
// export the symbols of the nested class.
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
