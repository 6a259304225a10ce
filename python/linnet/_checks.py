"""Checks and converts arguments. Functions raise InputError that names the argument, the requirement and the value."""

from __future__ import annotations

import math
import operator
import os
from typing import Any

import numpy as np

from ._errors import InputError

_INT32 = np.iinfo(np.int32)


def brief(value: Any) -> str:
    """The repr of a value, for messages: one line, cut to 60 characters."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def integer(value: Any, name: str, low: int, high: int = 2**63 - 1) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, (bool, np.bool_)):
        raise InputError(f"{name} must be an integer, not {brief(value)}")
    if not low <= number <= high:
        limits = f"at least {low}" if high == 2**63 - 1 else f"{low} to {high}"
        raise InputError(f"{name} must be {limits}, not {number}")
    return number


def real(value: Any, name: str) -> float:
    try:
        number = float(value) if not isinstance(value, (str, bytes, bool, np.bool_)) else math.nan
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{name} must be a finite number, not {brief(value)}")
    return number


def seed(value: Any) -> int:
    """Checks a seed; for None, draws one."""
    if value is None:
        return int.from_bytes(os.urandom(8), "little")
    return integer(value, "seed", 0, 2**64 - 1)


def text(value: Any, name: str) -> bytes:
    """A str as UTF-8 bytes."""
    if not isinstance(value, str):
        raise InputError(f"{name} must be a str, not {brief(value)}")
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{name} has a lone surrogate at index {error.start}; remove it") from None


def path(value: Any, name: str = "path") -> bytes:
    try:
        encoded = os.fsencode(value)
    except (TypeError, UnicodeEncodeError):
        raise InputError(f"{name} must be a str or a path, not {brief(value)}") from None
    if b"\0" in encoded:
        raise InputError(f"{name} holds a NUL character: {brief(value)}")
    return encoded


def _array(value: Any, name: str) -> np.ndarray:
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{name} cannot become an array: {' '.join(str(error).split())}") from None
    if array.dtype == object:
        raise InputError(f"{name} must be an array of numbers with equal rows, not {brief(value)}")
    return array


def tokens(value: Any, name: str = "tokens") -> np.ndarray:
    """Tokens of any shape, as int32."""
    array = _array(value, name)
    if array.size == 0:
        return array.astype(np.int32)
    if not np.issubdtype(array.dtype, np.integer):
        raise InputError(f"{name} must be integers, not {array.dtype}")
    low, high = int(array.min()), int(array.max())
    if low < _INT32.min or high > _INT32.max:
        raise InputError(f"{name} must be 32-bit integers, not {low if low < _INT32.min else high}")
    return np.ascontiguousarray(array, dtype=np.int32).reshape(array.shape)


def images(value: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Images as uint8 [count, *shape]. A single image becomes a batch of one."""
    array = _array(value, "images")
    if array.dtype != np.uint8:
        raise InputError(f"images must be uint8, 0 to 255, not {array.dtype}")
    if array.shape == shape:
        array = array[np.newaxis]
    if array.shape[1:] != shape or len(array) == 0:
        raise InputError(f"images must have the shape [count, {', '.join(map(str, shape))}], not "
                         f"[{', '.join(map(str, array.shape))}]")
    return np.ascontiguousarray(array)


def floats(value: Any, name: str) -> np.ndarray:
    """A one-dimensional array of at least one number, as float32."""
    array = _array(value, name)
    if not np.issubdtype(array.dtype, np.floating):
        raise InputError(f"{name} must be floating-point numbers, not {array.dtype}")
    if array.ndim != 1 or array.size == 0:
        raise InputError(f"{name} must be a one-dimensional array, not of shape {list(array.shape)}")
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array, dtype=np.float32)


def samples(value: Any) -> np.ndarray:
    """Audio of one channel as float32: floating-point samples as they are, int16 divided by 32768."""
    array = _array(value, "samples")
    if array.dtype == np.int16:
        array = array.astype(np.float32) / 32768
    elif not np.issubdtype(array.dtype, np.floating):
        raise InputError(f"samples must be floating-point numbers from -1 to 1 or int16, not {array.dtype}")
    if array.ndim != 1:
        raise InputError(f"samples must be one channel, a one-dimensional array, not of shape {list(array.shape)}; "
                         "average the channels")
    with np.errstate(over="ignore"):
        array = np.ascontiguousarray(array, dtype=np.float32)
    if not np.isfinite(array).all():
        raise InputError("samples hold NaN, infinity or numbers beyond float32")
    return array
