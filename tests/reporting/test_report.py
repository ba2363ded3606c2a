"""The report's commands on synthetic sweeps: tables, K as a view, comparisons, mixtures, export."""

from __future__ import annotations

import csv
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fewnlu.protocol.records import PREDICTIONS, RESULT, canonical
from fewnlu.reporting import checks, paper, views
from fewnlu.reporting.compare import mean_ranks
from fewnlu.reporting.export import stripped
from fewnlu.reporting.layout import Table
from fewnlu.reporting.outcomes import Outcomes, outcomes
from fewnlu.reporting.scores import compare_runs
from fewnlu.reporting.studies import read_studies, summarise
from fewnlu.reporting.sure import chosen_runs, sure_table, sureness
from tests.reporting.trees import Tree, find, run, sha


def test_every_number_is_traced_to_its_record(sweep, tmp_path, capsys):
    run("show", sweep, "--out", tmp_path, "--format", "csv")
    with open(tmp_path / "tables" / "studies.csv", newline="") as file:
        row = next(r for r in csv.DictReader(file) if r["method"] == "CLS")
    scores = []
    for name in row["runs of h*"].split():
        (folder,) = (sweep / row["folder"]).glob(f"*/{name}")
        scores.append(json.loads((folder / RESULT).read_text())["test"]["select"])
    assert float(row["test mean"]) == pytest.approx(np.mean(scores), abs=1e-6)
    assert float(row["test std"]) == pytest.approx(np.std(scores, ddof=1), abs=1e-6)
    assert int(row["n"]) == len(scores) == 4


def test_k_is_a_view_on_prefixes(sweep):
    studies = read_studies([sweep])
    big = find(sweep, method="pet", split="multisplit", task="toy").study
    assert views.splits_of(big) == 16
    cut = views.at_k(big, 4)
    assert {r["k"] for results in cut.runs.values() for r in results} == {0, 1, 2, 3}
    assert views.at_k(big, 32) is None
    curves = views.k_curves(studies)
    (key,) = [i for i in curves if i[0] == "toy" and i[2] == "PET" and i[3].startswith("Multi")]
    assert sorted(curves[key]) == [2, 4, 8, 16]
    for k, s in curves[key].items():
        dev = {h: np.mean([r["dev"]["select"] for r in results if r["k"] < k]) for h, results in big.runs.items()}
        assert s.choice.mean == pytest.approx(max(dev.values()))
        assert len(chosen_runs(s)) == k
    (cv,) = [i for i in curves if i[3] == "CV"]
    assert sorted(curves[cv]) == [2, 4]  # reruns of another K, joined into one curve


def test_k_option(sweep, capsys):
    assert run("show", sweep, "--k", "3") == 0
    lines = [line for line in capsys.readouterr().out.split("K-curves")[1].splitlines() if line.startswith("  toy")]
    assert lines and all("  3  " in line for line in lines)
    assert run("show", sweep, "--k", "two") == 2


def test_patterns_are_shown_each_and_the_best_on_dev_is_named(sweep):
    """Fault I025."""
    summary = find(sweep, method="cls")
    (table,) = paper.patterns([summary])
    assert [r[0] for r in table.rows[:2]] == ["0", "1"]
    assert table.rows[-1][0] == f"best on dev: {summary.choice.h['pattern']}"
    assert table.rows[-1][-2] == f"{100 * summary.test['select'].mean:.2f}"


def test_sensitivity_is_one_factor_at_a_time(sweep, tmp_path, capsys):
    study = next(s for s in read_studies([sweep]) if s.config["method"]["name"] == "cls")
    star = dict(summarise(study).choice.h)
    values = views.factor_values(study, star)
    assert set(values) == {"lr", "pattern"}  # max_steps has one value
    by_hand = []
    for results in study.runs.values():
        h = results[0]["h"]
        if h["pattern"] == star["pattern"]:
            by_hand.append(np.mean([r["test"]["select"] for r in results]))
    assert views.spread_of(values["lr"])[1] == pytest.approx(np.std(by_hand, ddof=1))
    assert run("sensitivity", sweep, "--factor", "lr", "--format", "csv") == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert {r["factor"] for r in rows} == {"lr"}
    assert run("sensitivity", sweep, "--factor", "lrr") == 2
    assert "lr" in capsys.readouterr().err


