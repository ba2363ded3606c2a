"""`hydra/sweeper=optuna`: h is sampled and judged by the dev mean over the K runs, and the summary says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from fewnlu.methods.pet import Method
from tests.running import Workplace, failures, result_bytes, results
from tests.test_train import command

SAMPLED = (
    "hydra/sweeper=optuna",
    "hydra.sweeper.direction=maximize",
    "hydra.sweeper.sampler.seed=1",
    "runtime.threads=1",
)


def _optuna() -> None:
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper", reason="pip install 'fewnlu[optuna]'")


def _dev_means(folder: Path) -> dict[float, float]:
    """Learning rate -> mean of the dev scores over its runs."""
    found: dict[float, list[float]] = {}
    for one in results(folder):
        found.setdefault(one["h"]["lr"], []).append(one["dev"]["select"])
    return {lr: sum(scores) / len(scores) for lr, scores in found.items()}


def test_h_is_sampled_by_the_dev_mean_and_the_same_command_computes_nothing_anew(
    place: Workplace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _optuna()
    argv = [*place.base(), *SAMPLED, "search=none", "split.k=2", "hydra.sweeper.n_trials=5", "hp.lr=interval(1e-4,0.2)"]
    assert command(monkeypatch, *argv, "-m") == 0
    assert "best dev mean of 5 points of H sampled by optuna" in capsys.readouterr().out
    means = _dev_means(place.folder)
    assert len(means) == 5 and all(1e-4 <= lr <= 0.2 for lr in means) and len(set(means.values())) > 1
    found = yaml.safe_load((place.folder / "multirun/main/optimization_results.yaml").read_text())
    best = found["best_params"]["hp.lr"]
    assert found["best_value"] == max(means.values()) and means[best] == max(means.values())
    before = result_bytes(place.folder)
    times = {p: p.stat().st_mtime_ns for p in place.folder.rglob("result.json")}
    assert command(monkeypatch, *argv, "-m") == 0
    assert result_bytes(place.folder) == before
    assert {p: p.stat().st_mtime_ns for p in place.folder.rglob("result.json")} == times


def test_an_h_that_fails_costs_only_itself(
    place: Workplace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Optuna breaks off at a NaN, and its launcher then makes no summary."""
    _optuna()
    real, seen = Method.loss, list[float]()

    def loss(self: Any, batch: dict[str, Any]) -> Any:
        seen.append(self.hp["lr"])
        return real(self, batch) * (float("nan") if self.hp["lr"] == seen[0] else 1)

    monkeypatch.setattr(Method, "loss", loss)
    argv = [*place.base(), *SAMPLED, "search=none", "split.k=1", "hydra.sweeper.n_trials=3", "hp.lr=interval(1e-4,0.2)"]
    assert command(monkeypatch, *argv, "-m") == 1
    out, err = capsys.readouterr()
    assert len(results(place.folder)) == 2 and len(failures(place.folder)) == 1
    assert "sampled by optuna" in out and "1 FAILED" in out and "the loss is nan" in err


def test_where_every_h_fails_the_summary_says_so(
    place: Workplace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Optuna has no best trial then, and raises."""
    _optuna()
    real = Method.loss
    monkeypatch.setattr(Method, "loss", lambda self, batch: real(self, batch) * float("nan"))
    argv = [*place.base(), *SAMPLED, "search=none", "split.k=1", "hydra.sweeper.n_trials=2", "hp.lr=interval(1e-4,0.2)"]
    assert command(monkeypatch, *argv, "-m") == 1
    out, err = capsys.readouterr()
    assert len(failures(place.folder)) == 2 and "2 FAILED" in out
    assert "every trial failed" in err and "No trials are completed" not in err


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (["hydra.sweeper.direction=minimize"], "use maximize"),
        (["hydra.sweeper.custom_search_space=os.system"], "hydra.sweeper.custom_search_space='os.system'"),
        (["hydra.sweeper.sampler._target_=os.system"], "hydra.sweeper.sampler._target_='os.system'"),
        (["split=none"], "no dev rows"),
        (["hp.max_stepps=int(interval(2,4))"], "max_stepps"),
        (["hp.lr=interval(-1,1)"], "hp.lr=-1"),
    ],
    ids=["direction", "calls a name", "makes a class", "no dev", "key", "value"],
)
def test_what_cannot_be_sampled_is_refused(
    place: Workplace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], changes: list[str], says: str
) -> None:
    _optuna()
    argv = [*place.base(), *SAMPLED, "search=none", "hp.lr=interval(1e-4,0.2)"]
    kept = [a for a in argv if a.split("=")[0] not in {c.split("=")[0] for c in changes}]
    assert command(monkeypatch, *kept, *changes, "-m") == 2
    said = capsys.readouterr().err
    assert says in said and "Traceback" not in said and not (place.folder / "multirun").exists()


def test_an_interval_needs_that_sweeper_and_its_package(
    place: Workplace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from fewnlu import train

    assert command(monkeypatch, *place.base(), "hp.lr=interval(1e-4,0.2)", "-m") == 2
    assert "for intervals use hydra/sweeper=optuna" in capsys.readouterr().err
    monkeypatch.setattr(train, "find_spec", lambda name: None)
    assert command(monkeypatch, *place.base(), "hydra/sweeper=optuna", "hp.lr=interval(1e-4,0.2)", "-m") == 2
    assert "pip install" in capsys.readouterr().err and not (place.folder / "multirun").exists()


@pytest.mark.parametrize(
    ("choice", "extra"),
    [
        ("launcher=slurm", "slurm"),
        ("launcher=submitit_local", "slurm"),
        ("hydra/launcher=submitit_slurm", "slurm"),
        ("hydra/sweeper=optuna", "optuna"),
    ],
)
def test_a_plugin_that_is_not_installed_is_named_with_its_extra(
    choice: str, extra: str, place: Workplace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from fewnlu import train

    monkeypatch.setattr(train, "find_spec", lambda name: None)
    assert command(monkeypatch, *place.base(), choice, "-m") == 2
    assert f"{choice} needs the package hydra-" in (said := capsys.readouterr().err)
    assert f"pip install 'fewnlu[{extra}]'" in said and not (place.folder / "multirun").exists()
