"""Training curves: one W&B run per run, never a question, never a run lost to a logger."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fewnlu.methods.pet import Method
from fewnlu.protocol.loggers import wandb_mode
from fewnlu.protocol.setup import read_setup
from tests.running import Workplace, failures, results

AUTO = {"mode": "auto"}


def test_offline_unless_there_is_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert wandb_mode(AUTO) == "offline"
    monkeypatch.setenv("WANDB_API_KEY", "x")
    assert wandb_mode(AUTO) == "online"
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert wandb_mode(AUTO) == "disabled" and wandb_mode({"mode": "offline"}) == "offline"


def test_csv_curves_lie_beside_the_record(place: Workplace) -> None:
    place.run("split.run=0", "logger=csv")
    (curves,) = (place.folder / "s").rglob("metrics.csv")
    assert (curves.parent / "result.json").exists()
    assert "dev" in curves.read_text().splitlines()[0] and "loss" in curves.read_text().splitlines()[0]


_READ = """
import json, sys
from wandb.proto import wandb_internal_pb2 as pb
out = []
for name in sys.argv[1:]:
    # LevelDB log: 7 bytes of header, then records of checksum (4), length (2), kind (1), in blocks of 32 KiB
    data, at, part, run = open(name, "rb").read(), 7, b"", {"config": {}, "summary": {}, "exit": None}
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        part = (part if kind in (3, 4) else b"") + data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (2, 3):
            continue
        record = pb.Record()
        record.ParseFromString(part)
        what = record.WhichOneof("record_type")
        if what == "run":
            run["id"], run["group"], run["job_type"] = record.run.run_id, record.run.run_group, record.run.job_type
        if what == "summary":
            for item in record.summary.update:
                run["summary"][item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
        if what in ("run", "config"):
            for item in (record.run.config if what == "run" else record.config).update:
                run["config"][item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
        if what == "exit":
            run["exit"] = record.exit.exit_code
    out.append(run)
print(json.dumps(out))
"""


def offline_runs(folder: Path) -> list[dict[str, Any]]:
    """What W&B keeps of the runs below a folder: id, group, job type, config, summary and exit status."""
    files = sorted(folder.rglob("*.wandb"))
    done = subprocess.run([sys.executable, "-c", _READ, *map(str, files)], capture_output=True, text=True, check=True)
    return list(json.loads(done.stdout))


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for v in value.values() for leaf in _leaves(v)]
    return [leaf for v in value for leaf in _leaves(v)] if isinstance(value, list) else [value]


def test_i114_three_runs_in_one_process_are_three_wandb_runs(place: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offline without a key or a question; the second run fails and is marked so; the configs are resolved (I117)."""
    monkeypatch.setenv("WANDB_DIR", str(place.folder))
    monkeypatch.setattr(sys, "stdin", open("/dev/null"))  # noqa: SIM115
    bad = read_setup(place.config()).run_seed(1, 0)
    real = Method.loss

    def loss(self: Any, batch: dict[str, Any]) -> Any:
        import torch

        if torch.initial_seed() == bad:
            raise RuntimeError("boom")
        return real(self, batch)

    monkeypatch.setattr(Method, "loss", loss)
    start = time.monotonic()
    found = place.run("logger=wandb", "split.k=3", "hp.max_steps=2")
    assert time.monotonic() - start < 100
    assert [r["k"] for r in found] == [0, 2] and [f["k"] for f in failures(place.folder / "s")] == [1]
    runs = sorted(offline_runs(place.folder), key=lambda r: r["config"]["k"])
    assert len({r["id"] for r in runs}) == 3 and len({r["group"] for r in runs}) == 1
    assert [r["config"]["k"] for r in runs] == [0, 1, 2]
    assert len({r["config"]["run_seed"] for r in runs}) == 3
    assert [r["exit"] for r in runs] == [0, 1, 0]
    for run, result in zip([runs[0], runs[2]], found, strict=True):
        assert run["config"]["hp"] == result["h"]
        assert {name: run["config"][name] for name in result["config"]} == result["config"]  # as on disk
        assert not [leaf for leaf in _leaves(run["config"]) if isinstance(leaf, str) and "${" in leaf]


def test_i116_a_logger_that_breaks_costs_one_warning(
    place: Workplace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import wandb

    def broken(**options: Any) -> Any:
        raise OSError("no server")

    monkeypatch.setattr(wandb, "init", broken)
    assert len(place.run("logger=wandb", "hp.max_steps=1")) == 2
    assert capsys.readouterr().err.count("nothing is logged") == 1
    assert results(place.folder / "s")[0]["test"] is not None
