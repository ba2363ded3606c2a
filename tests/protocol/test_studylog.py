"""One W&B run per study: what it says, that it is the same run the next time, and that it is never worth a sweep."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fewnlu.protocol import callback, loggers
from fewnlu.protocol.records import RESULT
from fewnlu.reporting.overview import flat_summary, points_table
from fewnlu.reporting.status import read_status
from fewnlu.reporting.studies import read_studies, summarise
from tests.protocol.test_loggers import offline_runs
from tests.protocol.wandb_server import Server
from tests.reporting.trees import Tree
from tests.running import ROOT

LOGGER = {"name": "wandb", "project": "p", "entity": None, "mode": "auto", "init_timeout": 20}


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No account, no warning given yet, no exit status of an earlier summary."""
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(loggers, "_warned", set())
    monkeypatch.setattr(loggers, "_unreachable", [])
    for name, value in (("status", 0), ("expected", None), ("submitted", 0)):
        monkeypatch.setattr(callback, name, value)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_summary_says_what_the_report_says(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "s")
    tree.study(fail=(0, 1), metrics=("accuracy", "macro_f1"))
    (s,) = map(summarise, read_studies([tmp_path / "s"]))
    flat = flat_summary(s)
    assert {n.removeprefix("h*/"): v for n, v in flat.items() if n.startswith("h*/")} == dict(s.choice.h)
    assert flat["dev/mean"] == s.choice.mean and flat["tied"] == s.choice.tied and flat["K"] == 4
    assert flat["test/mean"] == s.test["select"].mean and flat["test/variance"] == s.test["select"].std ** 2
    assert flat["test/macro_f1/mean"] == s.test["macro_f1"].mean and flat["score"] == "mean of accuracy and macro-F1"
    assert (flat["spearman/rho"], flat["spearman/points"]) == (s.rho, s.n_points)
    assert flat["test/95 % low"] < flat["test/mean"] < flat["test/95 % high"]
    assert flat["test/majority"] == flat["test/chance"] == 0.5
    assert (flat["runs/failed"], flat["runs/done"], flat["runs/of h*"]) == (1, 23, 4)
    assert "1 x CUDA out of memory" in flat["notes"]
    header, rows = points_table(s)
    assert header == ["lr", "max_steps", "pattern", "runs", "dev mean", "dev std", "test mean", "test std", "h*"]
    assert len(rows) == 6 and [r[-5] for r in rows if r[-1]] == [flat["dev/mean"]] and sum(r[-1] for r in rows) == 1
    assert sorted(r[3] for r in rows) == [3, 4, 4, 4, 4, 4]


def test_what_is_not_known_is_none(tmp_path: Path) -> None:
    Tree(tmp_path / "s").study(hs=1, k=1, has_test=False)
    (s,) = map(summarise, read_studies([tmp_path / "s"]))
    flat = flat_summary(s)
    assert flat["dev/std"] is None and flat["spearman/rho"] is None and not [n for n in flat if n.startswith("test")]
    assert json.loads(json.dumps(flat, allow_nan=False)) == flat
    header, ((*_, test_mean, test_std, _star),) = points_table(s)
    assert test_mean is None and test_std is None and len(header) == 9


