"""Checked rows of a task: labels by name, unique ids, expected counts, and nothing shared with test.

`data` is the `data` part of a configuration: ``dir`` (folder or None), ``n_labeled`` or ``per_class`` (units to
draw, None: all), ``limit_test`` (None: all), ``files`` (optional: set -> path, in place of the task's own).
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from fewnlu.errors import ConfigError, DataError, choices
from fewnlu.tasks.drawing import draw_labeled, drawing_notes, limit
from fewnlu.tasks.formats import Items
from fewnlu.tasks.layouts import LAYOUTS, PAIR, Rejected
from fewnlu.tasks.readers import raw_rows
from fewnlu.tasks.task import SETS, Row, Task, raw_key


@dataclass(frozen=True, slots=True)
class RowSet:
    """Rows with what a result has to state about them: their origin (never an absolute path), hash, and `notes`
    (rows that were rejected or removed)."""

    rows: tuple[Row, ...]
    origin: str
    sha256: str
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, rows: Iterable[Row], origin: str, notes: Iterable[str] = ()) -> RowSet:
        """Rows with their hash."""
        rows = tuple(rows)
        return cls(rows, origin, content_hash(rows), tuple(notes))


@dataclass(frozen=True, slots=True)
class TaskData:
    """What an experiment reads; `n_leaks` labelled rows were dropped because their text is in `test`."""

    labeled: RowSet
    test: RowSet | None
    n_leaks: int


def load(task: Task, data: Mapping[str, Any], seed: int = 42) -> TaskData:
    """Test rows, and units drawn from the labelled set (`data.n_labeled`, `data.per_class`) less those in test.

    Args:
        seed: `seed.data`, which decides only which rows of a larger pool are labelled.

    Raises:
        DataError: rows that cannot be used; names file and line.
    """
    pool = load_rows(task, {**data, "n_labeled": None, "per_class": None}, "labeled")
    # Leaks are looked for in the whole test set, so that a limited test set doesn't change the labelled rows.
    whole = load_rows(task, {**data, "limit_test": None}, "test")
    if pool is None:
        raise DataError(f"task '{task.name}' has no labelled rows: set task.source.files.labeled")
    rows, dropped = drop_leaks(pool.rows, whole.rows if whole else ())
    drawn = draw_labeled(rows, data.get("n_labeled"), seed, pool.origin, data.get("per_class"))
    notes = [*pool.notes, *drawing_notes(task.labels, rows, drawn, data.get("per_class"))]
    labeled = RowSet.of(drawn, pool.origin, notes)
    if whole is None:
        return TaskData(labeled, None, dropped)
    test = RowSet.of(limit(whole.rows, data.get("limit_test")), whole.origin, whole.notes)
    return TaskData(labeled, test, dropped)


def load_pool(task: Task, data: Mapping[str, Any], found: TaskData) -> RowSet | None:
    """The task's unlabelled pool without what is labelled or in test; None where the task has no pool.

    Removed is every unit with a row whose text (see `normalised`) is in the labelled or the test set. Ids are not
    compared: files number their rows separately, and a row that is there twice has its text twice (in FewGLUE, each
    pool row with a labelled row's id has its text). The notes count what was removed.
    """
    pool = load_rows(task, data, "unlabeled")
    if pool is None:
        return None
    texts = {normalised(row) for row in found.labeled.rows}
    tests = {normalised(row) for row in load_whole_test(task, data)}
    labeled = {row.unit for row in pool.rows if normalised(row) in texts}
    in_test = {row.unit for row in pool.rows if normalised(row) in tests} - labeled
    kept = [row for row in pool.rows if row.unit not in labeled | in_test]
    counts = [sum(row.unit in units for row in pool.rows) for units in (labeled, in_test)]
    note = (
        "removed from the pool: {} rows whose unit holds the text of a labelled row, {} whose unit holds the text of "
        "a test row"
    )
    return RowSet.of(kept, pool.origin, [*pool.notes, note.format(*counts)])


def load_whole_test(task: Task, data: Mapping[str, Any]) -> tuple[Row, ...]:
    """All test rows, whatever `data.limit_test`; none where there is no test set."""
    whole = load_rows(task, {**data, "limit_test": None}, "test")
    return whole.rows if whole else ()


def load_rows(task: Task, data: Mapping[str, Any], which: str, seed: int = 42) -> RowSet | None:
    """One set of a task's rows in source order; None if the task has no such set.

    ``labeled`` honours `data.n_labeled` and `data.per_class` (drawn by `seed`), ``test`` honours `data.limit_test`.

    Raises:
        DataError: broken or missing rows, unexpected label counts, or a source that cannot be reached.
    """
    if which not in SETS:
        raise ConfigError(f"unknown set of rows {which!r}; {choices(which, SETS)}")
    found = raw_rows(task, data, which)
    if found is None:
        return None
    raw, origin, expected = found
    rows, notes, paired = _rows(task, raw, which)
    if not rows:
        where = f" below data.dir={data['dir']}" if data.get("dir") else ""
        if notes:
            raise DataError(f"{origin}{where}: no row of it can be used.\n{notes[0]}")
        raise DataError(
            f"{origin}{where}: no rows; expected one JSON object a line, or a CSV or Parquet file with rows"
            + ("; where there are no test rows, set task.source.files.test=null" if which == "test" else "")
        )
    if not paired:  # the expected counts are of lines
        _check_counts(task, rows, origin, expected)
    if which == "labeled":
        whole, rows = rows, draw_labeled(rows, data.get("n_labeled"), seed, origin, data.get("per_class"))
        notes += drawing_notes(task.labels, whole, rows, data.get("per_class"))
    elif which == "test":
        rows = limit(rows, data.get("limit_test"))
    return RowSet.of(rows, origin, notes)


def drop_leaks(labeled: Sequence[Row], test: Iterable[Row]) -> tuple[list[Row], int]:
    """Labelled rows of units without a row whose text (see `normalised`) is in test, and how many were dropped."""
    seen = {normalised(row) for row in test}
    leaked = {row.unit for row in labeled if normalised(row) in seen}
    kept = [row for row in labeled if row.unit not in leaked]
    return kept, len(labeled) - len(kept)


def normalised(row: Row) -> tuple[str, ...]:
    """A row's fields as compared between sets: NFKC, case folded, white space collapsed."""
    return tuple(" ".join(unicodedata.normalize("NFKC", v).casefold().split()) for _, v in sorted(row.fields.items()))


def content_hash(rows: Iterable[Row]) -> str:
    """SHA-256 over ids, fields, labels and the rows' own candidates and answers, in order; a file's path, key order
    and white space do not count."""
    digest = hashlib.sha256()
    for row in rows:
        own = [[row.meta["candidates"], row.meta["answers"]]] if "candidates" in row.meta else []
        line = json.dumps([row.id, dict(row.fields), row.label, *own], ensure_ascii=False, sort_keys=True)
        digest.update(line.encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()


def _rows(task: Task, raw: Items, which: str) -> tuple[list[Row], list[str], bool]:
    """Checked rows, notes on those that had to be rejected, and whether a line may stand for two of them (`PAIR`)."""
    rows: list[Row] = []
    first: dict[str, str] = {}
    rejected: list[str] = []
    paired = False
    layout = LAYOUTS[task.layout] if task.layout else _as_it_is
    for place, number, whole in raw:
        try:
            items = layout(whole, which, place)
        except Rejected as why:
            rejected.append(f"{whole.get('idx', number)}: {why}")
            continue
        for item in items:
            paired = paired or (task.layout is not None and item.get("copy") in PAIR)
            row = _row(task, item, which, place, number, first)
            first[row.id] = place
            rows.append(row)
    notes = []
    if rejected:
        more = f" and {len(rejected) - 3} more" if len(rejected) > 3 else ""
        notes.append(f"{which}: {len(rejected)} rows rejected ({'; '.join(rejected[:3])}{more})")
    return rows, notes, paired


def _as_it_is(item: Mapping[str, Any], which: str, place: str) -> list[Mapping[str, Any]]:
    return [item]


def _row(task: Task, item: Mapping[str, Any], which: str, place: str, number: int, first: Mapping[str, str]) -> Row:
    fields = {name: _field(item, column, place) for name, column in task.fields.items()}
    if task.id is not None and "{" in task.id:
        row_id = _filled(task.id, "task.id", "", fields, item, place)
    else:
        value = None if task.id is None else _nested(item, task.id)
        if value is None and task.id is not None and which != "unlabeled":
            raise DataError(
                f"{place}: id '{task.id}' (task.id) is missing; {_columns(item)}. Without task.id rows are numbered"
            )
        row_id = str(number) if value is None else str(value)
    while row_id in first:
        if which != "unlabeled":
            raise DataError(f"{place}: id {row_id!r} is there already ({first[row_id]}); ids must be unique")
        row_id = f"{row_id}@{number}"  # pools repeat ids (WiC: 1754), and nothing is looked up by them
    meta: dict[str, Any] = {}
    if task.layout is not None and item.get("copy") not in (None, "", *PAIR):
        meta["copy"] = True
    if task.group is not None:
        meta["group"] = _filled(task.group, "task.group", row_id, fields, item, place)
    if task.labels:
        label = None if which == "unlabeled" else _label(task, item, place)
    else:
        label = _own_candidates(item, which, place, meta)
    return Row(row_id, fields, label, _filled(task.unit, "task.unit", row_id, fields, item, place), meta)


def _own_candidates(item: Mapping[str, Any], which: str, place: str, meta: dict[str, Any]) -> str | None:
    """Fill in `candidates`, `answers` and `right`; the first right candidate is the label."""
    values: dict[str, tuple[str, ...]] = {}
    for name in ("candidates", "answers"):
        value = item.get(name)
        if isinstance(value, str):
            value = [value]
        if name == "answers" and value is None and which == "unlabeled":
            value = []
        if not isinstance(value, (list, tuple)) or not all(isinstance(v, str) and v.strip() for v in value):
            raise DataError(f"{place}: '{name}' is {value!r}, expected a list of texts")
        values[name] = tuple(value)
    if len(set(values["candidates"])) < 2 or len(set(values["candidates"])) < len(values["candidates"]):
        raise DataError(
            f"{place}: 'candidates' must be two or more different texts, it has {len(values['candidates'])}"
        )
    golds = {" ".join(answer.split()).casefold() for answer in values["answers"]}
    right = tuple(i for i, c in enumerate(values["candidates"]) if " ".join(c.split()).casefold() in golds)
    meta |= {**values, "right": right if which != "unlabeled" else ()}
    if which == "unlabeled":
        return None
    if not right and which == "labeled":
        raise DataError(f"{place}: no candidate equals an answer ({', '.join(values['answers']) or 'there is none'})")
    return values["candidates"][right[0]] if right else None


def _columns(item: Mapping[str, Any]) -> str:
    return f"the row has {', '.join(map(str, item))}"


def _field(item: Mapping[str, Any], column: str, place: str) -> str:
    value = _nested(item, column)
    if not isinstance(value, str):
        if value is None and column in item:
            raise DataError(f"{place}: field '{column}' is empty; give it a text, or leave the row out")
        what = "is missing" if value is None else f"is {type(value).__name__}, not text"
        raise DataError(f"{place}: field '{column}' {what}; {_columns(item)}")
    return value


def _label(task: Task, item: Mapping[str, Any], place: str) -> str:
    value = _nested(item, task.label_column)
    if value is None:
        what = "is empty" if task.label_column in item else f"is missing; {_columns(item)}"
        raise DataError(f"{place}: label '{task.label_column}' {what}")
    key = raw_key(value)
    label = task.label_values.get(key, key)
    if label not in task.labels:
        known = [*task.label_values, *(name for name in task.labels if name not in task.label_values)]
        raise DataError(f"{place}: unknown label {value!r}; {choices(key, known)}")
    return label


def _filled(
    template: str, key: str, row_id: str, fields: Mapping[str, str], item: Mapping[str, Any], place: str
) -> str:
    """A template such as ``{idx}-{q}`` or ``{text|text}`` over "id", fields and columns."""

    def part(match: re.Match[str]) -> str:
        name, _, how = match[1].partition("|")
        value = row_id if name == "id" else fields[name] if name in fields else _nested(item, name)
        if value is None:
            raise DataError(f"{place}: '{name}' of {key} is missing")
        if how not in _FILTERS:
            raise ConfigError(
                f"{key}: unknown filter '{how}' in {{{match[1]}}}; {choices(how, [f for f in _FILTERS if f])}"
            )
        return _FILTERS[how](str(value))

    return re.sub(r"\{([^{}]+)\}", part, template)


@lru_cache(maxsize=1024)  # a passage has tens of rows
def _words_hash(text: str) -> str:
    plain = unicodedata.normalize("NFKC", text).casefold()
    # Texts without letters or digits ("!!!", an emoji) are told apart by all their characters.
    words = re.findall(r"[^\W_]+", plain) or plain.split()
    return hashlib.sha256(" ".join(words).encode("utf-8", "surrogatepass")).hexdigest()[:16]


_FILTERS: Mapping[str, Callable[[str], str]] = {"": str, "text": _words_hash}


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
    found = Counter(row.label for row in rows if not row.meta.get("copy"))
    if "rows" in expected:
        if expected["rows"] != sum(found.values()):
            raise DataError(f"{origin}: {sum(found.values())} rows, expected {expected['rows']}")
        return
    if any(found[label] != n for label, n in expected.items()) or sum(found.values()) != sum(expected.values()):
        raise DataError(
            f"{origin}: rows per label are {_counted(task, found)}, expected {_counted(task, expected)}\n"
            "Other counts mean other rows or mixed-up labels; your own rows need a task file without counts."
        )


def _counted(task: Task, counts: Mapping[Any, int]) -> str:
    return ", ".join(f"{label} {counts.get(label, 0)}" for label in task.labels)
