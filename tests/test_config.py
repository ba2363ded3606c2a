"""What can't be meant is refused before anything starts, with the key, the value and what would be right."""

from __future__ import annotations

import inspect
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from fewnlu.config import canonical_hp
from fewnlu.errors import FewnluError
from fewnlu.protocol.check import check_command
from fewnlu.protocol.grid import expand
from fewnlu.trainer_flags import RESERVED_FLAGS, TRAINER_FLAGS
from tests.running import Workplace, config, loader, write_task
from tests.test_train import command

BAD = [
    ("hp.learning_rate=1e-4", "hp.learning_rate"),
    ("++hp.learning_rate=1e-4", "hp.learning_rate"),
    ("++hp.patience=none", "hp.patience"),
    ("hp.lr=fast", "hp.lr='fast'"),
    ("hp.eval_ratio=1.1", "hp.eval_ratio=1.1"),
    ("hp.pattern=7", "hp.pattern=7"),
    ("hp={lr: 0.1}", "hp.NAME=VALUE"),
    ("trainer.max_step=250", "trainer.max_step"),
    ("++trainer.max_step=250", "trainer.max_step"),
    ("+trainer.max_steps=250", "hp.max_steps"),
    ("task=review", "did you mean 'reviews'"),
    ("+task=reviews", "without the plus"),
    ("++task.max_lenght=3", "did you mean 'max_length'"),
    ("task.patterns.0.template=x", "task.patterns.0.template"),
    ("split=multisplits", "did you mean 'multisplit'"),
    ("split.k=two", "split.k='two'"),
    ("split.run=[]", "split.run=[]"),
    ("+split.stratfy=true", "split.stratfy"),
    ("~split", "~split"),
    ("seed.tran=1", "did you mean 'train'"),
    ("data.n_labeled=1000", "1000"),
    ("model.kind=causal", "model_args.kind"),
    ("model_args.path=/no/such/folder", "/no/such/folder"),
    ("method.reads=[foo]", "method.reads"),
    ("++method.dropuot=0.1", "method.dropuot"),
    ("runtime.share=[{lr: 0.1}]", "runtime.share"),
    ("runtime.micro_batch=3", "runtime.micro_batch=3"),
    ("logger=wandbb", "did you mean 'wandb'"),
    ("search.space.lr=[]", "search.space.lr=[]"),
    ("sweep=a/b", "sweep='a/b'"),
    ("++foo.bar=1", "foo"),
    ("+hydra.foo=1", "foo"),
    ("+experiment=nope", "experiment"),
    ("task={a", "'{a'"),
    ("logger=null", "use logger=none"),
    ("task=null", "task=null: a group can't be empty"),
    ("seed=null", "seed=null"),
    ("data=null", "data=null"),
    ("runtime=null", "runtime=null"),
    ("++search.methods={pet: {lr: []}}", "search.methods.pet.lr=[]"),
    ("++search.methods={pet: {lr: [fast]}}", "search.methods.pet.lr='fast'"),
    ("++search.methods={pet: {pattern: [0]}}", "search.methods.pet.pattern: choose patterns by"),
    ("++search.methods={pet: 3}", "search.methods.pet=3: expected a mapping"),
    ("++search.methods={pett: {lr: [1e-4]}}", "search.methods.pett: no such method; did you mean 'pet'"),
]
BAD_SWEEPS = [
    ("hp.lr=1e-5,fast", "hp.lr='fast'"),
    ("hp.pattern=0,7", "hp.pattern=7"),
    ("task=reviews,nope", "task=nope"),
    ("hp.lr=interval(1e-5,1e-4)", "interval"),
    ("sweep=a,b", "sweep=a,b"),
    ("logger=null", "use logger=none"),
    ("runtime=null", "runtime=null"),
]


def _refused(place: Workplace, overrides: list[str], *, multirun: bool) -> str:
    with pytest.raises(FewnluError) as caught:
        check_command(overrides, multirun=multirun)
    assert not [p for p in place.folder.iterdir() if p.name != "cache"]  # nothing was written
    return str(caught.value)


