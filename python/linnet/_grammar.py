"""Grammars, which restrict generated text."""

from __future__ import annotations

import ctypes
import json
from typing import TYPE_CHECKING, Any, Union

import numpy as np

from . import _checks
from ._errors import InputError
from ._library import Handle, check, library

if TYPE_CHECKING:
    from ._model import Model


class Grammar:
    """A set of texts, such as the JSON of a schema. Model.generate() writes only texts of its grammar.

        answer = Grammar('root ::= "yes" | "no"')        # GBNF notation
        person = Grammar.of_json_schema({"type": "object", "properties": {"name": {"type": "string"}}})

    docs/structured-output.md describes the notation and the supported keywords of schemas.
    """

    def __init__(self, text: str) -> None:
        encoded = _checks.text(text, "text")
        self._handle = Handle(library.grammar_new(encoded, len(encoded)), library.grammar_free)

    @classmethod
    def of_json_schema(cls, schema: Union[str, dict[str, Any], bool]) -> Grammar:
        """The JSON values that a schema accepts; the schema is a dict or its JSON."""
        if not isinstance(schema, str):
            try:
                schema = json.dumps(schema, allow_nan=False)
            except (TypeError, ValueError) as error:
                raise InputError(f"schema must be a dict or JSON: {error}") from None
        encoded = _checks.text(schema, "schema")
        grammar = cls.__new__(cls)
        grammar._handle = Handle(library.grammar_of_json_schema(encoded, len(encoded)), library.grammar_free)
        return grammar


class Matcher:
    """The position of a text within a grammar."""

    def __init__(self, grammar: Grammar, model: Model) -> None:
        self._handle = Handle(library.matcher_new(grammar._handle, model._open_handle()), library.matcher_free)

    def mask(self, logits: np.ndarray) -> None:
        """Sets the logits of tokens that cannot follow to -infinity, in place."""
        check(library.matcher_mask(self._handle, logits.ctypes.data, logits.size))

    def add(self, token: int) -> bool:
        """Adds a token; returns whether nothing can follow."""
        finished = ctypes.c_int()
        check(library.matcher_add(self._handle, token, ctypes.byref(finished)))
        return bool(finished.value)
