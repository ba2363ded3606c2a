"""Sweeps that survive: damaged and foreign files, failures, launchers, plugins, a full disk, a silent server."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from fewnlu.methods.pet import Method
from fewnlu.processes import is_running
from fewnlu.protocol.atomic import is_alive, read_json
from fewnlu.reporting.status import RunState, Status, read_status, status_text
from fewnlu.reporting.studies import read_studies, summarise
from tests.running import ROOT, Workplace, failures, result_bytes, results
from tests.test_train import command as train

MAIN = "multirun/main"


def _train(place: Workplace, *argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    own = [] if any(a.startswith("split.k=") for a in argv) else ["split.k=2"]
    args = [*place.base(), *own, "search=none", "runtime.threads=1", *argv]
    return place.python("-m", "fewnlu.train", *args, **env)


def _states(place: Workplace) -> dict[str, str]:
    return {run.path: run.state for run in read_status(place.folder / MAIN).runs}


def test_i103_truncated_empty_and_foreign_files_are_named_and_computed_anew(
    place: Workplace, capsys: pytest.CaptureFixture[str]
) -> None:
    for lr in ("hp.lr=1e-4", "hp.lr=1e-3"):
        place.run(lr)
    sweep = place.folder / "s"
    assert {run.state for run in read_status(sweep).runs} == {"done"}
    expected = result_bytes(sweep)
    one, two, three, four = sorted(p.parent for p in sweep.rglob("result.json"))
    (one / "result.json").write_bytes((one / "result.json").read_bytes()[:200])
    (two / "result.json").write_bytes(b"")
    shutil.copy(four / "result.json", three / "result.json")
    (four / "predictions.parquet").write_bytes((four / "predictions.parquet").read_bytes()[:-7])
    (four / "notes.txt").write_text("mine")
    copy = four.with_name("copy of " + four.name)
    shutil.copytree(four, copy)
    told = status_text(read_status(sweep))
    for words in ("5 damaged", "cut off", "is empty", "another run's", "predictions.parquet was changed", "notes.txt"):
        assert words in told
    shutil.rmtree(copy)
    capsys.readouterr()
    for lr in ("hp.lr=1e-4", "hp.lr=1e-3"):
        place.run(lr)
    assert capsys.readouterr().err.count("computing anew") == 4
    assert result_bytes(sweep) == expected
    # a changed setting is computed anew, the old runs stay
    place.run("hp.lr=1e-4", "seed.train=7")
    assert len(results(sweep)) == 6 and expected.items() <= result_bytes(sweep).items()


def test_status_tells_what_a_command_will_compute_from_what_none_will() -> None:
    status = Status(Path("m"), [RunState("s/h/k0", "done", "", True), RunState("copy/h/k0", "damaged", "twice", False)])
    assert "no command here asked for 1" in status_text(status) and "same command" not in status_text(status)
    status.runs.append(RunState("s/h/k1", "missing", "not begun", True))
    assert "no command here asked for 1" in status_text(status) and "same command" in status_text(status)
    unknown = Status(Path("m"), [RunState("s/h/k0", "failed", "x", False)])
    assert "same command" in status_text(unknown) and "no command" not in status_text(unknown)


def test_i095_i097_a_failed_run_costs_one_run_unless_fail_fast(place: Workplace) -> None:
    """The second of three h has a loss that is not a number."""
    script = place.folder / "boom.py"
    script.write_text(
        "from fewnlu.methods.pet import Method\nold = Method.loss\n"
        "def loss(self, batch):\n    return old(self, batch) * (float('nan') if self.hp['lr'] == 1.0 else 1)\n"
        "Method.loss = loss\nfrom fewnlu.train import main\nmain()\n"
    )
    args = [*place.base(), "search=none", "runtime.threads=1", "split.k=1", "hp.lr=1e-4,1.0,1e-3", "-m"]
    fast = place.python(str(script), *args, "runtime.fail_fast=true")
    assert fast.returncode == 1 and "stopping: a run failed" in fast.stderr
    assert sorted(_states(place).values()) == ["done", "failed", "missing"]
    slow = place.python(str(script), *args)
    assert slow.returncode == 1 and len(results(place.folder)) == 2
    assert "FAILED" in slow.stderr and "the loss is nan" in slow.stderr
    assert "2 of 3 runs done; not done:" in slow.stdout and "the loss is nan" in slow.stdout


@pytest.mark.parametrize("sweeper", ["fewnlu", "basic"])
def test_i097_fail_fast_holds_under_any_sweeper(
    place: Workplace, monkeypatch: pytest.MonkeyPatch, sweeper: str
) -> None:
    real = Method.loss

    def loss(self: Method, batch: dict[str, object]) -> object:
        return real(self, batch) * (float("nan") if self.hp["lr"] == 1.0 else 1)

    monkeypatch.setattr(Method, "loss", loss)
    argv = [*place.base(), "search=none", "runtime.threads=1", "split.k=1", "hp.lr=1e-4,1.0,1e-3"]
    assert train(monkeypatch, *argv, f"hydra/sweeper={sweeper}", "runtime.fail_fast=true", "-m") == 1
    assert [r["h"]["lr"] for r in results(place.folder)] == [1e-4] and len(failures(place.folder)) == 1


def test_k_spread_over_jobs_lands_in_the_same_study(place: Workplace) -> None:
    place.run("split.run=0", sweep="spread")
    place.run("split.run=1", sweep="spread")
    place.run(sweep="whole")
    assert result_bytes(place.folder / "spread") == result_bytes(place.folder / "whole")
    (study,) = read_studies([place.folder / "spread"])
    assert study.n_runs == 2 and summarise(study).test["select"].n == 2


@pytest.mark.parametrize(
    "launcher", [("launcher=joblib", "hydra.launcher.n_jobs=4"), ("launcher=submitit_local", "launcher.parallel=4")]
)
def test_i106_one_job_a_device(place: Workplace, launcher: tuple[str, str]) -> None:
    """Two devices, pretended: never more than one live run on each."""
    done = _train(
        place, "split.k=1", "hp.lr=1e-4,2e-4,3e-4,4e-4", *launcher, "-m",
        CUDA_VISIBLE_DEVICES="7,8", TMPDIR=str(place.folder),
    )  # fmt: skip
    assert done.returncode == 0 and "2 at once, one for each GPU" in done.stderr
    locks = sorted(p.name for p in place.folder.rglob("fewnlu-devices-*/*.lock"))
    assert locks == ["7.lock", "8.lock"] and len(results(place.folder)) == 4


def test_workers_of_a_killed_command_end_after_their_run(place: Workplace) -> None:
    """joblib's workers outlive it; they would train through their jobs, two models in memory, before anyone sees it."""
    argv = [*place.base(), "split.k=30", "search=none", "launcher=joblib", "hp.lr=1e-4,1e-3", "runtime.threads=1", "-m"]
    with open(place.folder / "err", "wb") as err:
        command = subprocess.Popen(
            [sys.executable, "-m", "fewnlu.train", *argv], cwd=place.folder, stdout=err, stderr=err,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        try:
            own = psutil.Process(command.pid)
            _eventually(lambda: results(place.folder), 60)
            workers = [p.pid for p in own.children() if any("LokyProcess" in arg for arg in p.cmdline())]
        finally:
            command.kill()
            command.wait()
    _eventually(lambda: not any(is_running(pid) for pid in workers), 30)
    assert len(workers) == 2 and 0 < len(results(place.folder)) < 50


def _eventually(ask: Callable[[], Any], seconds: float) -> Any:
    """What `ask` answers once that is anything."""
    end = time.monotonic() + seconds
    while not (found := ask()):
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.05)
    return found


