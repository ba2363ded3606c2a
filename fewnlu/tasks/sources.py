"""Checked rows of a task: labels by name, unique ids, expected counts, and nothing shared with test.

`data` is the `data` part of a configuration: ``dir`` (folder or None), ``n_labeled`` (rows to draw,
None: all), ``limit_test`` (None: all), ``files`` (optional: set -> path, in place of the task's own).
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fewnlu.errors import ConfigError, DataError, choices
from fewnlu.tasks.readers import Raw, raw_rows
from fewnlu.tasks.task import SETS, Row, Task, raw_key


@dataclass(frozen=True, slots=True)
class RowSet:
    """Rows with what a result has to state about them: their origin (never an absolute path) and hash."""

    rows: tuple[Row, ...]
    origin: str
    sha256: str

    @classmethod
    def of(cls, rows: Iterable[Row], origin: str) -> RowSet:
        """Rows with their hash."""
        rows = tuple(rows)
        return cls(rows, origin, content_hash(rows))


@dataclass(frozen=True, slots=True)
class TaskData:
    """What an experiment reads; `n_leaks` labelled rows were dropped because their text is in `test`."""

    labeled: RowSet
    test: RowSet | None
    n_leaks: int


def load(task: Task, data: Mapping[str, Any], seed: int = 42) -> TaskData:
    """Test rows, and `data.n_labeled` rows drawn from the labelled pool less those shared with test.

    Args:
        seed: `seed.data`, which decides only which rows of a larger pool are labelled.

    Raises:
        DataError: rows that cannot be used; names file and line.
    """
    pool = load_rows(task, {**data, "n_labeled": None}, "labeled")
    # Leaks are looked for in the whole test set, so that a limited test set doesn't change the labelled rows.
    whole = load_rows(task, {**data, "limit_test": None}, "test")
    if pool is None:
        raise DataError(f"task '{task.name}' has no labelled rows: set task.source.files.labeled")
    rows, dropped = drop_leaks(pool.rows, whole.rows if whole else ())
    rows = draw_labeled(rows, data.get("n_labeled"), seed, pool.origin)
    labeled = RowSet.of(rows, pool.origin)
    if whole is None:
        return TaskData(labeled, None, dropped)
    return TaskData(labeled, RowSet.of(limit(whole.rows, data.get("limit_test")), whole.origin), dropped)


def load_rows(task: Task, data: Mapping[str, Any], which: str, seed: int = 42) -> RowSet | None:
    """One set of a task's rows in source order; None if the task has no such set.

    ``labeled`` honours `data.n_labeled` (drawn by `seed`), ``test`` honours `data.limit_test`.

    Raises:
        DataError: broken or missing rows, unexpected label counts, or a source that cannot be reached.
    """
    if which not in SETS:
        raise ConfigError(f"unknown set of rows {which!r}; {choices(which, SETS)}")
    found = raw_rows(task, data, which)
    if found is None:
        return None
    raw, origin, expected = found
    rows = _rows(task, raw, which)
    if not rows:
        raise DataError(f"{origin}: no rows; expected one JSON object a line")
    _check_counts(task, rows, origin, expected)
    if which == "labeled":
        rows = draw_labeled(rows, data.get("n_labeled"), seed, origin)
    elif which == "test":
        rows = limit(rows, data.get("limit_test"))
    return RowSet.of(rows, origin)


def draw_labeled(rows: Sequence[Row], n: int | None, seed: int, origin: str = "the pool") -> list[Row]:
    """`n` rows drawn by `seed` and kept in file order; None, or as many as there are, takes all.

    Rows are drawn singly: a unit drawn in part stays in part. DataError when there are fewer than `n`.
    """
    if n is None or n == len(rows):
        return list(rows)
    if not 0 < n < len(rows):
        raise DataError(f"data.n_labeled: {n} rows asked for, {origin} has {len(rows)}; lower it or use null for all")
    return [rows[i] for i in sorted(random.Random(seed).sample(range(len(rows)), n))]


def limit(rows: Sequence[Row], n: int | None) -> list[Row]:
    """The `n` rows whose ids have the smallest SHA-256, in file order; a larger `n` holds a smaller one."""
    if n is None or n >= len(rows):
        return list(rows)
    if n < 1:
        raise ConfigError(f"data.limit_test: {n} is no number of rows; use null for all")
    order = sorted(range(len(rows)), key=lambda i: hashlib.sha256(rows[i].id.encode()).hexdigest())
    return [rows[i] for i in sorted(order[:n])]


def drop_leaks(labeled: Sequence[Row], test: Iterable[Row]) -> tuple[list[Row], int]:
    """Labelled rows whose text (see `normalised`) is not in test, and how many were dropped."""
    seen = {normalised(row) for row in test}
    kept = [row for row in labeled if normalised(row) not in seen]
    return kept, len(labeled) - len(kept)


def normalised(row: Row) -> tuple[str, ...]:
    """A row's fields as compared between sets: NFKC, case folded, white space collapsed."""
    return tuple(" ".join(unicodedata.normalize("NFKC", v).casefold().split()) for _, v in sorted(row.fields.items()))


