"""Recognition of phones in audio."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple, Union

from . import _checks
from ._errors import InputError
from ._library import Handle, check, library

if TYPE_CHECKING:
    from ._model import Model


class Phone(NamedTuple):
    """A phone, the start of its first frame in seconds, and its probability in that frame."""

    name: str
    seconds: float
    probability: float


def check_rate(rate: Any, model: Model) -> None:
    if _checks.integer(rate, "rate", 1) != model.sample_rate:
        raise InputError(f"{model.path}: needs audio of {model.sample_rate} samples per second, not {rate}; "
                         "resample it")


def phones_of(transcript: Union[Handle, int], first: int = 0) -> list[Phone]:
    """The phones of a linnet_transcript, from index `first` on."""
    return [Phone(library.transcript_phone(transcript, i).decode(), library.transcript_start(transcript, i),
                  library.transcript_probability(transcript, i))
            for i in range(first, library.transcript_count(transcript))]


class Transcriber:
    """Recognizes phones in audio as it arrives. Made by Model.transcriber().

    Memory is constant except for the list of phones. Calls from several threads take turns.
    """

    def __init__(self, model: Model, handle: Handle) -> None:
        self._model = model
        self._handle = handle
        self._lock = threading.Lock()
        self._returned = 0  # number of phones that feed() and finish() have returned

    @property
    def delay(self) -> float:
        """Delay from the beginning of a phone to its recognition, in seconds of audio. The actual delay may be longer,
        by at most a stride of the model plus the length of the piece passed to feed()."""
        return library.transcriber_delay(self._handle)

    @property
    def phones(self) -> list[Phone]:
        """All phones so far."""
        with self._lock:
            return phones_of(library.transcriber_transcript(self._handle))

    def feed(self, samples: Any) -> list[Phone]:
        """Reads any number of further samples: floats from -1 to 1, or int16. Returns the new phones."""
        given = _checks.samples(samples)
        with self._lock:
            check(library.transcriber_accept(self._handle, given.ctypes.data, given.size))
            return self._new()

    def finish(self) -> list[Phone]:
        """Ends the audio; returns the remaining phones. No more calls of feed() or finish() may follow."""
        with self._lock:
            check(library.transcriber_finish(self._handle))
            return self._new()

    def _new(self) -> list[Phone]:
        phones = phones_of(library.transcriber_transcript(self._handle), self._returned)
        self._returned += len(phones)
        return phones

    def __repr__(self) -> str:
        return f"<linnet.Transcriber of {self._model.path!r}: {self._returned} phones>"
