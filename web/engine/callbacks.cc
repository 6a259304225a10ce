// Lets JavaScript functions be callbacks of the C API, which takes function pointers. The module
// imports the two linnet_js_... functions from linnet.js and exports functions that return their
// addresses. An imported function calls the JavaScript callback whose number is `data` (see
// withCallback() in linnet.js).
#include <cstddef>

#include "linnet/linnet.h"

extern "C" {

__attribute__((import_module("linnet"), import_name("progress"))) int linnet_js_progress(
    void* data, size_t done, size_t total);
__attribute__((import_module("linnet"), import_name("reader"))) int linnet_js_reader(
    void* data, const char* text, size_t bytes);

__attribute__((export_name("progress_callback"))) linnet_progress ProgressCallback() {
  return linnet_js_progress;
}
__attribute__((export_name("reader_callback"))) linnet_reader ReaderCallback() {
  return linnet_js_reader;
}

}  // extern "C"
