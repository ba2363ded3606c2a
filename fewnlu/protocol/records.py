"""What is on disk: one folder per run, its `result.json` written last.

``<sweep>/<study>/<h>/k<k>-r<rep>-<key>/`` holds

- ``result.json``   deterministic fields only: equal keys have equal bytes, whatever launcher, order or machine load;
- ``meta.json``     seconds, memory, versions, commit, hardware, absolute paths;
- ``predictions.parquet``  set (dev, test), row id, gold, prediction, log-scores per label name;
- ``failure.json``  instead of a result, where the run failed;
- ``started.json``  who began it and when, until it ends: what is left of a killed process says so.

A record that exists is done; a half-written one is not there: every file is renamed into place, and `result.json` last.
What was cut off, emptied or put there by others is no record: it is named and computed anew.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fewnlu.protocol.atomic import me, read_json, sweep_out, write_atomic

SCHEMA = 1  # layout of result.json
FIELDS = {"key", "study", "study_name", "seeds", "h", "k", "rep", "dev", "test", "rows", "warnings", "config"}
NUMERICS = 4  # raised by hand when a change of the code changes results
RESULT, META, PREDICTIONS, FAILURE = "result.json", "meta.json", "predictions.parquet", "failure.json"
STARTED = "started.json"


def digest(value: Any, length: int = 64) -> str:
    """Hex SHA-256 of the canonical JSON of a value, cut to `length`."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:length]


def canonical(value: Any) -> str:
    """JSON with sorted keys and no white space: equal values have equal text."""
    how: dict[str, Any] = {"separators": (",", ":"), "ensure_ascii": False, "allow_nan": False, "sort_keys": True}
    try:
        return json.dumps(value, **how)
    except TypeError:
        return json.dumps(_sortable(value), **how)


def _sortable(value: Any) -> Any:
    """Keys of several types within one mapping (WiC's labels are false and "False") as JSON writes them."""
    if isinstance(value, dict):
        mixed = len({isinstance(key, str) for key in value}) > 1
        return {json.dumps(k) if mixed and not isinstance(k, str) else k: _sortable(v) for k, v in value.items()}
    return [_sortable(one) for one in value] if isinstance(value, (list, tuple)) else value


def run_key(study: str, h: dict[str, Any], k: int, rep: int, rows: dict[str, str | None], seeds: dict[str, int]) -> str:
    """Identity of a run: the study, h, k, rep, the rows it trains, selects and tests on, the seeds and NUMERICS."""
    return digest({"study": study, "h": h, "k": k, "rep": rep, "rows": rows, "seeds": seeds, "numerics": NUMERICS}, 16)


_SEAL = re.compile(rb'"result\.json": "([0-9a-f]{64})"')
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
    """`<sweep>/<study>/<h>/k<k>-r<rep>-<start of the key>`."""
    return sweep / study_name / h_name(h) / f"k{k}-r{rep}-{key[:8]}"


