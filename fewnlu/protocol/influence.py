"""Metrics that are no mean over rows, made into one: F1, macro-F1, MCC, and what is counted by groups of rows.

The machinery of `intervals` asks for a value per (run, row). A metric that is a smooth function m of counts has none,
so it is linearised (infinitesimal jackknife; Efron, *The Jackknife, the Bootstrap and Other Resampling Plans*, 1982,
ch. 6): unit u of U counts with weight w_u = 1 in each run, and

    value(run, u) = m(run) + U · (dm/dw_u at w = 1),

whose mean over the units is m(run) itself, as every m here is a ratio and does not change when all weights grow alike.
Its variance over units is the delta method's. A unit is a row, or a group of rows that stand and fall together (the
answers to one question of MultiRC), so that rows of one group are not taken for independent ones.

How well that covers is measured by `benchmarks/coverage.py --metrics`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

LINEARISED = ("macro_f1", "weighted_f1", "f1_binary", "f1a", "mcc")
MEANS = ("accuracy", "em")
METRICS = (*MEANS, *LINEARISED)


def unit_values(
    name: str,
    gold: Any,
    said: Any,
    n_classes: int,
    *,
    positive: int | None = None,
    units: Sequence[int] | None = None,
) -> Any:
    """Values [R, U] whose mean over the units is each run's metric.

    Args:
        name: one of `METRICS`; em is the share of units whose rows are all right.
        gold: class ids [n].
        said: class ids [R, n].
        positive: the class that f1_binary and f1a count.
        units: the unit of each row, 0 to U - 1; None: each row is one.

    Returns:
        floats [R, U]; NaN throughout a run where the metric has no derivative (MCC of a constant).

    Raises:
        ValueError: an unknown metric, or a positive class that is none.
    """
    import numpy as np

    if name not in METRICS:
        raise ValueError(f"{name} cannot be linearised; known: {', '.join(METRICS)}")
    if name in ("f1_binary", "f1a") and (positive is None or not 0 <= positive < n_classes):
        raise ValueError(f"{name} counts one class of {n_classes}, not {positive}")
    truth, table = np.asarray(gold, dtype=np.int64), np.asarray(said, dtype=np.int64)
    of = np.arange(len(truth)) if units is None else np.asarray(units, dtype=np.int64)
    size = int(of.max()) + 1
    rows = np.bincount(of, minlength=size).astype(float)
    of_gold = _counts(of, truth, size, n_classes)
    out = np.empty((len(table), size))
    for r, answer in enumerate(table):
        hits = _counts(of[answer == truth], truth[answer == truth], size, n_classes)
        if name == "em":
            out[r] = hits.sum(1) == rows
        elif name == "accuracy":
            share = hits.sum() / rows.sum()
            out[r] = share + size * (hits.sum(1) - share * rows) / rows.sum()
        elif name == "mcc":
            out[r] = _mcc(hits, of_gold, _counts(of, answer, size, n_classes), rows)
        else:
            out[r] = _f1(name, hits, of_gold, _counts(of, answer, size, n_classes), rows, positive)
    return out


def _counts(units: Any, classes: Any, size: int, n_classes: int) -> Any:
    """How many rows of each class each unit has, [U, C]."""
    import numpy as np

    found = np.bincount(units * n_classes + classes, minlength=size * n_classes)
    return found.reshape(size, n_classes).astype(float)


def _f1(name: str, hits: Any, of_gold: Any, of_said: Any, rows: Any, positive: int | None) -> Any:
    """F1 of class c is 2 hits / seen, seen = gold + predicted; its derivative (2 dhits - F1 dseen) / seen."""
    import numpy as np

    size, seen_by = len(rows), of_gold + of_said
    seen, total, share = seen_by.sum(0), rows.sum(), of_gold.sum(0)
    f1 = 2 * hits.sum(0) / np.maximum(seen, 1)
    slope = np.where(seen > 0, (2 * hits - f1 * seen_by) / np.maximum(seen, 1), 0.0)  # [U, C]
    if name == "macro_f1":  # over the classes that are seen, as `tasks.metrics` has it
        return f1.sum() / (seen > 0).sum() + size * slope.sum(1) / (seen > 0).sum()
    if name == "weighted_f1":
        mean = f1 @ share / total
        return mean + size * (slope @ share + of_gold @ f1 - mean * rows) / total
    return f1[positive] + size * slope[:, positive]


def _mcc(hits: Any, of_gold: Any, of_said: Any, rows: Any) -> Any:
    """a / sqrt(b c) with a = N S - P·G, b = N² - P·P, c = N² - G·G (N rows, S hits, P predicted, G gold per class)."""
    import numpy as np

    n, s, p, g = rows.sum(), hits.sum(), of_said.sum(0), of_gold.sum(0)
    a, b, c = n * s - p @ g, n * n - p @ p, n * n - g @ g
    if b <= 0 or c <= 0:  # 0 by convention, and a step there
        return np.full(len(rows), np.nan)
    value = a / np.sqrt(b * c)
    da = rows * s + n * hits.sum(1) - of_said @ g - of_gold @ p
    db, dc = 2 * (n * rows - of_said @ p), 2 * (n * rows - of_gold @ g)
    return value + len(rows) * (da / np.sqrt(b * c) - value / 2 * (db / b + dc / c))
