"""DeBERTa's enhanced mask decoder against a slow float64 reference, written from the spec (3.0) and the DeBERTa papers,
that reads nothing but the checkpoint's tensors."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fewnlu.backbones import loading
from fewnlu.backbones.loading import load_backbone
from fewnlu.errors import ConfigError
from tests.backbones.test_backbone import encode
from tests.tiny import FAMILIES, HEADS, LAYERS, POSITIONS, tiny_model, tiny_tokenizer

TABLE = "deberta.embeddings.position_embeddings.weight"
CONFIGS = {
    "as xxlarge": {},  # conv of 3, shared keys, log buckets, normed relative table
    "no conv": {"conv_kernel_size": 0},
    "own keys of positions": {"share_att_key": False},
    "no buckets": {"position_buckets": -1},
    "plain relative table": {"norm_rel_ebd": "none", "conv_act": "tanh", "position_buckets": 4},
    "content to position": {"pos_att_type": ["c2p"], "share_att_key": False},
    "groups and types": {"conv_groups": 4, "type_vocab_size": 2},
}


def microsoft(folder: Path, positions: bool = True, seed: int = 0, **config: object) -> Path:
    """A checkpoint as Microsoft stores it: head under lm_predictions, a position table that the input does not use."""
    tokenizer = tiny_tokenizer("deberta_v2")
    tiny_model("deberta_v2", tokenizer, legacy=False, seed=seed, **config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if positions:
        add_table(folder, torch.randn(POSITIONS, 32, generator=torch.Generator().manual_seed(5)))
    stored = json.loads((folder / "config.json").read_text())
    stored.pop("legacy", None), stored.pop("architectures", None)
    (folder / "config.json").write_text(json.dumps(stored))
    return folder


def add_table(folder: Path, table: torch.Tensor) -> None:
    file = folder / "model.safetensors"
    save_file(load_file(file) | {TABLE: table}, file, metadata={"format": "pt"})


class Reference:
    """One unpadded row through DeBERTa-v2 and its decoder, in float64, entry by entry where it is cheap enough."""

    def __init__(self, folder: Path) -> None:
        self.w = {k: v.double().numpy() for k, v in load_file(folder / "model.safetensors").items()}
        self.c = json.loads((folder / "config.json").read_text())

    def linear(self, name: str, x: np.ndarray) -> np.ndarray:
        return x @ self.w[f"{name}.weight"].T + self.w[f"{name}.bias"]

    def norm(self, name: str, x: np.ndarray) -> np.ndarray:
        centred = x - x.mean(-1, keepdims=True)
        unit = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + self.c["layer_norm_eps"])
        return unit * self.w[f"{name}.weight"] + self.w[f"{name}.bias"]

    def bucket(self, distance: int) -> int:
        """Signed distance, exact up to half the buckets, logarithmic beyond (DeBERTa-v2)."""
        mid = self.c["position_buckets"] // 2
        if self.c["position_buckets"] <= 0 or abs(distance) <= mid:
            return distance
        log = math.log(abs(distance) / mid) / math.log((self.c["max_position_embeddings"] - 1) / mid)
        return int(math.copysign(math.ceil(log * (mid - 1)) + mid, distance))

    def layer(self, n: int, states: np.ndarray, query: np.ndarray) -> np.ndarray:
        """Layer n: `query` asks, `states` are keys and values; the residual is the query's."""
        base = f"deberta.encoder.layer.{n}"
        att = f"{base}.attention.self"
        relative = self.w["deberta.encoder.rel_embeddings.weight"]
        if "layer_norm" in self.c["norm_rel_ebd"]:
            relative = self.norm("deberta.encoder.LayerNorm", relative)
        span = self.c["position_buckets"] if self.c["position_buckets"] > 0 else self.c["max_position_embeddings"]
        shared, kinds = self.c["share_att_key"], self.c["pos_att_type"]
        q, k, v = (self.linear(f"{att}.{w}_proj", x) for w, x in (("query", query), ("key", states), ("value", states)))
        key_of = self.linear(f"{att}.key_proj" if shared else f"{att}.pos_key_proj", relative)
        if "p2c" in kinds:
            query_of = self.linear(f"{att}.query_proj" if shared else f"{att}.pos_query_proj", relative)
        length, size = len(states), q.shape[1] // HEADS
        context = np.zeros_like(q)
        for head in range(HEADS):
            part = slice(head * size, (head + 1) * size)
            for i in range(length):
                scores = np.zeros(length)
                for j in range(length):
                    scores[j] = q[i, part] @ k[j, part]
                    if "c2p" in kinds:
                        at = min(max(self.bucket(i - j) + span, 0), 2 * span - 1)
                        scores[j] += q[i, part] @ key_of[at, part]
                    if "p2c" in kinds:
                        at = min(max(span - self.bucket(j - i), 0), 2 * span - 1)
                        scores[j] += k[j, part] @ query_of[at, part]
                scores /= math.sqrt(size * (1 + len(kinds)))
                weights = np.exp(scores - scores.max())
                context[i, part] = weights @ v[:, part] / weights.sum()
        x = self.norm(
            f"{base}.attention.output.LayerNorm", self.linear(f"{base}.attention.output.dense", context) + query
        )
        inner = gelu(self.linear(f"{base}.intermediate.dense", x))
        return self.norm(f"{base}.output.LayerNorm", self.linear(f"{base}.output.dense", inner) + x)

    def conv(self, words: np.ndarray, states: np.ndarray) -> np.ndarray:
        weight = self.w["deberta.encoder.conv.conv.weight"]  # [out, in / groups, width]
        out, per_group, width = weight.shape
        groups = words.shape[1] // per_group
        padded = np.pad(words, ((width // 2, width // 2), (0, 0)))
        mixed = np.zeros((len(words), out))
        for position in range(len(words)):
            for o in range(out):
                first = (o * groups // out) * per_group
                window = padded[position : position + width, first : first + per_group]
                mixed[position, o] = (window.T * weight[o]).sum() + self.w["deberta.encoder.conv.conv.bias"][o]
        act = np.tanh if self.c["conv_act"] == "tanh" else gelu
        return self.norm("deberta.encoder.conv.LayerNorm", states + act(mixed))

    def states(self, ids: list[int], types: list[int] | None = None) -> list[np.ndarray]:
        """Embeddings and the output of each layer."""
        x = self.w["deberta.embeddings.word_embeddings.weight"][ids]
        if self.c["type_vocab_size"]:
            x = x + self.w["deberta.embeddings.token_type_embeddings.weight"][types]
        all_states = [self.norm("deberta.embeddings.LayerNorm", x)]
        for n in range(LAYERS):
            x = self.layer(n, all_states[-1], all_states[-1])
            if n == 0 and self.c["conv_kernel_size"]:
                x = self.conv(all_states[0], x)
            all_states.append(x)
        return all_states

    def decoded(self, ids: list[int], types: list[int] | None = None) -> np.ndarray:
        """Last layer twice over the states of layer n−1; the first query has position embeddings added."""
        below = self.states(ids, types)[-2]
        query = below + (self.w[TABLE][: len(ids)] if TABLE in self.w else 0)
        for _ in range(2):
            query = self.layer(LAYERS - 1, below, query)
        return query

    def logits(self, states: np.ndarray) -> np.ndarray:
        x = self.norm("lm_predictions.lm_head.LayerNorm", gelu(self.linear("lm_predictions.lm_head.dense", states)))
        return x @ self.w["deberta.embeddings.word_embeddings.weight"].T + self.w["lm_predictions.lm_head.bias"]


def gelu(x: np.ndarray) -> np.ndarray:
    return np.array([0.5 * one * (1 + math.erf(one / math.sqrt(2))) for one in x.ravel()]).reshape(x.shape)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_decoder_equals_the_reference(tmp_path, name):
    folder = microsoft(tmp_path, **CONFIGS[name])
    backbone, reference = load_backbone("local", path=folder), Reference(folder)
    assert backbone.has_decoder
    ids, mask, types = encode(backbone)
    with torch.no_grad():
        got = backbone.hidden(ids, mask, types)
        plain = backbone.hidden(ids, mask, types, decoder=False)
        logits = backbone.logits(got)
    for row in range(2):
        n = int(mask[row].sum())
        tokens, kinds = ids[row, :n].tolist(), types[row, :n].tolist()
        want = reference.decoded(tokens, kinds)
        np.testing.assert_allclose(got[row, :n].numpy(), want, rtol=0, atol=2e-5)
        np.testing.assert_allclose(logits[row, :n].numpy(), reference.logits(want), rtol=0, atol=2e-4)
        np.testing.assert_allclose(plain[row, :n].numpy(), reference.states(tokens, kinds)[-1], rtol=0, atol=2e-5)
        assert np.abs(want - plain[row, :n].numpy()).max() > 0.1  # not the same reading


def test_without_a_table_the_position_embeddings_are_zero(tmp_path):
    folder = microsoft(tmp_path, positions=False)
    backbone, reference = load_backbone("local", path=folder), Reference(folder)
    assert backbone.has_decoder and backbone.model.deberta.embeddings.position_embeddings is None
    ids, mask, _ = encode(backbone, ["the movie was great ."])
    with torch.no_grad():
        got = backbone.hidden(ids, mask)
    np.testing.assert_allclose(got[0].numpy(), reference.decoded(ids[0].tolist()), rtol=0, atol=2e-5)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing_behind_the_decoder(tmp_path, side):
    backbone = load_backbone("local", path=microsoft(tmp_path))
    texts = ["the movie", "the food is bad and the service was okay ; we will not come back ."]
    ids, mask, _ = encode(backbone, texts, side)
    with torch.no_grad():
        batch = backbone.hidden(ids, mask)
        for row, text in enumerate(texts):
            alone = backbone.hidden(*encode(backbone, [text])[:2])[0]
            torch.testing.assert_close(batch[row][mask[row].bool()], alone, rtol=0, atol=2e-5)


def test_word_embeddings_may_be_given_and_gradients_reach_the_table(tmp_path):
    backbone = load_backbone("local", path=microsoft(tmp_path), freeze_layers=1)
    ids, mask, _ = encode(backbone)
    states = backbone.hidden(None, mask, inputs_embeds=backbone.embed(ids))
    with torch.no_grad():
        torch.testing.assert_close(states, backbone.hidden(ids, mask), rtol=0, atol=1e-6)
    states[:, 1].square().sum().backward()
    table = backbone.model.deberta.embeddings.position_embeddings.weight
    assert table.grad is not None and table.grad[: ids.shape[1]].abs().sum() > 0
    assert "deberta.embeddings.position_embeddings.weight" in backbone.snapshot()
    with pytest.raises(ValueError, match="no prefix"):
        backbone.hidden(ids, mask, prefix=torch.zeros(3, ids.shape[1], 32))


def test_training_is_undone_and_saving_keeps_the_table(tmp_path):
    backbone = load_backbone("local", path=microsoft(tmp_path / "a"))
    ids, mask, _ = encode(backbone)
    with torch.no_grad():
        want = backbone.hidden(ids, mask)
    backbone.train()
    with torch.no_grad():
        backbone.model.deberta.embeddings.position_embeddings.weight.add_(1)
    backbone.restore()
    backbone.eval()
    backbone.model.save_pretrained(tmp_path / "b")
    backbone.tokenizer.save_pretrained(tmp_path / "b")
    for again in (backbone, load_backbone("local", path=tmp_path / "b")):
        with torch.no_grad():
            assert torch.equal(again.hidden(ids, mask), want)


def test_only_microsofts_head_is_read_through_the_decoder(load, tmp_path):
    """A head of transformers' own layout was trained on the plain last layer; with positions in the input, none is."""
    assert not any(load(family).has_decoder for family in FAMILIES)
    assert not load_backbone(
        "local", path=microsoft(tmp_path / "biased", False, position_biased_input=True)
    ).has_decoder
    assert not load_backbone("local", path=microsoft(tmp_path / "flat", num_hidden_layers=1)).has_decoder
    for family in FAMILIES:
        backbone = load(family)
        ids, mask, types = encode(backbone)
        with torch.no_grad():
            assert torch.equal(backbone.hidden(ids, mask, types), backbone.hidden(ids, mask, types, decoder=False))


def test_tables_that_do_not_fit(tmp_path):
    folder = microsoft(tmp_path, positions=False)
    add_table(folder, torch.zeros(POSITIONS, 16))
    with pytest.raises(ConfigError, match="has width 16, the states have 32"):
        load_backbone("local", path=folder)
    add_table(folder, torch.zeros(4, 32))
    loading.forget()
    backbone = load_backbone("local", path=folder)
    ids, mask, _ = encode(backbone)
    with pytest.raises(ConfigError, match=r"knows 4 positions; lower task\.max_length"):
        backbone.hidden(ids, mask)
    assert "forward" not in vars(backbone.model.deberta.encoder.layer[-1])
