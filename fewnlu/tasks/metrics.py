"""Metrics as pure functions over a whole set of rows; a mean over batches would move with the batch size.

Those of classes are read off one confusion matrix; `em` asks for groups of rows that are right as a whole, and the
`answer_` metrics compare the texts of candidates that each row brings itself. Macro-F1 averages over the classes seen
in gold or prediction (the rule of scikit-learn and of the released toolkit; spec, section 4.4), the same for dev, test
and report.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fewnlu.errors import ConfigError, DataError, choices
from fewnlu.tasks.answers import exact_match, token_f1
from fewnlu.tasks.task import METRICS, Row, Task

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

CHANCE_DRAWS = 1000
_AT_ONCE = 2_000_000  # guesses that are held at once, a few times 16 MB; how many there are changes no value


def argmax(scores: ArrayLike) -> NDArray[np.int64]:
    """Class of the highest score of each row, the first one on ties.

    Args:
        scores: [rows, classes]; −inf marks a class that a row lacks.

    Raises:
        DataError: a row with NaN, +inf, or no finite score: a class made of it would look like a result.
    """
    import numpy as np

    table = np.asarray(scores, dtype=np.float64)
    if table.ndim != 2:
        raise ValueError(f"scores have shape {table.shape}, expected [rows, classes]")
    bad = np.isnan(table).any(1) | np.isposinf(table).any(1) | np.isneginf(table).all(1)
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise DataError(
            f"scores of {int(bad.sum())} of {len(table)} rows are not finite (first: row {row}, "
            f"{table[row].tolist()}); the model has diverged or overflowed"
        )
    return table.argmax(1)


def compute(
    names: Iterable[str],
    scores: ArrayLike,
    gold: Sequence[int],
    labels: Sequence[str],
    meta: Sequence[Mapping[str, Any]] | None = None,
    positive: str | None = None,
) -> dict[str, float]:
    """Metrics of a whole set, as fractions.

    Args:
        scores: [rows, classes], or class ids [rows].
        gold: class ids [rows], indices into `labels`.
        meta: of each row: `group` for em; `candidates`, `right` and `answers` where `labels` is empty.
        positive: the label that f1_binary and f1a count.

    Raises:
        DataError: no rows, or scores that are not finite.
        ConfigError: an unknown metric, or f1_binary without its label.
    """
    import numpy as np

    table = np.asarray(scores)
    predicted = argmax(table) if table.ndim == 2 else table
    answer = np.asarray(gold, dtype=np.int64)
    if len(answer) == 0:
        raise DataError("no rows to score")
    if predicted.shape != answer.shape:
        raise ValueError(f"{len(predicted)} predictions for {len(answer)} gold labels")
    if predicted.dtype.kind not in "iu":
        raise DataError(f"predictions are {predicted.dtype}, not class ids; NaN is no class")
    if not labels:
        worth = _worth(names, len(answer), meta)
        return {name: float(v[0]) for name, v in _of_candidates(worth, predicted[None]).items()}
    n = len(labels)
    for what, ids in (("prediction", predicted), ("gold label", answer)):
        if ids.min() < 0 or ids.max() >= n:
            raise DataError(f"{what} {int(ids.min() if ids.min() < 0 else ids.max())} is no class of {list(labels)}")
    confusion = np.bincount(answer * n + predicted, minlength=n * n).reshape(1, n, n)
    found = {}
    for name in names:
        if name == "em":
            found[name] = float(_groups_right((predicted == answer)[None], meta)[0])
        else:
            found[name] = float(_metric(name, confusion, labels, positive)[0])
    return found


def score_rows(task: Task, scores: ArrayLike, rows: Sequence[Row]) -> dict[str, float]:
    """The task's metrics of scores [rows, columns]."""
    gold = [task.gold(row) for row in rows]
    return compute(task.metrics, scores, gold, task.labels, [row.meta for row in rows], task.positive)


def select_score(task: Task, metrics: Mapping[str, float]) -> float:
    """The number that selects: the unweighted mean of `task.select` (spec, section 1.2); NaN stays NaN."""
    missing = [name for name in task.select if name not in metrics]
    if missing:
        raise ConfigError(f"task.select: '{missing[0]}' was not computed; {choices(missing[0], metrics)}")
    return sum(metrics[name] for name in task.select) / len(task.select)


def controls(
    task: Task, gold: Sequence[int], seed: int = 0, meta: Sequence[Mapping[str, Any]] | None = None
) -> dict[str, dict[str, float]]:
    """What needs no model: `majority` (the most frequent gold class, the first on ties) and `chance`.

    Chance is a uniform guess: exact for the accuracy of fixed labels, otherwise the mean of 1,000 seeded draws whatever
    the number of rows. Rows with candidates of their own have no majority class; there `majority` is the first
    candidate of each row.
    """
    import numpy as np

    answer = np.asarray(gold, dtype=np.int64)
    if not task.labels:
        worth = _worth(task.metrics, len(answer), meta)
        sizes = np.array([len(one["candidates"]) for one in meta or ()])
        drawn = [_of_candidates(worth, guesses) for guesses in _guesses(seed, sizes, len(answer))]
        first = _of_candidates(worth, np.zeros((1, len(answer)), dtype=np.int64))
        return {
            "majority": {name: float(v[0]) for name, v in first.items()},
            "chance": {name: float(np.concatenate([one[name] for one in drawn]).mean()) for name in worth},
        }
    n = len(task.labels)
    majority = np.full_like(answer, np.bincount(answer, minlength=n).argmax())
    tables, groups = [], []
    for guesses in _guesses(seed, n, len(answer)):
        if "em" in task.metrics:
            groups.append(_groups_right(guesses == answer, meta))
        cells = np.arange(len(guesses))[:, None] * n * n + answer * n + guesses
        tables.append(np.bincount(cells.ravel(), minlength=len(guesses) * n * n).reshape(-1, n, n))
    confusion = np.concatenate(tables)
    chance = {}
    for name in task.metrics:
        if name == "accuracy":
            chance[name] = 1 / n
        elif name == "em":
            chance[name] = float(np.concatenate(groups).mean())
        else:
            chance[name] = float(_metric(name, confusion, task.labels, task.positive).mean())
    return {
        "majority": compute(task.metrics, majority, gold, task.labels, meta, positive=task.positive),
        "chance": chance,
    }


