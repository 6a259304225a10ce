"""Errors of the package."""

import builtins


class Error(Exception):
    """Any failure of linnet. The message is one line: where it failed, what is wrong, what to do."""


class InputError(Error, ValueError):
    """A bad file, argument or setting: the caller can correct it."""


class RuntimeError(Error, builtins.RuntimeError):
    """A failure during work: a full disk, a result that is NaN, a feature that the library was built without."""


class MemoryError(Error, builtins.MemoryError):
    """Out of memory."""


class LibraryError(Error, ImportError):
    """The shared library is missing, cannot be loaded, or has another version."""
