"""Algorithm 1, step 4: h* is chosen on dev alone. The type it is chosen from has no test field."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fewnlu.protocol.records import canonical


@dataclass(frozen=True)
class DevScores:
    """Dev scores of one h, one per run, as fractions.

    Attributes:
        places: (k, rep) of each run; where they are not given, the n-th score of each h is of the same split.
    """

    h: Mapping[str, Any]
    scores: Sequence[float]
    places: Sequence[tuple[int, int]] = ()

    @classmethod
    def of(cls, results: Sequence[Mapping[str, Any]]) -> DevScores:
        """Of the results of one h's runs; those without a usable dev score are left out."""
        scored = [r for r in results if r["dev"] and r["dev"]["select"] is not None]
        return cls(results[0]["h"], [r["dev"]["select"] for r in scored], [(r["k"], r["rep"]) for r in scored])

    @property
    def where(self) -> frozenset[tuple[int, int]]:
        """The splits and repetitions that the scores are of."""
        return frozenset(self.places or ((i, 0) for i in range(len(self.scores))))


@dataclass(frozen=True)
class Choice:
    """What was chosen.

    Attributes:
        h: h*; None where no h can be compared.
        mean / std: over its runs; std is the sample standard deviation (n - 1), NaN for one run.
        tied: how many h share the highest dev mean (1: no tie).
        candidates: how many h were compared; those that lack runs of the others, or have other splits, are not.
        left_out: how many were not.
    """

    h: Mapping[str, Any] | None
    mean: float
    std: float
    tied: int
    candidates: int
    left_out: int


def select(table: Sequence[DevScores]) -> Choice:
    """h* = highest dev mean; tie: smaller dev std; tie: first by the canonical JSON of h.

    Only h with the same splits are compared (see `fullest`): a mean over fewer or other ones is not the same quantity.
    Means that agree to 12 digits are ties, so that the order of summation decides nothing.
    """
    usable = [row for row in table if row.scores and all(math.isfinite(s) for s in row.scores)]
    if not usable:
        return Choice(None, math.nan, math.nan, 0, 0, len(table))
    full = fullest(row.where for row in usable)
    compared = [row for row in usable if row.where == full]
    ranked = sorted(
        compared,
        key=lambda r: (
            -round(mean(r.scores), 12),
            round(std(r.scores), 12) if len(r.scores) > 1 else 0.0,
            canonical(dict(r.h)),
        ),
    )
    best = ranked[0]
    top = round(mean(best.scores), 12)
    tied = sum(round(mean(r.scores), 12) == top for r in compared)
    return Choice(best.h, mean(best.scores), std(best.scores), tied, len(compared), len(table) - len(compared))


def fullest(sets: Iterable[frozenset[tuple[int, int]]]) -> frozenset[tuple[int, int]]:
    """The runs (k, rep) over which h are compared: of the largest sets that an h has, the one that most have.

    Where two are as frequent it is the one with the first splits. Empty for no sets.
    """
    count = Counter(sets)
    return min(count, key=lambda found: (-len(found), -count[found], sorted(found)), default=frozenset())


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean; NaN of nothing."""
    return float(np.mean(values)) if len(values) else math.nan


def std(values: Sequence[float]) -> float:
    """Sample standard deviation (n - 1); NaN for fewer than two values, never 0."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
