"""A real SLURM of one node: a 2 x 2 grid as an array, one job cancelled, one requeued; in the end as the local run.

Faults I096, I110, I111, I113. Needs root and Debian packages (up.sh); run by `pytest -m slurm` and by .ci/run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.running import result_bytes
from tests.tiny import tiny_model_dir

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(os.getuid() != 0, reason="slurmd and munged need root"),
    pytest.mark.skipif(shutil.which("apt-get") is None, reason="no apt-get: SLURM comes from Debian packages"),
]


class Cluster:
    """The SLURM of this test, and commands on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {**os.environ, "SLURM_TEST_DIR": str(folder), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}

    def up(self) -> None:
        done = subprocess.run([HERE / "up.sh"], env=self.env, capture_output=True, text=True, timeout=400)
        if done.returncode and "apt" in done.stderr.lower():
            pytest.skip(f"Debian packages can't be had: {done.stderr.strip().splitlines()[-1]}")
        assert done.returncode == 0, done.stderr
        self.env["SLURM_CONF"] = str(self.folder / "slurm.conf")
        self.env["PATH"] = f"{self.folder / 'bin'}:{self.env['PATH']}"

    def down(self) -> None:
        subprocess.run([HERE / "down.sh"], env=self.env, timeout=60)

    def call(self, *command: str) -> str:
        return subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=60).stdout.strip()

    def tasks(self) -> dict[str, str]:
        """Array task -> state, of all jobs that are not over."""
        lines = self.call("squeue", "-h", "-r", "-o", "%i %T").splitlines()
        return dict(line.split() for line in lines)


@pytest.fixture(scope="module")
def cluster():
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="pip install 'fewnlu[slurm]'")
    folder = Path("/tmp") / f"fewnlu-slurm-{os.getpid()}"  # sockets have short names
    made = Cluster(folder)
    try:
        made.up()
        yield made
    finally:
        made.down()
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for(what, seconds=90.0):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.3)


def _python(cluster: Cluster, place: Path, module: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, *args], cwd=place, env=cluster.env, capture_output=True, text=True, timeout=400
    )


def test_an_array_with_a_cancelled_and_a_requeued_job_equals_the_local_run(cluster, tmp_path):
    model = tiny_model_dir(tmp_path / "models", "bert")
    grid = ["+method=pet", "model=local", f"model_args.path={model}", "data.n_labeled=16", "data.limit_test=12"]
    grid += [
        "hp.max_steps=2,4",
        "hp.lr=1e-4,1e-3",
        "split.k=2",
        "search=none",
        "logger=none",
        "runtime.threads=1",
        "-m",
    ]
    slurm = ["launcher=slurm", "launcher.cpus=1", "launcher.partition=main"]

    local = tmp_path / "local"
    local.mkdir()
    done = _python(cluster, local, "fewnlu.train", *grid)
    assert done.returncode == 0, done.stderr
    expected = result_bytes(local / "multirun")
    assert len(expected) == 8

    # Each job waits before it starts python, so that all four are there to be cancelled and requeued.
    remote = tmp_path / "remote"
    remote.mkdir()
    command = [sys.executable, "-m", "fewnlu.train", *grid, *slurm, "launcher.setup=['sleep 6']"]
    running = subprocess.Popen(
        command, cwd=remote, env=cluster.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        _wait_for(lambda: list(cluster.tasks().values()).count("RUNNING") == 4)
        first, second, *_ = sorted(cluster.tasks())
        cluster.call("scancel", first)
        cluster.call("scontrol", "requeue", second)
        out, err = running.communicate(timeout=300)
    finally:
        if running.poll() is None:
            running.kill()
    assert running.returncode == 1  # one job is lost, the summary is made all the same
    assert f"LOST job {first}" in err and "6 of 8 runs done" in out
    assert "Restarts=1" in cluster.call("scontrol", "show", "job", second)  # the same folder, and it finished
    found = result_bytes(remote / "multirun")
    assert len(found) == 6 and found.items() <= expected.items()
    status = _python(cluster, remote, "fewnlu.report", "status", "multirun/main")
    assert status.returncode == 1 and "6 done, 2 missing" in status.stdout

    # The same command again, not waited for: the other jobs' results are untouched, the lost ones are computed.
    done = _python(cluster, remote, "fewnlu.train", *grid, *slurm, "launcher.wait=false")
    assert done.returncode == 0, done.stderr
    assert "4 jobs go on without this command" in done.stdout
    _wait_for(lambda: not cluster.tasks())
    status = _python(cluster, remote, "fewnlu.report", "status", "multirun/main")
    assert status.returncode == 0 and "8 done" in status.stdout, status.stdout
    shown = _python(cluster, remote, "fewnlu.report", "show", "multirun/main")
    assert shown.returncode == 0 and "8 of 8 done" in shown.stdout
    assert result_bytes(remote / "multirun") == expected  # bit for bit


def test_submitits_signal_requeues_and_the_job_goes_on_in_its_folder(cluster, tmp_path):
    model = tiny_model_dir(tmp_path / "models", "bert")
    argv = ["+method=pet", "model=local", f"model_args.path={model}", "data.n_labeled=16", "data.limit_test=12"]
    argv += ["hp.max_steps=40", "hp.eval_ratio=0.02", "hp.patience=99", "split.k=6", "search=none", "logger=none"]
    argv += ["runtime.threads=1", "hydra/launcher=submitit_slurm", "hydra.launcher.cpus_per_task=1", "-m"]
    argv += ["hydra.launcher.max_num_timeout=3"]  # plain Hydra's launcher, no overlay
    running = subprocess.Popen(
        [sys.executable, "-m", "fewnlu.train", *argv],
        cwd=tmp_path,
        env=cluster.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        _wait_for(lambda: list(tmp_path.rglob("result.json")))
        (job,) = cluster.tasks()
        before = result_bytes(tmp_path / "multirun")
        cluster.call("scancel", "--signal=USR2", job)
        _wait_for(lambda: "Restarts=1" in cluster.call("scontrol", "show", "job", job))
        out, err = running.communicate(timeout=300)
    finally:
        if running.poll() is None:
            running.kill()
    assert running.returncode == 0, err
    assert "6 of 6 done" in out
    assert before.items() <= result_bytes(tmp_path / "multirun").items()
