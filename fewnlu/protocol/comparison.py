"""Two methods on the same test rows: the paired difference, its test, and Holm's correction over a table of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fewnlu.protocol.intervals import Interval, detectable, difference_interval, p_value

TWO_WAY = "two-way random effects"
MCNEMAR = "exact McNemar"


@dataclass(frozen=True)
class Comparison:
    """A minus B, as fractions.

    Attributes:
        difference: with its interval; the estimand is `intervals.ESTIMAND`.
        test: how `p` was made; `p_holm` is p after Holm's correction over the table that it is part of.
        detectable: the smallest true difference that would show with 80 % power; NaN if unknown.
    """

    a: str
    b: str
    difference: Interval
    test: str
    p: float
    p_holm: float
    detectable: float
    note: str = ""

    @property
    def separated(self) -> bool | None:
        """Whether A and B differ at the level of the interval after Holm; None where that is not known."""
        return None if math.isnan(self.p_holm) else self.p_holm < 1 - self.difference.level


def compare(
    a: Sequence[Sequence[float]],
    b: Sequence[Sequence[float]],
    names: tuple[str, str] = ("A", "B"),
    *,
    level: float = 0.95,
    note: str = "",
) -> Comparison:
    """Compare two methods' tables [K, n] of values per (run, row); run k and row i of both belong together.

    With one run each and values 0 and 1, p is McNemar's exact test; otherwise Student's t on the two-way table.

    Raises:
        ValueError: tables of different shape.
    """
    import numpy as np

    left, right = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    if left.shape != right.shape:
        raise ValueError(f"tables of {left.shape} and {right.shape} cannot be paired")
    difference = difference_interval(left - right, level)
    binary = bool(np.isin(left, (0, 1)).all() and np.isin(right, (0, 1)).all())
    if left.shape[0] == 1 and binary:
        only_a, only_b = int((left > right).sum()), int((left < right).sum())
        p, test = mcnemar(only_a, only_b), f"{MCNEMAR} ({only_a} : {only_b})"
    else:
        p, test = p_value(difference), TWO_WAY
    return Comparison(*names, difference, test, p, p, detectable(difference), note)


def mcnemar(only_a: int, only_b: int) -> float:
    """Exact two-sided McNemar test: rows that only A, and only B, has right. 1 where there are none."""
    from scipy import stats

    if only_a + only_b == 0:
        return 1.0
    return float(stats.binomtest(min(only_a, only_b), only_a + only_b, 0.5).pvalue)


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's step-down adjusted p-values; NaN stays NaN and does not count as a test."""
    known = sorted((p, i) for i, p in enumerate(ps) if not math.isnan(p))
    out = [math.nan] * len(ps)
    worst = 0.0
    for rank, (p, i) in enumerate(known):
        worst = max(worst, min(1.0, p * (len(known) - rank)))
        out[i] = worst
    return out


def corrected(table: Sequence[Comparison]) -> list[Comparison]:
    """The comparisons of one table with Holm's correction over all of them."""
    return [replace(c, p_holm=p) for c, p in zip(table, holm([c.p for c in table]), strict=True)]


@dataclass(frozen=True)
class Correlation:
    """Spearman's rho with a percentile bootstrap over the points of H.

    Attributes:
        tied: points whose dev mean is shared with another point.
    """

    rho: float
    low: float
    high: float
    level: float
    n_points: int
    tied: int
    note: str


def spearman_interval(
    dev: Sequence[float], test: Sequence[float], *, level: float = 0.95, draws: int = 2000, seed: int = 0
) -> Correlation:
    """Rho of dev and test means over H with average ranks for ties (spec 1.4), and how sure it is.

    Points of H are resampled; runs and rows are fixed. n/a (NaN) for fewer than five points, or where more than a tenth
    of the draws have no rho of their own. Seeded: equal records give equal intervals.
    """
    import numpy as np

    from fewnlu.protocol.statistics import spearman

    x, y = (np.round(np.asarray(v, dtype=float), 12) for v in (dev, test))
    rho, n = spearman(dev, test), len(x)
    counts = np.unique(x[np.isfinite(x)], return_counts=True)[1]
    tied = int(counts[counts > 1].sum())

    def answer(low: float, high: float, note: str) -> Correlation:
        return Correlation(rho, low, high, level, n, tied, note)

    if math.isnan(rho):
        return answer(math.nan, math.nan, "not defined: fewer than 3 points, or a constant vector")
    if n < 5:
        return answer(math.nan, math.nan, f"no interval from {n} points")
    weights = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=draws).astype(float)
    rx, ry = _weighted_ranks(x, weights), _weighted_ranks(y, weights)
    middle = (n + 1) / 2  # the mean of n ranks, whatever the ties
    rx, ry = rx - middle, ry - middle
    norm = np.sqrt((weights * rx**2).sum(1) * (weights * ry**2).sum(1))
    found = (weights * rx * ry).sum(1)[norm > 1e-9] / norm[norm > 1e-9]
    if len(found) < 0.9 * draws:
        return answer(math.nan, math.nan, "no interval: too many ties")
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2])
    return answer(float(low), float(high), "over points of H; runs and rows fixed")


def _weighted_ranks(values: Any, weights: Any) -> Any:
    """Average ranks [draws, n] of values [n] of which each draw has weights[draw, i] copies; no sorting per draw."""
    import numpy as np

    order = np.argsort(values, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(values[order]) > 0])  # runs of equal values
    sizes = np.add.reduceat(weights[:, order], starts, axis=1)
    ranks = np.cumsum(sizes, axis=1) - sizes + (sizes + 1) / 2
    out = np.empty_like(weights)
    out[:, order] = np.repeat(ranks, np.diff(np.r_[starts, len(values)]), axis=1)
    return out
