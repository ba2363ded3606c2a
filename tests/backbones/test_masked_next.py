"""A causal model taught to fill masks: states as by hand, whatever the padding, and read as any masked model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from fewnlu.backbones import loading, smollm2_mlm, weights
from fewnlu.backbones.adapter import add_lora
from fewnlu.backbones.kind import model_kind, read_config
from fewnlu.backbones.masked_next import build
from tests.tiny import SENTENCES, TAUGHT, tiny_adapter


def test_states_equal_those_of_the_model_that_was_trained(tiny, tmp_path):
    """By hand: base + LoRA as in training, all positions seen, mask embedding put in, the state before the mask."""
    base = loading.load_backbone("local", path=tiny("llama"))
    ids = torch.tensor([base.tokenizer(SENTENCES[1])["input_ids"]])
    place = 4
    model = base.model.double()
    add_lora(model, 4)
    own = load_file(tiny_adapter(tmp_path / "adapter.safetensors", tiny("llama")))
    named = dict(model.named_parameters())
    with torch.no_grad():
        for name, tensor in own.items():
            if "lora" in name:
                named[name].copy_(tensor)
        start = base.tokenizer.convert_tokens_to_ids("<|end|>")
        embeds = model.get_input_embeddings()(torch.cat([torch.tensor([[start]]), ids], 1))
        embeds[0, place] = own["mask_embedding"].double()
        seen = torch.zeros(1, 1, embeds.shape[1], embeds.shape[1], dtype=torch.float64)
        want = model.base_model(inputs_embeds=embeds, attention_mask=seen, use_cache=False)[0][0, place - 1]
        logits = model.lm_head(want)
    loading.forget()
    taught = loading.load_backbone("local", path=tiny(TAUGHT))
    assert taught.kind == "masked" and taught.moved_up and not taught.adapter
    text = base.tokenizer.convert_ids_to_tokens(ids[0].tolist())
    text[place - 1] = taught.tokenizer.mask_token
    own_ids = torch.tensor([[start, *taught.tokenizer.convert_tokens_to_ids(text)]])
    with torch.no_grad():
        states = taught.hidden(own_ids, torch.ones_like(own_ids))
        got = taught.logits(states[0, place])
    torch.testing.assert_close(states[0, place].double(), want, rtol=0, atol=1e-5)
    keep = torch.arange(len(got)) != taught.tokenizer.mask_token_id  # its row is the learned one
    torch.testing.assert_close(got.double()[keep], logits[keep], rtol=0, atol=1e-4)


def test_padding_and_cached_layers_change_nothing(load):
    backbone = load(TAUGHT, freeze_layers=3)
    batch = backbone.tokenizer(SENTENCES[:3], padding=True, return_tensors="pt")
    ids, mask = batch.input_ids, batch.attention_mask
    assert ids[0, 0] == backbone.tokenizer.cls_token_id and mask.sum(1).unique().numel() > 1
    with torch.no_grad():
        together = backbone.hidden(ids, mask)
        for row in range(3):
            n = int(mask[row].sum())
            alone = backbone.hidden(ids[row : row + 1, :n], mask[row : row + 1, :n])
            torch.testing.assert_close(together[row, :n], alone[0], rtol=0, atol=1e-5)
        assert backbone.prefix_is_fixed
        torch.testing.assert_close(backbone.hidden(ids, mask, prefix=backbone.prefix(ids, mask)), together)
        other = ids.clone()
        other[0, 5] = 7  # a later token is seen
        assert not torch.allclose(backbone.hidden(other, mask)[0, 2], together[0, 2], atol=1e-3)


def test_the_embedded_one_is_made_once_and_known_by_its_hash(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("FEWNLU_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    (tmp_path / "shipped").mkdir()
    adapter = tiny_adapter(tmp_path / "shipped" / "adapter.safetensors", tiny("llama"))
    (tmp_path / "shipped" / "README.md").write_text("card")
    monkeypatch.setattr(smollm2_mlm, "ADAPTER", adapter)
    monkeypatch.setattr(smollm2_mlm, "MASK_TOKEN", "\u0100")
    monkeypatch.setattr(smollm2_mlm, "START_TOKEN", "<|end|>")
    monkeypatch.setattr(smollm2_mlm, "ensure_smollm2", lambda: tiny("llama"))
    smollm2_mlm.fingerprint.cache_clear()
    assert not smollm2_mlm.is_made()
    folder = weights.model_folder("smollm2_mlm", None, None, None)
    assert smollm2_mlm.is_made() and weights.model_folder("smollm2_mlm", None, None, None) == folder
    assert folder.name.endswith(weights.fingerprint("smollm2_mlm")[:8]) and (folder / "README.md").read_text() == "card"
    assert (
        model_kind(read_config("smollm2_mlm"))
        == model_kind(json.loads((folder / "config.json").read_text()))
        == "masked"
    )
    assert loading.load_backbone("smollm2_mlm").kind == "masked"
    assert sorted(p.suffix for p in (tmp_path / "cache").iterdir()) == ["", ".lock"]
    smollm2_mlm.fingerprint.cache_clear()


def test_the_shipped_adapter_is_one_of_the_embedded_model():
    own = load_file(smollm2_mlm.ADAPTER)
    assert smollm2_mlm.ADAPTER.stat().st_size <= 10e6 and own.pop("mask_embedding").shape == (576,)
    assert len(own) == 30 * 7 * 2  # layers, projections, A and B
    assert all(t.dtype == torch.float16 and t.isfinite().all() and 16 in t.shape for t in own.values())
    assert all(t.any() for t in own.values())  # trained, each of them: B begins at 0
    card = (smollm2_mlm.ADAPTER.parent / "README.md").read_text(encoding="utf-8")
    assert "masked-token accuracy" in card and "terms of the data" in card


def test_an_adapter_of_another_model_is_refused(tiny, tmp_path):
    save_file({"mask_embedding": torch.zeros(32), "x.lora_A.default.weight": torch.zeros(4, 8)}, tmp_path / "a")
    with pytest.raises(KeyError):
        build(tiny("llama"), tmp_path / "a", tmp_path / "out", "\u0100", "<|end|>")
    with pytest.raises(KeyError, match="no token '<nope>' in the vocabulary"):
        build(tiny("llama"), tiny_adapter(tmp_path / "b", tiny("llama")), tmp_path / "out2", "<nope>", "<|end|>")


def test_a_saved_model_stays_one(tiny, tmp_path: Path):
    backbone = loading.load_backbone("local", path=tiny(TAUGHT))
    backbone.model.save_pretrained(tmp_path / "m")
    backbone.tokenizer.save_pretrained(tmp_path / "m")
    loading.forget()
    again = loading.load_backbone("local", path=tmp_path / "m")
    assert again.kind == "masked" and again.moved_up
    ids = torch.tensor([again.tokenizer(SENTENCES[1])["input_ids"]])
    with torch.no_grad():
        want = again.hidden(ids, torch.ones_like(ids))
        assert torch.equal(want, backbone.hidden(ids, torch.ones_like(ids)))
