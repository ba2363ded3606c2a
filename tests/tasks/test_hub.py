"""Rows of the hub, really read by `datasets` in processes of their own: prepared once, then without network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.tasks.hub import card, hub, parquet
from tests.tasks.test_task import shipped

ROOT = Path(__file__).parents[2]
NAMES = ("rte", "cb", "boolq", "wic")
COMMIT = "3de24cf8022e94f4ee4b9d55a6f539891524d646"

READ = """
import json, socket, sys
names, revision, network = json.loads(sys.argv[1])
if not network:
    def refuse(*args, **kwargs):
        raise AssertionError("network used")
    socket.socket.connect = socket.getaddrinfo = refuse
from fewnlu.errors import DataError
from fewnlu.protocol.check import config_loader
from fewnlu.protocol.compose import compose
from fewnlu.tasks.sources import load
from fewnlu.tasks.task import task_from_config
out = {}
for name in names:
    more = [f"task.source.hub.revision={revision}"] if revision else []
    task = task_from_config(compose(config_loader(), [f"task={name}", "+method=pet", *more]).cfg["task"])
    try:
        data = load(task, {"dir": None})
        sets = data.labeled, data.test
        out[name] = [[one.sha256, len(one.rows), one.origin] for one in sets]
    except DataError as error:
        out[name] = str(error)
print("\\n" + json.dumps(out))
"""


def environment(home: Path, **more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
    return {**kept, "PYTHONPATH": str(ROOT), "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", **more}


def read(home: Path, *, revision: str | None = None, network: bool = False, **env: str) -> dict[str, Any]:
    asked = json.dumps([NAMES, revision, network])
    done = subprocess.run(
        [sys.executable, "-c", READ, asked], env=environment(home, **env), capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    """All four tasks as Parquet, with as many rows per label as the pinned revision has."""
    found = {"README.md": card(NAMES)}
    for name in NAMES:
        task = shipped(name)
        source = task.source.hub
        assert source is not None and source.revision == COMMIT and source.label_names is not None
        for which, split in (("labeled", "train"), ("test", "validation")):
            counts: Mapping[str, int] = source.counts.get(which) or dict.fromkeys(task.labels, 6)
            labels = [task.label_values.get(name, name) for name in source.label_names]
            rows = []
            for label, n in counts.items():
                for _ in range(n):
                    texts = {column: f"{which} {column} {len(rows)}" for column in task.fields.values()}
                    rows.append({**texts, "idx": len(rows), "label": labels.index(label)})
            found[f"{name}/{split}-00000-of-00001.parquet"] = parquet(rows, source.label_names)
    return found


@pytest.fixture(scope="module")
def prepared(files: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A cache filled from the hub, and what was read."""
    home = tmp_path_factory.mktemp("hf")
    with hub("aps/super_glue", COMMIT, files) as address:
        return home, read(home, network=True, HF_ENDPOINT=address)


def test_i123_every_task_loads_from_parquet(prepared: tuple[Path, dict[str, Any]]) -> None:
    _, found = prepared
    for name in NAMES:
        source = shipped(name).source.hub
        assert source is not None and isinstance(found[name], list), found[name]
        _, (_, n_test, origin) = found[name]
        assert n_test == sum(source.counts["test"].values())
        assert origin == f"hub aps/super_glue/{name}@{COMMIT} validation"


def test_i124_prepared_rows_are_found_without_network(prepared: tuple[Path, dict[str, Any]]) -> None:
    home, found = prepared
    assert read(home, HF_HUB_OFFLINE="1") == found  # the same rows: hashes and counts


def test_i124_another_revision_in_the_cache_is_not_the_one_asked_for(prepared: tuple[Path, dict[str, Any]]) -> None:
    """datasets would take it with a warning; the record would then name a revision whose rows were never read."""
    for message in read(prepared[0], revision="f" * 40, HF_HUB_OFFLINE="1").values():
        assert f"is not in the cache, only revision {COMMIT}" in message and "data.dir=FOLDER with" in message


def test_i124_what_was_not_prepared_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    """One error, exit status 2, no record: which files are expected, and that HF_HOME may bring them."""
    done = subprocess.run(
        [sys.executable, "-m", "fewnlu.train", "task=rte", "+method=pet", "-m"],
        cwd=tmp_path,
        env=environment(tmp_path.parent / "empty", HF_HUB_OFFLINE="1", FEWNLU_CACHE=str(tmp_path.parent / "cache")),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 2 and done.stdout == "" and "Traceback" not in done.stderr
    assert done.stderr.startswith(f"error: hub aps/super_glue/rte@{COMMIT} train could not be read")
    assert "set data.dir=FOLDER with RTE/train64.jsonl, RTE/val.jsonl" in done.stderr and "HF_HOME" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_i123_a_data_sets_script_is_never_run(files: dict[str, bytes], tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    script = f"import pathlib; pathlib.Path({str(marker)!r}).write_text('ran')".encode()
    with hub("aps/super_glue", COMMIT, {"README.md": b"", "super_glue.py": script}) as address:
        found = read(tmp_path / "hf", network=True, HF_ENDPOINT=address)
    assert not marker.exists()
    for message in found.values():
        assert "could not be read" in message and "data.dir=FOLDER with" in message
