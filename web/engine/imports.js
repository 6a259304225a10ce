// Declares, for emscripten's linker, the functions that callbacks.cc imports. linnet.js provides their bodies.
mergeInto(LibraryManager.library, {
  progress: function() {},
  reader: function() {},
});