@pytest.mark.parametrize(("override", "named"), BAD)
def test_i073_what_cannot_be_run_is_refused_by_name(place: Workplace, override: str, named: str) -> None:
    assert named in _refused(place, [*place.base(), override], multirun=False)


@pytest.mark.parametrize(("override", "named"), BAD[::7])
def test_i073_also_under_m(place: Workplace, override: str, named: str) -> None:
    assert named in _refused(place, [*place.base(), override], multirun=True)


@pytest.mark.parametrize(("override", "named"), BAD_SWEEPS)
def test_values_of_a_sweep_are_checked_before_it_starts(place: Workplace, override: str, named: str) -> None:
    assert named in _refused(place, [*place.base(), override], multirun=True)


def test_several_values_need_a_sweep(place: Workplace) -> None:
    assert "add -m" in _refused(place, [*place.base(), "hp.lr=1e-5,1e-4"], multirun=False)


@pytest.mark.parametrize(
    ("override", "named"), [("hp.lr=1e-5,fast", "hp.lr='fast'"), ("task=reviews,nope", "task=nope")]
)
def test_values_are_checked_under_another_sweeper_too(place: Workplace, override: str, named: str) -> None:
    assert named in _refused(place, [*place.base(), "hydra/sweeper=basic", override], multirun=True)


@pytest.mark.parametrize(
    ("method", "named"), [([], "pet"), (["method=pet"], "+method=pet"), (["+method=pett"], "did you")]
)
def test_a_method_must_be_chosen_with_a_plus(place: Workplace, method: list[str], named: str) -> None:
    for multirun in (False, True):
        assert named in _refused(place, [*place.base()[1:], *method], multirun=multirun)


@pytest.mark.parametrize("override", ["logger.mode=never", "logger.init_timeout=soon", "+logger.projct=x"])
def test_wandb_options_are_checked(place: Workplace, override: str) -> None:
    assert override.split("=")[0].strip("+") in _refused(
        place, [*place.base()[:-1], "logger=wandb", override], multirun=False
    )


def test_command_exits_with_2_writes_nothing_and_reads_no_torch(place: Workplace) -> None:
    code = (
        "import sys\nfrom fewnlu import train\n"
        "try:\n    train.main()\nfinally:\n    print('HEAVY', sorted({'torch', 'transformers', 'pytorch_lightning',"
        " 'datasets', 'pandas', 'scipy', 'wandb'} & set(sys.modules)))\n"
    )
    lines: list[tuple[list[str], int, str]] = [
        (["hp.learning_rate=1"], 2, "error: unknown key 'hp.learning_rate'"),
        (["++hp.learning_rate=1,2", "-m"], 2, "error: unknown key 'hp.learning_rate'"),
        (["--help"], 0, ""),
    ]
    for extra, status, message in lines:
        done = place.python("-c", code, *place.base(), *extra)
        assert done.returncode == status, done.stderr
        assert done.stderr.startswith(message) and "Traceback" not in done.stderr
        assert "HEAVY []" in done.stdout, done.stdout[-300:]
    module = place.python("-m", "fewnlu.train", *place.base(), "task=reviews,nope", "-m")
    assert (module.returncode, module.stdout) == (2, "") and module.stderr.startswith("error: task=nope")
    assert not [p for p in place.folder.iterdir() if p.name != "cache"]


def test_trainer_flags_are_those_of_lightning() -> None:
    import pytorch_lightning as pl

    flags = set(inspect.signature(pl.Trainer.__init__).parameters) - {"self"}
    assert flags == TRAINER_FLAGS and set(RESERVED_FLAGS) <= flags


def test_h_is_canonical() -> None:
    a = canonical_hp({"lr": 1, "max_steps": 3, "warmup_ratio": 0})
    b = canonical_hp({"warmup_ratio": 0.0, "max_steps": 3, "lr": 1.0})
    assert json.dumps(a) == json.dumps(b) == '{"lr": 1.0, "max_steps": 3, "warmup_ratio": 0.0}'


