"""python -m fewnlu.tasks: what it shows, what it finds, and its exit status."""

from __future__ import annotations

import json

import pytest

from fewnlu.tasks.__main__ import main
from tests.tiny import tiny_model_dir

TASK = """# films: mine
name: films
labels: [bad, good]
fields: {text: review}
label: verdict
id: number
unit: "{text|text}"
metrics: [accuracy]
max_length: 64
source: {files: {labeled: labeled.csv, test: test.csv, unlabeled: null}}
patterns:
  0:
    template: '{text~} It was [MASK] .'
    verbalizer: {bad: ["terrible"], good: ["great"]}
  1:
    template: '{text~} In all [MASK*] .'
    verbalizer: {bad: ["a waste of time"], good: ["great"]}
"""
GOOD = [(i, f"Film number {i} {'shines' if i % 2 else 'drags'}", "good" if i % 2 else "bad") for i in range(20)]


@pytest.fixture
def own(tmp_path):
    """A folder of a new user: one YAML, two CSV files."""
    (tmp_path / "conf" / "task").mkdir(parents=True)
    (tmp_path / "conf" / "task" / "films.yaml").write_text(TASK)

    def write(labeled, test):
        for name, rows in (("labeled", labeled), ("test", test)):
            lines = ["number,review,verdict", *(f"{n},{text},{label}" for n, text, label in rows)]
            (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n")
        return ["films", f"data.dir={tmp_path}", "--config-dir", str(tmp_path / "conf")]

    return write


def test_list_names_every_task(own, capsys):
    arguments = own(GOOD, GOOD)
    assert main(["list", *arguments[2:]]) == 0
    out = capsys.readouterr().out
    assert "films " in out and "copa " in out and "record " in out and "candidates" in out


def test_show_renders_every_pattern(own, capsys):
    long = [(0, "word " * 90 + "end", "good"), *GOOD[1:]]
    assert main(["show", *own(long, GOOD)]) == 0
    out = capsys.readouterr().out
    assert "pattern 0: {text~} It was [MASK] ." in out and "[MASK]×4" in out
    assert "* good <- great" in out and "64 of 64 tokens; cut: word" in out and "end" in out
    assert main(["show", *own(GOOD, GOOD), "--row", "3", "--pattern", "1", "--kind", "causal"]) == 0
    assert "Film number 3 shines In all →" in capsys.readouterr().out


def test_check_of_a_sound_task_exits_zero(own, capsys):
    test = [(n, text + " again", label) for n, text, label in GOOD]
    assert main(["check", *own(GOOD, test)]) == 0
    out = capsys.readouterr().out
    assert "labeled    20 rows (bad 10, good 10)" in out and "no pool" in out
    assert "nothing found that would spoil a result" in out


@pytest.mark.parametrize(
    ("labeled", "test", "says"),
    [
        (GOOD, [(50, "FILM  number 3 shines", "good"), (51, "New", "bad")], "1 texts are labelled and in test"),
        ([*GOOD, (30, "Film number 3 shines", "bad")], [(50, "New", "bad"), (51, "Other", "good")], "different gold"),
        (GOOD[::2] + GOOD[1:2], [(50, "New", "bad"), (51, "Other", "good")], "class good has 1 units"),
        (GOOD, [(50, "New", "bad")], "test: no row of class good"),
    ],
)
def test_check_finds_what_would_spoil_a_result(own, capsys, labeled, test, says):
    assert main(["check", *own(labeled, test)]) == 1
    assert says in capsys.readouterr().out


def test_check_with_a_model_finds_words_of_several_pieces(own, capsys, tmp_path):
    model = tiny_model_dir(tmp_path, "bert")
    config = tmp_path / "conf" / "task" / "films.yaml"
    arguments = own(GOOD, [(50, "New", "bad"), (51, "Other", "good")])
    config.write_text(TASK.replace('bad: ["terrible"]', 'bad: ["abominable"]'))
    assert main(["check", *arguments, "--model", f"local:{model}"]) == 1
    out = capsys.readouterr().out
    assert "PROBLEM    pattern 0: task.patterns.0.verbalizer.bad: 'abominable' is" in out and "pattern 1" not in out


def test_patterns_that_a_sweep_leaves_out_are_no_problem(own, capsys, tmp_path):
    config = tmp_path / "conf" / "task" / "films.yaml"
    arguments = own(GOOD, [(50, "New", "bad"), (51, "Other", "good")])
    config.write_text(TASK.replace("'{text~} It was [MASK] .'", "'It was [MASK] : {text~}'"))
    assert main(["check", *arguments, "--kind", "causal"]) == 0
    assert "patterns 0 are not for causal models" in capsys.readouterr().out
    config.write_text(TASK.replace("kinds", "").replace("    template", "    kinds: [masked]\n    template"))
    assert main(["check", *arguments, "--kind", "causal"]) == 1
    assert "no pattern of the grid (0, 1) can be read by a causal model" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["check", "filmz"], "did you mean 'films'?"),
        (["show"], "show needs the name of a task"),
        (["show", "films", "--row", "x"], "--row x: no labelled row"),
        (["check", "arc_nl"], "is of kind choice"),
    ],
)
def test_errors_exit_two(own, capsys, arguments, says):
    more = own(GOOD, GOOD)[1:]
    assert main([*arguments, *([] if len(arguments) < 2 else more[:1]), *more[1:]]) == 2
    assert says in capsys.readouterr().err


def test_bad_rows_exit_two_with_file_and_line(own, capsys):
    assert main(["check", *own([*GOOD, (40, "x", "goood")], GOOD)]) == 2
    assert "labeled.csv:22: unknown label 'goood'; did you mean 'good'?" in capsys.readouterr().err


def test_copied_rows_do_not_hide_a_problem(tmp_path, capsys):
    from tests.tasks.samples import ITEMS

    (tmp_path / "COPA").mkdir()
    for name in ("train64", "val", "unlabeled"):
        (tmp_path / "COPA" / f"{name}.jsonl").write_text("".join(json.dumps(i) + "\n" for i in ITEMS["copa"]))
    assert main(["check", "copa", f"data.dir={tmp_path}"]) == 2  # other counts than the shipped file's
    assert "expected 0 29, 1 35" in capsys.readouterr().err
