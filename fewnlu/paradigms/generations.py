"""Records of generations, in the folder of their run: scores on the pool, pseudo-labels and what they came from.

``<run>/g<generation>/`` holds ``generation.json`` (written last), ``pool.parquet`` (a score per label and row of the
pool) and, from generation 1 on, ``pseudo.parquet`` (row id, label, confidence of what it trained on).
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fewnlu.paradigms.pseudo_labels import Pseudo


def read_scores(folder: Path, key: str) -> np.ndarray | None:
    """Scores [pool, labels] of a generation; None where there is no whole record of this very one."""
    import pyarrow.parquet as pq

    try:
        record = json.loads((folder / "generation.json").read_bytes())
        raw = (folder / "pool.parquet").read_bytes()
    except (OSError, ValueError):
        return None
    if record.get("key") != key or record.get("sha256") != hashlib.sha256(raw).hexdigest():
        return None
    columns = pq.read_table(io.BytesIO(raw)).to_pydict()
    return np.array(list(columns.values()), dtype=np.float64).T


def write_generation(
    folder: Path, key: str, fitted: Any, teachers: Sequence[dict[str, int]], labels: Sequence[str]
) -> None:
    """Write a generation's record.

    Args:
        fitted: with the scores [pool, labels] as `after`.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(pa.table({name: fitted.after[:, i] for i, name in enumerate(labels)}), buffer)
    _put(folder / "pool.parquet", buffer.getvalue())
    record = {
        "key": key,
        "sha256": hashlib.sha256(buffer.getvalue()).hexdigest(),
        "looks": [[step, score if np.isfinite(score) else None] for step, score in fitted.looks],
        "chosen_step": fitted.chosen_step,
        "steps_done": fitted.steps_done,
        "teachers": list(teachers),
    }
    _put(folder / "generation.json", (json.dumps(record, indent=1, sort_keys=True) + "\n").encode())


def write_pseudo(folder: Path, ids: Sequence[str], pseudo: Sequence[Pseudo], labels: Sequence[str]) -> None:
    """Write what a generation trains on besides the labelled rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    columns = {
        "id": list(ids),
        "label": [labels[p.column] for p in pseudo],
        "confidence": [p.confidence for p in pseudo],
    }
    types = {"id": pa.string(), "label": pa.string(), "confidence": pa.float64()}
    pq.write_table(pa.table({n: pa.array(v, types[n]) for n, v in columns.items()}), buffer)
    _put(folder / "pseudo.parquet", buffer.getvalue())


def _put(path: Path, data: bytes) -> None:
    # Records proper are written one room above (`protocol.atomic`); a killed writer leaves no half of these either.
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temp = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temp, path)