def test_offline_one_run_per_study_and_the_same_one_again(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("wandb")
    sweep = alone / "main"
    tree = Tree(sweep)
    names = [tree.study(hs=2, fail=(0, 0)), tree.study(method="cls", hs=3)]
    callback._summary(sweep, LOGGER)
    assert "W&B: 2 runs of job type study; what is offline: wandb sync main/wandb/offline-*" in capsys.readouterr().out
    runs = sorted(offline_runs(sweep / "wandb"), key=lambda r: names.index(r["group"]))
    assert [r["group"] for r in runs] == names and len({r["id"] for r in runs}) == 2
    assert {r["job_type"] for r in runs} == {"study"} and [r["exit"] for r in runs] == [1, 0]
    summaries = {s.study.name: s for s in map(summarise, read_studies([sweep]))}
    for r in runs:
        wanted = flat_summary(summaries[r["group"]])
        assert {n: r["summary"][n] for n in wanted} == wanted
        table = json.loads(next((sweep / "wandb").rglob(r["summary"]["points of H/path"])).read_bytes())
        header, rows = points_table(summaries[r["group"]])
        assert table["columns"] == header and table["data"] == rows
        assert r["config"]["task"] == summaries[r["group"]].study.config["task"]
        assert r["config"]["study"] == summaries[r["group"]].study.key
    assert not read_status(sweep).foreign  # the folder wandb is known
    callback._summary(sweep, LOGGER)
    assert {r["id"] for r in offline_runs(sweep / "wandb")} == {r["id"] for r in runs}
    assert len(list((sweep / "wandb").glob("offline-run-*"))) == 2


def test_studies_that_differ_in_seeds_are_runs_of_one_group(alone: Path) -> None:
    """Fault I118: seeds of one setting share a group; each keeps a run of its own."""
    pytest.importorskip("wandb")
    tree = Tree(alone / "main")
    for train in (1, 2):
        tree.study(hs=1, seeds={"data": 42, "split": 42, "train": train})
    callback._summary(alone / "main", LOGGER)
    runs = offline_runs(alone / "main" / "wandb")
    assert len({r["id"] for r in runs}) == 2 and len({r["group"] for r in runs}) == 1
    assert sorted(r["config"]["seed"]["train"] for r in runs) == [1, 2]


def test_a_sweep_that_went_on_with_other_versions_says_so(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Fault I071: half of the runs were made before an update of torch; the summary at the end names it."""
    sweep = alone / "main"
    Tree(sweep).study(hs=2, k=2)
    callback._summary(sweep, {})
    assert capsys.readouterr().err == ""
    meta = json.loads((old := next(sweep.rglob("meta.json"))).read_bytes())
    old.write_text(json.dumps({**meta, "versions": {**meta["versions"], "torch": "2.4.0"}}, indent=1, sort_keys=True))
    callback._summary(sweep, {})
    assert "different versions of torch: 2.13.0+cpu (3 runs), 2.4.0 (1 run)" in capsys.readouterr().err


def test_the_end_of_a_sweep_says_how_sure(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = alone / "main"
    tree = Tree(sweep)
    tree.study(hs=2, has_test=False)
    callback._summary(sweep, {})
    assert "How sure" not in capsys.readouterr().out  # nothing to say of one study without an interval
    tree.study(hs=2, method="cls")
    callback._summary(sweep, {})
    text = capsys.readouterr().out
    assert "How sure: h* of every study" in text and "95 % intervals are about" in text and "W&B" not in text


AGAIN = """
import shutil, sys
from pathlib import Path
from fewnlu.protocol import callback
logger = {"name": "wandb", "project": "p", "entity": None, "mode": "auto", "init_timeout": 60}
sweep = Path(sys.argv[1])
callback._summary(sweep, logger)
for k in sys.argv[2:]:
    shutil.rmtree(k)
callback._summary(sweep, logger)
"""


def test_online_the_same_command_updates_the_same_run(alone: Path) -> None:
    """Against a stand-in on loopback: two summaries of one study are one run, the second with one split less."""
    pytest.importorskip("wandb")
    sweep = alone / "main"
    name = Tree(sweep).study(hs=2, k=2)
    gone = [str(p.parent) for p in sweep.rglob(RESULT) if p.parent.name.startswith("k1-")]
    with Server() as server:
        env = {"WANDB_BASE_URL": server.url, "WANDB_API_KEY": "0" * 40, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, "-c", AGAIN, str(sweep), *gone],
            env={**os.environ, **env, "HOME": str(alone)},
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0 and "logger=wandb" not in done.stderr, done.stderr
        ((ident, found),) = server.runs.items()
        assert found["streams"] == 2 and server.resumed == [ident, ident]
        assert (found["groupName"], found["jobType"], found["displayName"]) == (name, "study", f"study {name}")
        assert json.loads(found["config"])["study"]["value"]
        (s,) = map(summarise, read_studies([sweep]))
        wanted = flat_summary(s)
        assert {n: found["summary"].get(n) for n in wanted} == wanted and wanted["K"] == 1
        assert wanted["test/std"] is None  # known of two runs, not of one: nothing old stays
        assert any("points" in file and file.endswith(".table.json") for file in server.files)


def test_what_fails_is_one_warning(
    alone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fault I116: no server, no package, a broken run: the summary is printed all the same, with one warning."""
    wandb = pytest.importorskip("wandb")
    tree = Tree(alone / "main")
    for method in ("pet", "cls", "adapet"):
        tree.study(method=method, hs=1)

    def broken(**options: Any) -> Any:
        raise OSError("no server")

    monkeypatch.setattr(wandb, "init", broken)
    callback._summary(alone / "main", LOGGER)
    out = capsys.readouterr()
    assert out.err.count("nothing is logged") == 1 and out.out.count("Spearman") > 3 and callback.status == 0
    assert "W&B" not in out.out

    class Run:
        def __init__(self) -> None:
            self.summary: dict[str, Any] = {}

        def log(self, what: Any) -> None:
            raise ValueError("no table")

        def finish(self, exit_code: int) -> None:
            raise TimeoutError

    monkeypatch.setattr(loggers, "_warned", set())
    monkeypatch.setattr(wandb, "init", lambda **options: Run())
    callback._summary(alone / "main", LOGGER)
    err = capsys.readouterr().err
    assert err.count("3 of 3 summaries are not whole") == 1 and err.count("the server took no more data") == 1
    shutil.rmtree(alone / "main" / "wandb", ignore_errors=True)
    monkeypatch.setenv("WANDB_MODE", "disabled")
    callback._summary(alone / "main", LOGGER)
    callback._summary(alone / "main", {"name": "csv"})
    out = capsys.readouterr()
    assert "logger" not in out.err and "W&B" not in out.out and not (alone / "main" / "wandb").exists()
