"""What can't be meant is refused before anything starts, with the key, the value and what would be right."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from fewnlu.config import canonical_hp
from fewnlu.errors import FewnluError
from fewnlu.protocol.check import check_command
from fewnlu.trainer_flags import RESERVED_FLAGS, TRAINER_FLAGS
from tests.running import Workplace

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
]
BAD_SWEEPS = [
    ("hp.lr=1e-5,fast", "hp.lr='fast'"),
    ("hp.pattern=0,7", "hp.pattern=7"),
    ("task=reviews,nope", "task=nope"),
    ("hp.lr=interval(1e-5,1e-4)", "interval"),
    ("sweep=a,b", "sweep=a,b"),
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