def to_json(value: Any) -> bytes:
    """Readable JSON with sorted keys; NaN becomes null so that any reader takes it."""
    return (json.dumps(_clean(value), indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _clean(value: Any) -> Any:
    if isinstance(value, dict):  # true and false as JSON has them: WiC's labels are false and "False"
        return {json.dumps(k) if isinstance(k, bool) else str(k): _clean(v) for k, v in value.items()}
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
    table, text = buffer.getvalue(), to_json({"schema": SCHEMA, **result})
    hashes = {PREDICTIONS: hashlib.sha256(table).hexdigest(), RESULT: hashlib.sha256(text).hexdigest()}
    write_atomic(folder / PREDICTIONS, table)
    write_atomic(folder / META, to_json({**meta, "sha256": hashes}))
    write_atomic(folder / RESULT, text)
    for name in (FAILURE, STARTED):
        (folder / name).unlink(missing_ok=True)


def write_failure(folder: Path, failure: dict[str, Any]) -> None:
    """Write `failure.json`; a later result of the same run removes it."""
    write_atomic(folder / FAILURE, to_json(failure))
    (folder / STARTED).unlink(missing_ok=True)


def write_started(folder: Path, key: str) -> None:
    """Say that this process computes the run now; an older failure no longer holds and is removed."""
    if folder.is_dir():
        sweep_out(folder)
    write_atomic(folder / STARTED, to_json({"key": key, "time": time.time(), **me()}))
    (folder / FAILURE).unlink(missing_ok=True)


def is_done(folder: Path, key: str) -> bool:
    """Whether this very run's record is whole; then nothing else is left of its start or of an earlier failure."""
    whole = damage(folder, key) == ""
    if whole:  # killed between the record's last file and this
        for name in (FAILURE, STARTED):
            (folder / name).unlink(missing_ok=True)
    return whole


def damage(folder: Path, key: str | None = None) -> str | None:
    """What is wrong with a record: "" where it is whole, None where there is none (or only a failure or a start).

    Args:
        folder: of the run.
        key: the run's; None takes the one that the folder's name begins.
    """
    result, wrong = _look(folder, key, sealed=True)
    if result is None:
        return wrong
    meta = read_json(folder / META)
    if not isinstance(meta, dict):
        return f"{META} is damaged"
    for name, expected in meta["sha256"].items():
        try:
            found = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        except OSError:
            return f"{name} is missing"
        if found != expected:
            return f"{name} was changed or cut off"
    return ""


def read_result(folder: Path, key: str | None = None) -> dict[str, Any] | None:
    """The result of a run folder; None where there is none, it is damaged, or it is another run's."""
    return _look(folder, key)[0]


def _look(folder: Path, key: str | None = None, sealed: bool = False) -> tuple[dict[str, Any] | None, str | None]:
    """The result, and else why there is none (None: simply not there).

    Args:
        sealed: take it only as it was written, by the hash in meta.json.
    """
    try:
        raw = (folder / RESULT).read_bytes()
        result = json.loads(raw)
    except FileNotFoundError:
        return None, None
    except OSError as err:
        return None, f"{RESULT} can't be read ({err.strerror})"
    except ValueError:
        return None, f"{RESULT} is {'cut off or no JSON' if raw.strip() else 'empty'}"
    if not isinstance(result, dict) or result.get("schema") != SCHEMA or FIELDS - set(result):
        return None, f"{RESULT} is no result of this version"
    name = f"k{result['k']}-r{result['rep']}-{str(result['key'])[:8]}"
    if (key is not None and result["key"] != key) or folder.name != name:
        return None, f"{RESULT} is another run's ({result['key']})"
    if sealed and (wrong := _seal_broken(folder, raw)):
        return None, wrong
    return result, None


def _seal_broken(folder: Path, raw: bytes) -> str | None:
    """Why a result is not the one that was written; the hash is looked for without parsing: reports read many."""
    try:
        seal = _SEAL.search((folder / META).read_bytes())
    except OSError:
        return f"{META} is missing"
    if seal is None:
        return f"{META} is damaged"
    return None if seal[1].decode() == hashlib.sha256(raw).hexdigest() else f"{RESULT} was changed or cut off"


def newest(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those results of one study that the newest numerics among them made: others are of runs that count no more."""
    made = max((r.get("numerics") or 0 for r in results), default=0)
    return [r for r in results if (r.get("numerics") or 0) == made]


@dataclass
class Found:
    """One run folder as found on disk.

    Attributes:
        result: where the record is whole.
        failure: where the run failed.
        started: where it was begun and not ended.
        damage: why there is neither result nor failure; "" where there is one.
    """

    folder: Path
    result: dict[str, Any] | None
    failure: dict[str, Any] | None
    started: dict[str, Any] | None = None
    damage: str = ""


def scan(root: Path) -> Iterator[Found]:
    """All run folders below a folder, in the order of their paths; each run once."""
    seen: set[str] = set()
    for directory, names, files in os.walk(root):
        names.sort()
        names[:] = [n for n in names if not n.startswith(".")]
        if not {RESULT, FAILURE, META, PREDICTIONS, STARTED} & set(files):
            continue
        folder = Path(directory)
        result, wrong = _look(folder, sealed=True)
        if result is not None and result["key"] in seen:
            wrong = f"holds run {result['key']} a second time"
            result = None
        if result is not None:
            seen.add(result["key"])
            yield Found(folder, result, None)
            continue
        failure, started = read_json(folder / FAILURE), read_json(folder / STARTED)
        failure = failure if isinstance(failure, dict) and "study" in failure else None
        started = started if isinstance(started, dict) and "key" in started else None
        if failure is None and started is None and not wrong:
            wrong = f"{FAILURE} is damaged" if FAILURE in files else f"{RESULT} is missing"
        yield Found(folder, None, failure, started, wrong or "")
