"""Several devices: two CPU processes give what one gives, bit for bit among themselves, and fail as one does.

Starting a process takes as long as many trainings, so tests share the processes and each makes several trainings.
"""

from __future__ import annotations

import copy
import json
import os
import re
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from fewnlu.errors import ConfigError
from fewnlu.methods import distributed, memory
from fewnlu.methods.pet import Method as Pet
from fewnlu.protocol import devices, lab, readiness
from fewnlu.protocol.atomic import is_disk_full
from fewnlu.protocol.setup import read_setup
from fewnlu.protocol.trial import run_trial
from fewnlu.splits.strategy import Split
from tests.methods.shapes import SHAPES
from tests.methods.test_matrix import composed
from tests.methods.toy import HP, Toy, train
from tests.running import Workplace, failures, results
from tests.tiny import FAMILIES

TWO = ("trainer.accelerator=cpu", "trainer.devices=2")


@pytest.fixture(scope="module", autouse=True)
def _dismissed() -> Iterator[None]:
    yield
    distributed.dismiss()


def tell(cfg: dict[str, Any], n: int, micro: int | None = None) -> dict[str, Any]:
    """The config on `n` CPU processes, without dropout."""
    cfg = copy.deepcopy(cfg)
    cfg["trainer"] |= {"accelerator": "cpu", "devices": n}
    cfg["runtime"]["micro_batch"] = micro
    cfg["hp"] |= {"max_steps": 4, "lr": 1e-3}
    cfg["method"] |= {"dropout": 0.0} if cfg["method"]["name"] == "cls" else {}
    config = Path(cfg["model_args"]["path"]) / "config.json"
    known = json.loads(config.read_text())
    config.write_text(json.dumps({k: 0.0 if "drop" in k and v is not None else v for k, v in known.items()}))
    return cfg


def scores(folder: Path) -> np.ndarray:
    """All log-scores below a folder."""
    rows = [row for path in sorted(folder.rglob("predictions.parquet")) for row in pq.read_table(path).to_pylist()]
    return np.asarray([v for row in rows for n, v in row.items() if n.startswith("score:")])


def compare(place: Workplace, name: str, cfg: dict[str, Any], micro: tuple[int | None, int | None] = (2, 1)) -> None:
    """One process and two: the same looks and steps, equal scores; hp.batch_size is 4."""
    for n in (1, 2):
        run_trial(tell(cfg, n, micro[n - 1]), place.folder / name / str(n), threads=1)
        assert not failures(place.folder / name), name
    one, two = (results(place.folder / name / str(n)) for n in (1, 2))
    assert len(one) == len(two) > 0
    for a, b in zip(one, two, strict=True):
        assert a["key"] == b["key"], name  # how it is run is no part of what is compared
        assert (a["looks"], a["chosen_step"], a["steps_done"]) == (b["looks"], b["chosen_step"], b["steps_done"]), name
    np.testing.assert_allclose(
        scores(place.folder / name / "2"), scores(place.folder / name / "1"), rtol=0, atol=1e-5, err_msg=name
    )


CASES: dict[str, tuple[str, str, str, list[str]]] = {
    "pet": ("bert", "pet", "words", []),
    "adapet": ("deberta_v2", "adapet", "choices", []),
    "ptuning": ("bert", "ptuning", "words", ["aux.mlm_weight=1.0"]),
    "cls": ("bert", "cls", "words", []),
    "causal": ("llama", "adapet", "words", ["aux.mlm_weight=1.0", "runtime.checkpointing=true"]),
    "frozen": ("bert", "pet", "words", ["model_args.freeze_layers=2"]),
    "fixed": ("bert", "pet", "words", []),  # no dev rows: the last weights come back
}


def test_two_processes_give_what_one_gives(place: Workplace) -> None:
    for name, (family, method, shape, more) in CASES.items():
        cfg = composed(place, family, method, shape, "split.run=0", *more)
        if name == "fixed":
            cfg["split"] = {"name": "fixed", "run": None}
        compare(place, name, cfg)
    (meta,) = [json.loads(p.read_bytes()) for p in (place.folder / "pet" / "2").rglob("meta.json")]
    assert (meta["devices"], meta["micro_batch"], meta["config"]["trainer"]["devices"]) == (2, 1, 2)
    compare(place, "whole", composed(place, "bert", "pet", "words", "split.run=0"), (None, None))
    compare(place, "ipet", composed(place, "bert", "pet", "words", "paradigm=ipet", "paradigm.reps=2", "split.run=0",
                                    "model_args.freeze_layers=2"))  # fmt: skip


