// Reads pronunciation dictionaries and manifests of recordings.
#include "linnet/tasks/speech/speech_set.h"
#include "fuzz/target.h"
#include "linnet/error.h"

namespace linnet::fuzz {

const FuzzTarget kSpeechSet = {"speech_set", [](std::span<const std::byte> bytes) {
                                 const MemoryFile file(bytes);
                                 Pronunciations dictionary;
                                 try {
                                   dictionary = Pronunciations::Read(file.path());
                                 } catch (const InputError&) {  // not a dictionary
                                 }
                                 LoadManifest(file.path(), dictionary);
                               }};

}  // namespace linnet::fuzz
