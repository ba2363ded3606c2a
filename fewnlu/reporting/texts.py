"""Texts of test rows, read again from where they came: records hold ids and a hash, never text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fewnlu.errors import FewnluError
from fewnlu.protocol.records import META


def texts_of(result: dict[str, Any]) -> dict[str, str]:
    """Row id -> its fields as one line, where the task's rows are packaged or its `data.dir` is still there.

    Empty where they are not at hand, or are other rows than those scored: their hash must be the record's. Nothing is
    fetched from a hub.
    """
    from fewnlu.tasks import sources
    from fewnlu.tasks.task import task_from_config

    config = result["config"]
    try:
        meta = json.loads((Path(result["folder"]) / META).read_bytes())
        data = {**(meta.get("config") or {}).get("data", {}), "dir": meta.get("data_dir")}
    except (OSError, ValueError, AttributeError):
        data = {"dir": None, **config.get("data", {})}
    try:
        task = task_from_config(config["task"])
        if data["dir"] is None and task.source.packaged is None:
            return {}
        if data["dir"] is not None and not Path(data["dir"]).is_dir():
            return {}
        rows = sources.load_rows(task, data, "test")
    except (FewnluError, KeyError, TypeError, ValueError, OSError):
        return {}
    if rows is None or rows.sha256 != (result["rows"].get("test") or {}).get("sha256"):
        return {}
    return {row.id: _line(row.fields) for row in rows.rows}


def _line(fields: Any) -> str:
    if len(fields) == 1:
        return str(next(iter(fields.values())))
    return " · ".join(f"{name}: {value}" for name, value in fields.items())