@pytest.mark.slow  # every method on every shape and family: minutes
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("method", ["pet", "adapet", "ptuning", "cls"])
def test_two_processes_give_what_one_gives_everywhere(place: Workplace, family: str, method: str) -> None:
    for shape in SHAPES:
        for weight in (0.0, 1.0):
            cfg = composed(place, family, method, shape, "split.run=0", f"aux.mlm_weight={weight}")
            compare(place, f"{shape}{weight}", cfg)


def test_a_run_on_two_processes_repeats_bit_for_bit(place: Workplace) -> None:
    """Dropout included; mixed precision, checkpointing and curves too."""
    cfg = place.config("split.run=[0,1]", "logger=csv", *TWO)
    mixed = place.config("split.run=0", "runtime.checkpointing=true", *TWO)
    mixed["trainer"]["precision"] = "bf16-mixed"
    mixed_alone = {**mixed, "trainer": mixed["trainer"] | {"devices": 1}}
    for sweep in ("first", "second"):
        run_trial(cfg, place.folder / sweep, threads=1)
        run_trial(mixed, place.folder / f"mixed-{sweep}", threads=1)
    for first, second in (("first", "second"), ("mixed-first", "mixed-second")):
        one, two = (results(place.folder / sweep) for sweep in (first, second))
        assert one == two and len(one) == (2 if first == "first" else 1)
        assert np.array_equal(scores(place.folder / first), scores(place.folder / second))
        assert np.isfinite(scores(place.folder / first)).all()
    curves = [
        p.read_text() for sweep in ("first", "second") for p in sorted((place.folder / sweep).rglob("metrics.csv"))
    ]
    assert curves[:2] == curves[2:] and len(curves[0].splitlines()) == 1 + 4 + 2  # updates, looks
    run_trial(mixed_alone, place.folder / "mixed-alone", threads=1)
    assert len(results(place.folder / "mixed-alone")) == 1
    run_trial({**cfg, "trainer": cfg["trainer"] | {"devices": 1}}, place.folder / "alone", threads=1)
    alone = sorted((place.folder / "alone").rglob("metrics.csv"))[0].read_text()
    assert sorted(alone.splitlines()[0].split(",")) == sorted(curves[0].splitlines()[0].split(","))


class Poisoned(Toy):
    """Its second process meets a loss that is not a number at the third update."""

    def loss(self, batch: dict[str, Any]) -> torch.Tensor:
        if torch.distributed.is_initialized() and torch.distributed.get_rank() == 1:
            self.poison = 2
        return super().loss(batch)


class Alone(Toy):
    """Its first process fails in a way that the second does not know of; its loss ends in what autograd keeps."""

    def loss(self, batch: dict[str, Any]) -> torch.Tensor:
        if torch.distributed.is_initialized() and torch.distributed.get_rank() == 0 and self.trainer.global_step == 2:
            raise FloatingPointError("mine alone")
        return torch.relu(super().loss(batch))


class Greedy(Pet):
    """Has no room for more than two rows."""

    def loss(self, batch: dict[str, Any]) -> torch.Tensor:
        if len(batch["rows"]) > 2:
            raise torch.OutOfMemoryError("no room")
        return super().loss(batch)


class Doomed(Pet):
    """Its second process is killed where a file says so."""

    def loss(self, batch: dict[str, Any]) -> torch.Tensor:
        mark = Path(os.environ["DOOM"])
        if mark.exists() and torch.distributed.get_rank() == 1:
            mark.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().loss(batch)