def test_training_order_is_a_factor_across_seeds(tmp_path):
    tree = Tree(tmp_path / "s")
    for train in (42, 43, 44):
        tree.study(hs=2, seeds={"data": 42, "split": 42, "train": train})
    studies = read_studies([tmp_path / "s"])
    summaries = [summarise(s) for s in studies]
    table = paper.sensitivity(summaries)
    assert any(r[4].startswith("train order") and r[-1] == "42, 43, 44" for r in table.rows)


def test_many_seeds_are_one_line(tmp_path):
    """Fault I118: mean, SD (n-1), n and the ids."""
    tree = Tree(tmp_path / "s")
    for train in range(5):
        tree.study(hs=1, seeds={"data": 42, "split": 42, "train": train})
    studies = read_studies([tmp_path / "s"])
    summaries = [summarise(s) for s in studies]
    (row,) = paper.seeds_table(studies, summaries).rows
    means = [s.test["select"].mean for s in summaries]
    assert row[4:7] == [f"{100 * np.mean(means):.2f}", f"{100 * np.std(means, ddof=1):.2f}", "5"]
    assert all(f"train={t}" in row[-1] for t in range(5))


def test_zero_shot_runs_say_that_seeds_have_no_effect(tmp_path, capsys):
    """Fault I021."""
    Tree(tmp_path / "s").study(hs=1, zero_shot=True)
    assert run("show", tmp_path / "s") == 0
    text = capsys.readouterr().out
    assert "splits and training seeds had no effect" in text
    (line,) = [x for x in text.splitlines() if x.startswith("  test ")]
    assert "no spread: all 4 runs score the same" in line and "±" not in line


def test_a_failed_run_leaves_the_others(tmp_path, capsys):
    """Fault I054: nine of ten are kept, counted and shown with their own interval; the point is not compared."""
    tree = Tree(tmp_path / "s")
    tree.study(hs=1, k=10, fail=(0, 3))
    assert run("show", tmp_path / "s") == 1
    text = capsys.readouterr().out
    assert "9 of 10 done, 1 FAILED" in text and "out of memory" in text
    (study,) = read_studies([tmp_path / "s"])
    found = sureness(summarise(study))
    assert found.interval.n_runs == 9
    assert run("leaderboard", tmp_path / "s", "--format", "csv") == 1
    (row,) = csv.DictReader(capsys.readouterr().out.splitlines())
    assert row["runs"] == "9 of 10" and row["failed"] == "1"


def test_compare_pairs_rows_and_corrects(sweep, tmp_path, capsys):
    assert run("compare", sweep, "--format", "csv") == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    pair = next(r for r in rows if "CLS" in r["A"] + r["B"] and "Multi" in r["A"] and "Multi" in r["B"])
    sign = 1 if "PET" in pair["A"] else -1
    assert sign * float(pair["A − B"]) > 0 and pair["apart"] == "yes"
    assert "only the 4 splits that both have" in pair["what varies"]
    assert run("compare", sweep, "--against", "nothing") == 2
    assert run("compare", sweep, "--against", "CLS", "--out", tmp_path) == 0
    assert (tmp_path / "differences.svg").is_file() and (tmp_path / "comparisons.csv").is_file()


def test_studies_on_other_rows_are_not_compared(tmp_path, capsys):
    tree = Tree(tmp_path / "s")
    tree.study()
    tree.study(method="cls", test_sha="f" * 64)
    assert run("compare", tmp_path / "s") == 2
    assert "same test rows" in capsys.readouterr().err
    a, b = map(summarise, read_studies([tmp_path / "s"]))
    assert "different test rows" in compare_runs(chosen_runs(a), chosen_runs(b), ("A", "B"))


