"""What a reader is told, from a tree of records that is changed by hand."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from fewnlu import final, report
from fewnlu.protocol.records import Predictions, run_folder, write_failure, write_record
from fewnlu.reporting.studies import read_studies, summarise
from fewnlu.reporting.tables import studies_text
from tests.running import Workplace, results


@pytest.fixture
def real(place: Workplace) -> dict[str, Any]:
    """The result of a real run, to be copied."""
    (result,) = place.run("split.run=0", "hp.max_steps=1", sweep="real")
    return result


def write(sweep: Path, real: dict[str, Any], *, lr: float, k: int, dev: float, test: float, study: str = "s") -> None:
    """A copy of `real` with another h, split and scores."""
    one = copy.deepcopy(real)
    key = f"{study}{k}{int(lr * 1e6):08d}".ljust(16, "0")
    one |= {"key": key, "study": study, "study_name": f"study-{study}", "k": k, "warnings": []}
    one["h"]["lr"] = lr
    for name, score in (("dev", dev), ("test", test)):
        one[name]["select"] = one[name]["metrics"]["accuracy"] = score
    one["test"]["controls"] = {"majority": {"accuracy": 0.55}, "chance": {"accuracy": 0.5}}
    folder = run_folder(sweep, one["study_name"], one["h"], k, 0, key)
    write_record(folder, one, {"config": one["config"]}, Predictions([], [], [], [], {}))


def fail(sweep: Path, real: dict[str, Any], *, lr: float, k: int) -> None:
    key = f"f{k}{int(lr * 1e6):08d}".ljust(16, "0")
    h = {**real["h"], "lr": lr}
    kept = {name: real[name] for name in ("rep", "k_total", "config")}
    seeds = {name: v for name, v in real["seeds"].items() if name != "run"}
    failure = {**kept, "key": key, "study": "s", "study_name": "study-s", "h": h, "k": k, "seeds": seeds}
    failure |= {"error": "CUDA out of memory", "type": "RuntimeError", "traceback": ""}
    write_failure(run_folder(sweep, "study-s", h, k, 0, key), failure)


def grid(sweep: Path, real: dict[str, Any], study: str = "s") -> None:
    for i, lr in enumerate((1e-5, 2e-5, 3e-5)):
        for k in range(4):
            write(sweep, real, lr=lr, k=k, dev=0.6 + 0.1 * i + 0.01 * k, test=0.5 + 0.1 * i + 0.02 * k, study=study)


def test_summary_of_a_whole_study(tmp_path: Path, real: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    grid(tmp_path / "m", real)
    with pytest.raises(SystemExit) as end:
        report.main(["show", str(tmp_path / "m")])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert "lr=3e-05" in text and "3 points of H" in text and "no tie" in text
    assert "81.5 ± 1.3" in text  # dev: 80, 81, 82, 83
    assert "73.0 ± 2.6" in text  # test: 70, 72, 74, 76
    assert "majority 55.0" in text and "chance 50.0" in text
    assert "1.000" in text and "12 of 12 done" in text and "optimistic" not in text


def test_i054_a_failed_run_is_shown_and_ends_with_1(
    tmp_path: Path, real: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    grid(tmp_path / "m", real)
    found = {p.parent: json.loads(p.read_bytes()) for p in (tmp_path / "m").rglob("result.json")}
    (folder,) = [f for f, r in found.items() if (r["h"]["lr"], r["k"]) == (3e-5, 2)]
    for path in folder.iterdir():
        path.unlink()
    fail(tmp_path / "m", real, lr=3e-5, k=2)
    with pytest.raises(SystemExit) as end:
        report.main(["show", str(tmp_path / "m")])
    assert end.value.code == 1
    text = capsys.readouterr().out
    assert "11 of 12 done, 1 FAILED" in text and "CUDA out of memory" in text and "k2-r0" in text
    assert "lr=2e-05" in text and "not compared" in text  # h with a run less is no candidate


def test_an_edited_result_never_counts(
    tmp_path: Path, real: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """A record counts as it was written or not at all, in every report, and not for h* either."""
    grid(tmp_path / "m", real)
    edited = next(
        p for p in (tmp_path / "m").rglob("k0-*/result.json") if json.loads(p.read_bytes())["h"]["lr"] == 1e-5
    )
    edited.write_text(edited.read_text().replace('"select": 0.6', '"select": 0.99'))
    for command in ("show", "leaderboard"):
        with pytest.raises(SystemExit) as end:
            report.main([command, str(tmp_path / "m")])
        assert end.value.code == 1
    out, _ = capsys.readouterr()
    assert "11 of 12 done" in out and "1 damaged" in out and "99" not in out
    (study,) = read_studies([tmp_path / "m"])
    assert len(study.damaged) == 1 and summarise(study).choice.h == {**real["h"], "lr": 3e-5}
    assert final.choose(study.folder).h == {**real["h"], "lr": 3e-5}
    assert "result.json was changed or cut off" in capsys.readouterr().err


def test_several_studies_get_one_table(tmp_path: Path, real: dict[str, Any]) -> None:
    grid(tmp_path / "m", real, "a")
    grid(tmp_path / "m", real, "b")
    studies = read_studies([tmp_path / "m"])
    assert [s.name for s in studies] == ["study-a", "study-b"]
    text = studies_text([summarise(s) for s in studies])
    table = text.split("\n\n")[-1]
    assert "majority" in table and "Spearman" in table and table.count("73.0 ± 2.6") == 2


def test_two_points_have_no_spearman(tmp_path: Path, real: dict[str, Any]) -> None:
    for lr in (1e-5, 2e-5):
        for k in range(2):
            write(tmp_path / "m", real, lr=lr, k=k, dev=lr * 1e4, test=0.5)
    (study,) = read_studies([tmp_path / "m"])
    summary = summarise(study)
    assert summary.rho != summary.rho and summary.n_points == 2
    assert "not defined" in studies_text([summary])


def test_nothing_to_show_ends_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(SystemExit) as end:
            report.main(["show", str(folder)])
        assert end.value.code == 2 and "multirun/<sweep>" in capsys.readouterr().err


def test_reading_writes_nothing(tmp_path: Path, place: Workplace, real: dict[str, Any]) -> None:
    before = sorted(p for p in place.folder.rglob("*"))
    assert len(results(place.folder / "real")) == 1
    studies_text([summarise(s) for s in read_studies([place.folder / "real"])])
    assert sorted(p for p in place.folder.rglob("*")) == before
