"""What must not mix and must not vanish: older numerics, other splits, failures done elsewhere, lost studies."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from fewnlu import final
from fewnlu.protocol.records import FAILURE, RESULT, run_folder, to_json
from fewnlu.protocol.selection import DevScores, select
from fewnlu.reporting import compare
from fewnlu.reporting.figures import difference_figure, sensitivity_figure
from fewnlu.reporting.names import labels
from fewnlu.reporting.paper import methods
from fewnlu.reporting.status import STATES, RunState, gaps_text
from fewnlu.reporting.studies import read_studies, summarise
from fewnlu.reporting.tables import runs_text, studies_text
from fewnlu.reporting.views import order_values
from tests.reporting.trees import Tree, find, run
from tests.running import rewrite


def records(root: Path) -> dict[Path, dict[str, Any]]:
    return {p.parent: json.loads(p.read_bytes()) for p in sorted(root.rglob(RESULT))}


def change(folder: Path, **facts: Any) -> None:
    rewrite(folder / RESULT, {**json.loads((folder / RESULT).read_bytes()), **facts})


def failed(folder: Path) -> None:
    """Turn a done run into a failed one."""
    r = json.loads((folder / RESULT).read_bytes())
    keep = ("key", "study", "study_name", "h", "k", "rep", "k_total", "seeds", "config")
    for path in list(folder.iterdir()):
        path.unlink()
    (folder / FAILURE).write_bytes(to_json({n: r[n] for n in keep} | {"error": "out of memory", "type": "E"}))


def test_runs_of_older_numerics_are_no_further_runs(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "m")
    tree.study(hs=3)
    (before,) = read_studies([tmp_path / "m"])
    for folder, r in records(tmp_path / "m").items():  # as another version of the code had left them, and better
        old = {**r, "key": r["key"][::-1], "numerics": 0, "dev": {**r["dev"], "select": 1.0}}
        target = run_folder(tmp_path / "m", r["study_name"], r["h"], r["k"], r["rep"], old["key"])
        shutil.copytree(folder, target)
        rewrite(target / RESULT, old)
    (study,) = read_studies([tmp_path / "m"])
    assert (study.n_runs, study.wanted, study.older) == (12, 4, 12)
    assert summarise(study).choice == summarise(before).choice
    assert "12 of 12 done; 12 runs of older numerics left out" in runs_text(summarise(study))


def test_final_takes_the_newest_numerics_alone(tmp_path: Path) -> None:
    name = Tree(tmp_path / "m").study(hs=2)
    for folder, r in records(tmp_path / "m").items():
        if r["h"]["pattern"] == 0:
            change(folder, numerics=0, dev={**r["dev"], "select": 1.0})
    assert final.choose(tmp_path / "m" / name).h["pattern"] == 1


def test_points_are_compared_over_the_same_splits() -> None:
    table = [
        DevScores({"lr": "a"}, [0.9, 0.9], [(0, 0), (1, 0)]),
        DevScores({"lr": "b"}, [0.5, 0.7], [(2, 0), (3, 0)]),
        DevScores({"lr": "c"}, [0.6, 0.6], [(2, 0), (3, 0)]),
    ]
    choice = select(table)
    assert (choice.h, choice.tied, choice.candidates, choice.left_out) == ({"lr": "c"}, 2, 2, 1)
    assert select(table[:2]).h == {"lr": "a"}  # as frequent: the first splits


def test_a_split_that_all_points_lack_is_said_and_the_points_are_compared(tmp_path: Path) -> None:
    Tree(tmp_path / "m").study(hs=3)
    for folder, r in records(tmp_path / "m").items():
        if r["k"] == 3:
            failed(folder)
    (study,) = read_studies([tmp_path / "m"])
    summary = summarise(study)
    assert summary.choice.candidates == summary.n_points == 3 and summary.choice.left_out == 0
    text = runs_text(summary)
    assert "no point has all 4 runs, compared are those with 3 (without k3-r0)" in text and "not compared" not in text


def test_correlation_and_factors_take_the_compared_points_alone(tmp_path: Path) -> None:
    Tree(tmp_path / "m").study(hs=6)
    for folder, r in records(tmp_path / "m").items():
        if (r["k"] == 0) != (r["h"]["pattern"] == 0 and r["h"]["lr"] == 1e-5):
            shutil.rmtree(folder)  # one point has k0 alone, the others k1 to k3
    (study,) = read_studies([tmp_path / "m"])
    assert study.full == {(1, 0), (2, 0), (3, 0)} and summarise(study).n_points == 5


def test_seeds_with_other_runs_are_no_training_order(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "m")
    for train in (1, 2, 3):
        tree.study(hs=1, seeds={"data": 42, "split": 42, "train": train})
    for folder, r in records(tmp_path / "m").items():
        if r["seeds"]["train"] == 2 and r["k"] > 0:
            shutil.rmtree(folder)  # still running
    studies = read_studies([tmp_path / "m"])
    star = next(iter(studies[0].runs.values()))[0]["h"]
    assert [v[0] for v in order_values(studies, studies[0], star)] == [1, 3]


def test_a_failure_that_is_done_elsewhere_does_not_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Tree(tmp_path / "a").study(hs=2)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    for folder in list(records(tmp_path / "a"))[:3]:
        failed(folder)
    assert run("show", tmp_path / "a", tmp_path / "b") == 0
    assert "8 of 8 done" in capsys.readouterr().out
    assert run("show", tmp_path / "a", tmp_path / "a") == 1
    assert "5 of 8 done, 3 FAILED" in capsys.readouterr().out
    assert run("export", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "out") == 0
    assert "8 runs → " in capsys.readouterr().out and len(records(tmp_path / "out")) == 8


def test_no_study_vanishes_from_a_leaderboard(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = Tree(tmp_path / "m")
    tree.study(hs=1)
    all_failed, lost = tree.study(hs=1, method="cls"), tree.study(hs=1, method="adapet")
    for folder, r in records(tmp_path / "m").items():
        if r["study_name"] == all_failed:
            failed(folder)
        elif r["study_name"] == lost:
            (folder / RESULT).write_text("{")
    assert run("leaderboard", tmp_path / "m") == 1
    out, err = capsys.readouterr()
    assert "1 study" in out
    assert f"warning: {all_failed} is in no table: 0 of 4 done, 4 FAILED" in err
    assert f"warning: {lost} is in no table: 0 of 0 done; 4 damaged" in err
    for command in (["show"], ["show", "--out", tmp_path / "out"], ["compare", "--against", "PET"], ["sensitivity"]):
        assert run(*command, tmp_path / "m") in (0, 1, 2)
        assert "Traceback" not in capsys.readouterr().err
    assert lost in studies_text([summarise(s) for s in read_studies([tmp_path / "m"])])


def test_damage_below_a_second_folder_is_seen(tmp_path: Path) -> None:
    Tree(tmp_path / "a").study(hs=1)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    (next(iter(records(tmp_path / "b"))) / RESULT).write_text("")
    (study,) = read_studies([tmp_path / "a", tmp_path / "b"])
    assert study.n_runs == 4 and len(study.damaged) == 1


def test_a_study_of_a_sweep_that_is_not_whole_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = Tree(tmp_path / "m")
    name, other = tree.study(hs=1), tree.study(hs=1, method="cls")
    runs = {str(f.relative_to(tmp_path / "m")): r["key"] for f, r in records(tmp_path / "m").items()}
    (tmp_path / "m" / ".expected").mkdir()
    content = {"command": [], "studies": [name, other], "sampled": None, "runs": runs}
    (tmp_path / "m" / ".expected" / "x.json").write_text(json.dumps(content))
    shutil.rmtree(next(f for f, r in records(tmp_path / "m").items() if r["study_name"] == name))
    assert run("show", tmp_path / "m" / name) == 1
    assert "is not whole: 3 of 4 runs done" in capsys.readouterr().out
    assert run("show", tmp_path / "m" / other) == 0
    assert run("show", tmp_path / "m") == 1
    assert "7 of 8 runs done" in capsys.readouterr().out


def test_what_is_cut_off_a_list_is_counted_by_its_state() -> None:
    gaps = [RunState(f"r{i}", "failed", "", True) for i in range(7)] + [RunState("x", "missing", "", True)]
    assert gaps_text(gaps, 10, most=5).endswith("… and 2 more failed, 1 more missing") and "missing" in STATES


def test_rows_of_a_table_are_of_one_kind(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "m")
    for train in (1, 2):
        tree.study(task="boolq", hs=1, seeds={"data": 42, "split": 42, "train": train})
    tree.study(task="rte", hs=1, seeds={"data": 42, "split": 42, "train": 2})
    summaries = [summarise(s) for s in read_studies([tmp_path / "m"])]
    (table,) = methods(summaries)
    by_method = {row[1]: row for row in table.rows}
    assert set(by_method) == {f"PET data=42 split=42 train={n}" for n in (1, 2)}
    assert by_method["PET data=42 split=42 train=1"][-2:] == ["–", "–"]  # no RTE, hence no average
    assert by_method["PET data=42 split=42 train=2"][-1] != "–"
    for one in summaries:
        one.study.seeds["train"] = 2
    for one in summaries[:1]:
        one.study.config["data"]["n_labeled"] = 32
    (table,) = methods(summaries[:1] + summaries[2:])
    assert {row[1] for row in table.rows} == {"PET n_labeled=32", "PET n_labeled=all"}


def test_scores_of_other_metrics_share_no_leaderboard(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = Tree(tmp_path / "m")
    tree.study(hs=1)
    tree.study(hs=1, method="cls", metrics=("macro_f1",))
    assert run("leaderboard", tmp_path / "m") == 0
    out = capsys.readouterr().out
    assert "toy: 1 study by accuracy" in out and "toy: 1 study by macro-F1" in out


def test_against_means_one_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = Tree(tmp_path / "m")
    for method in ("pet", "adapet", "cls"):
        tree.study(hs=1, method=method)
    assert run("compare", tmp_path / "m", "--against", "PET", "--format", "csv") == 0
    pairs = [line.split(",")[:2] for line in capsys.readouterr().out.splitlines()[1:3]]
    assert sorted(pairs) == [["ADAPET", "PET"], ["CLS", "PET"]]
    assert run("compare", tmp_path / "m", "--against", "toy") == 2
    assert "--against toy: 3 studies of toy are meant" in capsys.readouterr().err


def test_mean_ranks_are_of_one_metric_on_the_same_rows(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "m")
    for task in ("boolq", "rte", "cb"):
        for method in ("pet", "cls"):
            tree.study(task=task, hs=1, method=method, metrics=("accuracy", "macro_f1"))
    summaries = [summarise(s) for s in read_studies([tmp_path / "m"])]
    assert compare.mean_ranks(summaries) is not None
    for s in summaries:  # by one metric the one, by the other the other is best
        low, high = (0.1, 0.9) if s.study.config["method"]["name"] == "pet" else (0.9, 0.1)
        s.test["accuracy"].mean, s.test["macro_f1"].mean = low, high
    by = {m: compare.mean_ranks(summaries, m)[0] for m in ("accuracy", "macro_f1")}  # type: ignore[index]
    assert sorted(by["accuracy"].values()) == sorted(by["macro_f1"].values()) == [1.0, 2.0]
    assert min(by["accuracy"], key=by["accuracy"].get) != min(by["macro_f1"], key=by["macro_f1"].get)
    for results in summaries[0].study.runs.values():
        for r in results:
            r["rows"]["test"]["sha256"] = "other"
    assert compare.mean_ranks(summaries) is None


def test_invalid_answers_and_other_levels_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    import pyarrow as pa
    import pyarrow.parquet as pq

    tree = Tree(tmp_path / "m")
    tree.study(hs=2)
    tree.study(hs=2, method="cls")
    for folder, r in records(tmp_path / "m").items():
        table = pq.read_table(folder / "predictions.parquet")
        said = ["(invalid)", *table["prediction"].to_pylist()[1:]]
        table = table.set_column(table.schema.get_field_index("prediction"), "prediction", pa.array(said))
        pq.write_table(table, folder / "predictions.parquet")
        change(folder, warnings=[])
        assert r["rows"]
    assert run("show", tmp_path / "m", "--out", tmp_path / "out") == 0
    found = [p.read_text() for p in (tmp_path / "out" / "figures").glob("study-*.svg")]
    assert len(found) == 2 and all("(invalid)" in text for text in found)
    summaries = [summarise(s) for s in read_studies([tmp_path / "m"])]
    names = dict(zip(map(id, summaries), labels([s.study for s in summaries]), strict=True))
    for level in (0.9, 0.95):
        pairs, _ = compare.all_pairs(summaries, names, None, level)
        if difference_figure(pairs, tmp_path / "f"):
            assert f"{100 * level:g} % interval" in (tmp_path / "f" / "differences.svg").read_text()


def test_values_of_a_factor_stand_in_their_order(tmp_path: Path) -> None:
    """Studies with other values of a factor share an axis, on which numbers must ascend."""
    pytest.importorskip("matplotlib")
    tree = Tree(tmp_path / "m")
    tree.study(hs=6)  # learning rates 1, 2 and 3e-05
    tree.study(hs=6, method="cls")
    for folder, r in records(tmp_path / "m").items():
        if r["config"]["method"]["name"] == "pet" and r["h"]["lr"] == 2e-5:
            shutil.rmtree(folder)  # drawn first, without the value in the middle
    summaries = [summarise(s) for s in read_studies([tmp_path / "m"])]
    assert sensitivity_figure(summaries[::-1], tmp_path / "f", ["lr"])
    text = (tmp_path / "f" / "sensitivity.svg").read_text()
    assert text.index(">1e-05<") < text.index(">2e-05<") < text.index(">3e-05<") and ">pattern<" not in text


def test_the_page_keeps_digits_and_counts_all_failures(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "m")
    tree.study(hs=10)
    for number, (folder, r) in enumerate(records(tmp_path / "m").items()):
        change(folder, h={**r["h"], "lr": r["h"]["lr"] * 0.0123457})
        if number < 30:
            failed(folder)
    run("show", tmp_path / "m", "--out", tmp_path / "out", "--no-figures")
    html = (tmp_path / "out" / "index.html").read_text()
    assert '"nFailed":30' in html and "and 10 more" in html
    assert re.search(r"[1-6]\.\d{3,5}e-07", html)


def test_names_in_brackets_are_printed_as_they_are(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "m")
    for model in ("bert[v2]", "bert[/v2]"):
        tree.study(hs=1, model=model)
    text = studies_text([summarise(s) for s in read_studies([tmp_path / "m"])])
    table = text.split("\n\n")[-1]
    assert "bert[v2]" in table and "bert[/v2]" in table
    assert find(tmp_path / "m", model="bert[v2]").study.n_runs == 4
