/* LINNET_API marks the symbols that the shared library exports; all others are hidden. */
#ifndef LINNET_EXPORT_H_
#define LINNET_EXPORT_H_

#if defined(__GNUC__)
#define LINNET_API __attribute__((visibility("default")))
#else
#define LINNET_API
#endif

#endif /* LINNET_EXPORT_H_ */
