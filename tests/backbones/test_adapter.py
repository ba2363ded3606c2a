"""LoRA: nothing changes until it is trained, nothing else is trained, prefixes stay exact, merging keeps the scores."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fewnlu.backbones import loading
from fewnlu.backbones.adapter import MARK, merged_state
from fewnlu.backbones.loading import load_backbone
from tests.running import Workplace
from tests.tiny import FAMILIES

IDS = torch.tensor([[7, 8, 9, 10, 11], [12, 13, 14, 15, 16]])


@pytest.fixture(autouse=True)
def _clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEWNLU_CACHE", str(tmp_path / "cache"))
    torch.set_num_threads(1)
    loading.forget()


@pytest.mark.parametrize("family", FAMILIES)
def test_adapters_are_all_that_is_trained(tiny: Callable[[str], Path], family: str) -> None:
    mask = torch.ones_like(IDS)
    plain = load_backbone("local", path=tiny(family))
    with torch.no_grad():
        want = plain.logits(plain.hidden(IDS, mask))
    backbone = load_backbone("local", path=tiny(family), adapter_rank=2)
    assert backbone is not plain and backbone.adapter
    for frozen in (0, 2) if family != "albert" else (0,):
        backbone.freeze(frozen)
        trained = [n for n, p in backbone.model.named_parameters() if p.requires_grad]
        assert trained and all(MARK in n for n in trained)
        with torch.no_grad():
            torch.testing.assert_close(backbone.logits(backbone.hidden(IDS, mask)), want, rtol=1e-5, atol=1e-5)
    if family not in ("albert", "deberta_v2"):
        assert backbone.prefix_is_fixed
    backbone.initial_state()
    optimizer = torch.optim.SGD([p for p in backbone.parameters() if p.requires_grad], lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        backbone.logits(backbone.hidden(IDS, mask))[..., 5].mean().backward()
        optimizer.step()
    with torch.no_grad():
        after = backbone.logits(backbone.hidden(IDS, mask))
        assert not torch.allclose(after, want, atol=1e-4)
        state = merged_state(backbone.model)
        assert set(state) == set(plain.model.state_dict())
        plain.model.load_state_dict(state)
        torch.testing.assert_close(plain.logits(plain.hidden(IDS, mask)), after, rtol=1e-4, atol=1e-4)
        backbone.restore()
        torch.testing.assert_close(backbone.logits(backbone.hidden(IDS, mask)), want, rtol=1e-5, atol=1e-5)


def test_a_run_with_lora_is_a_study_of_its_own(place: Workplace) -> None:
    from fewnlu import final, predict

    plain = place.run("split.run=0")
    (study,) = {r["study"] for r in plain}
    found = place.run("split.run=0", "model_args.adapter=lora", "model_args.adapter_rank=4", sweep="lora")
    assert found[0]["config"]["model"]["lora_rank"] == 4 and found[0]["study"] != study
    assert "lora_rank" not in plain[0]["config"]["model"]
    (folder,) = [p for p in (place.folder / "lora").iterdir() if not p.name.startswith(".")]
    final.retrain(folder, "max", 1, place.folder / "m")
    (place.folder / "rows.csv").write_text("text\nthe movie was great\n")
    assert predict.predict(place.folder / "m", place.folder / "rows.csv")[0] == 1
