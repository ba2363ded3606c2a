"""Sixty bad inputs to the command: each gives an error that names key, or file and line; exit 2, no traceback, nothing
written. (More overrides: tests/test_config.py.)"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.running import Workplace, write_task
from tests.test_train import command

OVERRIDES = [
    ("hp.lr=-1", "hp.lr=-1"),
    ("hp.lr=.nan", "hp.lr"),
    ("hp.lr=null", "hp.lr=None"),
    ("hp.max_steps=2.5", "hp.max_steps=2.5"),
    ("hp.max_steps=-1", "hp.max_steps=-1"),
    ("hp.batch_size=0", "hp.batch_size=0"),
    ("hp.batch_size=true", "hp.batch_size=True"),
    ("hp.warmup_ratio=2", "hp.warmup_ratio=2"),
    ("hp.patience=0", "hp.patience=0"),
    ("hp.eval_ratio=0", "hp.eval_ratio=0"),
    ("hp.pattern=first", "hp.pattern='first'"),
    ("seed.train=-1", "seed.train=-1"),
    ("seed.data=x", "seed.data='x'"),
    ("data.n_labeled=1", "data.n_labeled=1"),
    ("data.limit_test=0", "data.limit_test=0"),
    ("data.dir=/no/such/folder", "data.dir"),
    ("model_args.dtype=int8", "model_args.dtype='int8'"),
    ("model_args.kind=seq2seq", "model_args.kind='seq2seq'"),
    ("model_args.freeze_layers=-2", "model_args.freeze_layers=-2"),
    ("model=hub", "model_args"),
    ("model=nope", "model=nope"),
    ("split.ratio=0", "split.ratio"),
    ("split.ratio=1.5", "split.ratio"),
    ("split.k=0", "split.k=0"),
    ("split.run=[9]", "split.run=[9]"),
    ("paradigm=twice", "paradigm=twice"),
    ("runtime.threads=0", "runtime.threads=0"),
    ("runtime.fail_fast=maybe", "runtime.fail_fast='maybe'"),
    ("runtime.cache_gb=-1", "runtime.cache_gb=-1"),
    ("trainer.callbacks=[x]", "trainer.callbacks"),
    ("trainer.presision=16", "trainer.presision"),
    ("logger.name=wandb", "logger.name"),
    ("search=all", "search=all"),
    ("search.space={lr: [fast]}", "search.space.lr"),
    ("search.space={pattern: [0]}", "search.space.pattern"),
    ("sweep=../up", "sweep='../up'"),
    ("sweep=.hidden", "sweep='.hidden'"),
    ("'sweep=a b'", "sweep='a b'"),
    ("sweep=-rf", "sweep='-rf'"),
    ("trust=mymodule", "trust='mymodule'"),
    ("trust=[/tmp/x.py]", "trust="),
    ("++task._target_=os.system", "task._target_"),
    ("++data.x={_target_: os.system}", "data.x"),
    ("hydra.callbacks.summary._target_=os.system", "hydra.callbacks.summary._target_"),
    ("+hydra.job_logging.handlers.x={class: os.system}", "hydra.job_logging.handlers.x.class"),
    ("launcher=slurmm", "launcher=slurmm"),
    ("launcher.wait=false", "launcher"),
    ("hp.lr=${oc.env:NO_SUCH_VARIABLE}", "NO_SUCH_VARIABLE"),
    ("=5", "=5"),
    ("hp=", "hp=''"),
    ("split.k=1000000000", "split.k=1000000000"),
    ("trust=[nosuchmodule]", "trust=[nosuchmodule]"),
    ("trainer.fast_dev_run=true", "trainer.fast_dev_run=true"),
    ("trainer.overfit_batches=1", "data.n_labeled"),
    ("trainer.accelerator=tpu", "trainer.accelerator=tpu"),
    ("++trainer.precision=bf16-true", "model_args.dtype"),
    ("++trainer.precision=64-true", "model_args.dtype"),
    ("hp.lr", "hp.lr"),
    ("method=pet", "+method=pet"),
]


def _file(place: Workplace, change: dict[str, Any] | str | None = None, rows: str | None = None) -> list[str]:
    write_task(place.folder / "own", "mine")
    path = place.folder / "own" / "conf" / "task" / "mine.yaml"
    if isinstance(change, str):
        path.write_text(change)
    elif change:
        path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    if rows is not None:
        (place.folder / "own" / "data" / "mine-labeled.jsonl").write_text(rows)
    return ["--config-dir", "own/conf", "task=mine", "data.dir=own/data"]


ROW = '{"id": "%s", "text": "fine", "label": "%s"}\n'
FILES: list[tuple[dict[str, Any] | str | None, str | None, str]] = [
    ({"labels": ["negative"]}, None, "labels"),
    ({"colour": "blue"}, None, "colour"),
    (
        {"patterns": {0: {"template": "{tekst~} [MASK]", "verbalizer": {"negative": ["bad"], "positive": ["good"]}}}},
        None,
        "tekst",
    ),
    ({"patterns": {0: {"template": "{text~} [MASK]", "verbalizer": {"negative": ["bad"]}}}}, None, "positive"),
    ({"source": {"_target_": "os.system"}}, None, "task.source._target_"),
    ("# @package _global_\nhydra: {job: {name: x}}\n", None, "# @package _global_"),
    ("defaults: [/hydra/launcher: joblib]\nname: mine\n", None, "defaults"),
    ("name: [mine\n", None, "mine.yaml"),
    ("name: mine\npatterns: &p {0: *p}\n", None, "task=mine"),
    (None, '{"id": "1", "text": ' + "[" * 100_000 + "\n", "mine-labeled.jsonl:1"),
    ("name: !!python/object/apply:os.abort []\n", None, "mine.yaml:1"),
    ("- a\n- b\n", None, "task"),
    ("\x00", None, "mine.yaml"),
    ({"name": "../up"}, None, "task.name='../up'"),
    ({"name": "a/b"}, None, "task.name='a/b'"),
    ({"name": ".hidden"}, None, "task.name='.hidden'"),
    ({"source": {"files": {"labeled": "mine-labeled.jsonl", "test": "none.jsonl"}}}, None, "none.jsonl"),
    ({"max_length": "long"}, None, "task.max_length"),
    ({"id": "ridd"}, None, "id 'ridd' (task.id) is missing; the row has id, text, label"),
    ({"label": "ratng"}, None, "label 'ratng' is missing; the row has id, text, label"),
    (
        {"patterns": {0: {"template": "{text~} [MASK] [MASK]", "verbalizer": {"negative": ["a"], "positive": ["b"]}}}},
        None,
        "task.patterns.0.template",
    ),
    (
        {"patterns": {0: {"template": "{ {text~} [MASK]", "verbalizer": {"negative": ["a"], "positive": ["b"]}}}},
        None,
        "task.patterns.0.template: lone '{'",
    ),
    ({"grid": [7]}, None, "task.grid"),
    (None, ROW % (1, "positive") + "{broken\n", "mine-labeled.jsonl:2"),
    (None, ROW % (1, "positive") + ROW % (2, "neutral"), "mine-labeled.jsonl:2"),
    (None, ROW % (1, "positive") + ROW % (1, "negative"), "mine-labeled.jsonl:2"),
    (None, "", "mine-labeled.jsonl"),
    (None, "\x00\n", "mine-labeled.jsonl:1"),
    (None, "[1, 2]\n", "mine-labeled.jsonl:1"),
    (None, '{"id": "1", "text": ["fine"], "label": "positive"}\n', "mine-labeled.jsonl:1"),
    (None, '{"id": "1", "text": "fine", "label": NaN}\n', "mine-labeled.jsonl:1"),
]


def _refused(place: Workplace, argv: list[str], monkeypatch: pytest.MonkeyPatch) -> str:
    from fewnlu import train

    before = sorted(p for p in place.folder.rglob("*") if "cache" not in p.parts)
    monkeypatch.setattr(sys, "argv", ["train.py", *argv])
    err = io.StringIO()
    with contextlib.redirect_stderr(err), pytest.raises(SystemExit) as end:
        train.main()
    assert end.value.code == 2, err.getvalue()
    assert err.getvalue().startswith("error: ") and "Traceback" not in err.getvalue()
    assert sorted(p for p in place.folder.rglob("*") if "cache" not in p.parts) == before
    return err.getvalue()


@pytest.mark.parametrize(("override", "named"), OVERRIDES, ids=[o for o, _ in OVERRIDES])
def test_a_bad_override(place: Workplace, override: str, named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert named in _refused(place, [*place.base(), override.strip("'")], monkeypatch)


@pytest.mark.parametrize(("change", "rows", "named"), FILES, ids=[n for _, _, n in FILES])
def test_a_bad_file(
    place: Workplace, change: Any, rows: str | None, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = _file(place, change, rows)
    assert named in _refused(place, [*argv, *place.base()[:3], "logger=none"], monkeypatch)


def test_there_are_sixty() -> None:
    assert len({o for o, _ in OVERRIDES}) + len({repr(f[:2]) for f in FILES}) >= 60


@pytest.mark.parametrize("target", ["os.system", "logging.os.system", "pathlib.Path.unlink"])
def test_i120_a_file_calls_nothing(place: Workplace, monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    """Whatever a task's file, a recipe or Hydra's own section names."""
    victim = Path("marker")
    victim.write_text("still here")
    call = {"_target_": target, "_args_": ["rm marker" if "system" in target else "marker"]}
    argv = _file(place, {"description": call})
    assert "task.description._target_" in _refused(place, [*argv, *place.base()[:3]], monkeypatch)
    folder = place.folder / "own" / "conf" / "experiment"
    folder.mkdir()
    for where in ("task: {description: %s}", "hydra: {callbacks: {mine: %s}}"):
        (folder / "evil.yaml").write_text("# @package _global_\n" + where % json.dumps(call))
        said = _refused(place, ["--config-dir", "own/conf", *place.base(), "experiment=evil"], monkeypatch)
        assert f"_target_='{target}'" in said
    assert victim.read_text() == "still here"


def test_a_token_of_the_environment_in_a_config_is_refused_unshown(
    place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_verysecretvalue")
    for argv in (["data.dir=hf_verysecretvalue"], ["++task.name=${oc.env:HF_TOKEN}"]):
        said = _refused(place, [*place.base(), *argv], monkeypatch)
        assert "$HF_TOKEN" in said and "verysecret" not in said
    said = _refused(place, [*place.base(), "hydra.job.env_copy=[HF_TOKEN]"], monkeypatch)
    assert "$HF_TOKEN" in said


def test_i101_a_launcher_that_only_a_swept_choice_sets_is_an_error(
    place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = place.folder / "own" / "experiment"
    folder.mkdir(parents=True)
    (folder / "cluster.yaml").write_text("# @package _global_\ndefaults: [override /hydra/launcher: joblib]\n")
    (folder / "plain.yaml").write_text("# @package _global_\n")
    argv = ["--config-dir", "own", *place.base(), "experiment=plain,cluster", "-m"]
    assert "joblib" in _refused(place, argv, monkeypatch)


def test_a_file_cannot_trust_a_module(place: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = place.folder / "own" / "experiment"
    folder.mkdir(parents=True)
    (folder / "evil.yaml").write_text("# @package _global_\ntrust: [evil]\n")
    Path("evil.py").write_text("open('marker', 'w')\n")
    argv = ["--config-dir", "own", *place.base(), "experiment=evil"]
    assert "trust" in _refused(place, argv, monkeypatch)


@pytest.mark.parametrize("covered", [False, True])
def test_ctrl_c_before_anything_has_begun(
    covered: bool, place: Workplace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from fewnlu.protocol import check

    def stopped(*args: object, **kwargs: object) -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            if covered:  # as libraries do that tidy up
                raise ValueError("half a configuration") from None
            raise

    monkeypatch.setattr(check, "check_command", stopped)
    assert command(monkeypatch, *place.base(), "-m") == 130
    assert capsys.readouterr().err.endswith("interrupted: nothing was begun\n")
