"""The command from end to end: sweeps, sweepers, launchers, resuming, exit status."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from fewnlu import train
from fewnlu.methods.pet import Method
from tests.running import Workplace, failures, result_bytes, results

LOOKS = ("search=none", "hp.eval_ratio=0.25,0.5,1.0", "hp.pattern=0")


def command(monkeypatch: pytest.MonkeyPatch, *args: str) -> int:
    """`python -m fewnlu.train ARGS` in this process; returns its exit status."""
    from fewnlu.protocol import callback

    monkeypatch.setattr(callback, "status", 0)
    monkeypatch.setattr(sys, "argv", ["train.py", *args])
    with pytest.raises(SystemExit) as end:
        train.main()
    return int(end.value.code or 0)


def runs_of(folder: Path, sweep: str = "main") -> dict[str, bytes]:
    return result_bytes(folder / "multirun" / sweep)


def test_a_sweep_from_end_to_end(
    place: Workplace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    args = [*place.base(), "split.k=2", *LOOKS, "runtime.threads=1", "-m"]
    assert command(monkeypatch, *args) == 0
    out, err = capsys.readouterr()
    assert "3 points of H, 6 runs from 2 trainings in 1 job" in err
    assert "6 of 6 done" in out and "best dev mean of 3 points" in out and "majority" in out
    first = runs_of(place.folder)
    assert len(first) == 6

    # The same again: nothing is run. One value more: only that is.
    times = {p: p.stat().st_mtime_ns for p in place.folder.rglob("result.json")}
    more = [*args[:-1], "hp.eval_ratio=0.25,0.5,0.75,1.0", "-m"]
    assert command(monkeypatch, *more) == 0
    assert {p: p.stat().st_mtime_ns for p in times} == times and len(runs_of(place.folder)) == 8

    # Another sweeper trains each h by itself: the same results to the byte.
    assert command(monkeypatch, *args[:-1], "hydra/sweeper=basic", "sweep=basic", "-m") == 0
    assert runs_of(place.folder, "basic") == first


def test_options_of_a_swept_group_reach_its_jobs(
    place: Workplace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The default paradigm has no such options; Hydra composes the sweep's own config with it."""
    options = ["paradigm.generations=2", "paradigm.reps=2", "paradigm.pool=12"]
    small = [*place.base(), "search=none", "split.k=1", "hp.max_steps=1", "hp.pattern=0"]
    assert command(monkeypatch, *small, "paradigm=ipet,noisy_student", *options, "-m") == 0
    found = [r["config"]["paradigm"] for r in results(place.folder)]
    assert [(p["name"], p["generations"], p["reps"]) for p in found] == [
        ("ipet", 2, 2),
        ("ipet", 2, 2),
        ("noisy_student", 2, 2),
        ("noisy_student", 2, 2),
    ]
    capsys.readouterr()
    swept = [o for o in small if "method" not in o]
    assert command(monkeypatch, *swept, "experiment=paradigms", "paradigm.labeling=sngle", "-m") == 2
    assert "paradigm.labeling='sngle': " in capsys.readouterr().err


def test_i067_joblib_and_another_hash_seed_give_the_same_bytes(
    place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = [*place.base(), "split.k=1", "search=none", "hp.lr=1e-4,1e-3", "hp.pattern=0", "-m"]
    done = place.python("-m", "fewnlu.train", *args[:-1], "sweep=other", "launcher=joblib", "-m", PYTHONHASHSEED="7")
    assert done.returncode == 0, done.stderr[-2000:]
    assert command(monkeypatch, *args[:-1], "runtime.threads=1", "-m") == 0
    assert runs_of(place.folder) == runs_of(place.folder, "other") and len(runs_of(place.folder)) == 2


def test_i095_a_failed_run_ends_with_1_and_a_rerun_mends_it(
    place: Workplace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = Method.loss

    def loss(self: Any, batch: dict[str, Any]) -> Any:
        value = real(self, batch)
        return value * float("nan") if self.hp["lr"] == 1e-3 else value

    args = [*place.base(), "split.run=0", "search=none", "hp.lr=1e-4,1e-3,1e-2", "hp.pattern=0", "runtime.threads=1"]
    with monkeypatch.context() as patch:
        patch.setattr(Method, "loss", loss)
        assert command(monkeypatch, *args, "-m") == 1
    out, err = capsys.readouterr()
    assert "2 of 3 done, 1 FAILED" in out and "FAILED" in err
    assert len(results(place.folder / "multirun")) == 2 and len(failures(place.folder / "multirun")) == 1
    # A command answers for its own runs; what failed for another one is shown.
    assert command(monkeypatch, *(a for a in args if not a.startswith("hp.lr=")), "hp.lr=1e-4,1e-2", "-m") == 0
    assert "1 FAILED" in capsys.readouterr().out and len(failures(place.folder / "multirun")) == 1
    assert command(monkeypatch, *args, "-m") == 0
    assert "3 of 3 done" in capsys.readouterr().out and not failures(place.folder / "multirun")


def test_a_single_run_needs_no_sweep(
    place: Workplace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, *place.base(), "split.run=0", "hp.max_steps=1", "runtime.threads=1") == 0
    assert "1 of 1 done" in capsys.readouterr().out and len(runs_of(place.folder)) == 1


def test_what_cannot_be_run_ends_with_2(
    place: Workplace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, *place.base(), "hp.lr=0") == 2
    assert capsys.readouterr().err.startswith("error: hp.lr=0") and not (place.folder / "multirun").exists()