def test_a_loss_that_diverges_on_one_process_ends_all(place: Workplace) -> None:
    """Of two h that share the training, the one that had stopped before keeps its result."""
    hs = [{**HP, "max_steps": 8, "eval_ratio": 0.25, "patience": p} for p in (1, 99)]
    with pytest.raises(FloatingPointError, match="the loss is nan at update 3"):
        train(hs=hs[1:], method=Poisoned(hs[1]), devices=2, dev=level)
    early = [{**h, "eval_ratio": 0.125} for h in hs]
    stopped, went_on = train(hs=early, method=Poisoned(early[0]), devices=2, dev=level)[0]
    assert stopped.steps_done == 2 and isinstance(went_on, FloatingPointError)
    with pytest.raises(FloatingPointError, match="mine alone"):  # and the other does not wait for ever
        train(hs=hs[1:], method=Alone(hs[1]), devices=2, dev=level)
    plain, _ = train(hs=hs[1:], devices=2)
    alone, _ = train(hs=hs[1:], micro=2)
    assert plain[0].looks == alone[0].looks
    np.testing.assert_allclose(plain[0].test_scores, alone[0].test_scores, atol=1e-6)
    unlooked, method = train(hs=hs[1:], devices=2, split=Split(tuple(range(16)), ()))
    assert unlooked[0].looks == [] and unlooked[0].steps_done == 8
    np.testing.assert_allclose(unlooked[0].test_scores, method.log_scores(), atol=1e-6)


def level(values: np.ndarray, rows: Any) -> float:
    """A dev score that never moves."""
    return 0.5


def test_memory_that_runs_out_halves_the_forward(
    place: Workplace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lab, "method_class", lambda name: Greedy)
    (found,) = place.run("hp.batch_size=6", "split.run=0", *TWO)
    assert found["steps_done"] == 4
    assert "trying runtime.micro_batch=1, accumulated to the same 6 rows" in capsys.readouterr().err
    (meta,) = [json.loads(p.read_bytes()) for p in (place.folder / "s").rglob("meta.json")]
    assert (meta["micro_batch"], meta["devices"]) == (1, 2)
    assert meta["peak_memory"] >= max(one["peak_memory"] or 0 for one in memory._others) > 0
    assert len(memory._others) == 2  # of the training that fitted


@pytest.mark.slow  # starts the processes three times
def test_processes_that_die_cost_one_run_and_none_is_left(place: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = place.folder / "doom"
    monkeypatch.setenv("DOOM", str(mark))
    distributed.dismiss()  # processes know the environment that they were started in
    monkeypatch.setattr(lab, "method_class", lambda name: Doomed)
    mark.touch()
    assert [r["k"] for r in place.run("split.run=[0,1]", *TWO)] == [1]
    (failed,) = failures(place.folder / "s")
    assert "process 2 of 2 was killed by signal 9" in failed["error"] and failed["type"] == "RuntimeError"
    team = distributed._team
    assert team is not None
    team.processes[0].stdin.close()  # type: ignore[union-attr]  # as when this process ends
    assert team.processes[0].wait(60) == 1 and not team.folder.exists()
    assert len(place.run("split.run=[0,1]", *TWO)) == 2  # a process that ended in between is replaced


def test_the_command_trains_on_two_processes(place: Workplace) -> None:
    left = place.folder / "tmp of ä user"
    left.mkdir()
    done = place.python("-m", "fewnlu.train", *place.base(), *TWO, "++trainer.strategy=ddp", "split.k=1",
                        "hp.lr=1e-4,2e-4", "search=none", "logger=csv", "-m", TMPDIR=str(left))  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "runs      2 of 2 done" in done.stdout and "arning" not in done.stderr
    metas = [json.loads(p.read_bytes()) for p in place.folder.rglob("meta.json")]
    assert [m["devices"] for m in metas] == [2, 2] and len(list(place.folder.rglob("metrics.csv"))) == 2
    assert not list(left.glob("fewnlu-*"))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["trainer.devices=3"], r"trainer\.devices=3: 3 devices do not divide hp\.batch_size=8.*choose a divisor"),
        (["trainer.devices=2", "runtime.micro_batch=8"], r"runtime\.micro_batch=8: 2 devices .* choose a divisor of 4"),
        (["++trainer.num_nodes=2"], r"trainer\.num_nodes=2: .*launcher=joblib"),
        (["trainer.devices=0"], r"trainer\.devices=0: expected a number from 1"),
        (["trainer.devices=true"], r"trainer\.devices=True: expected a number from 1"),
        (["trainer.devices=-2"], r"trainer\.devices=-2: expected a number from 1"),
        (["trainer.devices=some"], r"trainer\.devices='some': expected a number from 1"),
        (["trainer.devices=[0,0]"], r"trainer\.devices=\[0, 0\]: expected different numbers of GPUs"),
        (["trainer.devices=[0,1]", "trainer.accelerator=cpu"], r"a CPU has none, .* trainer\.devices=2"),
        (["trainer.devices=2", "trainer.accelerator=mps"], r"trainer\.devices=2: several devices need"),
        (["++trainer.strategy=fsdp"], r"trainer\.strategy=fsdp: .*auto, ddp, ddp_spawn.*runtime\.checkpointing=true"),
        (["++trainer.strategy=deepspeed_stage_2"], r"trainer\.strategy=deepspeed_stage_2: "),
    ],
)
def test_what_cannot_be_is_refused_by_name(place: Workplace, overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_setup(place.config(*overrides))


def test_a_loss_over_a_whole_forward_is_not_shared(place: Workplace) -> None:
    for key in ("trainer.devices=2", "runtime.micro_batch=2"):
        cfg = composed(place, "bert", "pet", "choices", "reading.hinge=batch", key, "trainer.accelerator=cpu")
        with pytest.raises(ConfigError, match=rf"reading\.hinge=batch: this loss compares .* with {re.escape(key)} it"):
            read_setup(cfg)
    read_setup(composed(place, "bert", "pet", "words", "reading.hinge=batch", *TWO))  # has one mask, hence no hinge


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is Linux'")
def test_a_full_disk_is_named(tmp_path: Path) -> None:
    (tmp_path / "job").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"No space left on device: several devices hand .* MB left; set TMPDIR") as found:
        distributed.save({"x": torch.zeros(10)}, tmp_path / "job")
    assert is_disk_full(found.value)


