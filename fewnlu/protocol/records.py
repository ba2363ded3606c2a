"""What is on disk: one folder per run, its `result.json` written last.

``<sweep>/<study>/<h>/k<k>-r<rep>-<key>/`` holds

- ``result.json``   deterministic fields only: equal keys have equal bytes, whatever launcher, order or machine load;
- ``meta.json``     seconds, memory, versions, commit, hardware, absolute paths;
- ``predictions.parquet``  set (dev, test), row id, gold, prediction, log-scores per label name;
- ``failure.json``  instead of a result, where the run failed.

A record that exists is done; a half-written one is not there: every file is renamed into place, and `result.json` last.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCHEMA = 1  # layout of result.json
NUMERICS = 1  # raised by hand when a change of the code changes results
RESULT, META, PREDICTIONS, FAILURE = "result.json", "meta.json", "predictions.parquet", "failure.json"


def digest(value: Any, length: int = 64) -> str:
    """Hex SHA-256 of the canonical JSON of a value, cut to `length`."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:length]


def canonical(value: Any) -> str:
    """JSON with sorted keys and no white space: equal values have equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def run_key(study: str, h: dict[str, Any], k: int, rep: int, rows: dict[str, str | None], seeds: dict[str, int]) -> str:
    """Identity of a run: the study, h, k, rep, the rows it trains, selects and tests on, the seeds and NUMERICS."""
    return digest({"study": study, "h": h, "k": k, "rep": rep, "rows": rows, "seeds": seeds, "numerics": NUMERICS}, 16)


SHORT = {
    "pattern": "p",
    "lr": "lr",
    "max_steps": "T",
    "eval_ratio": "e",
    "batch_size": "b",
    "warmup_ratio": "w",
    "weight_decay": "wd",
    "patience": "pat",
}


def h_name(h: dict[str, Any]) -> str:
    """A folder name that shows h: ``p0-lr5e-05-T30-e0.2-b8-…``; the run's key, not this name, is its identity."""
    ordered = [n for n in SHORT if n in h] + sorted(n for n in h if n not in SHORT)
    return "-".join(f"{SHORT.get(n, n)}{_short(h[n])}" for n in ordered) or "h"


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).replace("/", "_").replace(os.sep, "_")


def run_folder(sweep: Path, study_name: str, h: dict[str, Any], k: int, rep: int, key: str) -> Path:
    return sweep / study_name / h_name(h) / f"k{k}-r{rep}-{key[:8]}"


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees all of it or none: a temporary neighbour, then a rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temp = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(temp, 0o644)
        os.replace(temp, path)
    except BaseException:
        if os.path.exists(temp):
            os.unlink(temp)
        raise


def to_json(value: Any) -> bytes:
    """Readable JSON with sorted keys; NaN becomes null so that any reader takes it."""
    return (json.dumps(_clean(value), indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _clean(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _clean(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


@dataclass
class Predictions:
    """Rows of predictions.parquet, one list entry per scored row."""

    set: list[str]
    id: list[str]
    gold: list[str | None]
    prediction: list[str]
    scores: dict[str, list[float]]  # label name -> log-score per row
    candidates: list[list[str]] | None = None  # where each row has its own, with `scores_of` instead of `scores`
    scores_of: list[list[float]] | None = None


def write_record(folder: Path, result: dict[str, Any], meta: dict[str, Any], predictions: Predictions) -> None:
    """Write a run's three files, `result.json` last; an older failure of the same run is removed after that."""
    import io

    import pyarrow as pa
    import pyarrow.parquet as pq

    columns: dict[str, Any] = {
        "set": predictions.set,
        "id": predictions.id,
        "gold": predictions.gold,
        "prediction": predictions.prediction,
    }
    for name, values in predictions.scores.items():
        columns[f"score:{name}"] = values
    if predictions.candidates is not None:
        columns |= {"candidates": predictions.candidates, "scores": predictions.scores_of}
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    write_atomic(folder / PREDICTIONS, buffer.getvalue())
    write_atomic(folder / META, to_json(meta))
    write_atomic(folder / RESULT, to_json({"schema": SCHEMA, **result}))
    (folder / FAILURE).unlink(missing_ok=True)


def write_failure(folder: Path, failure: dict[str, Any]) -> None:
    write_atomic(folder / FAILURE, to_json(failure))


def is_done(folder: Path, key: str) -> bool:
    """Whether this very run's record is whole."""
    return read_result(folder, key) is not None and (folder / PREDICTIONS).is_file() and (folder / META).is_file()


def read_result(folder: Path, key: str | None = None) -> dict[str, Any] | None:
    """The result of a run folder; None where there is none, it is damaged, or it is another run's."""
    try:
        result = json.loads((folder / RESULT).read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(result, dict) or result.get("schema") != SCHEMA or (key is not None and result.get("key") != key):
        return None
    return result


@dataclass
class Found:
    """One run folder as found on disk: either a result or a failure, else neither (damaged or unfinished)."""

    folder: Path
    result: dict[str, Any] | None
    failure: dict[str, Any] | None


def scan(root: Path) -> Iterator[Found]:
    """All run folders below a folder, in the order of their paths; reads results and failures, nothing else."""
    for directory, names, files in os.walk(root):
        names.sort()
        names[:] = [n for n in names if not n.startswith(".")]
        if not {RESULT, FAILURE, META, PREDICTIONS} & set(files):
            continue
        folder = Path(directory)
        result = read_result(folder) if RESULT in files else None
        failure = None
        if result is None and FAILURE in files:
            try:
                failure = json.loads((folder / FAILURE).read_bytes())
            except ValueError:
                failure = {"error": "failure.json is damaged"}
        yield Found(folder, result, failure)