def test_outcomes_are_those_of_the_records(sweep):
    runs = chosen_runs(find(sweep, method="cls"))
    found = outcomes(runs)
    assert isinstance(found, Outcomes)
    assert found.right.mean(1) == pytest.approx([r["test"]["metrics"]["accuracy"] for r in runs])
    (Path(runs[0]["folder"]) / PREDICTIONS).stat()
    gone = [{**runs[0], "folder": "nowhere"}]
    assert "missing or damaged" in outcomes(gone)


def test_mixed_data_is_named_and_kept_apart(tmp_path, capsys):
    """Fault I055: the same task name with other rows."""
    tree = Tree(tmp_path / "s")
    tree.study()
    tree.study(test_sha="f" * 64)
    tree.study(method="cls", labeled_sha="e" * 64)
    assert run("leaderboard", tmp_path / "s") == 0
    out = capsys.readouterr()
    assert "studies with different test rows are not comparable" in out.err and "different labelled rows" in out.err
    assert "on test rows ffffffff" in out.out and f"on test rows {tree.sha[:8]}" in out.out


def test_mixed_versions_are_named_and_can_be_asked_for(tmp_path, capsys):
    """Faults I051 and I071."""
    tree = Tree(tmp_path / "s")
    tree.study(versions={"python": "3.11.7", "outlines": "1.2.0"})
    tree.study(method="cls", versions={"python": "3.11.7", "outlines": "1.3.3"})
    tree.study(method="adapet", versions={"python": "3.11.7"})
    run("show", tmp_path / "s")
    assert "different versions of outlines: 1.2.0 (24 runs), 1.3.3 (24 runs)" in capsys.readouterr().err
    for condition, methods in (
        ("outlines>=1.3,<1.4", {"CLS"}),
        ("outlines<1.3", {"PET"}),
        ("python>=3.11", {"CLS", "PET", "ADAPET"}),
        ("commit==ccc", {"CLS", "PET", "ADAPET"}),
    ):
        assert run("leaderboard", tmp_path / "s", "--where", condition, "--format", "csv") == 0
        assert {r["method"] for r in csv.DictReader(capsys.readouterr().out.splitlines())} == methods
    assert run("leaderboard", tmp_path / "s", "--where", "outlines>=2") == 2
    assert run("leaderboard", tmp_path / "s", "--where", "outlines") == 2
    (tmp_path / "one").mkdir()
    assert len(checks.where(read_studies([tmp_path / "s"]), "outlines==1.2.0")) == 1


def test_export_strips_paths_and_lists_every_file(tmp_path, capsys):
    """Fault I075: one predictions file per run, listed in a manifest with what it holds."""
    tree = Tree(tmp_path / "s")
    tree.study(hs=2, k=2, fail=(1, 1))
    out = tmp_path / "out"
    assert run("export", tmp_path / "s", "--out", out) == 0
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["runs"] == 3 and manifest["failed"] == 1
    for name, entry in manifest["files"].items():
        assert sha(out / name) == entry["sha256"]
        if name.endswith(".json"):
            assert str(tmp_path) not in (out / name).read_text()
    assert sum(n.endswith(PREDICTIONS) for n in manifest["files"]) == 3
    (study,) = read_studies([out])
    assert study.n_runs == 3 and len(study.failed) == 1
    assert run("export", tmp_path / "s", "--out", out) == 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/home/ann/models/albert", "…/albert"),
        ("failed at /tmp/x/y.py, line 3", "failed at …/y.py, line 3"),
        (r"C:\Users\ann\data", "…/data"),
        ("~/rows/rows.jsonl", "…/rows.jsonl"),
        ("file:///srv/x.json", "…/x.json"),
        ("dev / test", "dev / test"),
        ("org/model-v2", "org/model-v2"),
        ("https://example.org/a/b", "https://example.org/a/b"),
        ("accuracy 1/2", "accuracy 1/2"),
    ],
)
def test_absolute_paths_are_cut(text, expected):
    assert stripped({"a": [text]}) == {"a": [expected]}


