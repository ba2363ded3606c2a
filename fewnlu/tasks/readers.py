"""Raw rows: JSON lines, CSV or Parquet files of a folder, rows of the package, or a split on the Hugging Face hub.

`data` is the `data` part of a configuration: ``dir`` (folder or None) and, maybe, ``files`` (set: path)
in place of the task's own.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from fewnlu.errors import DataError
from fewnlu.tasks.formats import Items, items, json_items
from fewnlu.tasks.task import Task

Found = tuple[Items, str, Mapping[str, int] | None]
_COMMIT = re.compile(r"[0-9a-f]{40}")


def raw_rows(task: Task, data: Mapping[str, Any], which: str) -> Found | None:
    """Raw rows of a set, what `RowSet.origin` says, and the expected rows per label; None without such a set.

    Order: `data.files`, `data.dir`, rows in the package, the hub. Rows are read as they are asked for.
    """
    source = task.source
    own = data.get("files") or {}
    folder = data.get("dir")
    if own.get(which):
        path = Path(own[which]) if folder is None else Path(folder) / own[which]
        shown = path.name if Path(own[which]).is_absolute() else str(own[which])
        return items(_read_file(path, task), str(path)), f"file {shown}", None
    if folder is not None:
        name = source.files.get(which)
        if name is None and source.files:
            return None
        if name is None:
            raise DataError(f"data.dir: task '{task.name}' names no files; leave data.dir out")
        path = Path(folder) / name
        return items(_read_file(path, task), str(path)), f"file {name}", source.counts.get(which)
    if source.packaged is not None:
        name = f"{source.packaged}/{which}.jsonl"
        item = resources.files("fewnlu.tasks").joinpath("data", source.packaged, f"{which}.jsonl")
        if not item.is_file():
            return None
        return json_items(io.BytesIO(item.read_bytes()), name), f"packaged {name}", source.counts.get(which)
    if source.hub is not None:
        return _hub(task, which)
    raise DataError(f"task '{task.name}' reads files: set data.dir=FOLDER with {_expected(task)}")


def _read_file(path: Path, task: Task) -> io.BytesIO:
    try:
        return io.BytesIO(path.read_bytes())
    except OSError as error:
        raise DataError(
            f"{path.absolute()}: {error.strerror or error}\n"
            f"data.dir of task '{task.name}' is expected to hold {_expected(task)}"
        ) from None


def _expected(task: Task) -> str:
    return ", ".join(str(name) for name in task.source.files.values() if name) or "no files"


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
            f"Without network: set data.dir=FOLDER with {_expected(task)},\n"
            "or give this command once where there is network and point HF_HOME at that cache."
        ) from error
    _check_revision(table, origin, task)
    names = getattr(table.features.get(task.label_column), "names", None)
    if names is not None and hub.label_names is not None and set(names) != set(hub.label_names):
        raise DataError(f"{origin}: its label names are {list(names)}, the task expects {list(hub.label_names)}")
    return _hub_rows(table, origin, task, names or hub.label_names), origin, hub.counts.get(which)


def _check_revision(table: Any, origin: str, task: Task) -> None:
    # Offline, datasets takes the newest copy in its cache whatever revision was asked for, with a warning alone; the
    # folder of a cached copy is named after its commit.
    asked = task.source.hub.revision if task.source.hub else ""
    files = getattr(table, "cache_files", None) or [{"filename": asked}]
    found = Path(str(files[0]["filename"])).parent.name
    if _COMMIT.fullmatch(found) and _COMMIT.fullmatch(asked) and found != asked:
        raise DataError(
            f"{origin} is not in the cache, only revision {found} of it.\n"
            f"Set task.source.hub.revision to it if it will do, or data.dir=FOLDER with {_expected(task)}"
        )


def _hub_rows(table: Any, origin: str, task: Task, names: Sequence[str] | None) -> Items:
    for number, row in enumerate(table, 1):
        label = row.get(task.label_column)
        if isinstance(label, int) and not isinstance(label, bool) and names is not None:
            # Class numbers differ between copies of a data set, names do not. −1 is a hidden label.
            row = {**row, task.label_column: names[label] if 0 <= label < len(names) else None}
        yield f"{origin} row {number}", number, row
