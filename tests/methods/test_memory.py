"""What makes large models fit changes no result: activations computed again, and smaller forwards after running out."""

from __future__ import annotations

import json

import pytest
import torch

from fewnlu.errors import ConfigError
from fewnlu.methods.pet import Method
from fewnlu.protocol.setup import read_setup
from tests.methods.shapes import backbone, table
from tests.running import Workplace
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


def test_several_devices_are_refused_by_name(place: Workplace) -> None:
    with pytest.raises(ConfigError, match=r"trainer\.devices=2: a training runs on one device.*launcher=joblib"):
        read_setup(place.config("trainer.devices=2"))
