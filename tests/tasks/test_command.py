"""python -m fewnlu.tasks: what it shows, what it finds, and its exit status."""

from __future__ import annotations

import json

import pytest
import yaml

from fewnlu.tasks.__main__ import main
from fewnlu.tasks.audit import audit
from fewnlu.tasks.sources import load
from fewnlu.tasks.task import task_from_config
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
TEST = [(50, "New", "bad"), (51, "Other", "good")]
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


def test_list_reads_every_valid_file_and_names_the_others(own, capsys, tmp_path):
    arguments = own(GOOD, GOOD)[2:]
    folder = tmp_path / "conf" / "task"
    (folder / "more.yaml").write_text("# films and more\ndefaults: [films, _self_]\nname: more\nmetrics: [macro_f1]\n")
    (folder / "asked.yaml").write_text(
        "name: asked\nkind: choice\nlabels: [x, y]\nfields: {text: text}\nprompt: '{text} {labels}'\n"
        "max_length: 64\nsource: {files: {test: t.csv}}\n"
    )
    (folder / "half.yaml").write_text("name: half\nlabels: [bad, good]\n")
    (folder / "typed.yaml").write_text("labels: [bad, good\n")
    assert main(["list", *arguments]) == 0
    lines = {line.split()[0]: " ".join(line.split()[1:]) for line in capsys.readouterr().out.splitlines()}
    assert lines["films"] == "bad, good 0,1 accuracy data.dir"
    assert lines["more"] == "bad, good 0,1 macro_f1 data.dir"
    assert lines["asked"] == "x, y choice accuracy, weighted_f1, macro_f1, mcc data.dir"
    assert lines["half"].startswith("cannot be read: task.fields") and lines["typed"].startswith("cannot be read: ")
    assert lines["record"] == "candidates 0,20 answer_em, answer_f1 hub or data.dir"


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_check_and_show_read_the_rows_that_are_trained_on(own, capsys, seed):
    leaked = [(100 + n, text, label) for n, text, label in GOOD[:8]]
    arguments = [*own(GOOD, [*leaked, *TEST]), "data.n_labeled=5", f"seed.data={seed}"]
    task, data = task_from_config(yaml.safe_load(TASK)), {"dir": arguments[1].removeprefix("data.dir="), "n_labeled": 5}
    want = load(task, data, seed)
    assert want.n_leaks == 8 and audit(task, data, seed=seed).labeled == want.labeled.rows
    assert main(["show", *arguments]) == 0
    assert f"films row {want.labeled.rows[0].id}, unit" in capsys.readouterr().out
    main(["check", *arguments])
    out = capsys.readouterr().out
    n = sum(row.label == "bad" for row in want.labeled.rows)
    assert f"labeled    5 rows (bad {n}, good {5 - n})" in out
    assert "note       8 labelled rows are in test, or of one unit" in out  # others were drawn in their place


def test_a_task_that_cannot_be_stratified_is_not_told_to(tmp_path):
    made = [(i, f"text {i}", "bad" if i < 2 else "good") for i in range(3)]
    task = task_from_config(yaml.safe_load(TASK))
    for name, rows in (("labeled", [*made, (3, "text 3", "good")]), ("test", TEST)):
        lines = ["number,review,verdict", *(f"{n},{text},{label}" for n, text, label in rows)]
        (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n")
    says = {ratio: " ".join(audit(task, {"dir": str(tmp_path)}, ratio=ratio).notes) for ratio in (0.5, 0.25)}
    assert "split.stratify=true prevents that" in says[0.5]
    assert "lacks it" in says[0.25] and "stratify" not in says[0.25]  # one unit trains


def test_show_renders_every_pattern(own, capsys):
    long = [(0, "word " * 90 + "end", "good"), *GOOD[1:]]
    assert main(["show", *own(long, TEST)]) == 0
    out = capsys.readouterr().out
    assert "pattern 0: {text~} It was [MASK] ." in out and "[MASK]×4" in out
    assert "* good <- great" in out and "64 of 64 tokens; cut: word" in out and "end" in out
    assert main(["show", *own(GOOD, TEST), "--row", "3", "--pattern", "1", "--kind", "causal"]) == 0
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
        (GOOD, [(50, "FILM  number 3 shines", "good"), (51, "New", "bad")], "1 labelled rows are in test"),
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
    more = own(GOOD, TEST)[1:]
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
