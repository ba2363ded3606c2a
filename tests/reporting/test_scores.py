"""Test scores as values per run and row, for every metric: what intervals and paired differences stand on."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from fewnlu.protocol.intervals import score_interval
from fewnlu.reporting.compare import all_pairs
from fewnlu.reporting.scores import SELECT, Scored, compare_runs, interval_of, scored
from fewnlu.reporting.studies import read_studies, summarise
from fewnlu.reporting.sure import chosen_runs, sure_table, sureness, worth_a_table
from tests.reporting.trees import Tree, run


def runs_of(root):
    return [chosen_runs(s) for s in map(summarise, read_studies([root]))]


def test_macro_f1_and_a_mean_of_metrics_have_intervals(tmp_path, capsys):
    tree = Tree(tmp_path / "s")
    tree.study(task="cb", metrics=("accuracy", "macro_f1"))
    (summary,) = map(summarise, read_studies([tmp_path / "s"]))
    runs = chosen_runs(summary)
    for metric in (SELECT, "accuracy", "macro_f1"):
        found = scored(runs, metric)
        assert isinstance(found, Scored) and found.values.shape == (4, 60)
        assert found.values.mean() == pytest.approx(summary.test[metric].mean, abs=1e-12)
        assert bool(found.how) == (metric != "accuracy")
    assert interval_of(runs, "accuracy") == score_interval(scored(runs, "accuracy").values)
    one = interval_of(runs, "macro_f1")
    assert one.known and one.low < summary.test["macro_f1"].mean < one.high and "linearised" in one.note
    rows = sure_table([summary]).rows
    assert [r[1] for r in rows] == ["mean of accuracy and macro-F1", "accuracy", "macro-F1"]
    assert ["linearised" in r[-1] for r in rows] == [True, False, True]
    assert rows[0][2] == f"{100 * summary.test['select'].mean:.2f}"
    run("show", tmp_path / "s")
    assert "each row counts by how it moves the score" in capsys.readouterr().out


def test_rows_of_a_question_count_together(tmp_path):
    """MultiRC: F1a and exact match over questions, whose answers are not independent rows."""
    tree = Tree(tmp_path / "s", grouped=True)
    tree.study(metrics=("f1a", "em"))
    (summary,) = map(summarise, read_studies([tmp_path / "s"]))
    runs = chosen_runs(summary)
    for metric in (SELECT, "f1a", "em"):
        found = scored(runs, metric)
        assert found.values.shape == (4, 20) and found.values.mean() == pytest.approx(summary.test[metric].mean)
    assert set(np.unique(scored(runs, "em").values)) <= {0.0, 1.0} and scored(runs, "em").how == ""
    one = sureness(summary).interval
    assert one.n_rows == 20 and "groups of test rows ({question})" in one.varied


def test_groups_that_ids_do_not_tell_are_not_guessed(tmp_path):
    tree = Tree(tmp_path / "s", grouped=True)
    tree.study(metrics=("f1a", "em"))
    ((first, *_),) = runs_of(tmp_path / "s")
    config = {**first["config"], "task": {**first["config"]["task"]}}
    runs = [{**r, "config": config} for r in runs_of(tmp_path / "s")[0]]
    config["task"]["id"] = "{row}"
    assert "can't be read off" in scored(runs, "em")
    fallback = interval_of(runs, "em")
    assert "test rows are fixed" in fallback.varied and fallback.n_runs == 4 and "can't be read off" in fallback.note
    config["task"]["id"] = "{question}{answer}"  # 1-11: which part is the question?
    assert "can't be read off" in scored(runs, "em")


def test_scores_that_are_not_those_of_the_predictions_have_no_interval(tmp_path):
    tree = Tree(tmp_path / "s")
    tree.study(metrics=("macro_f1",))
    (runs,) = runs_of(tmp_path / "s")
    for r in runs:
        r["test"]["metrics"]["macro_f1"] -= 0.01
    assert interval_of(runs) == "macro_f1 of the records is not that of their predictions"


def test_a_metric_without_values_per_row_varies_over_runs_alone(tmp_path):
    tree = Tree(tmp_path / "s")
    tree.study()
    (runs,) = runs_of(tmp_path / "s")
    for k, r in enumerate(runs):
        r["test"]["metrics"]["answer_f1"] = 0.5 + 0.01 * k
    one = interval_of(runs, "answer_f1")
    assert one.known and one.estimate == pytest.approx(0.515) and "test rows are fixed" in one.varied
    assert "can't be had from labels alone" in one.note


def test_all_right_has_no_interval_of_macro_f1_but_one_of_accuracy(tmp_path):
    Tree(tmp_path / "s").study(hs=1, quality=60.0, metrics=("accuracy", "macro_f1"))
    (runs,) = runs_of(tmp_path / "s")
    assert interval_of(runs, "accuracy").known and "exact" in interval_of(runs, "accuracy").note
    assert interval_of(runs, "macro_f1").estimate == 1.0 and not interval_of(runs, "macro_f1").known


def test_compare_uses_the_score_that_selects_or_a_metric(tmp_path, capsys):
    tree = Tree(tmp_path / "s")
    tree.study(metrics=("accuracy", "macro_f1"))
    tree.study(method="cls", quality=-0.6, metrics=("accuracy", "macro_f1"))
    summaries = [summarise(s) for s in read_studies([tmp_path / "s"])]
    differences = {}
    for metric in ("", "accuracy", "macro_f1"):
        assert run("compare", tmp_path / "s", "--format", "csv", *(["--metric", metric] if metric else [])) == 0
        (row,) = csv.DictReader(capsys.readouterr().out.splitlines())
        differences[metric] = float(row["A − B"])
        assert ("linearised" in row["what varies"]) == (metric != "accuracy")
        expected = [s.test[metric or "select"].mean for s in summaries]
        assert differences[metric] == pytest.approx(100 * (expected[0] - expected[1]), abs=0.0051)
    assert len(set(differences.values())) == 3
    run("compare", tmp_path / "s")
    assert "Difference of the test score (mean of accuracy and macro-F1)" in capsys.readouterr().out
    assert run("compare", tmp_path / "s", "--metric", "macro") == 2
    assert "macro_f1" in capsys.readouterr().err
    names = {id(s): s.study.name for s in summaries}
    assert all_pairs(summaries, names, None, 0.95, "mcc")[1]


def test_studies_that_select_by_other_metrics_are_not_compared(tmp_path):
    tree = Tree(tmp_path / "s")
    tree.study(metrics=("accuracy",))
    tree.study(method="cls", metrics=("macro_f1",))
    a, b = runs_of(tmp_path / "s")
    assert "different scores" in compare_runs(a, b, ("A", "B"))


def test_a_table_that_would_say_nothing_is_not_shown(tmp_path):
    tree = Tree(tmp_path / "s")
    tree.study(has_test=False)
    summaries = [summarise(s) for s in read_studies([tmp_path / "s"])]
    assert worth_a_table(summaries) == []
    tree.study(method="cls", has_test=False)
    assert len(worth_a_table([summarise(s) for s in read_studies([tmp_path / "s"])])) == 1
    Tree(tmp_path / "t").study()
    assert len(worth_a_table([summarise(s) for s in read_studies([tmp_path / "t"])])) == 1