def _guesses(seed: int, sizes: int | NDArray[np.int64], n_rows: int) -> Iterator[NDArray[np.int64]]:
    """Uniform guesses among `sizes` classes, [draws, rows] in parts: together CHANCE_DRAWS draws of one generator."""
    import numpy as np

    rng = np.random.default_rng(seed)
    part = max(1, min(CHANCE_DRAWS, _AT_ONCE // max(1, n_rows)))
    for start in range(0, CHANCE_DRAWS, part):
        yield rng.integers(0, sizes, size=(min(part, CHANCE_DRAWS - start), n_rows))


def _groups_right(right: NDArray[np.bool_], meta: Sequence[Mapping[str, Any]] | None) -> NDArray[np.float64]:
    """Share of the groups whose rows are all right, of draws [draws, rows] -> [draws]."""
    import numpy as np

    names = [str(one["group"]) for one in meta or ()]
    if len(names) != right.shape[1]:
        raise ValueError(f"{len(names)} groups for {right.shape[1]} rows")
    _, groups = np.unique(names, return_inverse=True)
    order = np.argsort(groups, kind="stable")
    starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
    return np.logical_and.reduceat(right[:, order], starts, axis=1).mean(1)


def _worth(
    names: Iterable[str], n_rows: int, meta: Sequence[Mapping[str, Any]] | None
) -> dict[str, NDArray[np.float64]]:
    """What each of the rows' own candidates is worth by each metric, [rows, candidates]."""
    import numpy as np

    meta = meta or ()
    if len(meta) != n_rows:
        raise ValueError(f"candidates of {len(meta)} rows for {n_rows} rows")
    longest = max(len(one["candidates"]) for one in meta)
    found = {}
    for name in names:
        if name not in ("accuracy", "answer_em", "answer_f1"):
            raise ConfigError(f"unknown metric '{name}' for rows with candidates; {choices(name, METRICS)}")
        worth = np.zeros((len(meta), longest))
        for i, one in enumerate(meta):
            for j, text in enumerate(one["candidates"]):
                if name == "accuracy":
                    worth[i, j] = float(j in one["right"])
                else:
                    worth[i, j] = (exact_match if name == "answer_em" else token_f1)(text, one["answers"])
        found[name] = worth
    return found


def _of_candidates(
    worth: Mapping[str, NDArray[np.float64]], chosen: NDArray[np.int64]
) -> dict[str, NDArray[np.float64]]:
    """Metrics over the rows' own candidates, of choices [draws, rows] -> [draws] each."""
    import numpy as np

    return {name: table[np.arange(len(table)), chosen].mean(1) for name, table in worth.items()}


def _metric(
    name: str, confusion: NDArray[np.int64], labels: Sequence[str], positive: str | None
) -> NDArray[np.float64]:
    """One metric of a stack of confusion matrices [draws, gold, predicted] -> [draws]."""
    import numpy as np

    hits = np.diagonal(confusion, axis1=1, axis2=2).astype(np.float64)
    of_gold, of_predicted = confusion.sum(2), confusion.sum(1)
    total = confusion.sum((1, 2))
    if name == "accuracy":
        return hits.sum(1) / total
    if name in ("macro_f1", "weighted_f1", "f1_binary", "f1a"):
        seen = of_gold + of_predicted
        f1 = 2 * hits / np.maximum(seen, 1)
        if name == "macro_f1":
            return f1.sum(1) / (seen > 0).sum(1)
        if name == "weighted_f1":  # each class's F1 times its share of the gold labels
            return (f1 * of_gold).sum(1) / total
        if positive is None or positive not in labels:
            raise ConfigError(f"task.positive: {name} counts one label; {choices(positive, labels)}")
        return f1[:, list(labels).index(positive)]
    if name == "mcc":
        # A product of four counts leaves 64-bit integers from about 78,000 rows on.
        of_gold, of_predicted, total = (of_gold.astype(float), of_predicted.astype(float), total.astype(float))
        both = (of_gold * of_predicted).sum(1)
        spread = (total**2 - (of_predicted**2).sum(1)) * (total**2 - (of_gold**2).sum(1))
        # 0 where gold or prediction is constant, as scikit-learn has it
        return np.where(spread > 0, (hits.sum(1) * total - both) / np.sqrt(np.maximum(spread, 1)), 0.0)
    raise ConfigError(f"unknown metric '{name}'; {choices(name, METRICS)}")
