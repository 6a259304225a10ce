// The functions of callbacks.cc that linnet.js provides, declared for emscripten's linker.
mergeInto(LibraryManager.library, {
  progress: function() {},
  reader: function() {},
});