# Fails at one learning rate, as long as the environment says so.
BOOM = """
import os
from fewnlu.methods.pet import Method as Pet

class Method(Pet):
    name = "boom"
    def loss(self, batch):
        if self.hp["lr"] == float(os.environ.get("BOOM", 0)):
            raise RuntimeError("something of its own")
        return super().loss(batch)
"""


def test_i107_i096_local_jobs_are_limited_and_their_failures_seen(
    place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three jobs, one at a time: the first is killed from outside, the third raises, which its own log says."""
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="pip install 'fewnlu[slurm]'")
    (place.folder / "boom_method.py").write_text(BOOM)
    (place.folder / "conf" / "method").mkdir(parents=True)
    pet = (ROOT / "conf" / "method" / "pet.yaml").read_text()
    (place.folder / "conf" / "method" / "boom.yaml").write_text(pet.replace("name: pet", "name: boom"))
    argv = ["--config-dir", str(place.folder / "conf"), "+method=boom", "trust=[boom_method]", *place.base()[1:]]
    argv += ["search=none", "runtime.threads=1", "split.k=1", "hp.lr=1e-4,2e-4,3e-4"]
    argv += ["launcher=submitit_local", "launcher.parallel=1", "-m"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}:{place.folder}", "BOOM": "3e-4"}
    command = [sys.executable, "-m", "fewnlu.train", *argv]
    running = subprocess.Popen(command, cwd=place.folder, env=env, stdout=-1, stderr=-1, text=True)
    most, killed = 0, False
    while running.poll() is None:
        begun = [read_json(p) or {} for p in (place.folder / MAIN).glob("*/*/*/started.json")]
        live = [who for who in begun if is_alive(who)]
        most = max(most, len(live))
        if live and not killed:  # a job killed from outside
            os.kill(live[0]["pid"], 9)
            killed = True
        time.sleep(0.05)
    out, err = running.communicate()
    assert most == 1 and running.returncode == 1 and "LOST job" in err
    assert "1 of 3 runs done" in out and "interrupted" in out and "1 FAILED" in out
    assert sorted(_states(place).values()) == ["done", "failed", "interrupted"]
    (failed,) = failures(place.folder)
    assert "something of its own" in failed["error"] and "boom_method.py" in failed["traceback"]
    logs = [p.read_text() for p in (place.folder / MAIN).rglob("*_log.err")]
    assert len(logs) == 3
    (own,) = [log for log in logs if "RuntimeError: something of its own" in log]
    assert "Traceback" in own and "FAILED" in own
    here = [a for a in argv if a not in ("-m", "launcher=submitit_local", "launcher.parallel=1")]
    assert train(monkeypatch, *here, "-m") == 0  # the same without the launcher
    assert len(results(place.folder)) == 3 and not failures(place.folder)


def test_i111_another_job_at_another_time_goes_on_in_the_same_folder(
    place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Method.loss

    def loss(self: Method, batch: dict[str, object]) -> object:
        if results(place.folder):
            raise SystemExit(143)  # in the second run, as submitit's handler does
        return real(self, batch)

    monkeypatch.setenv("SLURM_JOB_ID", "7")
    with monkeypatch.context() as patch:
        patch.setattr(Method, "loss", loss)
        with pytest.raises(SystemExit):
            place.run()
    begun = {p.parent: p.stat().st_mtime_ns for p in place.folder.rglob("result.json")}
    (left,) = place.folder.rglob("started.json")
    assert json.loads(left.read_text())["job"] == "7" and len(begun) == 1
    monkeypatch.setenv("SLURM_JOB_ID", "8")
    assert len(place.run()) == 2
    after = {p.parent: p.stat().st_mtime_ns for p in place.folder.rglob("result.json")}
    assert after.keys() == {*begun, left.parent} and begun.items() <= after.items()


def test_a_method_from_a_users_folder(place: Workplace) -> None:
    """Named by its YAML, brought along by the command line alone."""
    (place.folder / "mine.py").write_text(
        '"""Mine."""\nfrom fewnlu.methods.pet import Method as Pet\n\n\nclass Method(Pet):\n    name = "mypet"\n'
    )
    (place.folder / "conf" / "method").mkdir(parents=True)
    pet = (ROOT / "conf" / "method" / "pet.yaml").read_text()
    (place.folder / "conf" / "method" / "mypet.yaml").write_text(pet.replace("name: pet", "name: mypet"))
    argv = ["--config-dir", "conf", "+method=mypet", *place.base()[1:], "split.k=1", "search=none"]
    refused = place.python("-m", "fewnlu.train", *argv)
    assert refused.returncode == 2 and "trust=[mymodule]" in refused.stderr
    done = place.python("-m", "fewnlu.train", *argv, "trust=[mine]")
    assert done.returncode == 0, done.stderr
    (found,) = results(place.folder)
    assert found["config"]["method"]["name"] == "mypet" and set(found["config"]["plugins"]) == {"method"}


@pytest.mark.skipif(os.getuid() != 0 or shutil.which("mount") is None, reason="a small tmpfs needs root")
def test_a_full_disk_stops_cleanly_with_what_is_done_intact(place: Workplace) -> None:
    disk = place.folder / "multirun"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", str(disk)]).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        done = _train(place, "hp.lr=1e-4,2e-4,3e-4,4e-4,5e-4,6e-4", "-m")
        assert done.returncode == 1, done.stderr
        assert "no space left" in done.stderr and "Traceback" not in done.stderr
        kept = result_bytes(disk)
        assert 0 < len(kept) < 12 and "runs done; not done" in done.stdout
        for data in kept.values():
            json.loads(data)
        subprocess.run(["mount", "-o", "remount,size=20m", str(disk)], check=True)
        assert _train(place, "hp.lr=1e-4,2e-4,3e-4,4e-4,5e-4,6e-4", "-m").returncode == 0
        assert len(result_bytes(disk)) == 12 and kept.items() <= result_bytes(disk).items()
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_i116_a_server_that_does_not_answer_costs_one_warning(place: Workplace) -> None:
    pytest.importorskip("wandb")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    begun = time.monotonic()
    argv = [a for a in place.base() if a != "logger=none"]
    done = place.python(
        "-m", "fewnlu.train", *argv, "logger=wandb", "logger.mode=online", "logger.init_timeout=3", "split.k=3",
        "search=none", WANDB_BASE_URL=f"http://127.0.0.1:{port}", WANDB_API_KEY="0" * 40,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("logging offline") == 1 and len(results(place.folder)) == 3
    assert time.monotonic() - begun < 120  # under a minute on an idle machine
    assert "nothing is logged" not in done.stderr
    files = list(place.folder.rglob("offline-run-*/run-*.wandb"))
    summary = [f for f in files if f.is_relative_to(place.folder / MAIN / "wandb")]
    assert len(files) == 4 and len(summary) == 1  # a run each, and the study's
    assert "W&B: 1 run of job type study" in done.stdout
    assert not read_status(place.folder / MAIN).foreign


def test_the_expected_size_is_said_first_where_it_matters(place: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line for records that are large, a warning where they can't fit, nothing for what is there already."""
    from collections import namedtuple

    from fewnlu.protocol import expected as sizes
    from fewnlu.protocol.setup import read_setup

    setup, usage = read_setup(place.config()), namedtuple("usage", "total used free")
    wanted = sizes.Expected([])
    wanted.add(setup, "w", place.folder / "s")
    assert len(wanted.runs) == 2 and wanted.room() == ""
    free = sizes.shutil.disk_usage(place.folder).free
    monkeypatch.setattr(sizes, "LARGE", 1000.0)
    monkeypatch.setattr(sizes.shutil, "disk_usage", lambda path: usage(free, 0, free))
    assert wanted.room().startswith("records will take about 0 MB in ")
    monkeypatch.setattr(sizes.shutil, "disk_usage", lambda path: usage(1000, 0, 1000))
    assert wanted.room().startswith("warning: records will take") and "disk is full" in wanted.room()
    # What a run's record really takes is of that order.
    place.run()
    taken = sum(p.stat().st_size for p in (place.folder / "s").rglob("*") if p.is_file())
    assert taken / 3 < wanted.bytes < 3 * taken
    monkeypatch.setattr(sizes, "is_done", lambda folder, key: True)
    assert wanted.room() == ""


def test_the_expected_size_is_printed_before_anything_is_computed(
    place: Workplace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from fewnlu.protocol import expected as sizes
    from fewnlu.protocol import trial

    monkeypatch.setattr(sizes, "LARGE", 1000.0)
    monkeypatch.setattr(trial, "_open_lab", lambda *args: (print("computing", file=sys.stderr), 1 / 0))
    assert train(monkeypatch, *place.base(), "split.k=1") == 1
    said = capsys.readouterr().err
    assert 0 <= said.index("records will take about") < said.index("computing")
