"""A user's rows one after another, from files larger than memory: CSV, TSV, JSON lines, Parquet."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fewnlu.errors import DataError
from fewnlu.tasks.layouts import LAYOUTS, Rejected
from fewnlu.tasks.sources import _field, _nested, _own_candidates
from fewnlu.tasks.task import Row, Task

Items = Iterator[tuple[str, int, Mapping[str, Any]]]


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
        ending = path.suffix.lower()
        if ending == ".parquet":
            yield from _parquet(path)
        elif ending in (".csv", ".tsv"):
            yield from _csv(path, "," if ending == ".csv" else "\t")
        else:
            yield from _json_lines(path)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 ({error.reason}); convert the file") from None


def _csv(path: Path, delimiter: str) -> Items:
    with path.open(encoding="utf-8-sig", newline="") as file:
        table = csv.reader(file, delimiter=delimiter, strict=True)
        header: list[str] = []
        number, start = 0, 1
        while True:
            start = table.line_num + 1
            try:
                cells = next(table, None)
            except csv.Error as error:
                raise DataError(f"{path}:{start}: broken CSV ({error}); double quotes in a quoted cell") from None
            if cells is None:
                return
            if not cells:
                continue
            if not header:
                header = [cell.strip() for cell in cells]
                continue
            number += 1
            if len(cells) != len(header):
                raise DataError(
                    f"{path}:{start}: {len(cells)} cells, the first line names {len(header)} columns "
                    f"({', '.join(header)}); a cell with {delimiter!r} or a line break goes in double quotes"
                )
            yield f"{path}:{start}", number, {n: c if c != "" else None for n, c in zip(header, cells, strict=True)}


def _json_lines(path: Path) -> Items:
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                item = json.loads(line)
            except json.JSONDecodeError as error:
                raise DataError(
                    f"{path}:{number}: broken JSON ({error.msg} at character {error.pos + 1}); one object a line"
                ) from None
            if not isinstance(item, dict):
                raise DataError(f"{path}:{number}: {type(item).__name__} where a JSON object was expected")
            yield f"{path}:{number}", number, item


def _parquet(path: Path) -> Items:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=1024):
                for item in batch.to_pylist():
                    number += 1
                    yield f"{path} row {number}", number, item
    except pa.ArrowException as error:
        raise DataError(f"{path}: no Parquet file ({str(error).splitlines()[0]})") from None
