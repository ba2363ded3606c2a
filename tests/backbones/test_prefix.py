"""Frozen lower layers: kept states give what a full run gives, and what is frozen stays put and quiet."""

from __future__ import annotations

import pytest
import torch

from fewnlu.errors import ConfigError
from tests.backbones.test_backbone import encode
from tests.tiny import LAYERS, MORE_FAMILIES, SENTENCES

EXACT = ["llama", "gpt2", "bert", "roberta", *MORE_FAMILIES]


@pytest.mark.parametrize("frozen", [1, 3, LAYERS])
@pytest.mark.parametrize("family", EXACT)
def test_prefix_is_exact(load, family, frozen):
    backbone = load(family, freeze_layers=frozen)
    assert backbone.prefix_is_fixed
    ids, mask, types = encode(backbone, SENTENCES)
    prefix = backbone.prefix(ids, mask, types)
    assert prefix.shape == (*ids.shape, backbone.hidden_size) and not prefix.requires_grad
    with torch.no_grad():
        full, reused = backbone.hidden(ids, mask, types), backbone.hidden(ids, mask, types, prefix=prefix)
        without_ids = backbone.hidden(None, mask, types, prefix=prefix)
    torch.testing.assert_close(reused[mask.bool()], full[mask.bool()], rtol=0, atol=1e-6)
    assert torch.equal(reused, without_ids)


@pytest.mark.parametrize("family", EXACT)
def test_training_on_kept_states_equals_training_on_text(load, family):
    """Gradients of the upper layers, and a prefix that training does not move."""
    backbone = load(family, freeze_layers=2)
    ids, mask, types = encode(backbone)
    prefix = backbone.prefix(ids, mask, types)

    def gradients(**given):
        backbone.zero_grad()
        backbone.hidden(ids, mask, types, **given)[mask.bool()].square().sum().backward()
        return {n: p.grad.clone() for n, p in backbone.model.named_parameters() if p.grad is not None}

    full, reused = gradients(), gradients(prefix=prefix)
    assert full.keys() == reused.keys() and full
    for name in full:
        torch.testing.assert_close(reused[name], full[name], rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        for parameter in backbone.parameters():
            if parameter.requires_grad:
                parameter.add_(0.5)
    assert torch.equal(backbone.prefix(ids, mask, types), prefix)


@pytest.mark.parametrize("family", EXACT)
def test_padding_of_the_kept_states_does_not_matter(load, family):
    backbone = load(family, freeze_layers=2)
    ids, mask, types = encode(backbone, ["the movie", SENTENCES[2]])
    short = encode(backbone, ["the movie"])
    n = short[0].shape[1]
    kept = backbone.prefix(ids, mask, types)[:1, :n]
    with torch.no_grad():
        want, got = backbone.hidden(*short), backbone.hidden(None, *short[1:], prefix=kept)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", EXACT)
def test_frozen_layers_stay_in_eval_mode(load, family):
    backbone = load(family, freeze_layers=LAYERS)
    ids, mask, types = encode(backbone)
    with torch.no_grad():
        quiet = backbone.hidden(ids, mask, types)
        backbone.train()
        assert backbone.training
        assert torch.equal(backbone.hidden(ids, mask, types), quiet)  # no dropout anywhere below the cut
        torch.nn.Sequential(backbone).train()
        assert torch.equal(backbone.hidden(ids, mask, types), quiet)
        if family == "bert":
            backbone.freeze(2)
            assert not torch.equal(backbone.train().hidden(ids, mask, types), quiet)
            assert torch.equal(backbone.eval().hidden(ids, mask, types), quiet)


def test_nothing_is_left_behind_by_a_partial_run(load):
    backbone = load("bert", freeze_layers=2)
    ids, mask, types = encode(backbone)
    with pytest.raises(RuntimeError):
        backbone.hidden(ids, mask, types, prefix=torch.zeros(3, ids.shape[1], 7))
    backbone.prefix(ids, mask, types)
    for module in backbone.modules():
        assert not module._forward_hooks and "forward" not in vars(module)


def test_what_is_frozen(load):
    def trainable(backbone):
        return {n for n, p in backbone.model.named_parameters() if p.requires_grad}

    backbone = load("bert")
    assert not backbone.frozen and len(trainable(backbone)) == len(list(backbone.model.parameters()))
    names = trainable(load("bert", freeze_layers=2))
    assert not any("embeddings" in n or "layer.0." in n or "layer.1." in n for n in names)
    assert {"bert.encoder.layer.2.output.dense.weight", "cls.predictions.bias"} <= names
    assert trainable(load("llama", freeze_layers=LAYERS)) == {"model.norm.weight"}  # the head is tied
    assert not any("embeddings" in n for n in trainable(load("electra", freeze_layers=1)))

    backbone = load("deberta_v2", freeze_layers=2)  # spec 3.0
    names = trainable(backbone)
    assert not any(n.startswith(("lm_predictions", "cls")) or "word_embeddings" in n for n in names)
    assert not any("layer.0." in n or "layer.1." in n for n in names)
    assert {
        "deberta.encoder.rel_embeddings.weight",
        "deberta.encoder.conv.conv.weight",
        "deberta.embeddings.LayerNorm.weight",
        "deberta.encoder.layer.2.output.dense.weight",
    } <= names
    assert not backbone.prefix_is_fixed


def test_adapters_below_the_cut_end_the_reuse(load):
    backbone = load("llama", freeze_layers=2)
    assert backbone.prefix_is_fixed
    backbone.model.model.layers[1].adapter = torch.nn.Linear(2, 2)
    assert not backbone.prefix_is_fixed
    del backbone.model.model.layers[1].adapter
    backbone.model.model.embed_tokens.weight.requires_grad_(True)
    assert not backbone.prefix_is_fixed


@pytest.mark.parametrize(
    ("family", "n", "says"),
    [("bert", 5, "choose 0 to 4"), ("bert", -1, "0 to 4"), ("albert", 1, "share"), ("gpt2", True, "integer")],
)
def test_freezing_what_cannot_be(load, family, n, says):
    with pytest.raises(ConfigError, match=says) as caught:
        load(family, freeze_layers=n)
    assert f"model_args.freeze_layers={n}" in str(caught.value)


def test_prefix_without_frozen_layers_is_an_error(load):
    backbone = load("bert")
    assert not backbone.prefix_is_fixed
    with pytest.raises(ValueError, match="freeze_layers"):
        backbone.prefix(*encode(backbone))
