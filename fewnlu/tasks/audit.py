"""What would spoil a result, found in the rows alone: no model, no tokenizer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import comb
from typing import Any

from fewnlu.tasks.drawing import limit
from fewnlu.tasks.readers import raw_rows
from fewnlu.tasks.sources import RowSet, TaskData, load, load_rows, normalised
from fewnlu.tasks.task import SETS, Row, Task


@dataclass
class Audit:
    """Findings about a task: `problems` would spoil a result, `notes` are worth knowing; `counts` of rows per label.

    `labeled` and `test` are the rows that a run would read.
    """

    counts: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    labeled: Sequence[Row] = ()
    test: Sequence[Row] = ()


def audit(task: Task, data: Mapping[str, Any], k: int = 4, ratio: float = 0.5, seed: int = 42) -> Audit:
    """Read all sets of a task and look for what would spoil a result.

    Args:
        data: the `data` part of a configuration.
        k, ratio: of the Multi-Splits that the labelled rows are meant for.
        seed: `seed.data`: the labelled rows are those that a run would draw.

    Raises:
        DataError: a set that cannot be read at all.
    """
    found = Audit()
    sets = _sets(task, data, seed, found)
    for which in SETS:
        one = sets.get(which)
        if one is None:
            found.counts[which] = "none" if which != "unlabeled" else "no pool"
            continue
        found.counts[which] = _count(task, one)
        notes = [note for note in one.notes if which == "unlabeled" or note.startswith("data.")]  # of the draw
        found.notes += notes
        found.problems += [note for note in one.notes if note not in notes]
        _inside(which, one.rows, found)
    _between(sets, found)
    if "labeled" in sets:
        _classes(task, sets["labeled"].rows, k, ratio, found)
    if "test" in sets and task.labels:
        missing = [label for label in task.labels if not any(r.label == label for r in sets["test"].rows)]
        found.problems += [f"test: no row of class {label}" for label in missing]
    return found


def _sets(task: Task, data: Mapping[str, Any], seed: int, found: Audit) -> dict[str, RowSet]:
    """The labelled rows that a run would read, the whole test set and the pool, as far as there are."""
    whole = {**data, "limit_test": None}
    if raw_rows(task, data, "labeled") is None:
        test = load_rows(task, whole, "test")
        found.test = limit(test.rows, data.get("limit_test")) if test else ()
        read = [None, test]
    else:
        run = load(task, whole, seed)
        found.labeled = run.labeled.rows
        found.test = limit(run.test.rows, data.get("limit_test")) if run.test else ()
        if run.n_leaks:
            text = f"{run.n_leaks} labelled rows are in test, or of one unit with a row of it; training leaves them out"
            drawn = data.get("n_labeled") is not None or data.get("per_class") is not None
            (found.notes if drawn else found.problems).append(text)  # a draw is made good from the others
        read = [run.labeled, run.test]
    read.append(load_rows(task, whole, "unlabeled"))
    return {which: one for which, one in zip(SETS, read, strict=True) if one is not None}


def spoilers(task: Task, data: TaskData) -> list[str]:
    """What is wrong with rows that can be trained on all the same, one line each."""
    found = Audit()
    _inside("labeled", data.labeled.rows, found)
    if data.test is not None:
        _inside("test", data.test.rows, found)
    missing = [c for c in task.labels if data.labeled.rows and not any(r.label == c for r in data.labeled.rows)]
    return [*found.problems, *(f"labeled: no row of class {label}" for label in missing)]


def _count(task: Task, rows: RowSet) -> str:
    by_label = Counter(row.label for row in rows.rows)
    classes = ", ".join(f"{label} {by_label[label]}" for label in task.labels) if by_label.keys() - {None} else ""
    units = len({row.unit for row in rows.rows})
    text = f"{len(rows.rows)} rows" + (f" in {units} units" if units < len(rows.rows) else "")
    return text + (f" ({classes})" if classes else "") + f"  {rows.origin}"


def _inside(which: str, rows: Sequence[Row], found: Audit) -> None:
    by_text: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        by_text.setdefault((*normalised(row), *row.meta.get("candidates", ())), []).append(row)
    same = [group for group in by_text.values() if len(group) > 1]
    differing = [group for group in same if len({row.label for row in group}) > 1]
    if differing:
        ids = ", ".join("/".join(row.id for row in group) for group in differing[:3])
        found.problems.append(f"{which}: {len(differing)} inputs occur with different gold (ids {ids}, …)")
    if len(same) > len(differing):
        found.notes.append(f"{which}: {len(same) - len(differing)} inputs occur more than once")
    empty = [row.id for row in rows if any(not value.strip() for value in row.fields.values())]
    if empty:
        found.notes.append(f"{which}: {len(empty)} rows have an empty field (ids {', '.join(empty[:3])})")


def _between(sets: Mapping[str, RowSet], found: Audit) -> None:
    texts = {which: {normalised(row) for row in one.rows} for which, one in sets.items()}
    if "unlabeled" in sets:
        for which in ("labeled", "test"):
            if which in sets and (shared := len(texts["unlabeled"] & texts[which])):
                found.notes.append(f"{shared} texts of the pool are in {which}; they are removed from the pool")


def _classes(task: Task, rows: Sequence[Row], k: int, ratio: float, found: Audit) -> None:
    units = len({row.unit for row in rows})
    if units < 2:
        found.problems.append(f"labeled: {units} unit, a split needs two")
    n_train = int(units * ratio + 1e-9)
    for label in task.labels:
        own = len({row.unit for row in rows if row.label == label})
        if own < 2:
            found.problems.append(f"labeled: class {label} has {own} units, so it cannot be in train and in dev")
            continue
        # Chance that one split has the class on one side only (hypergeometric), then that any of K has.
        total = comb(units, own)
        one = (comb(n_train, own) + comb(units - n_train, own)) / total
        some = 1 - (1 - one) ** k
        if some > 0.05:
            room = min(n_train, units - n_train) >= len(task.labels)
            found.notes.append(
                f"labeled: class {label} has {own} of {units} units; with K={k}, r={ratio:g} the chance is {some:.0%} "
                f"that a split lacks it in train or dev{' (split.stratify=true prevents that)' if room else ''}"
            )
