"""Which rows the runs of one h have right: from predictions.parquet, read only for the h that are looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fewnlu.protocol.records import PREDICTIONS


@dataclass
class Outcomes:
    """Predictions of some runs on the same rows.

    Attributes:
        ids / gold: per row [n].
        said: per run and row, the predicted label [R][n].
        right: per run and row, 1.0 or 0.0, [R, n].
        runs: the results they come from [R].
    """

    ids: list[str]
    gold: list[str | None]
    said: list[list[str]]
    right: Any
    runs: list[dict[str, Any]]


def outcomes(results: Sequence[dict[str, Any]], which: str = "test") -> Outcomes | str:
    """Outcomes of runs on their test (or dev) rows; a sentence that says why where there are none."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    ids: list[str] = []
    gold: list[str | None] = []
    said: list[list[str]] = []
    for result in results:
        path = Path(result["folder"]) / PREDICTIONS
        try:
            table = pq.read_table(path, columns=["set", "id", "gold", "prediction"], use_threads=False)
        except (OSError, KeyError, pa.ArrowException):
            return f"{PREDICTIONS} of run k{result['k']}-r{result['rep']} is missing or damaged"
        table = table.filter(pa.compute.equal(table["set"], which))
        mine = table["id"].to_pylist()
        if not ids:
            ids, gold = mine, table["gold"].to_pylist()
        if mine != ids:
            return f"the runs have other {which} rows" if which == "test" else "the runs have dev rows of their own"
        said.append(table["prediction"].to_pylist())
    if not ids:
        return f"no {which} rows"
    right = np.array([[s == g for s, g in zip(row, gold, strict=True)] for row in said], dtype=float)
    return Outcomes(ids, gold, said, right, list(results))


def same_splits(a: Sequence[dict[str, Any]], b: Sequence[dict[str, Any]], ks: Sequence[int]) -> bool:
    """Whether two sets of runs have the same train and dev rows for these splits."""

    def parts(results: Sequence[dict[str, Any]]) -> dict[int, tuple[Any, Any]]:
        return {r["k"]: (r["rows"]["train"]["hash"], r["rows"]["dev"]["hash"]) for r in results if r["k"] in ks}

    return parts(a) == parts(b)


def distinct_splits(results: Sequence[dict[str, Any]]) -> int:
    """How many different (train, dev) pairs the runs have; strategies that cluster may draw one twice."""
    return len({(r["rows"]["train"]["hash"], r["rows"]["dev"]["hash"]) for r in results})
