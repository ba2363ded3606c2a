"""Rows of a task: from files below `data.dir`, from inside the package, or from the Hugging Face hub.

`data` is the `data` part of a configuration: ``dir`` (folder or None), ``n_labeled`` (rows to label, None: all),
``limit_test`` (None: all), ``files`` (optional: set -> path, in place of the task's own).
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from fewnlu.errors import ConfigError, DataError, choices
from fewnlu.tasks.task import SETS, Row, Task, raw_key


@dataclass(frozen=True, slots=True)
class RowSet:
    """Rows with what a result has to state about them: where they came from (no absolute path) and their hash."""

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
    """What an experiment reads: `labeled` shares no text with `test`; `n_leaks` rows were dropped for that."""

    labeled: RowSet
    test: RowSet | None
    n_leaks: int


def load(task: Task, data: Mapping[str, Any], seed: int = 42) -> TaskData:
    """Test rows, and `data.n_labeled` labelled rows drawn from the pool after rows shared with test are dropped.

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
    found = _raw_rows(task, data, which)
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

    Rows are drawn singly: a unit that is drawn in part stays in part. DataError when there are fewer than `n`.
    """
    if n is None or n == len(rows):
        return list(rows)
    if not 0 < n < len(rows):
        raise DataError(
            f"data.n_labeled: {n} rows asked for, {origin} has {len(rows)}; lower it or use null for all"
        )
    return [rows[i] for i in sorted(random.Random(seed).sample(range(len(rows)), n))]


def limit(rows: Sequence[Row], n: int | None) -> list[Row]:
    """The `n` rows whose ids have the smallest SHA-256, in file order: a larger `n` contains a smaller one's."""
    if n is None or n >= len(rows):
        return list(rows)
    if n < 1:
        raise ConfigError(f"data.limit_test: {n} is no number of rows; use null for all")
    order = sorted(range(len(rows)), key=lambda i: hashlib.sha256(rows[i].id.encode()).hexdigest())
    return [rows[i] for i in sorted(order[:n])]


def drop_leaks(labeled: Sequence[Row], test: Iterable[Row]) -> tuple[list[Row], int]:
    """Labelled rows whose text is not in test (case, white space and Unicode form aside), and how many were dropped."""
    seen = {normalised(row) for row in test}
    kept = [row for row in labeled if normalised(row) not in seen]
    return kept, len(labeled) - len(kept)


def normalised(row: Row) -> tuple[str, ...]:
    """A row's fields as compared between sets: NFKC, case folded, white space collapsed."""
    return tuple(
        " ".join(unicodedata.normalize("NFKC", v).casefold().split()) for _, v in sorted(row.fields.items())
    )


def content_hash(rows: Iterable[Row]) -> str:
    """SHA-256 over ids, fields and labels in order; neither path nor key order nor white space of a file counts."""
    digest = hashlib.sha256()
    for row in rows:
        line = json.dumps([row.id, dict(row.fields), row.label], ensure_ascii=False, sort_keys=True)
        digest.update(line.encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()


Raw = Iterator[tuple[str, int, Mapping[str, Any]]]  # (place as errors name it, 1-based number, JSON object)
Found = tuple[Raw, str, Mapping[str, int] | None]


def _raw_rows(task: Task, data: Mapping[str, Any], which: str) -> Found | None:
    source = task.source
    own = data.get("files") or {}
    folder = data.get("dir")
    if own.get(which):
        path = Path(own[which]) if folder is None else Path(folder) / own[which]
        shown = path.name if Path(own[which]).is_absolute() else str(own[which])
        return _json_lines(_read_file(path, task), str(path)), f"file {shown}", None
    if folder is not None:
        name = source.files.get(which)
        if name is None and source.files:
            return None
        if name is None:
            raise DataError(f"data.dir: task '{task.name}' names no files; leave data.dir out")
        path = Path(folder) / name
        return _json_lines(_read_file(path, task), str(path)), f"file {name}", source.counts.get(which)
    if source.packaged is not None:
        name = f"{source.packaged}/{which}.jsonl"
        item = resources.files("fewnlu.tasks").joinpath("data", source.packaged, f"{which}.jsonl")
        if not item.is_file():
            return None
        return _json_lines(item.read_bytes(), name), f"packaged {name}", source.counts.get(which)
    if source.hub is not None:
        return _hub(task, which)
    raise DataError(f"task '{task.name}' reads files: set data.dir=FOLDER with {_expected(task)}")


def _read_file(path: Path, task: Task) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(
            f"{path.absolute()}: {error.strerror or error}\n"
            f"data.dir of task '{task.name}' is expected to hold {_expected(task)}"
        ) from None


def _expected(task: Task) -> str:
    return ", ".join(str(name) for name in task.source.files.values() if name) or "no files"


def _json_lines(content: bytes, path: str) -> Raw:
    for number, line in enumerate(content.split(b"\n"), 1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path}:{number}: not UTF-8 ({error.reason} at byte {error.start}); convert the file"
            ) from None
        if not text.strip():
            continue
        try:
            row = json.loads(text)
        except json.JSONDecodeError as error:
            raise DataError(
                f"{path}:{number}: broken JSON ({error.msg} at character {error.pos + 1})"
            ) from None
        if not isinstance(row, dict):
            raise DataError(f"{path}:{number}: {type(row).__name__} where a JSON object was expected")
        yield f"{path}:{number}", number, row


