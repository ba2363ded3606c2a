"""What makes large models fit changes no result: activations computed again, and smaller forwards after running out."""

from __future__ import annotations

import json

import pytest
import torch

from fewnlu.errors import ConfigError
from fewnlu.methods.pet import Method
from tests.methods.shapes import backbone, table
from tests.running import Workplace, failures
from tests.tiny import FAMILIES


@pytest.mark.parametrize("family", FAMILIES)
def test_checkpointing_gives_the_same_gradients_dropout_included(family: str) -> None:
    found = []
    if family == "albert":
        with pytest.raises(ConfigError, match=r"runtime\.checkpointing=true: model type 'albert' cannot"):
            backbone(family).checkpoint(True)
        return
    for on in (False, True):
        bb = backbone(family)
        _, reader, rows = table(bb, "words")
        bb.checkpoint(on)
        bb.train()
        torch.manual_seed(1)
        loss = reader.loss(bb, rows.train_batch([0, 1, 2, 3]))
        loss.backward()
        found.append((loss.detach(), torch.cat([p.grad.flatten() for p in bb.parameters() if p.grad is not None])))
    torch.testing.assert_close(found[1][0], found[0][0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found[1][1], found[0][1], rtol=1e-4, atol=1e-6)


def test_running_out_of_memory_halves_the_forward_and_keeps_the_batch(
    place: Workplace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original, sizes = Method.loss, []

    def loss(self: Method, batch: dict[str, object]) -> torch.Tensor:
        sizes.append(len(batch["rows"]))  # type: ignore[arg-type]
        if sizes[-1] > 2:
            raise torch.OutOfMemoryError("no room")
        return original(self, batch)

    monkeypatch.setattr(Method, "loss", loss)
    found = place.run("hp.batch_size=6", "split.run=[0,1]")
    assert sizes[:3] == [6, 3, 2] and set(sizes[2:]) == {2} and len(sizes) == 2 + 2 * 4 * 3
    assert [r["steps_done"] for r in found] == [4, 4]
    assert "trying runtime.micro_batch=2, accumulated to the same 6 rows an update" in capsys.readouterr().err
    metas = [json.loads(p.read_bytes()) for p in (place.folder / "s").rglob("meta.json")]
    assert [m["micro_batch"] for m in metas] == [2, 2]


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes"),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 4 bytes."),
        RuntimeError("MPS backend out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        MemoryError(),
    ],
    ids=["cpu", "windows", "mps", "cublas", "python"],
)
def test_memory_that_runs_out_without_torchs_own_error_counts_too(
    place: Workplace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    """Raised once, by the first forward; accumulation then gives what the run with enough memory gives."""
    (whole,) = place.run("hp.batch_size=4", "split.run=0", "runtime.micro_batch=2", sweep="asked")
    original, calls = Method.loss, []

    def loss(self: Method, batch: dict[str, object]) -> torch.Tensor:
        calls.append(len(batch["rows"]))  # type: ignore[arg-type]
        if len(calls) == 1:
            raise error
        return original(self, batch)

    monkeypatch.setattr(Method, "loss", loss)
    (found,) = place.run("hp.batch_size=4", "split.run=0")
    assert calls[:3] == [4, 2, 2] and found == whole
    assert "out of memory with 4 rows a forward" in capsys.readouterr().err
    (meta,) = [json.loads(p.read_bytes()) for p in (place.folder / "s").rglob("meta.json")]
    assert meta["micro_batch"] == 2


def test_scoring_that_runs_out_of_memory_takes_fewer_rows_at_a_time(
    place: Workplace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original, sizes = Method.scores, []

    def scores(self: Method, batch: dict[str, object]) -> torch.Tensor:
        assert not self.training
        sizes.append(len(batch["rows"]))  # type: ignore[arg-type]
        if sizes[-1] > 4:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return original(self, batch)

    (whole,) = place.run("split.run=0", "runtime.eval_batch=4", sweep="few")
    monkeypatch.setattr(Method, "scores", scores)
    (found,) = place.run("split.run=0", "runtime.eval_batch=16")
    assert found == whole
    assert sizes[:3] == [8, 8, 4] or sizes[:2] == [8, 4], sizes  # dev: 8 rows
    assert capsys.readouterr().err.count("rows scored at a time") <= 4  # found out once a table, not at each look


def test_other_errors_are_not_taken_for_a_lack_of_memory(place: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    def loss(self: Method, batch: dict[str, object]) -> torch.Tensor:
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(Method, "loss", loss)
    assert place.run("split.run=0") == []
    (failed,) = failures(place.folder / "s")
    assert "shapes do not match" in failed["error"]
