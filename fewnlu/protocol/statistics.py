"""What judges a strategy: dev-test rank correlation over H, and the spread over the K runs (spec 1.3-1.4)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import numpy as np


def spearman(dev: Sequence[float], test: Sequence[float]) -> float:
    """Spearman's rho with average ranks for ties (spec 1.4).

    Args:
        dev, test: one mean per h, [|H|].

    Returns:
        rho; NaN (never 0) for fewer than three points, a constant vector, or a value that is not a number.
    """
    x, y = np.asarray(dev, dtype=float), np.asarray(test, dtype=float)
    if x.shape != y.shape:
        raise ValueError(f"dev has {x.size} values, test {y.size}")
    # Means equal but for the order of summation are ties.
    x, y = np.round(x, 12), np.round(y, 12)
    if x.size < 3 or not (np.isfinite(x).all() and np.isfinite(y).all()) or np.ptp(x) == 0 or np.ptp(y) == 0:
        return math.nan
    from scipy import stats

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(stats.spearmanr(x, y).statistic)
