"""Rows out of a file that is read bit by bit: JSON lines, CSV, TSV, Parquet; every error names file and line."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from fewnlu.errors import DataError

_LONGEST = 2**31 - 1  # characters of a CSV's cell: what a C long holds on every platform; Python's own limit is 131,072

# place as errors name it, 1-based number of the row (of the line for JSON lines), the row by column
Items = Iterator[tuple[str, int, Mapping[str, Any]]]


def items(file: BinaryIO, path: str) -> Items:
    """Rows of an open file by its name's ending: .csv, .tsv, .parquet, otherwise JSON lines.

    Empty cells of a CSV are None. Rows are read as they are asked for.

    Raises:
        DataError: what cannot be read; names file and line.
    """
    ending = Path(path).suffix.lower()
    if ending in (".csv", ".tsv"):
        return csv_items(file, path, "," if ending == ".csv" else "\t")
    return parquet_items(file, path) if ending == ".parquet" else json_items(file, path)


def json_items(file: Iterable[bytes], path: str) -> Items:
    """One JSON object a line; empty lines are left out."""
    for number, text in enumerate(_lines(file, path), 1):
        if not text.strip():
            continue
        try:
            item = json.loads(text)
        except json.JSONDecodeError as error:
            raise DataError(
                f"{path}:{number}: broken JSON ({error.msg} at character {error.pos + 1}); expected one object a line"
            ) from None
        except RecursionError:
            raise DataError(f"{path}:{number}: nested too deeply; expected one flat object a line") from None
        if not isinstance(item, dict):
            raise DataError(f"{path}:{number}: {type(item).__name__} where a JSON object was expected")
        yield f"{path}:{number}", number, item


def csv_items(file: Iterable[bytes], path: str, delimiter: str) -> Items:
    """Rows under the columns that the first line names."""
    csv.field_size_limit(max(_LONGEST, csv.field_size_limit()))
    table = csv.reader(_lines(file, path), delimiter=delimiter, strict=True)
    header: list[str] = []
    number = 0
    while True:
        start = table.line_num + 1
        try:
            cells = next(table, None)
        except csv.Error as error:
            raise DataError(f"{path}:{start}: broken CSV ({error}); {_advice(str(error), delimiter)}") from None
        if cells is None:
            return
        if not cells:
            continue
        if not header:
            header = [cell.strip() for cell in cells]
            if len(set(header)) < len(header) or not all(header):
                raise DataError(f"{path}:{start}: the first line must name each column once, it is {header}")
            continue
        number += 1
        if len(cells) != len(header):
            raise DataError(
                f"{path}:{start}: {len(cells)} cells, the first line names {len(header)} columns "
                f"({', '.join(header)}); a cell with {delimiter!r} or a line break goes in double quotes"
            )
        yield f"{path}:{start}", number, {n: c if c != "" else None for n, c in zip(header, cells, strict=True)}


def _advice(error: str, delimiter: str) -> str:
    """What to do about an error of the csv module, which has no codes for them."""
    if "new-line character" in error:
        return "a line must end with \\n or \\r\\n, not with \\r alone: convert the file's line ends"
    if "field limit" in error:
        return "a cell is too long; is a double quote not closed?"
    if delimiter == "\t":
        return (
            "a cell that begins with a double quote must end with one, quotes inside are doubled: "
            'write the text "Yes", he said as """Yes"", he said"'
        )
    return "quotes inside a quoted cell are doubled"


def parquet_items(file: BinaryIO, path: str) -> Items:
    """Rows of a Parquet file, a thousand in memory at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(file) as table:
            for batch in table.iter_batches(batch_size=1024):
                for item in batch.to_pylist():
                    number += 1
                    yield f"{path} row {number}", number, item
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: no Parquet file ({str(error).splitlines()[0]})") from None


def _lines(file: Iterable[bytes], path: str) -> Iterator[str]:
    """Lines with their ends, decoded one by one so that an error can name the line."""
    for number, line in enumerate(file, 1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path}:{number}: not UTF-8 ({error.reason} at byte {error.start}); convert the file"
            ) from None
