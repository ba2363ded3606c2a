"""`report show`: what it prints and writes, in which words, and what it refuses."""

from __future__ import annotations

import csv
import json

from fewnlu.protocol.records import RESULT
from fewnlu.reporting.layout import plain
from fewnlu.reporting.studies import read_studies, summarise
from fewnlu.reporting.tables import hp_text
from tests.reporting.trees import Tree, find, run
from tests.running import rewrite


def test_show_prints_everything_a_reader_needs(sweep, capsys):
    assert run("show", sweep) == 0
    text = " ".join(capsys.readouterr().out.split())
    for part in ("h*", "Spearman", "How sure", "95 % interval", "new labelled sets are not covered", "K-curves"):
        assert part in text
    assert "splits with their training seeds, and test rows" in text


def test_show_writes_tables_in_the_papers_layout(sweep, tmp_path, capsys):
    assert run("show", sweep, "--out", tmp_path, "--no-figures") == 0
    names = {p.stem.split("-")[0] for p in (tmp_path / "tables").iterdir()}
    assert {
        "studies",
        "sure",
        "k_curves",
        "table1",
        "table3a",
        "table3b",
        "table4",
        "table5",
        "table6",
        "table7",
    } <= names
    with open(next((tmp_path / "tables").glob("table5-Multi*.csv")), newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["base model", "method", "CB Acc", "CB F1", "toy", "avg"]
    both = next(r for r in rows if r[1] == "PET")
    summary = find(sweep, task="cb")
    accuracy = summary.test["accuracy"]
    assert both[2] == f"{100 * accuracy.mean:.2f}±{100 * accuracy.std:.2f}"
    only_cls = next(r for r in rows if r[1] == "CLS")
    assert only_cls[-1] == "" and only_cls[2] == ""  # a missing task: no average over fewer tasks
    markdown = (tmp_path / "report.md").read_text()
    assert "| base model | method | CB Acc | CB F1 | toy | avg |" in markdown
    assert (tmp_path / "index.html").is_file()


def test_out_that_is_a_file_is_an_error_and_stays(sweep, tmp_path, capsys):
    file = tmp_path / "file"
    file.write_text("mine")
    for command in ("show", "compare", "sensitivity", "leaderboard"):
        assert run(command, sweep, "--out", file) == 2
        assert capsys.readouterr().err.startswith(f"error: --out {file}: that is a file; give a folder")
    assert run("show", sweep, "--out", file / "below") == 2  # a folder that can't be made
    assert "can't be made" in capsys.readouterr().err
    assert file.read_text() == "mine"
    assert run("show", sweep, "--figures", "-1") == 2


def test_report_md_says_what_was_chosen_and_what_to_mind(tmp_path, capsys):
    tree = Tree(tmp_path / "s")
    tree.study(fail=(0, 1))
    tree.study(method="cls", has_test=False)
    run("show", tmp_path / "s", "--out", tmp_path / "o", "--format", "markdown")
    text = (tmp_path / "o" / "report.md").read_text()
    for s in map(summarise, read_studies([tmp_path / "s"])):
        line = next(x for x in text.splitlines() if f"| {plain(hp_text(s.choice.h))} |" in x)
        assert f"| {100 * s.choice.mean:.2f}±{100 * s.choice.std:.2f} |" in line and "of 24 done" in line
    assert "23 of 24 done, 1 FAILED" in text and "24 of 24 done" in text
    assert "failed: 1 x CUDA out of memory" in text and "no row of class positive in dev" in text
    assert "../s/toy-pet-tiny" in text and str(tmp_path) not in text  # the folder can be passed on
    assert "no test set: the dev score is optimistic, the best of 6" in text


def test_seeds_are_shown_where_they_differ(tmp_path, capsys):
    tree = Tree(tmp_path / "s")
    for train in (1, 2):
        tree.study(seeds={"data": 42, "split": 42, "train": train})
    run("show", tmp_path / "s", "--out", tmp_path / "o", "--no-figures")
    assert len(list((tmp_path / "o" / "tables").glob("table1-*"))) == 2  # one folder of records, two studies
    capsys.readouterr()
    assert run("show", tmp_path / "s") == 0
    table = capsys.readouterr().out.split("|H|")[1].split("How sure")[0]
    assert all(f"data=42 split=42 train={train}" in table for train in (1, 2))
    assert "train=2 |" in (tmp_path / "o" / "report.md").read_text()
    other = Tree(tmp_path / "t")
    other.study()
    other.study(method="cls")
    assert run("show", tmp_path / "t") == 0
    assert "seeds" not in capsys.readouterr().out.split("|H|")[0].splitlines()[-1]


def test_one_thing_is_not_called_many(tmp_path, capsys):
    tree = Tree(tmp_path / "s")
    tree.study(hs=1, k=1)
    run("show", tmp_path / "s")
    text = capsys.readouterr().out
    assert "best dev mean of 1 point of H" in text and "over 1 point of H: fewer than 3" in text
    run("leaderboard", tmp_path / "s")
    assert "toy: 1 study\n" in capsys.readouterr().out
    run("show", tmp_path / "s", "--out", tmp_path / "o", "--no-figures")
    assert "1 study → " in capsys.readouterr().out
    run("export", tmp_path / "s", "--out", tmp_path / "e")
    assert capsys.readouterr().out.startswith("1 run → ")


def test_without_dev_scores_no_correlation_is_spoken_of(tmp_path, capsys):
    tree = Tree(tmp_path / "s")
    name = tree.study(hs=1)
    for path in (tmp_path / "s" / name).rglob(RESULT):
        result = json.loads(path.read_bytes())
        rewrite(path, {**result, "dev": None, "looks": []})
    run("show", tmp_path / "s")
    text = capsys.readouterr().out
    assert "no point of H has both dev and test scores" in text and "0 points" not in text