@pytest.mark.parametrize("values", [{"lr": True}, {"max_steps": 3.0}, {"lr": float("inf")}, {"steps": 1}])
def test_h_of_a_wrong_type_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(FewnluError, match=next(iter(values))):
        canonical_hp(values)


def test_a_config_dir_that_is_not_there_is_named(place: Workplace) -> None:
    with pytest.raises(FewnluError, match="no such folder"):
        check_command(place.base(), multirun=False, config_dir=str(Path("nowhere")))


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["hp.batch_size=8,6", "runtime.micro_batch=4"], "runtime.micro_batch=4: does not divide hp.batch_size=6"),
        (["hp.batch_size=8,6", "trainer.devices=4", "trainer.accelerator=cpu"], "do not divide hp.batch_size=6"),
        (["search.space={batch_size: [4, 2]}", "runtime.micro_batch=4"], "does not divide hp.batch_size=2"),
    ],
)
def test_every_point_of_h_is_held_against_micro_batch_and_devices(
    place: Workplace, overrides: list[str], named: str
) -> None:
    assert named in _refused(place, [*place.base(), *overrides], multirun=True)


@pytest.mark.parametrize("sweeper", ["fewnlu", "basic"])
def test_recipes_with_folders_of_their_own_are_not_swept_without_a_name(place: Workplace, sweeper: str) -> None:
    """Each job would write to its recipe's folder, and the summary would read a third."""
    home = place.folder / "cache" / "own"
    (home / "experiment").mkdir(parents=True)
    for name in ("one", "two"):
        (home / "experiment" / f"{name}.yaml").write_text(f"# @package _global_\nsweep: {name}\n")
    argv = [*place.base(), "search=none", "experiment=one,two", f"hydra/sweeper={sweeper}"]
    with pytest.raises(FewnluError, match=r"keeps its records in multirun/one, .* multirun/main.*sweep=NAME"):
        check_command(argv, multirun=True, config_dir=str(home))
    found = check_command([*argv, "sweep=both"], multirun=True, config_dir=str(home))
    assert found.sweep == place.folder / "multirun" / "both"
    found = check_command([a.replace("one,two", "one") for a in argv], multirun=True, config_dir=str(home))
    assert found.sweep == place.folder / "multirun" / "one"


@pytest.mark.parametrize("more", [[], ["-m"], ["-m", "hydra/sweeper=basic"]])
def test_an_hp_key_that_the_method_does_not_read_is_said(
    place: Workplace, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Our sweeper says it when it begins."""
    argv = ["+method=cls", *place.base()[1:], "search=none", "hp.pattern=2", *more[1:]]
    check_command(argv, multirun=bool(more))
    notes = expand(loader(), argv).notes if more == ["-m"] else capsys.readouterr().err.splitlines()
    assert "method=cls does not read hp.pattern: ignored" in notes


def test_the_home_folder_may_be_written_as_in_a_shell(
    place: Workplace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Hydra's grammar has no place for an unquoted ~, which shells leave alone behind a key."""
    home = write_task(place.folder / "home", "mine")
    shutil.copytree(place.models("bert"), home / "bert")
    monkeypatch.setenv("HOME", str(home))
    argv = ["--config-dir", str(home / "conf"), "task=mine", "data.dir=~/data", "+method=pet", "model=local"]
    argv += ["model_args.path=~/bert", "logger=none", "hp.max_steps=1", "split.k=1", "search=none"]
    assert command(monkeypatch, *argv, "runtime.threads=1", "-m") == 0, capsys.readouterr().err
    (meta,) = (json.loads(path.read_bytes()) for path in place.folder.rglob("meta.json"))
    assert meta["config"]["data"]["dir"] == meta["data_dir"] == str(home / "data")
    assert meta["config"]["model_args"]["path"] == str(home / "bert")
    monkeypatch.chdir(home)  # what is kept of a run holds in any folder
    cfg = config("+method=pet", "model=local", "model_args.path=bert", "data.dir='~/data'")
    assert cfg["model_args"]["path"] == str(home / "bert") and cfg["data"]["dir"] == str(home / "data")
