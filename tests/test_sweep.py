"""Sweeps that survive: damaged and foreign files, failures, launchers, plugins, a full disk, a silent server."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fewnlu.protocol.atomic import is_alive, read_json
from fewnlu.reporting.status import read_status, status_text
from fewnlu.reporting.studies import read_studies, summarise
from tests.running import Workplace, result_bytes, results

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


def test_k_spread_over_jobs_lands_in_the_same_study(place: Workplace) -> None:
    place.run("split.run=0", sweep="spread")
    place.run("split.run=1", sweep="spread")
    place.run(sweep="whole")
    assert result_bytes(place.folder / "spread") == result_bytes(place.folder / "whole")
    (study,) = read_studies([place.folder / "spread"])
    assert study.n_runs == 2 and summarise(study).test["select"].n == 2


def test_i106_one_job_a_device(place: Workplace) -> None:
    """Two devices, pretended: never more than one live run on each."""
    done = _train(
        place, "split.k=1", "hp.lr=1e-4,2e-4,3e-4,4e-4", "launcher=joblib", "hydra.launcher.n_jobs=4", "-m",
        CUDA_VISIBLE_DEVICES="7,8", TMPDIR=str(place.folder),
    )  # fmt: skip
    assert done.returncode == 0 and "2 at once, one for each GPU" in done.stderr
    locks = sorted(p.name for p in place.folder.rglob("fewnlu-devices-*/*.lock"))
    assert locks == ["7.lock", "8.lock"] and len(results(place.folder)) == 4


def test_i107_i096_local_jobs_are_limited_and_their_failures_seen(place: Workplace) -> None:
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="pip install 'fewnlu[slurm]'")
    argv = [*place.base(), "search=none", "runtime.threads=1", "split.k=1", "hp.lr=1e-4,2e-4,3e-4", "-m"]
    argv += ["launcher=submitit_local", "launcher.parallel=1"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
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
    assert "2 of 3 runs done" in out and "interrupted" in out
    assert place.python("-m", "fewnlu.train", *argv).returncode == 0
    assert len(results(place.folder)) == 3


def test_a_method_from_a_users_folder(place: Workplace) -> None:
    """Named by its YAML, brought along by the command line alone."""
    (place.folder / "mine.py").write_text(
        '"""Mine."""\nfrom fewnlu.methods.pet import Method as Pet\n\n\nclass Method(Pet):\n    name = "mypet"\n'
    )
    (place.folder / "conf" / "method").mkdir(parents=True)
    pet = (Path(__file__).parents[1] / "conf" / "method" / "pet.yaml").read_text()
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


def test_optuna_samples_h_and_the_summary_says_so(place: Workplace) -> None:
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper", reason="hydra-optuna-sweeper is not installed")
    argv = ["hydra/sweeper=optuna", "hydra.sweeper.n_trials=3", "hp.lr=interval(1e-5,1e-3)", "split.k=1", "-m"]
    assert "use maximize" in _train(place, *argv).stderr
    done = _train(place, *argv, "hydra.sweeper.direction=maximize")
    assert done.returncode == 0 and "points of H sampled by optuna" in done.stdout
