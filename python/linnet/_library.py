"""Finds and loads the shared library, and declares the functions of <linnet/linnet.h> that the package calls."""

from __future__ import annotations

import ctypes
import os
import pathlib
import threading
import weakref
from ctypes import POINTER, c_char_p, c_double, c_float, c_int, c_int32, c_size_t, c_uint64, c_void_p
from typing import Any, Callable, Optional, TypeVar

from . import _errors
from ._version import VERSION

SONAME = f"liblinnet.so.{'.'.join(VERSION.split('.')[:2])}"
_WHEEL = pathlib.Path(__file__).parent / "lib"  # the folder of the shared libraries in the wheel

# The callback types linnet_progress and linnet_reader.
Progress = ctypes.CFUNCTYPE(c_int, c_void_p, c_size_t, c_size_t)
Reader = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t)


class Sampling(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("temperature", c_float), ("top_p", c_float), ("top_k", c_size_t),
                ("seed", c_uint64), ("stream", c_uint64)]


class ImageOptions(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("seed", c_uint64), ("first_stream", c_uint64), ("temperature", c_float),
                ("reference_scale", c_int), ("batch", c_size_t), ("progress", Progress), ("progress_data", c_void_p)]


class TextOptions(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("tokens", c_size_t), ("sampling", POINTER(Sampling)),
                ("stop", POINTER(c_char_p)), ("stop_count", c_size_t), ("grammar", c_void_p)]


class CoupletOptions(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("candidates", c_size_t), ("beam", c_size_t), ("sampling", POINTER(Sampling)),
                ("free_form", c_int)]


