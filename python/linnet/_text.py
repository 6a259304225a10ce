"""Sampling of tokens, and generation of text in pieces."""

from __future__ import annotations

import codecs
import ctypes
import math
from typing import TYPE_CHECKING, Any, Generator, Iterable, Optional, Union

import numpy as np

from . import _checks
from ._errors import InputError
from ._grammar import Grammar, Matcher
from ._library import Sampling, check, library

if TYPE_CHECKING:
    from ._model import Model

SEPARATOR, UNKNOWN = 1, 2  # LINNET_TOKEN_SEPARATOR and LINNET_TOKEN_UNKNOWN of linnet.h


def sampling(temperature: Any, top_k: Any, top_p: Any, seed: Any, stream: Any = 0) -> Sampling:
    options = Sampling()
    check(library.sampling_init(ctypes.byref(options), ctypes.sizeof(options)))
    options.temperature = _checks.real(temperature, "temperature")
    options.top_p = _checks.real(top_p, "top_p")
    options.top_k = _checks.integer(top_k, "top_k", 0)
    options.seed = _checks.seed(seed)
    options.stream = _checks.integer(stream, "stream", 0, 2**64 - 1)
    if not 0 <= options.temperature <= 1e6:
        raise InputError(f"temperature must be 0 to 1e6, not {temperature}")
    if not 0 < options.top_p <= 1:
        raise InputError(f"top_p must be above 0 and at most 1, not {top_p}")
    return options


def choose(logits: Any, *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, seed: int = 0,
           stream: int = 0, draw: int = 0) -> int:
    """Draws a token from logits [count].

    temperature: 0 chooses the most likely token. top_k: keeps only the k most likely tokens; 0: all. top_p: keeps only
    the most likely tokens, until their probabilities sum to top_p. seed, stream and draw select the random number;
    draw is the token's index in its sequence, from 0. A token with a logit of -infinity is never chosen.
    """
    return _choose(_checks.floats(logits, "logits"), sampling(temperature, top_k, top_p, seed, stream),
                   _checks.integer(draw, "draw", 0, 2**64 - 1))


def _choose(logits: np.ndarray, options: Sampling, draw: int) -> int:
    token = ctypes.c_int32()
    check(library.choose(logits.ctypes.data, logits.size, ctypes.byref(options), draw, ctypes.byref(token)))
    return token.value


def stop_strings(stop: Union[str, Iterable[str]]) -> list[bytes]:
    """The UTF-8 of stop strings. One str is one stop string."""
    try:
        given = [stop] if isinstance(stop, str) else list(stop)
    except TypeError:
        raise InputError(f"stop must be a str or a list of them, not {_checks.brief(stop)}") from None
    strings = [_checks.text(string, "stop") for string in given]
    for string in strings:
        if not string or b"\0" in string:
            raise InputError("stop must not hold an empty string or a NUL character")
    return strings


def _each_byte(error: UnicodeError) -> tuple[str, int]:
    """Replaces each invalid byte by U+FFFD, as the library does."""
    assert isinstance(error, UnicodeDecodeError)
    return "\ufffd" * (error.end - error.start), error.end


codecs.register_error("linnet.each_byte", _each_byte)


class Pieces:
    """Joins the bytes of tokens into whole characters, and holds back text that may become a stop string."""

    def __init__(self, stop: list[bytes]) -> None:
        self._stop = stop
        self._held = b""
        self._decoder = codecs.getincrementaldecoder("utf-8")("linnet.each_byte")
        self.stopped = False

    def add(self, text: bytes) -> str:
        """Adds a token's bytes; returns the text that can be shown now."""
        self._held += text
        ends = [end for end in map(self._held.find, self._stop) if end >= 0]
        if ends:
            self.stopped = True
            shown, self._held = self._held[:min(ends)], b""
            return self._decoder.decode(shown, final=True)
        held = max((size for stop in self._stop for size in range(1, len(stop)) if self._held.endswith(stop[:size])),
                   default=0)
        certain = len(self._held) - held
        shown, self._held = self._held[:certain], self._held[certain:]
        return self._decoder.decode(shown)

    def finish(self) -> str:
        """Ends the text; returns the rest."""
        shown, self._held = self._held, b""
        return self._decoder.decode(shown, final=True)


def stream_text(model: Model, prompt: bytes, most: int, options: Sampling,
                stop: list[bytes], grammar: Optional[Grammar]) -> Generator[str, None, None]:
    """Yields the text of Model.generate() in pieces, and computes no token before its piece is asked for.

    Steps the model from Python: linnet_write_text() calls back with each piece, so it would need a
    second thread here.
    """
    pieces = Pieces(stop)
    read = model._encode(prompt, prompt=True)
    end = library.model_end(model._open_handle())
    # Tokens that are never drawn.
    unwritten = [] if model.unit == "token" else [SEPARATOR, UNKNOWN]
    matcher = Matcher(grammar, model) if grammar is not None else None
    state = model.new_state(1)
    logits = state.read(read)[0]
    # The number of drawn tokens that the model may still read.
    room = model.positions - len(read) if model.limited else most
    for draw in range(most):
        logits[unwritten] = -math.inf
        if matcher is not None:
            matcher.mask(logits)
        token = _choose(logits, options, draw)
        if token == end:
            break
        shown = pieces.add(model._token_text(token))
        if shown:
            yield shown
        if pieces.stopped:
            return
        if matcher is not None and matcher.add(token):
            break
        if draw + 1 == most or draw == room:
            break
        logits = state.step(token)[0]
    rest = pieces.finish()
    if rest:
        yield rest
