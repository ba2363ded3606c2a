"""The README is true: its examples run, its command lines compose, and its test line is the one that CI runs."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from fewnlu import report
from fewnlu.protocol import check, grid
from fewnlu.protocol.compose import compose

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text("utf-8")
BLOCK = re.compile(r"(?:^<!-- (?P<mark>[^>]*?) -->\n)?^```(?P<kind>bash|yaml)\n(?P<text>.*?)^```$", re.M | re.S)


def _blocks(kind: str) -> list[tuple[str, str]]:
    """(mark of the comment before it, text) of every block of a kind."""
    return [(m["mark"] or "", m["text"]) for m in BLOCK.finditer(README) if m["kind"] == kind]


def _commands() -> list[list[str]]:
    """Every single command of every bash block, as words; comments dropped, lines joined at a backslash."""
    found = []
    for _, text in _blocks("bash"):
        for line in text.replace("\\\n", " ").splitlines():
            for part in line.split(" && "):
                if words := shlex.split(part, comments=True):
                    found.append(words)
    return found


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder with the files that the README shows."""
    for mark, text in _blocks("yaml"):
        if mark.startswith("file: "):
            path = tmp_path / mark.removeprefix("file: ")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _examples():
    for mark, text in _blocks("bash"):
        if mark == "test" or mark.startswith("test:"):
            yield pytest.param(text, marks=[pytest.mark.slow] if "slow" in mark else [], id=text.split("\n")[0][:60])


@pytest.mark.parametrize("text", _examples())
def test_an_example_runs(text, folder):
    """In another folder than the checkout; `pip` is a stand-in, for the packages are here already."""
    (folder / "bin").mkdir()
    for name, body in (("pip", "exit 0"), ("python", f'exec "{sys.executable}" "$@"')):
        file = folder / "bin" / name
        file.write_text(f"#!/bin/sh\n{body}\n")
        file.chmod(0o755)
    path = os.pathsep.join([str(folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-euc", text], cwd=folder, env=env, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def _lines(module: str) -> list[list[str]]:
    start = ["python", "-m", module]
    return [words[3:] for words in _commands() if words[:3] == start]


@pytest.mark.parametrize("words", _lines("fewnlu.train"), ids=" ".join)
def test_a_train_line_composes(words, folder, monkeypatch):
    """Where its rows and model are in the package, the whole command is checked; else all but reading those."""
    from hydra._internal.utils import get_args_parser

    args = get_args_parser().parse_args(words)
    if args.help:
        return
    read = check._add

    def add(expected, composed, hs=None):
        packaged = composed.cfg["task"]["source"].get("packaged") and composed.cfg["model"]["source"] == "smollm2"
        if packaged:
            read(expected, composed, hs)

    monkeypatch.setattr(check, "_add", add)
    monkeypatch.setattr(check, "_ready", lambda *_: None)  # a tokenizer may not be at hand
    monkeypatch.setattr(check, "remarks", lambda _: [])
    monkeypatch.setattr(grid, "kind_of", lambda cfg: cfg["model"]["kind"] or "masked")
    assert check.check_command(args.overrides, multirun=bool(args.multirun), config_dir=args.config_dir)


@pytest.mark.parametrize("words", _lines("fewnlu.report"), ids=" ".join)
def test_a_report_line_parses(words, monkeypatch):
    shown = []
    monkeypatch.setattr(report, "run", lambda args: shown.append(args) or 0)
    with pytest.raises(SystemExit) as end:
        report.main(words)
    assert end.value.code == 0 and shown


def test_final_and_predict_lines_parse(monkeypatch):
    from fewnlu import final, predict

    shown = []
    monkeypatch.setattr(final, "retrain", lambda *args: shown.append(args) or "")
    monkeypatch.setattr(predict, "predict", lambda *args: shown.append(args) or (0, ""))
    for words in _lines("fewnlu.final"):
        final.main(words)
    for words in _lines("fewnlu.predict"):
        predict.main(words)
    assert len(shown) == 2 and shown[0][3] == shown[1][0]  # what one writes the other reads


def test_a_tasks_line_runs(folder, capsys):
    from fewnlu.tasks.__main__ import main

    (folder / "my-data").mkdir()
    for name, first in (("labeled", "Reel"), ("test", "Film")):
        rows = [{"id": i, "sentence": f"{first} {i}.", "label": ["negative", "positive"][i % 2]} for i in range(8)]
        (folder / "my-data" / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for words in _lines("fewnlu.tasks"):
        assert main(words) == 0
    assert "nothing found" in capsys.readouterr().out


def test_every_command_is_one_that_is_checked():
    known = {("python", "-m", f"fewnlu.{name}") for name in ("train", "report", "final", "predict", "tasks")}
    others = [words for words in _commands() if tuple(words[:3]) not in known and words[0] not in {"pip", "pytest"}]
    assert not others
    installs = [words for words in _commands() if words[0] == "pip"]
    assert installs and all(words[1:5] == ["install", "-q", "-c", "constraints.txt"] for words in installs)


def test_ci_ends_with_the_readmes_test_line():
    (line,) = [line for _, text in _blocks("bash") for line in text.splitlines() if "pytest" in line]
    assert (ROOT / ".ci" / "run").read_text("utf-8").rstrip().splitlines()[-1] == line


def test_the_choices_that_are_named_exist():
    loader = check.config_loader()
    rows = re.findall(r"^\| `\+?(\w+)` \| ([^|]*) \|", README, re.M)
    assert {group for group, _ in rows} >= {"method", "task", "split", "search", "model", "logger", "launcher"}
    for group, choices in rows:
        if known := grid.options(loader, group):
            assert set(re.findall(r"`(\w+)`", choices)) <= set(known), group


def test_the_two_commands_stand_at_the_top():
    first, second = (text for _, text in _blocks("bash")[:2])
    assert "python -m fewnlu.train +method=pet split=multisplit -m" in first and "pytest" in second
    assert compose(check.config_loader(), ["+method=pet", "split=multisplit"]).cfg["task"]["name"] == "reviews"