def test_no_test_set_has_no_interval(tmp_path, capsys):
    Tree(tmp_path / "s").study(has_test=False)
    assert run("show", tmp_path / "s", "--out", tmp_path / "o", "--no-figures") == 0
    (row,) = sure_table([summarise(s) for s in read_studies([tmp_path / "s"])]).rows
    assert row[2:4] == ["–", "–"] and row[-1] == "no test score"


def test_tables_escape_what_data_holds():
    table = Table("t", "T", ["a"], [["x|y <b>*z*</b>"], ["=1+2"], ["-3.5±0.2"], ["-x"], ["–"]], [])
    assert "x\\|y \\<b\\>\\*z\\*\\</b\\>" in table.markdown()
    assert table.csv().splitlines()[1:] == ["x|y <b>*z*</b>", "'=1+2", "-3.5±0.2", "'-x", '""']


def test_mean_ranks_and_the_critical_distance(tmp_path):
    tree = Tree(tmp_path / "s")
    for task in ("a", "b", "c"):
        for method, quality in (("pet", 2.0), ("cls", -2.0)):
            tree.study(task=task, method=method, quality=quality, hs=1)
    summaries = [summarise(s) for s in read_studies([tmp_path / "s"])]
    ranks, distance, n = mean_ranks(summaries)
    assert n == 3 and sorted(ranks.values()) == [1.0, 2.0]
    assert distance == pytest.approx(1.960 * math.sqrt(2 * 3 / (6 * 3)), abs=1e-3)  # Demšar 2006, table 5: q = 1.960
    assert mean_ranks(summaries[:4]) is None


def test_the_same_folder_twice_counts_once(sweep):
    once, twice = read_studies([sweep]), read_studies([sweep, sweep])
    assert [s.n_runs for s in once] == [s.n_runs for s in twice]


def test_figures_are_drawn_and_equal_records_give_equal_bytes(tmp_path):
    pytest.importorskip("matplotlib")
    from fewnlu.reporting.figures import draw_all, sensitivity_figure

    tree = Tree(tmp_path / "s")
    tree.study(hs=4)
    studies = read_studies([tmp_path / "s"])
    summaries, curves = [summarise(s) for s in studies], views.k_curves(studies)
    names = draw_all(summaries, curves, tmp_path / "a")
    assert len(names) == 3
    assert all((tmp_path / "a" / f"{name}.png").stat().st_size > 1000 for name in names)
    assert sensitivity_figure(summaries, tmp_path / "b")
    assert (tmp_path / "a" / "sensitivity.svg").read_bytes() == (tmp_path / "b" / "sensitivity.svg").read_bytes()


def test_help_and_errors_are_quick_and_import_nothing_heavy(tmp_path):
    code = (
        "import sys; sys.argv = ['report', 'show', '--help']\n"
        "try:\n    import fewnlu.report; fewnlu.report.main()\nexcept SystemExit: pass\n"
        "print(sorted({'torch', 'matplotlib', 'scipy', 'pyarrow', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("[]")


def test_folders_that_are_none_or_empty(tmp_path, capsys):
    for command in ("show", "sensitivity", "compare", "leaderboard"):
        assert run(command, tmp_path / "nowhere") == 2
        assert run(command, tmp_path) == 2
    assert run("show", tmp_path, "--format", "html") == 2
    assert "needs --out" in capsys.readouterr().err


def test_canonical_h_is_what_studies_are_keyed_by(sweep):
    for study in read_studies([sweep]):
        assert all(canonical(results[0]["h"]) == h for h, results in study.runs.items())
