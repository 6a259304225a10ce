"""Recurrent states of sequences."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING, Any, Iterator, Optional, Sequence

import numpy as np

from . import _checks
from ._errors import InputError
from ._library import Handle, check, library

if TYPE_CHECKING:
    from ._model import Model


class State:
    """The state of some sequences after the tokens that they have read. Made by Model.new_state().

    copy() and fork() duplicate a state, so that a prefix can be continued in several ways. len(state) is the number of
    sequences. A sequence's results do not depend on the other sequences, bit for bit. Calls from several threads take
    turns.
    """

    def __init__(self, model: Model, handle: Handle) -> None:
        self._model = model
        self._handle = handle
        self._lock = threading.RLock()

    @property
    def model(self) -> Model:
        """The model that the state belongs to."""
        return self._model

    def __len__(self) -> int:
        with self._lock:
            return library.state_batch(self._handle)

    @property
    def positions(self) -> np.ndarray:
        """The number of tokens that each sequence has read: int64 [batch]."""
        with self._lock:
            return np.array([library.state_position(self._handle, i) for i in range(len(self))], np.int64)

    @property
    def nbytes(self) -> int:
        """The memory of all sequences' states together, in bytes."""
        with self._lock:
            return library.state_bytes(self._handle)

    def step(self, tokens: Any) -> np.ndarray:
        """Reads one token per sequence: integers [batch], or one integer if there is one sequence.

        Returns the model's outputs, float32 [batch, outputs]: logits, means and log-scales of a mixture of logistics
        for images with the head "logistics", otherwise logits of the next token. Raises InputError for a token outside
        the vocabulary, or if a limited model has no position left; the state is then unchanged.
        """
        with self._lock:
            batch = len(self)
            given = _checks.tokens(tokens)
            if given.ndim > 1 or given.size != batch:
                raise InputError(f"tokens must have the shape [{batch}], one per sequence, not {list(given.shape)}")
            outputs = np.empty((batch, self._model.outputs), np.float32)
            with self._model._engine() as engine:
                check(library.step(engine, self._handle, given.ctypes.data, outputs.ctypes.data))
            return outputs

    def read(self, tokens: Any, every: bool = False) -> np.ndarray:
        """Reads several tokens per sequence at once: integers [batch, length], or [length] if there is one sequence.

        Returns the outputs after the last token, float32 [batch, outputs]; if `every`, the outputs after each token,
        [batch, length, outputs]. Equals a step() per token up to rounding. Raises InputError as step() does.
        """
        with self._lock:
            batch = len(self)
            given = _checks.tokens(tokens)
            if given.ndim == 1 and batch == 1:
                given = given[np.newaxis]
            if given.ndim != 2 or given.shape[0] != batch or given.shape[1] == 0:
                raise InputError(f"tokens must have the shape [{batch}, length] with a length of at least 1, not "
                                 f"{list(given.shape)}")
            length = given.shape[1]
            shape = (batch, length, self._model.outputs) if every else (batch, self._model.outputs)
            outputs = np.empty(shape, np.float32)
            prefix = library.prefix_all if every else library.prefix
            with self._model._engine() as engine:
                check(prefix(engine, self._handle, given.ctypes.data, length, outputs.ctypes.data))
            return outputs

    def copy(self) -> State:
        """An independent copy."""
        with self._lock:
            return State(self._model, Handle(library.state_clone(self._handle), library.state_free))

    def fork(self, copies: int) -> State:
        """Returns a new state that holds each sequence `copies` times in a row; for 2: 0 0 1 1 ..."""
        count = _checks.integer(copies, "copies", 1)
        with self._lock:
            return State(self._model, Handle(library.state_fork(self._handle, count), library.state_free))

    def select(self, sequences: Sequence[int]) -> State:
        """Returns a new state with copies of these sequences, in this order. Indices may repeat."""
        with self._lock:
            chosen = _checks.tokens(sequences, "sequences")
            if chosen.ndim != 1 or chosen.size == 0:
                raise InputError(f"sequences must be a list of at least one index, not {_checks.brief(sequences)}")
            if chosen.min() < 0 or chosen.max() >= len(self):
                raise InputError(f"sequences must be in 0 to {len(self) - 1}, not {_checks.brief(sequences)}")
            places = chosen.astype(np.uintp)
            return State(self._model, Handle(library.state_select(self._handle, places.ctypes.data, len(places)),
                                             library.state_free))

    def append(self, other: State) -> None:
        """Appends copies of the sequences of another state of the same model."""
        if not isinstance(other, State):
            raise InputError(f"other must be a State, not {_checks.brief(other)}")
        with _both(self, other):
            check(library.state_append(self._handle, other._handle))

    def reset(self, sequence: Optional[int] = None) -> None:
        """Resets all sequences, or one of them, to position 0: no token has been read."""
        with self._lock:
            if sequence is None:
                check(library.state_reset(self._handle))
            else:
                place = _checks.integer(sequence, "sequence", 0, len(self) - 1)
                check(library.state_reset_sequence(self._handle, place))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the state to a file atomically. Model.load_state() reads the file."""
        name = _checks.path(path)
        with self._lock, self._model._engine() as engine:
            check(library.state_save(self._handle, engine, name))

    def __copy__(self) -> State:
        return self.copy()

    def __deepcopy__(self, memo: Any) -> State:
        return self.copy()

    def __repr__(self) -> str:
        return f"<linnet.State of {self._model.path!r}: {len(self)} sequences>"


@contextlib.contextmanager
def _both(first: State, second: State) -> Iterator[None]:
    """Locks two states. All threads use the same order, so that they cannot deadlock."""
    a, b = sorted((first, second), key=id)
    with a._lock, b._lock:
        yield
