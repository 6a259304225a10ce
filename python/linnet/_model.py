"""Models."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import threading
from typing import Any, Generator, Iterable, Iterator, Literal, NamedTuple, Optional, Union, overload

import numpy as np

from . import _checks, _text
from ._errors import InputError
from ._grammar import Grammar
from ._library import (CoupletOptions, Handle, ImageOptions, Progress, Reader, TextOptions, check, interruptible,
                       library)
from ._speech import Phone, Transcriber, check_rate, phones_of
from ._state import State

Precision = Literal["f32", "bf16", "int8"]
_PRECISIONS = ("f32", "bf16", "int8")
_IDLE_ENGINES = 2  # maximum number that a model keeps for later calls


class Couplet(NamedTuple):
    """A second line, its log-probability in nats, and log p of each character, 0 for copied punctuation. The first is
    the sum of the second, except that a line without rules also counts the end token."""

    text: str
    log_probability: float
    scores: tuple[float, ...]


class Model:
    """A trained model.

    path: a model file, or the folder of a training run. precision: that of the matrix products, "f32", "bf16" or
    "int8"; None: the file's. threads: 0 for one per processor. Raises InputError for a file that is not a model.

    Methods may be called from several threads at once: each call has an engine of its own, with `threads` threads. In
    the main thread, Ctrl-C interrupts every method that draws, generates or transcribes; a library call in progress,
    such as a batch of images, ends in the background. Results depend on the arguments and the seed, but not on threads
    or batch. If seed is None, the call draws a seed.
    """

    def __init__(self, path: Union[str, os.PathLike[str]], precision: Optional[Precision] = None,
                 threads: int = 0) -> None:
        name, precise = _checks.path(path), _precision(precision)
        self._open(Handle(library.model_open(name, precise), library.model_free), threads)

    @classmethod
    def from_bytes(cls, data: Any, precision: Optional[Precision] = None, threads: int = 0,
                   label: str = "memory") -> Model:
        """Opens a model file in memory: bytes or any other buffer. label: the name of the model in messages."""
        try:
            view = np.frombuffer(data, np.uint8)
        except (TypeError, ValueError, BufferError) as error:
            raise InputError(f"data must be the bytes of a model file: {error}") from None
        name = _checks.path(label, "label")
        model = cls.__new__(cls)
        model._open(Handle(library.model_open_memory(view.ctypes.data, view.size, name, _precision(precision)),
                           library.model_free), threads)
        return model

    def _open(self, handle: Handle, threads: Any) -> None:
        self._threads = _checks.integer(threads, "threads", 0, 1024)
        self._lock = threading.Lock()
        self._idle: list[Handle] = []
        self._path: str = os.fsdecode(library.model_path(handle))
        self._task: str = library.model_task(handle).decode()
        self._precision: str = library.model_precision(handle).decode()
        self._outputs: int = library.model_outputs(handle)
        self._positions: int = library.model_positions(handle)
        self._limited = bool(library.model_limited(handle))
        height, width, channels = (int(size(handle)) for size in (
            library.model_image_height, library.model_image_width, library.model_image_channels))
        self._image_shape = (height, width) if channels == 1 else (height, width, channels) if channels else None
        self._handle: Optional[Handle] = handle

    # ---- Properties

    @property
    def path(self) -> str:
        """The path or label that the model was opened with; for a run's folder, the model file in it."""
        return self._path

    @property
    def task(self) -> str:
        """The name of the task: "images", "text", "couplet", "speech" or another."""
        return self._task

    @property
    def precision(self) -> str:
        """The precision of the matrix products: "f32", "bf16" or "int8"."""
        return self._precision

    @property
    def spec(self) -> dict[str, Any]:
        """The model's spec: its task, architecture and sizes."""
        return json.loads(library.model_spec(self._open_handle()))

    @property
    def training(self) -> dict[str, Any]:
        """The record of the training; {} if the file has none."""
        text = library.model_training(self._open_handle())
        try:
            record = json.loads(text) if text else {}
        except ValueError:
            record = {}
        return record if isinstance(record, dict) else {}

    @property
    def parameters(self) -> int:
        """The number of trained parameters."""
        return library.model_parameters(self._open_handle())

    @property
    def vocabulary(self) -> int:
        """The number of tokens, which are 0 to vocabulary - 1; 0 for speech."""
        return library.model_vocabulary(self._open_handle())

    @property
    def positions(self) -> int:
        """The maximum length of the training sequences."""
        return self._positions

    @property
    def limited(self) -> bool:
        """Whether a sequence longer than `positions` is an error. If not, sequences may be of any length."""
        return self._limited

    @property
    def outputs(self) -> int:
        """The number of floats that the model returns per position."""
        return self._outputs

    @property
    def state_bytes(self) -> int:
        """Size of a new state of one sequence, in bytes."""
        return library.model_state_bytes(self._open_handle())

    @property
    def image_shape(self) -> Optional[tuple[int, ...]]:
        """(height, width), or (height, width, channels) in color; None for other models."""
        return self._image_shape

    @property
    def sample_rate(self) -> int:
        """Samples per second of a speech model's audio; 0 for other models."""
        return library.model_sample_rate(self._open_handle())

    @property
    def phones(self) -> list[str]:
        """The phones of a speech model; [] for other models."""
        return library.model_phones(self._open_handle()).decode().split()

    def __repr__(self) -> str:
        closed = " (closed)" if self._handle is None else ""
        return f"<linnet.Model {self._path!r}: {self._task}, {self._precision}{closed}>"

    # ---- Lifetime

    def close(self) -> None:
        """Frees the model once the calls in progress end. Neither the model nor its states can then be used."""
        with self._lock:
            self._handle = None
            self._idle.clear()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _open_handle(self) -> Handle:
        handle = self._handle
        if handle is None:
            raise InputError(f"{self._path}: the model is closed; open it again")
        return handle

    @contextlib.contextmanager
    def _engine(self) -> Iterator[Handle]:
        """Yields an engine for one call: an idle engine that this process created, or a new one."""
        handle = self._open_handle()
        with self._lock:
            self._idle = [engine for engine in self._idle if engine.process == os.getpid()]
            engine = self._idle.pop() if self._idle else None
        if engine is None:
            engine = Handle(library.engine_new(handle, self._threads), library.engine_free, with_threads=True)
        try:
            yield engine
        finally:
            with self._lock:
                if self._handle is not None and len(self._idle) < _IDLE_ENGINES:
                    self._idle.append(engine)

    # ---- Images

    def sample(self, count: int = 1, seed: Optional[int] = None, temperature: float = 1.0, *, batch: int = 64,
               first_stream: int = 0, reference_scale: bool = False) -> np.ndarray:
        """Draws new images: uint8 [count, *image_shape].

        temperature: above 0; at 1, draws from the predicted distribution; near 0, each byte is the likeliest one, or
        the mean of a mixture's likeliest component. batch: number of images drawn together; does not change the images. first_stream: image i draws
        from stream first_stream + i of the seed. reference_scale: uses the scale of the logistics in
        fast-transformers, elu(s) + 1.0001, instead of exp(s); not for categorical heads.
        """
        shape = self._image_shape_of("sample")
        number = _checks.integer(count, "count", 1, 10**9)
        options = _image_options(seed, temperature, batch, first_stream, reference_scale)
        pixels = _zeros((number, *shape))
        self._draw(options, lambda engine: library.sample_images(engine, number, ctypes.byref(options),
                                                                 pixels.ctypes.data))
        return pixels

    def complete(self, images: Any, known: Optional[int] = None, seed: Optional[int] = None,
                 temperature: float = 1.0, *, batch: int = 64, first_stream: int = 0,
                 reference_scale: bool = False) -> np.ndarray:
        """Keeps the first `known` rows of each image (default: the upper half) and draws the other rows.

        images: uint8 [count, *image_shape], or one image. Returns uint8 [count, *image_shape]. For the other arguments
        see sample().
        """
        shape = self._image_shape_of("complete")
        given = _checks.images(images, shape)
        rows = shape[0] // 2 if known is None else _checks.integer(known, "known", 1, shape[0])
        options = _image_options(seed, temperature, batch, first_stream, reference_scale)
        pixels = _zeros(given.shape)
        self._draw(options, lambda engine: library.complete_images(
            engine, given.ctypes.data, len(given), rows * given[0, 0].size, ctypes.byref(options), pixels.ctypes.data))
        return pixels

    @overload
    def bits_per_dim(self, images: Any, *, each: Literal[False] = False, batch: int = 64) -> float: ...
    @overload
    def bits_per_dim(self, images: Any, *, each: Literal[True], batch: int = 64) -> np.ndarray: ...

    def bits_per_dim(self, images: Any, *, each: bool = False, batch: int = 64) -> Union[float, np.ndarray]:
        """The mean of -log2 p over all bytes of the images, except the first byte of each.

        (A model that reads whole pixels predicts the first byte too, which then counts.)

        p is the probability of a byte given all bytes before it. images: as for complete(). each: returns the mean of
        every image instead, float64 [count].
        """
        given = _checks.images(images, self._image_shape_of("bits_per_dim"))
        options = _image_options(0, 1.0, batch, 0, False)
        mean, values = ctypes.c_double(), np.empty(len(given), np.float64)
        self._draw(options, lambda engine: library.bits_per_dim(
            engine, given.ctypes.data, len(given), ctypes.byref(options), ctypes.byref(mean), values.ctypes.data))
        return values if each else mean.value

    def _image_shape_of(self, method: str) -> tuple[int, ...]:
        if self._image_shape is None:
            raise InputError(f"{self._path}: a model of the task '{self._task}', but {method}() needs one of images")
        return self._image_shape

    def _draw(self, options: ImageOptions, call: Any) -> None:
        def work(cancelled: Any) -> None:
            if cancelled:
                options.progress = Progress(lambda data, done, total: int(cancelled()))
            with self._engine() as engine:
                check(call(engine))

        interruptible(work)

    # ---- Text

    @overload
    def generate(self, prompt: str = "", max_tokens: int = 256, *, temperature: float = 1.0, top_k: int = 0,
                 top_p: float = 1.0, seed: Optional[int] = None, stop: Union[str, Iterable[str]] = (),
                 grammar: Optional[Grammar] = None, stream: Literal[False] = False) -> str: ...
    @overload
    def generate(self, prompt: str = "", max_tokens: int = 256, *, temperature: float = 1.0, top_k: int = 0,
                 top_p: float = 1.0, seed: Optional[int] = None, stop: Union[str, Iterable[str]] = (),
                 grammar: Optional[Grammar] = None, stream: Literal[True]) -> Generator[str, None, None]: ...

    def generate(self, prompt: str = "", max_tokens: int = 256, *, temperature: float = 1.0, top_k: int = 0,
                 top_p: float = 1.0, seed: Optional[int] = None, stop: Union[str, Iterable[str]] = (),
                 grammar: Optional[Grammar] = None,
                 stream: bool = False) -> Union[str, Generator[str, None, None]]:
        """Continues a prompt; "" begins a new text. Returns the new text.

        temperature: 0 takes the most likely token. top_k: keeps only the k most likely tokens; 0: all. top_p: keeps
        only the most likely tokens, until their probabilities sum to top_p. stop: a string or strings; the text ends
        before the first of them that appears. grammar: the text follows this grammar. stream: returns an iterator over pieces of whole characters. A token is
        computed when its piece is asked for; close() of the iterator ends the generation.
        """
        encoded = _checks.text(prompt, "prompt")
        most = _checks.integer(max_tokens, "max_tokens", 1)
        sampling = _text.sampling(temperature, top_k, top_p, seed)
        stops = _text.stop_strings(stop)
        if grammar is not None and not isinstance(grammar, Grammar):
            raise InputError(f"grammar must be a linnet.Grammar, not {_checks.brief(grammar)}")
        self._check_task("text", "generate")
        if stream:
            return _text.stream_text(self, encoded, most, sampling, stops, grammar)
        if threading.current_thread().daemon:
            # The interpreter's exit ends daemon threads, which must not happen in a callback of the library. So this
            # branch generates without callbacks.
            return "".join(_text.stream_text(self, encoded, most, sampling, stops, grammar))
        options = TextOptions()
        check(library.text_options_init(ctypes.byref(options), ctypes.sizeof(options)))
        options.tokens = most
        options.sampling = ctypes.pointer(sampling)
        options.stop = (ctypes.c_char_p * len(stops))(*stops)
        options.stop_count = len(stops)
        if grammar is not None:
            options.grammar = grammar._handle._as_parameter_
        pieces: list[bytes] = []

        def work(cancelled: Any) -> None:
            def receive(data: Any, text: int, size: int) -> int:
                pieces.append(ctypes.string_at(text, size))
                return int(cancelled is not None and cancelled())

            with self._engine() as engine:
                check(library.write_text(engine, encoded, len(encoded), ctypes.byref(options), Reader(receive),
                                         None, None))

        interruptible(work)
        return b"".join(pieces).decode()

    def log_likelihood(self, text: str) -> float:
        """The sum of log p over the text's tokens, in nats.

        p is the probability of a token given all tokens before it, including those that begin a text.
        """
        encoded = _checks.text(text, "text")
        nats = ctypes.c_double()

        def work(_: Any) -> None:
            with self._engine() as engine:
                check(library.text_nats(engine, encoded, len(encoded), ctypes.byref(nats), None))

        interruptible(work)
        return -nats.value

    def encode(self, text: str) -> np.ndarray:
        """The tokens of a text: int32 [count]."""
        return self._encode(_checks.text(text, "text"))

    @property
    def unit(self) -> str:
        """The unit of text tokens: "byte", "character", or "token" (of byte pairs); "" if the model has no text."""
        return library.model_unit(self._open_handle()).decode()

    def decode(self, tokens: Any) -> str:
        """The text of tokens. Unknown characters and invalid UTF-8 become U+FFFD; other special tokens are left out."""
        given = _checks.tokens(tokens)
        if given.ndim != 1:
            raise InputError(f"tokens must be one-dimensional, not of shape {list(given.shape)}")
        return self._decode(given).decode(errors="linnet.each_byte")

    def _encode(self, text: bytes, prompt: bool = False) -> np.ndarray:
        """The tokens of a text; with `prompt`, the tokens that begin a text come first."""
        encode = library.encode_prompt if prompt else library.encode
        handle, count = self._open_handle(), ctypes.c_size_t()
        check(encode(handle, text, len(text), None, 0, ctypes.byref(count)))
        tokens = np.empty(count.value, np.int32)
        check(encode(handle, text, len(text), tokens.ctypes.data, tokens.size, ctypes.byref(count)))
        return tokens

    def _token_text(self, token: int) -> bytes:
        handle, size = self._open_handle(), ctypes.c_size_t()
        check(library.token_text(handle, token, None, 0, ctypes.byref(size)))
        text = ctypes.create_string_buffer(size.value + 1)
        check(library.token_text(handle, token, text, size.value + 1, ctypes.byref(size)))
        return text.raw[:size.value]

    def _decode(self, tokens: np.ndarray) -> bytes:
        handle, size = self._open_handle(), ctypes.c_size_t()
        data = tokens.ctypes.data
        check(library.decode(handle, data, tokens.size, None, 0, ctypes.byref(size)))
        text = ctypes.create_string_buffer(size.value + 1)
        check(library.decode(handle, data, tokens.size, text, size.value + 1, ctypes.byref(size)))
        return text.raw[:size.value]

    def _check_task(self, task: str, method: str) -> None:
        if self._task != task:
            raise InputError(f"{self._path}: a model of the task '{self._task}', but {method}() needs one of '{task}'")

    # ---- Couplets

    def couplets(self, first: str, candidates: int = 5, *, beam: int = 16, temperature: float = 1.0, top_k: int = 0,
                 top_p: float = 1.0, seed: Optional[int] = None, rules: bool = True) -> list[Couplet]:
        """Second lines for a first line, in order of decreasing probability; possibly fewer than `candidates`.

        beam: width of the beam search, and the maximum number of lines that it finds. 0: no search; lines are drawn
        with temperature, top_k, top_p and seed. rules=False (only with beam=0): draws without the rules of couplets.
        """
        self._check_task("couplet", "couplets")
        encoded = _checks.text(first, "first")
        options = CoupletOptions()
        check(library.couplet_options_init(ctypes.byref(options), ctypes.sizeof(options)))
        options.candidates = _checks.integer(candidates, "candidates", 1, 10**6)
        options.beam = _checks.integer(beam, "beam", 0, 10**6)
        sampling = _text.sampling(temperature, top_k, top_p, seed)
        options.sampling = ctypes.pointer(sampling)
        options.free_form = int(not rules)
        if options.free_form and options.beam:
            raise InputError("rules=False needs beam=0: the beam search follows the rules")

        def work(_: Any) -> Handle:
            with self._engine() as engine:
                return Handle(library.write_couplets(engine, encoded, len(encoded), ctypes.byref(options)),
                              library.couplets_free)

        lines, count = interruptible(work), ctypes.c_size_t()
        found = []
        for i in range(library.couplets_count(lines)):
            scores = library.couplets_scores(lines, i, ctypes.byref(count))
            found.append(Couplet(library.couplets_text(lines, i).decode(), library.couplets_log_probability(lines, i),
                                 tuple(scores[:count.value])))
        return found

    # ---- Speech

    def transcribe(self, samples: Any, rate: int, beam: int = 1) -> list[Phone]:
        """The phones of a recording.

        samples: one channel, floats from -1 to 1, or int16. rate: samples per second; must be the model's sample_rate.
        beam: 1 for the most likely path, more for a prefix beam search of that width.
        """
        self._check_task("speech", "transcribe")
        given = _checks.samples(samples)
        check_rate(rate, self)
        width = _checks.integer(beam, "beam", 1, 10**6)

        def work(_: Any) -> Handle:
            with self._engine() as engine:
                return Handle(library.transcribe(engine, given.ctypes.data, given.size, width),
                              library.transcript_free)

        return phones_of(interruptible(work))

    def frames(self, samples: Any, rate: int) -> np.ndarray:
        """What the model hears of a recording, float32 [frames, bands]: the log energies in the bands of its mel
        filterbank, a frame of 25 ms every 10 ms, in nats."""
        self._check_task("speech", "frames")
        given = _checks.samples(samples)
        check_rate(rate, self)
        handle, count = self._open_handle(), ctypes.c_size_t()
        check(library.speech_frames(handle, given.ctypes.data, given.size, None, 0, ctypes.byref(count)))
        frames = np.empty(count.value, np.float32)
        check(library.speech_frames(handle, given.ctypes.data, given.size, frames.ctypes.data, frames.size,
                                    ctypes.byref(count)))
        return frames.reshape(-1, self.spec["bands"])

    def transcriber(self, rate: Optional[int] = None) -> Transcriber:
        """A transcriber for audio that arrives in pieces. Needs a causal model that does not normalize by utterance."""
        self._check_task("speech", "transcriber")
        if rate is not None:
            check_rate(rate, self)
        with self._engine() as engine:
            return Transcriber(self, Handle(library.transcriber_new(engine), library.transcriber_free))

    # ---- States

    def new_state(self, batch: int = 1) -> State:
        """A state of `batch` sequences that have read nothing.

        Raises InputError for a model that reads whole sequences only.
        """
        count = _checks.integer(batch, "batch", 1)
        with self._engine() as engine:
            return State(self, Handle(library.state_new(engine, count), library.state_free))

    def load_state(self, path: Union[str, os.PathLike[str]]) -> State:
        """Reads a file that State.save() wrote for this model in this precision."""
        name = _checks.path(path)
        with self._engine() as engine:
            return State(self, Handle(library.state_load(engine, name), library.state_free))


def _precision(value: Any) -> Optional[bytes]:
    if value is not None and not (isinstance(value, str) and value in _PRECISIONS):
        raise InputError(f"precision must be None or one of {', '.join(_PRECISIONS)}, not {_checks.brief(value)}")
    return None if value is None else value.encode()


def _zeros(shape: tuple[int, ...]) -> np.ndarray:
    try:
        return np.zeros(shape, np.uint8)
    except (MemoryError, ValueError):
        raise InputError(f"images of the shape {list(shape)} exceed this machine's memory") from None


def _image_options(seed: Any, temperature: Any, batch: Any, first_stream: Any, reference_scale: Any) -> ImageOptions:
    options = ImageOptions()
    check(library.image_options_init(ctypes.byref(options), ctypes.sizeof(options)))
    options.seed = _checks.seed(seed)
    options.temperature = _checks.real(temperature, "temperature")
    options.batch = _checks.integer(batch, "batch", 1, 65536)
    options.first_stream = _checks.integer(first_stream, "first_stream", 0, 2**64 - 1)
    options.reference_scale = int(bool(reference_scale))
    if not 0 < options.temperature < float("inf"):
        raise InputError(f"temperature must be above 0, not {temperature}")
    return options