# {name without linnet_: (result type, argument types...)}. Objects and arrays are c_void_p.
_FUNCTIONS: dict[str, tuple] = {
    "version": (c_char_p,),
    "last_status": (c_int,),
    "last_error": (c_char_p,),
    "model_open": (c_void_p, c_char_p, c_char_p),
    "model_open_memory": (c_void_p, c_void_p, c_size_t, c_char_p, c_char_p),
    "model_free": (None, c_void_p),
    "model_path": (c_char_p, c_void_p),
    "model_task": (c_char_p, c_void_p),
    "model_precision": (c_char_p, c_void_p),
    "model_spec": (c_char_p, c_void_p),
    "model_training": (c_char_p, c_void_p),
    "model_parameters": (c_uint64, c_void_p),
    "model_weight_bytes": (c_size_t, c_void_p),
    "model_vocabulary": (c_int32, c_void_p),
    "model_unit": (c_char_p, c_void_p),
    "model_end": (c_int32, c_void_p),
    "model_outputs": (c_size_t, c_void_p),
    "model_positions": (c_size_t, c_void_p),
    "model_limited": (c_int, c_void_p),
    "model_state_kind": (c_int, c_void_p),
    "model_state_bytes": (c_size_t, c_void_p),
    "model_image_width": (c_size_t, c_void_p),
    "model_image_height": (c_size_t, c_void_p),
    "model_image_channels": (c_size_t, c_void_p),
    "model_sample_rate": (c_int32, c_void_p),
    "model_phones": (c_char_p, c_void_p),
    "engine_new": (c_void_p, c_void_p, c_int),
    "engine_free": (None, c_void_p),
    "state_new": (c_void_p, c_void_p, c_size_t),
    "state_free": (None, c_void_p),
    "state_clone": (c_void_p, c_void_p),
    "state_fork": (c_void_p, c_void_p, c_size_t),
    "state_select": (c_void_p, c_void_p, c_void_p, c_size_t),
    "state_append": (c_int, c_void_p, c_void_p),
    "state_reset": (c_int, c_void_p),
    "state_reset_sequence": (c_int, c_void_p, c_size_t),
    "state_batch": (c_size_t, c_void_p),
    "state_position": (c_size_t, c_void_p, c_size_t),
    "state_bytes": (c_size_t, c_void_p),
    "state_save": (c_int, c_void_p, c_void_p, c_char_p),
    "state_load": (c_void_p, c_void_p, c_char_p),
    "step": (c_int, c_void_p, c_void_p, c_void_p, c_void_p),
    "prefix": (c_int, c_void_p, c_void_p, c_void_p, c_size_t, c_void_p),
    "prefix_all": (c_int, c_void_p, c_void_p, c_void_p, c_size_t, c_void_p),
    "sampling_init": (c_int, POINTER(Sampling), c_size_t),
    "choose": (c_int, c_void_p, c_size_t, POINTER(Sampling), c_uint64, POINTER(c_int32)),
    "encode": (c_int, c_void_p, c_char_p, c_size_t, c_void_p, c_size_t, POINTER(c_size_t)),
    "encode_prompt": (c_int, c_void_p, c_char_p, c_size_t, c_void_p, c_size_t, POINTER(c_size_t)),
    "decode": (c_int, c_void_p, c_void_p, c_size_t, c_void_p, c_size_t, POINTER(c_size_t)),
    "token_text": (c_int, c_void_p, c_int32, c_void_p, c_size_t, POINTER(c_size_t)),
    "image_options_init": (c_int, POINTER(ImageOptions), c_size_t),
    "sample_images": (c_int, c_void_p, c_size_t, POINTER(ImageOptions), c_void_p),
    "complete_images": (c_int, c_void_p, c_void_p, c_size_t, c_size_t, POINTER(ImageOptions), c_void_p),
    "bits_per_dim": (c_int, c_void_p, c_void_p, c_size_t, POINTER(ImageOptions), POINTER(c_double), c_void_p),
    "grammar_new": (c_void_p, c_char_p, c_size_t),
    "grammar_of_json_schema": (c_void_p, c_char_p, c_size_t),
    "grammar_free": (None, c_void_p),
    "matcher_new": (c_void_p, c_void_p, c_void_p),
    "matcher_free": (None, c_void_p),
    "matcher_mask": (c_int, c_void_p, c_void_p, c_size_t),
    "matcher_add": (c_int, c_void_p, c_int32, POINTER(c_int)),
    "text_options_init": (c_int, POINTER(TextOptions), c_size_t),
    "write_text": (c_int, c_void_p, c_char_p, c_size_t, POINTER(TextOptions), Reader, c_void_p, POINTER(c_int)),
    "text_nats": (c_int, c_void_p, c_char_p, c_size_t, POINTER(c_double), POINTER(c_size_t)),
    "couplet_options_init": (c_int, POINTER(CoupletOptions), c_size_t),
    "write_couplets": (c_void_p, c_void_p, c_char_p, c_size_t, POINTER(CoupletOptions)),
    "couplets_free": (None, c_void_p),
    "couplets_count": (c_size_t, c_void_p),
    "couplets_text": (c_char_p, c_void_p, c_size_t),
    "couplets_log_probability": (c_double, c_void_p, c_size_t),
    "couplets_scores": (POINTER(c_double), c_void_p, c_size_t, POINTER(c_size_t)),
    "transcribe": (c_void_p, c_void_p, c_void_p, c_size_t, c_size_t),
    "transcript_free": (None, c_void_p),
    "transcript_count": (c_size_t, c_void_p),
    "transcript_phone": (c_char_p, c_void_p, c_size_t),
    "transcript_start": (c_double, c_void_p, c_size_t),
    "transcript_probability": (c_double, c_void_p, c_size_t),
    "speech_frames": (c_int, c_void_p, c_void_p, c_size_t, c_void_p, c_size_t, POINTER(c_size_t)),
    "transcriber_new": (c_void_p, c_void_p),
    "transcriber_free": (None, c_void_p),
    "transcriber_accept": (c_int, c_void_p, c_void_p, c_size_t),
    "transcriber_finish": (c_int, c_void_p),
    "transcriber_transcript": (c_void_p, c_void_p),
    "transcriber_delay": (c_double, c_void_p),
}


