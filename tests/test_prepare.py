"""What is prepared is all that jobs read: afterwards they touch no network."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fewnlu.errors import ConfigError
from fewnlu.prepare import prepare
from tests.running import SMALL, Workplace

GUARD = """
import socket
def refuse(*a, **k):
    raise AssertionError("the network was asked")
socket.socket.connect = refuse
socket.create_connection = refuse
socket.getaddrinfo = refuse
from fewnlu.train import main
main()
"""


def test_what_a_sweep_reads_is_told_once(place: Workplace, capsys: pytest.CaptureFixture[str]) -> None:
    told = prepare([*place.base(), "task=reviews,entail", "hp.lr=1e-5,1e-4"])
    assert len(told) == 3  # two tasks, one model
    assert capsys.readouterr().out.count("\n") == 3


def test_what_an_experiment_names_is_fetched(place: Workplace) -> None:
    """Its method, the choices that it sweeps, and unlabelled rows where they are read."""
    own = [o for o in place.base() if "method" not in o]
    told = prepare([*own, "experiment=methods"])
    assert len(told) == 3 and "16 labelled" in told[0] and told[1].startswith("model ")
    assert told[2] == "task reviews: 200 unlabelled (packaged reviews/unlabeled.jsonl)"
    assert prepare([*own, "experiment=paradigms"])[0].endswith("200 unlabelled (packaged reviews/unlabeled.jsonl)")
    told = prepare(["experiment=dutch_demo", "model=local", f"model_args.path={place.models('llama')}"])
    assert [line.split(":")[0] for line in told if line.startswith("task")] == [
        f"task {name}" for name in ("arc_nl", "dbrd", "dutch_cola", "global_mmlu_nl", "xlwic_nl")
    ]


def test_i124_a_model_of_the_hub_runs_offline_from_the_cache(place: Workplace) -> None:
    """The hub's cache as `prepare` leaves it; then HF_HUB_OFFLINE=1 and no socket may be opened."""
    home = place.folder / "hf"
    repo = home / "hub" / "models--org--tiny"
    shutil.copytree(place.models("bert"), repo / "snapshots" / ("0" * 40))
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("0" * 40)
    script = place.folder / "guarded.py"
    script.write_text(GUARD)
    argv = ["+method=pet", "model=hub", "model_args.name=org/tiny", *SMALL, "split.k=1", "search=none"]
    done = place.python(str(script), *argv, HF_HOME=str(home), HF_HUB_OFFLINE="1")
    assert done.returncode == 0, done.stderr
    assert "1 of 1 done" in done.stdout


def test_what_is_not_there_is_named(place: Workplace, tmp_path: Path) -> None:
    done = place.python("-m", "fewnlu.prepare", "model=local", "model_args.path=/no/model")
    assert done.returncode == 2 and "/no/model" in done.stderr and "Traceback" not in done.stderr
    with pytest.raises(ConfigError, match="task=revews: no such task; did you mean 'reviews'"):
        prepare(["task=revews"])
