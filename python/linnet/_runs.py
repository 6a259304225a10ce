"""Reads training runs: the folders that `linnet train` writes."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pathlib
from typing import Any

import numpy as np

from . import _checks
from ._errors import InputError


@dataclasses.dataclass(frozen=True)
class Run:
    """A training run.

    metrics: one array per metric of metrics.jsonl, with one entry per record. "step" is int64; all others are
    float64, with NaN where a record lacks the metric. "seconds" is the training time. Names of validation metrics
    begin with "validation_".
    settings: the contents of the run's config.json; {} if there is no such file.
    """

    path: str
    metrics: dict[str, np.ndarray]
    settings: dict[str, Any]

    def curve(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns (steps, values) of the records that have this metric. Raises InputError for an unknown metric."""
        if name not in self.metrics:
            raise InputError(f"{self.path}: has no metric '{name}'; it has {', '.join(self.metrics)}")
        has = ~np.isnan(self.metrics[name])
        return self.metrics["step"][has], self.metrics[name][has]

    def __repr__(self) -> str:
        return f"<linnet.Run {self.path!r}: {len(self.metrics['step'])} records of {', '.join(self.metrics)}>"


def read_run(folder: str | os.PathLike[str]) -> Run:
    """Reads the metrics and settings of a training run, which may still be training.

    An incomplete last line is ignored, since the run may be writing it. Raises InputError if the folder holds no run
    or an invalid file.
    """
    path = pathlib.Path(os.fsdecode(_checks.path(folder, "folder")))
    log = path / "metrics.jsonl"
    records = _records(log, _read(log, "name a folder that linnet train wrote"))
    names = dict.fromkeys(name for record in records for name, value in record.items() if _is_metric(value))
    metrics = {name: np.array([_number(record.get(name)) for record in records]) for name in names if name != "step"}
    metrics = {"step": np.array([record["step"] for record in records], dtype=np.int64), **metrics}
    return Run(str(path), metrics, _settings(path / "config.json"))


def _read(path: pathlib.Path, remedy: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise InputError(f"{path}: {reason}; {remedy}") from None


def _records(path: pathlib.Path, text: str) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if number == len(lines) and not line:
            break
        try:
            record = json.loads(line)
        except ValueError:
            if number == len(lines):
                break
            record = None
        step = record.get("step") if isinstance(record, dict) else None
        if not _is_metric(step) or not 0 <= _number(step) <= 1e15:
            raise InputError(f"{path}:{number}: not a record of a training run (a JSON object with a \"step\"); remove "
                             "the line or name another folder")
        records.append(record)
    return records


def _settings(path: pathlib.Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        settings = json.loads(_read(path, "copy the run's folder again"))
    except json.JSONDecodeError as error:
        raise InputError(f"{path}: not JSON: {error}; copy the run's folder again") from None
    if not isinstance(settings, dict):
        raise InputError(f"{path}: not a JSON object; copy the run's folder again")
    return settings


def _is_metric(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


def _number(value: Any) -> float:
    try:
        return float(value) if _is_metric(value) and value is not None else math.nan
    except OverflowError:
        return math.inf