def _hub(task: Task, which: str) -> Found | None:
    hub = task.source.hub
    assert hub is not None
    split = hub.splits.get(which)
    if split is None:
        return None
    import datasets  # seconds to import, so only where it is needed

    origin = f"hub {hub.path}{f'/{hub.name}' if hub.name else ''}@{hub.revision} {split}"
    try:
        table = datasets.load_dataset(hub.path, hub.name, revision=hub.revision, split=split)
    except Exception as error:  # the hub's errors have no common base
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise DataError(
            f"{origin} could not be read: {reason}\n"
            f"Without network: set data.dir=FOLDER with {_expected(task)}, or fetch once with network and point HF_HOME at that cache."
        ) from error
    names = getattr(table.features.get(task.label_column), "names", None)
    if names is not None and hub.label_names is not None and set(names) != set(hub.label_names):
        raise DataError(
            f"{origin}: its label names are {list(names)}, the task expects {list(hub.label_names)}"
        )
    return _hub_rows(table, origin, task, names or hub.label_names), origin, hub.counts.get(which)


def _hub_rows(table: Any, origin: str, task: Task, names: Sequence[str] | None) -> Raw:
    for number, row in enumerate(table, 1):
        label = row.get(task.label_column)
        if isinstance(label, int) and not isinstance(label, bool) and names is not None:
            # Class numbers differ between copies of a data set; names do not. −1 stands for a hidden label.
            row = {**row, task.label_column: names[label] if 0 <= label < len(names) else None}
        yield f"{origin} row {number}", number, row


def _rows(task: Task, raw: Raw, which: str) -> list[Row]:
    rows: list[Row] = []
    first: dict[str, str] = {}
    for place, number, item in raw:
        fields = {name: _field(item, column, place) for name, column in task.fields.items()}
        value = None if task.id is None else _nested(item, task.id)
        row_id = str(number) if value is None else str(value)
        if row_id in first:
            if which != "unlabeled":
                raise DataError(
                    f"{place}: id {row_id!r} is there already ({first[row_id]}); ids must be unique"
                )
            row_id = (
                f"{row_id}@{number}"  # pools in use repeat ids (WiC 1754), and nothing is looked up by them
            )
        first[row_id] = place
        label = None if which == "unlabeled" else _label(task, item, place)
        unit = re.sub(r"\{([^{}]+)\}", lambda m: _unit_part(m[1], row_id, fields, item, place), task.unit)
        rows.append(Row(row_id, fields, label, unit))
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


def _unit_part(name: str, row_id: str, fields: Mapping[str, str], item: Mapping[str, Any], place: str) -> str:
    if name == "id":
        return row_id
    value = fields[name] if name in fields else _nested(item, name)
    if value is None:
        raise DataError(f"{place}: '{name}' of task.unit is missing")
    return str(value)


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
            "Another count means other rows or mixed-up label names; rows of your own need a task file without counts."
        )


def _counted(task: Task, counts: Mapping[Any, int]) -> str:
    return ", ".join(f"{label} {counts.get(label, 0)}" for label in task.labels)
