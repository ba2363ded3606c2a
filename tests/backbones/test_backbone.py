"""States and label-word scores: equal to the model's own, whatever the padding and the surplus rows."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from fewnlu.backbones.backbone import Backbone
from fewnlu.backbones.head import find_head
from fewnlu.backbones.loading import load_backbone
from fewnlu.errors import ConfigError
from tests.tiny import FAMILIES, MORE_FAMILIES, SENTENCES, tiny_model, tiny_model_dir, tiny_tokenizer


def encode(backbone, texts=SENTENCES[:3], side="right"):
    backbone.tokenizer.padding_side = side
    batch = backbone.tokenizer(list(texts), padding=True, return_tensors="pt")
    backbone.tokenizer.padding_side = "right"
    return batch.input_ids, batch.attention_mask, batch.get("token_type_ids")


@pytest.mark.parametrize("family", [*FAMILIES, *MORE_FAMILIES])
def test_scores_of_label_words_equal_the_models_logits(load, family):
    backbone = load(family)
    ids, mask, types = encode(backbone)
    words = torch.tensor([5, 17, 60])
    extra = {"token_type_ids": types} if backbone.uses_token_type else {}
    with torch.no_grad():
        want = backbone.model(input_ids=ids, attention_mask=mask, **extra).logits
        states = backbone.hidden(ids, mask, types)
        gathered = states[torch.arange(3), mask.sum(1) - 2]
        got, whole = backbone.logits(gathered, words), backbone.logits(states)
    assert backbone._head is not None, "this family's head is taken apart"
    at = want[torch.arange(3), mask.sum(1) - 2]
    torch.testing.assert_close(got, at[:, words], rtol=0, atol=1e-5)
    torch.testing.assert_close(whole[mask.bool()], want[mask.bool()], rtol=0, atol=1e-5)
    assert want.std() > 0.05  # the model is not so tiny that all is equal


def test_a_head_that_does_more_than_its_parts_falls_back_on_the_whole(load, monkeypatch):
    backbone = load("llama")
    ids, mask, _ = encode(backbone)
    own = backbone.model.lm_head.forward
    monkeypatch.setattr(backbone.model.lm_head, "forward", lambda x: torch.tanh(own(x)))
    assert find_head(backbone.model) is None
    monkeypatch.setattr(backbone, "_head", None)
    with torch.no_grad():
        states = backbone.hidden(ids, mask)
        want = backbone.model(input_ids=ids, attention_mask=mask).logits[:, :, [7, 3]]
        got = backbone.logits(states, torch.tensor([7, 3]))
    torch.testing.assert_close(got[mask.bool()], want[mask.bool()], rtol=0, atol=1e-5)


def test_families_that_nobody_listed():
    """MPNet counts positions like RoBERTa, with code of its own; GPT-NeoX and OPT are causal."""
    import transformers as tf

    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 500}
    opt = {"ffn_dim": 64, "word_embed_proj_dim": 32, "max_position_embeddings": 64}
    for config, auto, family in [
        (tf.MPNetConfig(**small, intermediate_size=64), tf.AutoModelForMaskedLM, "roberta"),
        (tf.GPTNeoXConfig(**small, intermediate_size=64), tf.AutoModelForCausalLM, "llama"),
        (tf.OPTConfig(**small, **opt), tf.AutoModelForCausalLM, "llama"),
    ]:
        torch.manual_seed(0)
        tokenizer = tiny_tokenizer(family)
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
        model = auto.from_config(config)
        backbone = Backbone(model, tokenizer, "masked" if family == "roberta" else "causal")
        backbone.freeze(1)
        assert backbone.prefix_is_fixed and backbone._head is not None
        ids, mask, _ = encode(backbone, ["the movie was great"])
        with torch.no_grad():
            want = model(input_ids=ids, attention_mask=mask).logits
            alone = backbone.hidden(ids, mask)
            torch.testing.assert_close(backbone.logits(alone), want, rtol=0, atol=1e-5)
            for side in ("left", "right"):
                more, cover, _ = encode(backbone, ["the movie was great", SENTENCES[4]], side)
                got = backbone.hidden(more, cover)[0][cover[0].bool()]
                torch.testing.assert_close(got, alone[0], rtol=0, atol=2e-5)


def test_a_head_out_of_reach_is_refused(load, monkeypatch):
    backbone = load("gpt2")
    monkeypatch.setattr(backbone.model, "forward", lambda **given: SimpleNamespace(logits=torch.zeros(1, 2, 7)))
    with pytest.raises(ConfigError, match="model type 'gpt2' is not supported"):
        find_head(backbone.model)
    assert "forward" not in vars(backbone.model.base_model)


def test_deberta_legacy_and_stored_heads(tmp_path):
    tokenizer = tiny_tokenizer("deberta_v2")
    for legacy in (True, False):
        model = tiny_model("deberta_v2", tokenizer, legacy=legacy)
        assert find_head(model) is not None


@pytest.mark.parametrize("family", FAMILIES)
def test_inputs_embeds_equal_ids(load, family):
    backbone = load(family)
    ids, mask, types = encode(backbone)
    with torch.no_grad():
        from_ids = backbone.hidden(ids, mask, types)
        from_words = backbone.hidden(None, mask, types, inputs_embeds=backbone.embed(ids))
    torch.testing.assert_close(from_ids[mask.bool()], from_words[mask.bool()], rtol=0, atol=1e-6)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", [*FAMILIES, *MORE_FAMILIES])
def test_padding_changes_nothing(load, family, side):
    """I039: rows of 2 and 8 words in one batch against single runs."""
    backbone = load(family)
    texts = ["the movie", "the food is bad and the service was"]
    ids, mask, types = encode(backbone, texts, side)
    with torch.no_grad():
        batch = backbone.hidden(ids, mask, types)
        for row, text in enumerate(texts):
            single_ids, single_mask, single_types = encode(backbone, [text])
            alone = backbone.hidden(single_ids, single_mask, single_types)[0]
            torch.testing.assert_close(batch[row][mask[row].bool()], alone, rtol=0, atol=2e-5)
            if family in ("llama", "gpt2"):
                scores = backbone.logits(batch[row][mask[row].bool()][-1])
                torch.testing.assert_close(scores, backbone.logits(alone[-1]), rtol=0, atol=1e-4)


@pytest.mark.parametrize("family", ["bert", "deberta_v2", "llama"])
def test_surplus_output_rows_do_not_touch_label_scores(tmp_path, family):
    """I035: 10 rows more than the tokenizer has words, with huge logits."""
    from safetensors.torch import load_file, save_file

    plain = load_backbone("local", path=tiny_model_dir(tmp_path / "plain", family, surplus=10))
    ids, mask, types = encode(plain)
    words = torch.tensor([5, 17])
    with torch.no_grad():
        want = plain.logits(plain.hidden(ids, mask, types), words)
    folder = tiny_model_dir(tmp_path / "loud", family, surplus=10)
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        if tensor.shape[0] == plain.vocab_size:
            tensor[-10:] = 1e4
            assert "embed" in name or "bias" in name
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    loud = load_backbone("local", path=folder)
    assert loud is not plain and loud.vocab_size == loud.n_tokens + 10
    with torch.no_grad():
        states = loud.hidden(ids, mask, types)
        assert loud.logits(states)[mask.bool()][:, loud.n_tokens :].abs().min() > 50
        torch.testing.assert_close(loud.logits(states, words)[mask.bool()], want[mask.bool()], rtol=0, atol=1e-6)


def test_token_types_and_pads(load):
    uses = {family: load(family).uses_token_type for family in FAMILIES}
    assert uses == {f: f == "bert" for f in FAMILIES}
    for family in ("llama", "gpt2"):
        backbone = load(family)
        assert backbone.tokenizer.pad_token_id == backbone.tokenizer.eos_token_id
        assert len(backbone.tokenizer) == backbone.n_tokens == backbone.vocab_size
        assert backbone.is_causal


def test_the_embedded_dtype_choice(load):
    backbone = load("llama", dtype="bfloat16", freeze_layers=2)
    assert {p.dtype for p in backbone.model.parameters()} == {torch.bfloat16}
    assert backbone.prefix_is_fixed and backbone._head is not None


def test_gradient_reaches_only_the_label_words(load):
    backbone = load("roberta")
    ids, mask, types = encode(backbone)
    backbone.logits(backbone.hidden(ids, mask, types)[:, 1], torch.tensor([5, 6])).sum().backward()
    bias = backbone.model.lm_head.decoder.bias.grad
    assert bias is not None and bias.nonzero().flatten().tolist() == [5, 6]
    assert all(p.grad is not None for p in backbone.model.roberta.encoder.parameters())
