"""A user's rows one after another, from files larger than memory: CSV, TSV, JSON lines, Parquet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fewnlu.errors import DataError
from fewnlu.tasks.formats import Items, items
from fewnlu.tasks.layouts import LAYOUTS, Rejected
from fewnlu.tasks.sources import _field, _nested, _own_candidates
from fewnlu.tasks.task import Row, Task


def stream_rows(task: Task, path: Path) -> Iterator[Row]:
    """Rows of a file without labels, in its order; a row's id is its own, else its number.

    Args:
        path: its ending decides: .csv, .tsv, .parquet, otherwise JSON lines.

    Raises:
        DataError: an item that cannot be a row of the task; names file and line.
    """
    for place, number, item in _items(path):
        layout = LAYOUTS[task.layout] if task.layout else None
        try:
            made = [item] if layout is None else layout(item, "test", place)
        except Rejected as why:
            raise DataError(f"{place}: {why}") from None
        for part, one in enumerate(made):
            fields = {name: _field(one, column, place) for name, column in task.fields.items()}
            own = _nested(one, task.id) if task.id and "{" not in task.id else _nested(one, "id")
            row_id = str(number if own is None else own) + (f"-{part}" if len(made) > 1 else "")
            meta: dict[str, Any] = {}
            if not task.labels:
                _own_candidates(one, "unlabeled", place, meta)
            yield Row(row_id, fields, None, row_id, meta)


def _items(path: Path) -> Items:
    try:
        with path.open("rb") as file:
            yield from items(file, str(path))
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
