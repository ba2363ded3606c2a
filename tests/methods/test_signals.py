"""Signals and checkpoints of a cluster: they belong to who launched the job, and Lightning keeps out of them."""

from __future__ import annotations

import os
import pickle
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from fewnlu.methods.pet import Method
from tests.running import Workplace, failures, result_bytes

# What a job finds in its environment when srun has started it.
SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NAME": "train",
    "SLURM_NTASKS": "1",
    "SLURM_NTASKS_PER_NODE": "1",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_NODELIST": "node",
}


class Evil:
    """Unpickled, it writes a file `marker`."""

    def __reduce__(self) -> Any:
        return (Path.write_text, (Path("marker"), "run"))


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SLURM.items():
        monkeypatch.setenv(name, value)


def mark(*args: Any, **options: Any) -> None:
    """What a checkpoint's `_instantiator` may name."""
    Path("marker").write_text("run")


@pytest.mark.parametrize("evil", [True, False], ids=["code", "weights"])
def test_i121_i122_no_training_begins_from_a_checkpoint_that_lies_about(
    place: Workplace, slurm: None, evil: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On SLURM Lightning looks for hpc_ckpt_*.ckpt in the working directory."""
    place.run("split.run=0", sweep="calm")
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")  # as some set it for old checkpoints
    for name in ("hpc_ckpt_1.ckpt", "last.ckpt"):
        with open(name, "wb") as file:
            if evil:
                pickle.dump(Evil(), file)
            else:
                torch.save(
                    {
                        "state_dict": {},
                        "global_step": 3,
                        "pytorch-lightning_version": "2.6.6",
                        "hyper_parameters": {"_instantiator": f"{__name__}.mark"},
                    },
                    file,
                )
    place.run("split.run=0")
    assert result_bytes(place.folder / "s") == result_bytes(place.folder / "calm") and not Path("marker").exists()


def test_i110_signals_of_the_launcher_are_left_to_it(
    place: Workplace, slurm: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """submitit means to survive SIGTERM until its own signal has requeued the job; SIGUSR1 is nobody's."""
    caught, seen, real = list[int](), set[Any](), Method.loss

    def loss(self: Method, batch: dict[str, Any]) -> Any:
        seen.add(signal.getsignal(signal.SIGUSR1))
        os.kill(os.getpid(), signal.SIGTERM)
        return real(self, batch)

    place.run("split.run=0", sweep="calm")
    monkeypatch.setattr(Method, "loss", loss)
    before = signal.signal(signal.SIGTERM, lambda number, frame: caught.append(number))
    try:
        place.run("split.run=0")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert len(caught) == 4 and seen == {signal.SIG_DFL}
    assert result_bytes(place.folder / "s") == result_bytes(place.folder / "calm")
    assert not list(place.folder.rglob("*.ckpt"))


def test_i110_a_job_that_may_not_be_requeued_is_interrupted_not_failed(
    place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """submitit's handler raises inside whatever runs when a job has timed out too often."""
    errors = pytest.importorskip("submitit.core.utils", reason="pip install 'fewnlu[slurm]'")
    from fewnlu.reporting.status import read_status

    def loss(self: Method, batch: dict[str, Any]) -> Any:
        raise errors.UncompletedJobError("Job not requeued because: timed-out too many times.")

    with monkeypatch.context() as patch:
        patch.setattr(Method, "loss", loss)
        with pytest.raises(errors.UncompletedJobError):
            place.run()
    assert not failures(place.folder / "s")
    from fewnlu.protocol import records

    (started,) = (place.folder / "s").rglob(records.STARTED)
    started.write_text(started.read_text().replace(f'"pid": {os.getpid()}', '"pid": 999999999'))  # it has ended
    assert [run.state for run in read_status(place.folder / "s").runs] == ["interrupted"]
    assert len(place.run()) == 2
