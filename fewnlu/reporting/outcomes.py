"""Which rows the runs of one h have right: from predictions.parquet, read only for the h that are looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fewnlu.protocol.comparison import Comparison, compare
from fewnlu.protocol.intervals import Interval, score_interval
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

    def by_split(self) -> tuple[list[int], Any]:
        """(k, table [K, n]): repetitions of one split are averaged, as they share its rows."""
        import numpy as np

        ks = sorted({r["k"] for r in self.runs})
        return ks, np.array([self.right[[i for i, r in enumerate(self.runs) if r["k"] == k]].mean(0) for k in ks])


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


def checked(results: Sequence[dict[str, Any]]) -> Outcomes | str:
    """Test outcomes whose share of right rows is the accuracy that the records state; else why not."""
    if not results or any(not r["test"] or r["test"]["metrics"].get("accuracy") is None for r in results):
        return "no test accuracy, so no score that is a mean over rows"
    found = outcomes(results)
    if isinstance(found, str):
        return found
    for result, share in zip(results, found.right.mean(1), strict=True):
        if abs(float(share) - result["test"]["metrics"]["accuracy"]) > 1e-9:
            return "accuracy is not the share of rows whose label is the gold label"
    return found


def accuracy_interval(results: Sequence[dict[str, Any]], level: float = 0.95) -> Interval | str:
    """Interval of test accuracy over runs and rows; a sentence where there is none."""
    found = checked(results)
    return found if isinstance(found, str) else score_interval(found.by_split()[1], level)


def compare_runs(
    a: Sequence[dict[str, Any]], b: Sequence[dict[str, Any]], names: tuple[str, str], level: float = 0.95
) -> Comparison | str:
    """A minus B in test accuracy, paired by split number and test row; a sentence where they can't be paired."""
    left, right = checked(a), checked(b)
    for name, found in zip(names, (left, right), strict=True):
        if isinstance(found, str):
            return f"{name}: {found}"
    assert isinstance(left, Outcomes) and isinstance(right, Outcomes)
    hashes = [one.runs[0]["rows"]["test"]["sha256"] for one in (left, right)]
    if hashes[0] != hashes[1] or left.ids != right.ids:
        return f"{names[0]} and {names[1]} are scored on different test rows"
    (ks, table), (other_ks, other) = left.by_split(), right.by_split()
    common = [k for k in ks if k in other_ks]
    if not common:
        return f"{names[0]} and {names[1]} share no split number"
    notes = []
    if len(common) < max(len(ks), len(other_ks)):
        notes.append(f"only the {len(common)} splits that both have")
    if not same_splits(left.runs, right.runs, common):
        notes.append("splits differ: runs are paired by number, which is right for independent splits")
    pick, other_pick = [ks.index(k) for k in common], [other_ks.index(k) for k in common]
    return compare(table[pick], other[other_pick], names, level=level, note="; ".join(notes))


def same_splits(a: Sequence[dict[str, Any]], b: Sequence[dict[str, Any]], ks: Sequence[int]) -> bool:
    """Whether two sets of runs have the same train and dev rows for these splits."""

    def parts(results: Sequence[dict[str, Any]]) -> dict[int, tuple[Any, Any]]:
        return {r["k"]: (r["rows"]["train"]["hash"], r["rows"]["dev"]["hash"]) for r in results if r["k"] in ks}

    return parts(a) == parts(b)


def distinct_splits(results: Sequence[dict[str, Any]]) -> int:
    """How many different (train, dev) pairs the runs have; strategies that cluster may draw one twice."""
    return len({(r["rows"]["train"]["hash"], r["rows"]["dev"]["hash"]) for r in results})
