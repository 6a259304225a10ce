"""Runs linnet's models: images, text, couplets and speech, on the CPU.

    import linnet

    model = linnet.Model("models/digits.safetensors")
    digits = model.sample(16, seed=7)                    # uint8 [16, 28, 28]
    halves = model.complete(digits, known=14)            # the same upper halves, new lower halves

    for piece in linnet.Model("runs/text").generate("ROMEO:", stream=True):
        print(piece, end="", flush=True)

    state = linnet.Model("runs/text").new_state()        # the model as an RNN
    outputs = state.step(0)                              # logits of the next token, float32 [1, outputs]

Failures raise linnet.Error: InputError (a ValueError) if the caller can correct them, otherwise linnet.RuntimeError or
linnet.MemoryError. `import linnet` loads the library that $LINNET_LIBRARY names, else the one in the package, else
the system's. The import raises LibraryError (an ImportError) if that fails or the library has
another version.
"""

from ._errors import Error, InputError, LibraryError, MemoryError, RuntimeError
from ._grammar import Grammar
from ._library import library_path
from ._model import Couplet, Model
from ._runs import Run, read_run
from ._speech import Phone, Transcriber
from ._state import State
from ._text import choose
from ._version import VERSION as __version__

# RuntimeError and MemoryError are left out, since `from linnet import *` would hide Python's.
__all__ = ["Couplet", "Error", "Grammar", "InputError", "LibraryError", "Model", "Phone", "Run", "State", "Transcriber", "choose",
           "library_path", "read_run"]
