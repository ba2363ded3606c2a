"""A real SLURM of one node: a 2 x 2 grid as an array, jobs cancelled, requeued, out of time and pre-empted; in the end
everything is as in the local run.

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

from tests.running import ROOT, Workplace, result_bytes
from tests.test_train import command

HERE = Path(__file__).parent
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

    def facts(self, job: str) -> dict[str, str]:
        """What the controller says of a job."""
        words = self.call("scontrol", "-o", "show", "job", job).split()
        return {name: value for name, _, value in (word.partition("=") for word in words)}

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


def _wait_for(what, seconds=120.0):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.3)


def _start(cluster: Cluster, place: Path, *args: str) -> subprocess.Popen[str]:
    place.mkdir()
    argv = [sys.executable, "-m", "fewnlu.train", *args]
    return subprocess.Popen(argv, cwd=place, env=cluster.env, stdout=-1, stderr=-1, text=True)


def _report(capsys, *args: str) -> tuple[int, str]:
    """Exit status and text of `python -m fewnlu.report`, in this process."""
    from fewnlu import report

    with pytest.raises(SystemExit) as end:
        report.main(list(args))
    return int(end.value.code or 0), capsys.readouterr().out


def test_an_array_with_a_cancelled_and_a_requeued_job_equals_the_local_run(
    cluster: Cluster, place: Workplace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = [*place.base(), "hp.max_steps=2,4", "hp.lr=1e-4,1e-3", "split.k=2", "search=none", "runtime.threads=1", "-m"]
    slurm = ["launcher=slurm", "launcher.cpus=1", "launcher.partition=main"]
    assert command(monkeypatch, *_plain(grid)) == 0
    expected = result_bytes(place.folder / "multirun")
    assert len(expected) == 8

    # Each job waits before it starts python, so that all four are there to be cancelled and requeued.
    remote = place.folder / "remote"
    running = _start(cluster, remote, *_plain(grid), *slurm, "launcher.setup=['sleep 6']")
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
    assert cluster.facts(second)["Restarts"] == "1"  # the same folder, and it finished
    found = result_bytes(remote / "multirun")
    assert len(found) == 6 and found.items() <= expected.items()
    capsys.readouterr()
    status, told = _report(capsys, "status", str(remote / "multirun/main"))
    assert status == 1 and "6 done, 2 missing" in told

    # The same command again, not waited for: the other jobs' results are untouched, the lost ones are computed.
    argv = [sys.executable, "-m", "fewnlu.train", *_plain(grid), *slurm, "launcher.wait=false"]
    done = subprocess.run(argv, cwd=remote, env=cluster.env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "4 jobs go on without this command" in done.stdout
    _wait_for(lambda: not cluster.tasks())
    status, told = _report(capsys, "status", str(remote / "multirun/main"))
    assert status == 0 and "8 done" in told
    status, told = _report(capsys, "show", str(remote / "multirun/main"))
    assert status == 0 and "8 of 8 done" in told
    assert result_bytes(remote / "multirun") == expected  # bit for bit


# The first attempt computes a run and hangs in the next one, and so does the second; the third finishes.
HANGS = """
import os, time
from pathlib import Path
from fewnlu.methods.pet import Method as Pet

class Method(Pet):
    name = "hangs"
    def loss(self, batch):
        restarts = int(os.environ.get("SLURM_RESTART_COUNT", 0))
        while "SLURM_JOB_ID" in os.environ and len(list(Path("multirun").rglob("result.json"))) > restarts:
            time.sleep(0.2)
        return super().loss(batch)
"""


def test_i110_i111_a_job_out_of_time_then_preempted_goes_on_in_its_folder_and_equals_the_local_run(
    cluster: Cluster, place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time limit sends submitit's signal; later a job of a higher partition takes the node."""
    (place.folder / "hangs.py").write_text(HANGS)
    pet = (ROOT / "conf/method/pet.yaml").read_text().replace("name: pet", "name: hangs")
    (place.folder / "conf/method").mkdir(parents=True)
    (place.folder / "conf/method/hangs.yaml").write_text(pet)
    argv = ["--config-dir", str(place.folder / "conf"), "trust=[hangs]", "+method=hangs", *place.base()[1:]]
    argv += ["split.k=3", "search=none", "runtime.threads=1", "-m"]
    assert command(monkeypatch, *_plain(argv)) == 0
    expected = result_bytes(place.folder / "multirun")
    assert len(expected) == 3

    # Plain Hydra's launcher, no overlay. The signal comes 5 to 35 seconds before the end of the minute.
    slurm = ["hydra/launcher=submitit_slurm", "hydra.launcher.cpus_per_task=4", "hydra.launcher.timeout_min=1"]
    slurm += ["hydra.launcher.signal_delay_s=5", "hydra.launcher.max_num_timeout=9"]
    cluster.env["PYTHONPATH"] = f"{ROOT}:{place.folder}"
    remote = place.folder / "remote"

    def times() -> dict[Path, int]:
        return {p: p.stat().st_mtime_ns for p in remote.rglob("result.json")}

    running = _start(cluster, remote, *_plain(argv), *slurm)
    try:
        _wait_for(lambda: len(times()) >= 1, 180)
        (job,) = cluster.tasks()
        first = times()
        _wait_for(lambda: len(times()) == 2, 180)  # nobody but the time limit ended the first attempt
        assert int(cluster.facts(job)["Restarts"]) >= 1
        urgent = cluster.call("sbatch", "--parsable", "-p", "urgent", "-c4", "-o", "/dev/null", "--wrap", "sleep 1")
        out, err = running.communicate(timeout=300)
    finally:  # what is printed is seen where the test fails
        print(cluster.call("squeue"), cluster.call("scontrol", "show", "job"))
        print(*(f"{p.name}: {p.read_text()[-2000:]}" for p in sorted(remote.rglob("*_log.*"))), sep="\n")
        if running.poll() is None:
            running.kill()
    assert running.returncode == 0, err
    assert "3 of 3 done" in out and "LOST" not in err
    mine, other = cluster.facts(job), cluster.facts(urgent)
    assert int(mine["Restarts"]) >= 2 and other["JobState"] == "COMPLETED"
    assert other["EndTime"] <= mine["StartTime"]  # it did not wait until mine was through: mine made room
    assert first.items() <= times().items()
    assert result_bytes(remote / "multirun") == expected  # the same folders, bit for bit
    assert not list(place.folder.rglob("*.ckpt"))


def _plain(argv: list[str]) -> list[str]:
    return [a for a in argv if a != "-m"] + ["-m"]