def test_an_interrupt_while_the_model_is_written_stays_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(value: Any, file: Any) -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("unexpected pos 161125568 vs 161125456")  # as torch's writer, when it closes the file

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(torch, "save", cut)
        distributed.save({}, tmp_path / "job")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    mine, dead = tmp_path / f"fewnlu-team-{os.getpid()}-a", tmp_path / "fewnlu-team-4194303-b"  # no such process
    mine.mkdir()
    dead.mkdir()
    made = distributed._new_folder()
    assert made.is_dir() and mine.is_dir() and not dead.exists()


def test_errors_come_back_as_what_they_were() -> None:
    def back(name: str, text: str = "text", number: int | None = None, file: str | None = None) -> BaseException:
        return distributed._error(0, 2, name, text, number, file, memory=False, trace="the trace")

    missing = back("FileNotFoundError", "No such file", 2, "rows.csv")
    assert isinstance(missing, FileNotFoundError) and str(missing) == "[Errno 2] No such file: 'rows.csv'"
    assert isinstance(back("ConfigError"), ConfigError) and back("ConfigError").__notes__[0].endswith("the trace")
    for name in ("UnicodeDecodeError", "Theirs", "KeyboardInterrupt", "print"):  # no text alone makes one
        assert isinstance(back(name), RuntimeError) and str(back(name)) == f"{name}: text"


def test_devices_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, gpus, n, resolved in [
        (1, "", 1, 1), ("2", "", 2, 2), ("auto", "", 1, 1), ("auto", "4,5,6", 3, 3), (-1, "4,5", 2, 2),
        ('2,', "4,5", 1, [2]), ([0, 1], "4,5", 2, [0, 1]), ("0,1", "4,5", 2, [0, 1]), ([1], "4,5", 1, [1]),
    ]:  # fmt: skip
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
        flags = {"devices": given, "strategy": "ddp", "precision": "32-true"}
        assert devices.count(flags) == n and devices.resolved(flags) == {"devices": resolved, "precision": "32-true"}
    assert devices.count({"devices": "auto", "accelerator": "cpu"}) == 1
    with pytest.raises(ConfigError, match=r"trainer\.devices=2: this launcher gives each job one GPU; leave"):
        readiness._check_device({"devices": 2}, one_gpu=True)
    with pytest.raises(ConfigError, match=r"trainer\.devices=3: this machine has 2 for this command; use at most 2"):
        readiness._check_device({"devices": 3}, one_gpu=False)
    readiness._check_device({"devices": 3, "accelerator": "cpu"}, one_gpu=True)
