"""What would spoil a result, found in the rows alone: no model, no tokenizer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import comb
from typing import Any

from fewnlu.tasks.sources import RowSet, TaskData, load_rows, normalised
from fewnlu.tasks.task import SETS, Row, Task


@dataclass
class Audit:
    """Findings about a task: `problems` would spoil a result, `notes` are worth knowing; `counts` of rows per label."""

    counts: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def audit(task: Task, data: Mapping[str, Any], k: int = 4, ratio: float = 0.5) -> Audit:
    """Read all sets of a task and look for what would spoil a result.

    Args:
        data: the `data` part of a configuration.
        k, ratio: of the Multi-Splits that the labelled rows are meant for.

    Raises:
        DataError: a set that cannot be read at all.
    """
    found = Audit()
    sets: dict[str, RowSet] = {}
    for which in SETS:
        one = load_rows(task, {**data, "limit_test": None}, which)
        if one is None:
            found.counts[which] = "none" if which != "unlabeled" else "no pool"
            continue
        sets[which] = one
        found.counts[which] = _count(task, one)
        found.problems += [note for note in one.notes if which != "unlabeled"]
        found.notes += [note for note in one.notes if which == "unlabeled"]
        _inside(which, one.rows, found)
    _between(sets, found)
    if "labeled" in sets:
        _classes(task, sets["labeled"].rows, k, ratio, found)
    if "test" in sets and task.labels:
        missing = [label for label in task.labels if not any(r.label == label for r in sets["test"].rows)]
        found.problems += [f"test: no row of class {label}" for label in missing]
    return found


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
    if "labeled" in sets and "test" in sets and (shared := len(texts["labeled"] & texts["test"])):
        found.problems.append(f"{shared} texts are labelled and in test; training leaves these rows out")
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
            found.notes.append(
                f"labeled: class {label} has {own} of {units} units; with K={k}, r={ratio:g} the chance is {some:.0%} "
                "that a split lacks it in train or dev (split.stratify=true prevents that)"
            )
