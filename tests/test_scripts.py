"""The script that makes a masked LM of the embedded model: stopped and given again it ends with the same weights."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fewnlu.backbones import loading
from tests.tiny import SENTENCES

SCRIPT = Path(__file__).parents[1] / "scripts" / "train_smollm2_mlm.py"


def test_masked_lm_resumes(tiny: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setenv("FEWNLU_CACHE", str(tmp_path / "cache"))
    script = runpy.run_path(str(SCRIPT), run_name="script")
    (tmp_path / "corpus.txt").write_text("\n".join(SENTENCES * 20))
    common = ["--corpus", str(tmp_path / "corpus.txt"), "--model", str(tiny("llama")), "--batch", "4", "--length", "16"]
    common += ["--rank", "4", "--steps", "6", "--save-every", "2"]

    def run(out: str, stop: int | None = None) -> dict[str, torch.Tensor]:
        loading.forget()
        calls = 0
        original = script["predict"]

        def predict(*args: object) -> object:
            nonlocal calls
            calls += torch.is_grad_enabled()
            if stop is not None and calls > stop:
                raise KeyboardInterrupt
            return original(*args)

        monkeypatch.setitem(script["train"].__globals__, "predict", predict)
        script["main"]([*common, "--out", str(tmp_path / out)])
        monkeypatch.setitem(script["train"].__globals__, "predict", original)
        return load_file(tmp_path / out / "adapter.safetensors")

    whole = run("whole")
    with pytest.raises(KeyboardInterrupt):
        run("cut", stop=3)
    monkeypatch.setitem(script["train"].__globals__, "predict", script["predict"])
    again = run("cut")
    assert whole.keys() == again.keys() and "mask_embedding" in whole
    assert all(torch.equal(whole[n], again[n]) and whole[n].dtype == torch.float16 for n in whole)
    assert any(n.endswith("lora_B.default.weight") and whole[n].abs().sum() > 0 for n in whole)
    card = (tmp_path / "cut" / "README.md").read_text()
    assert "6 of 6 steps" in card and "masked-token accuracy" in card
    loading.forget()
    with pytest.raises(SystemExit, match=r"was trained with steps=6 .*give the same, or another --out"):
        script["main"]([*common[:-3], "7", *common[-2:], "--out", str(tmp_path / "cut")])
    loading.forget()


def test_attention_without_a_mask_is_attention() -> None:
    attend = runpy.run_path(str(SCRIPT), run_name="script")["_all_to_all"]
    q, k, v = (
        torch.randn(2, heads, 5, 4, generator=torch.Generator().manual_seed(i)) for i, heads in enumerate((6, 2, 2))
    )
    whole = torch.nn.functional.scaled_dot_product_attention(q, k.repeat_interleave(3, 1), v.repeat_interleave(3, 1))
    found, _ = attend(None, q, k, v, None, scaling=4**-0.5)
    assert torch.allclose(found, whole.transpose(1, 2), atol=1e-6)