def _load() -> tuple[ctypes.CDLL, str]:
    """Loads the library that $LINNET_LIBRARY names, else the wheel's, else the system's; returns it and its path."""
    path = os.environ.get("LINNET_LIBRARY")
    if not path and (_WHEEL / SONAME).exists():
        path = str(_WHEEL / SONAME)
    try:
        if path == str(_WHEEL / SONAME):
            for name in (_WHEEL / "preload.txt").read_text().split():
                ctypes.CDLL(str(_WHEEL / name))
        return ctypes.CDLL(path or SONAME), path or SONAME
    except OSError as error:
        raise _errors.LibraryError(f"linnet: cannot load its library: {error}; install linnet's wheel or {SONAME}, or "
                                   "set LINNET_LIBRARY to the library's path") from None


class Functions:
    """The library's functions without their prefix linnet_: library.model_open(...)."""

    def __init__(self) -> None:
        loaded, self.path = _load()
        for name, (result, *arguments) in _FUNCTIONS.items():
            function = getattr(loaded, f"linnet_{name}", None)
            if function is None:
                raise _errors.LibraryError(f"{self.path}: has no function linnet_{name}; install linnet {VERSION}")
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)
            if name == "version":
                self._check_version(function().decode())

    def __getattr__(self, name: str) -> Callable[..., Any]:  # for type checkers: __init__ sets the functions
        raise AttributeError(name)

    def _check_version(self, version: str) -> None:
        if version.split(".")[:2] != VERSION.split(".")[:2]:
            raise _errors.LibraryError(f"{self.path}: is version {version}, but the Python package is version "
                                       f"{VERSION}; install the same version of both")


library = Functions()


def library_path() -> str:
    """The path of the loaded library, or its name if the system found it."""
    return library.path


# {linnet_status: exception}. Any other status becomes RuntimeError.
_KINDS = {1: _errors.InputError, 3: _errors.MemoryError}


def last_error() -> Exception:
    """The error of this thread's last call."""
    message = library.last_error().decode(errors="replace")
    return _KINDS.get(library.last_status(), _errors.RuntimeError)(message)


def check(status: int) -> None:
    if status != 0:
        raise last_error()


def _free(free: Callable[[int], None], pointer: int, process: Optional[int]) -> None:
    if process is None or process == os.getpid():
        free(pointer)


class Handle:
    """Owns an object of the library and frees it when this handle is collected. `library`'s functions accept handles.

    with_threads: the object has threads. A forked process lacks these threads, so it does not free the object.
    """

    __slots__ = ("_as_parameter_", "process", "__weakref__")

    def __init__(self, pointer: Optional[int], free: Callable[[int], None], with_threads: bool = False) -> None:
        if not pointer:
            raise last_error()
        self._as_parameter_ = pointer  # read by ctypes; a call keeps the handle alive
        self.process = os.getpid()
        # The object is not freed at the interpreter's exit, since daemon threads may still use it.
        weakref.finalize(self, _free, free, pointer, self.process if with_threads else None).atexit = False

    def __reduce__(self) -> Any:
        raise TypeError("objects of linnet cannot be pickled or copied")


T = TypeVar("T")


def interruptible(work: Callable[[Optional[Callable[[], bool]]], T]) -> T:
    """Returns work(cancelled). In the main thread, Ctrl-C interrupts the call.

    In other threads, cancelled is None.
    Python handles signals only in the main thread, and not during a call of the library. So the main thread waits
    while a new thread runs `work`. A Ctrl-C ends the wait with KeyboardInterrupt, and cancelled() becomes true. `work`
    goes on in the background; if it checks cancelled(), it can end early.
    """
    if threading.current_thread() is not threading.main_thread():
        return work(None)
    cancel, done = threading.Event(), threading.Event()
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work(cancel.is_set))
        except BaseException as error:  # pylint: disable=broad-except
            errors.append(error)
        finally:
            done.set()

    try:
        threading.Thread(target=run, name="linnet").start()
        done.wait()
    except BaseException:
        cancel.set()
        raise
    try:
        if errors:
            raise errors[0]
        return results[0]
    finally:
        errors.clear()