def content_hash(rows: Iterable[Row]) -> str:
    """SHA-256 over ids, fields and labels in order; a file's path, key order and white space do not count."""
    digest = hashlib.sha256()
    for row in rows:
        line = json.dumps([row.id, dict(row.fields), row.label], ensure_ascii=False, sort_keys=True)
        digest.update(line.encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()


def _rows(task: Task, raw: Raw, which: str) -> list[Row]:
    rows: list[Row] = []
    first: dict[str, str] = {}
    for place, number, item in raw:
        fields = {name: _field(item, column, place) for name, column in task.fields.items()}
        value = None if task.id is None else _nested(item, task.id)
        row_id = str(number) if value is None else str(value)
        if row_id in first:
            if which != "unlabeled":
                raise DataError(f"{place}: id {row_id!r} is there already ({first[row_id]}); ids must be unique")
            row_id = f"{row_id}@{number}"  # pools repeat ids (WiC: 1754), and nothing is looked up by them
        first[row_id] = place
        label = None if which == "unlabeled" else _label(task, item, place)
        rows.append(Row(row_id, fields, label, _unit(task, row_id, fields, item, place)))
    return rows


def _field(item: Mapping[str, Any], column: str, place: str) -> str:
    value = _nested(item, column)
    if not isinstance(value, str):
        what = "is missing" if value is None else f"is {type(value).__name__}, not text"
        raise DataError(f"{place}: field '{column}' {what}; it has {', '.join(map(str, item))}")
    return value


def _label(task: Task, item: Mapping[str, Any], place: str) -> str:
    value = _nested(item, task.label_column)
    if value is None:
        raise DataError(f"{place}: label '{task.label_column}' is missing; {choices('', task.labels)}")
    key = raw_key(value)
    label = task.label_values.get(key, key)
    if label not in task.labels:
        known = [*task.label_values, *(name for name in task.labels if name not in task.label_values)]
        raise DataError(f"{place}: unknown label {value!r}; {choices(key, known)}")
    return label


def _unit(task: Task, row_id: str, fields: Mapping[str, str], item: Mapping[str, Any], place: str) -> str:
    def part(match: re.Match[str]) -> str:
        name = match[1]
        value = row_id if name == "id" else fields[name] if name in fields else _nested(item, name)
        if value is None:
            raise DataError(f"{place}: '{name}' of task.unit is missing")
        return str(value)

    return re.sub(r"\{([^{}]+)\}", part, task.unit)


def _nested(item: Mapping[str, Any], column: str) -> Any:
    if column in item:
        return item[column]
    value: Any = item
    for key in column.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _check_counts(task: Task, rows: Sequence[Row], origin: str, expected: Mapping[str, int] | None) -> None:
    if expected is None:
        return
    found = Counter(row.label for row in rows)
    if any(found[label] != n for label, n in expected.items()) or len(rows) != sum(expected.values()):
        raise DataError(
            f"{origin}: rows per label are {_counted(task, found)}, expected {_counted(task, expected)}\n"
            "Other counts mean other rows or mixed-up labels; your own rows need a task file without counts."
        )


def _counted(task: Task, counts: Mapping[Any, int]) -> str:
    return ", ".join(f"{label} {counts.get(label, 0)}" for label in task.labels)
