"""Which rows of a larger set are used: labelled units drawn by a seed, and a part of the test rows."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Sequence

from fewnlu.errors import ConfigError, DataError
from fewnlu.tasks.task import Row


def draw_labeled(
    rows: Sequence[Row], n: int | None, seed: int, origin: str = "the pool", per_class: int | None = None
) -> list[Row]:
    """Whole units drawn by `seed`, their rows kept in file order; None takes all.

    Args:
        n: units in all (a unit is a row, or what must not be separated: a MultiRC passage, a COPA row and its copy).
        per_class: units of each class, or as many as there are. Units that hold rows of several classes (made copies
            apart) have no class and are left out.

    Raises:
        DataError: fewer units than `n`, or fewer than `per_class` of a class because too many units are mixed.
        ConfigError: both are set.
    """
    if n is not None and per_class is not None:
        raise ConfigError(f"data.n_labeled={n} and data.per_class={per_class} exclude each other; set one to null")
    groups = _units(rows)
    rng = random.Random(seed)
    if per_class is not None:
        drawn = _per_class(rows, groups, per_class, rng, origin)
    elif n is None or n == len(groups):
        return list(rows)
    elif not 0 < n < len(groups):
        what = "rows" if len(groups) == len(rows) else "units"
        raise DataError(
            f"data.n_labeled: {n} {what} asked for, {origin} has {len(groups)}; lower it or use null for all"
        )
    else:
        drawn = rng.sample(range(len(groups)), n)
    return [rows[i] for i in sorted(i for one in drawn for i in groups[one])]


def _per_class(
    rows: Sequence[Row], groups: Sequence[Sequence[int]], per_class: int, rng: random.Random, origin: str
) -> list[int]:
    of_class: dict[str, list[int]] = {}
    mixed: Counter[str] = Counter()
    example = ""
    for one, members in enumerate(groups):
        own = _classes(rows, members)
        if len(own) == 1:
            of_class.setdefault(own.pop(), []).append(one)
            continue
        mixed.update(own)
        example = example or f"unit {rows[members[0]].unit!r} of {origin} holds {' and '.join(sorted(own))}"
    for label in sorted(mixed):
        pure = len(of_class.get(label, ()))
        if pure < per_class:
            raise DataError(
                f"data.per_class={per_class}: class {label} has {pure} units of its own and {mixed[label]} with rows "
                f"of several classes ({example}); use data.n_labeled, which counts units"
            )
    return [
        one for label in sorted(of_class) for one in rng.sample(of_class[label], min(per_class, len(of_class[label])))
    ]


def drawing_notes(labels: Sequence[str], rows: Sequence[Row], drawn: Sequence[Row], per_class: int | None) -> list[str]:
    """What has to be said about rows drawn by `per_class`: units that were left out, classes that are too small."""
    if per_class is None:
        return []
    notes = []
    mixed = [members for members in _units(rows) if len(_classes(rows, members)) > 1]
    if mixed:
        ids = ", ".join("/".join(rows[i].id for i in members[:3]) for members in mixed[:3])
        notes.append(f"data.per_class: {len(mixed)} units with rows of several classes were not drawn from (ids {ids})")
    found = Counter(label for members in _units(drawn) for label in _classes(drawn, members))
    what = "rows" if found.total() == len(drawn) else "units"
    return notes + [
        f"data.per_class={per_class}, but class {c} has {found[c]} {what}" for c in labels if found[c] < per_class
    ]


def _units(rows: Sequence[Row]) -> list[list[int]]:
    """Positions of the rows of each unit, in the order of first rows."""
    units: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        units.setdefault(row.unit, []).append(i)
    return list(units.values())


def _classes(rows: Sequence[Row], members: Sequence[int]) -> set[str]:
    return {str(rows[i].label) for i in members if not rows[i].meta.get("copy")}


def limit(rows: Sequence[Row], n: int | None) -> list[Row]:
    """The `n` rows whose ids have the smallest SHA-256, in file order; a larger `n` holds a smaller one.

    Where a metric scores groups of rows (MultiRC: the answers of a question), groups are kept or left out as a whole.
    """
    if n is not None and n < 1:
        raise ConfigError(f"data.limit_test: {n} is no number of rows; use null for all")
    groups: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        groups.setdefault(row.meta.get("group", row.id), []).append(i)
    if n is None or n >= len(groups):
        return list(rows)
    order = sorted(groups, key=lambda group: hashlib.sha256(group.encode()).hexdigest())
    return [rows[i] for i in sorted(i for group in order[:n] for i in groups[group])]
