"""Losses of ADAPET, P-tuning and the auxiliary LM against slow references: transformers' own logits, row by row."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fewnlu.methods.adapet import Method as Adapet
from fewnlu.methods.method import Context, FewShotMethod, method_class
from fewnlu.methods.mlm import Auxiliary
from fewnlu.prompts.encoding import Encoded
from fewnlu.prompts.readers.texts import texts_of
from tests.methods.shapes import backbone, table
from tests.tiny import FAMILIES

HP = {"pattern": 0, "lr": 1e-3, "max_steps": 8, "weight_decay": 0.01, "warmup_ratio": 0.0, "mask_alpha": 0.5}
PTUNING = {**HP, "pattern": 3, "head": "mlp", "lr_emb": 1e-3}
EXACT = {"rel": 1e-6, "abs": 1e-6}
PAIRS = [(f, s) for f in ("bert", "roberta", "gpt2") for s in ("words", "choices", "span")]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def build(name: str, family: str, shape: str, double: bool = True, **more: Any) -> tuple[FewShotMethod, Any]:
    """A method in eval mode on a tiny model, and the table of its rows."""
    bb = backbone(family, double)
    templates = {"cls": "cls", "ptuning": "ptuning"}.get(name, "patterns")
    task, reader, rows = table(bb, shape, templates)
    torch.manual_seed(3)
    hp = PTUNING if name == "ptuning" else HP
    return method_class(name)(Context(bb, task, hp, {"dropout": 0.0}, reader, **more)).eval(), rows


def probabilities(method: FewShotMethod, ids: list[int], types: list[int] | None = None) -> torch.Tensor:
    """softmax over the tokenizer's words at each place of one sequence, [places, words], in float64."""
    inputs: dict[str, Any] = {"input_ids": torch.tensor([ids])}
    if types is not None and method.backbone.uses_token_type:
        inputs["token_type_ids"] = torch.tensor([types])
    with torch.no_grad():
        logits = method.backbone.model(**inputs).logits[0, :, : method.backbone.n_tokens]
    return torch.softmax(logits.double(), -1)


def bce(p: torch.Tensor, right: bool) -> float:
    return float(-torch.log(p if right else 1 - p))


@pytest.mark.parametrize(("family", "drops"), [("gpt2", 1), ("bert", 2)])
def test_cls_drops_out_once_before_each_linear_layer(family: str, drops: int) -> None:
    head = build("cls", family, "words")[0].head
    kinds = [type(m).__name__ for m in head if not isinstance(m, torch.nn.Identity)]
    assert kinds == ["Dropout", "Linear", "Tanh"] * (drops - 1) + ["Dropout", "Linear"]


@pytest.mark.parametrize(("family", "shape"), PAIRS)
def test_decoupled_label_loss_equals_a_slow_reference(family: str, shape: str) -> None:
    method, rows = build("adapet", family, shape)
    assert isinstance(method, Adapet)
    batch = rows.train_batch([0, 1, 2, 3])
    want = []
    for r, one in enumerate(rows.encoded[:4]):
        texts: list[tuple[bool, float, Encoded, list[int]]] = []  # right, weight, sequence, tokens
        gold = rows.gold[r]
        if shape == "words":
            reader = method.reader
            for token, shares in zip(reader.tokens.tolist(), reader.mean.tolist(), strict=True):
                (column,) = [y for y, share in enumerate(shares) if share]
                texts.append((column == gold, shares[column], one, [token]))
        elif shape == "choices":
            sequences = one.train or (one,)
            for t in one.targets:
                texts.append((t.column == gold, t.weight, sequences[t.sequence if one.train else 0], list(t.ids)))
        else:
            texts.append((True, 1.0, (one.train or (one,))[0], list(one.targets[1])))
        total, weights = 0.0, 0.0
        for right, weight, sequence, tokens in texts:
            p = probabilities(method, sequence.input_ids, sequence.token_type_ids)
            for i, token in enumerate(tokens):
                upto = slice(0, i + 1) if method.backbone.is_causal else slice(i, i + 1)
                if any(other != right and ids[upto] == tokens[upto] for other, _, _, ids in texts):
                    continue  # a right and a wrong answer share it
                total += weight * bce(p[sequence.read[i], token], right)
                weights += weight
        want.append(total / weights)
    got = method.label_loss(batch, texts_of(method.reader, batch))
    assert float(got.detach()) == pytest.approx(sum(want) / 4, **EXACT)


@pytest.mark.parametrize(("family", "shape"), PAIRS)
def test_label_conditioned_loss_equals_a_slow_reference(
    family: str, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, rows = build("adapet", family, shape)
    assert isinstance(method, Adapet)
    tokenizer, seen = method.backbone.tokenizer, []
    original = Adapet._conditioned

    def record(self: Adapet, batch: Any, texts: Any, chosen: int) -> Any:
        out = original(self, batch, texts, chosen)
        label = [i for i in texts.target[chosen].tolist() if i >= 0 and i != tokenizer.pad_token_id]
        seen.append((bool(texts.right[chosen]), label, *out))
        return out

    monkeypatch.setattr(Adapet, "_conditioned", record)
    batch = rows.train_batch([0, 1, 2, 3])
    for _ in range(4):
        seen.clear()
        got = method.text_loss(batch, texts_of(method.reader, batch))
        want = []
        for r, (right, label, encoded, target) in enumerate(seen):
            p = probabilities(method, encoded.input_ids, encoded.token_type_ids)
            want.append(sum(bce(p[i, t], right) for i, t in zip(encoded.read, target, strict=True)) / len(target))
            assert 1 <= len(target) <= max(1, int(0.5 * len(encoded.input_ids)) - 1)
            assert not set(target) & set(tokenizer.all_special_ids)
            whole = list(encoded.input_ids)
            if not method.backbone.is_causal:
                for i, token in zip(encoded.read, target, strict=True):
                    assert whole[i] == tokenizer.mask_token_id
                    whole[i] = token
                assert tokenizer.mask_token_id not in whole  # no mask of the template is left
            # the text of the label that was drawn, not the right one's, stands there as a whole
            assert any(whole[i : i + len(label)] == label for i in range(len(whole)))
            if shape != "span":
                gold = rows.gold[r]
                own = (
                    _is_gold(method, label, gold) if shape == "words" else label == [*rows.encoded[r].targets[gold].ids]
                )
                assert right == own
        assert float(got.detach()) == pytest.approx(sum(want) / 4, **EXACT)


def _is_gold(method: FewShotMethod, label: list[int], gold: int) -> bool:
    return bool(method.reader.mean[method.reader.tokens.tolist().index(label[0]), gold])


@pytest.mark.parametrize("shape", ["words", "choices", "span"])
@pytest.mark.parametrize("name", ["pet", "adapet", "ptuning", "cls"])
def test_i070_losses_and_gradients_do_not_depend_on_accumulation(name: str, shape: str) -> None:
    """One batch of 8, or 4 + 4, or 8 times 1: the same total, ADAPET's draws and the auxiliary rows included."""
    found = []
    for micro in (8, 4, 1):
        method, rows = build(name, "bert", shape, double=False)
        tokenizer = method.backbone.tokenizer
        method.auxiliary = Auxiliary(rows.encoded, tokenizer, False, 0.7, 0.15, seed=5)
        total = torch.zeros(())
        for start in range(0, 8, micro):
            batch = rows.train_batch(list(range(start, start + micro)))
            loss = method.loss(batch)
            loss = loss + method.auxiliary.weight * method.auxiliary.loss(method.lm, micro, "cpu")
            (loss * micro / 8).backward()
            total = total + loss.detach() * micro / 8
        found.append((float(total), torch.cat([p.grad.flatten() for p in method.parameters() if p.grad is not None])))
    for total, gradient in found[1:]:
        assert total == pytest.approx(found[0][0], rel=1e-5)
        torch.testing.assert_close(gradient, found[0][1], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_auxiliary_loss_equals_a_slow_reference(family: str) -> None:
    """A mean on every model; padding, special tokens, slots and the template's masks are never predicted (I072)."""
    method, rows = build("pet", family, "words")
    tokenizer, causal = method.backbone.tokenizer, method.backbone.is_causal
    special = set(tokenizer.all_special_ids)
    aux = Auxiliary(rows.encoded, tokenizer, causal, 1.0, 0.3, seed=1)
    again = Auxiliary(rows.encoded, tokenizer, causal, 1.0, 0.3, seed=1)
    got = float(aux.loss(method.lm, 6, "cpu").detach())
    drawn = [again.draw() for _ in range(6)]
    want = []
    originals = {e.row_id: e.input_ids for e in rows.encoded}
    for encoded, target in drawn:
        p = probabilities(method, encoded.input_ids, encoded.token_type_ids)
        want.append(sum(bce(p[i, t], True) for i, t in zip(encoded.read, target, strict=True)) / len(target))
        shift = 1 if causal else 0
        assert [originals[encoded.row_id][i + shift] for i in encoded.read] == target
        assert target and not set(target) & special
    assert len({len(e.input_ids) for e, _ in drawn}) > 1 or len(drawn) == 6  # padded together
    assert got == pytest.approx(sum(want) / 6, **EXACT)


def test_masking_is_80_10_10_and_spares_masks_and_slots() -> None:
    method, rows = build("ptuning", "bert", "words", double=False)
    tokenizer = method.backbone.tokenizer
    assert all(min(e.input_ids) == -3 for e in rows.encoded)  # three slots
    aux = Auxiliary(rows.encoded, tokenizer, False, 1.0, 0.15, seed=1)
    originals = {e.row_id: e.input_ids for e in rows.encoded}
    counts, places = {"mask": 0, "same": 0, "other": 0}, 0
    for _ in range(1500):
        encoded, target = aux.draw()
        original = originals[encoded.row_id]
        places += len(aux.free(Encoded("", original, None, [])))
        for i, (was, now) in enumerate(zip(original, encoded.input_ids, strict=True)):
            if i in encoded.read:
                assert was >= 0 and was not in tokenizer.all_special_ids
                counts["mask" if now == tokenizer.mask_token_id else "same" if now == was else "other"] += 1
            else:
                assert now == was
        assert target == [original[i] for i in encoded.read]
    n = sum(counts.values())
    assert 0.77 < counts["mask"] / n < 0.83 and 0.08 < counts["same"] / n < 0.13
    assert 0.14 < n / places < 0.22  # 0.15, and at least one a row


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("head", ["lstm", "mlp", "raw"])
def test_slots_take_the_encoders_output_and_no_word(family: str, head: str) -> None:
    bb = backbone(family, double=True)
    task, reader, rows = table(bb, "words", "ptuning")
    torch.manual_seed(3)
    method = method_class("ptuning")(Context(bb, task, {**PTUNING, "head": head}, {}, reader)).eval()
    size = bb.model.get_input_embeddings().weight.shape[1]
    slots = method.prompt().double()
    assert slots.shape == (3, size)
    batch = rows.train_batch([0, 1])
    assert (batch["input_ids"] < 0).sum() == 6
    got = method.scores(batch)
    for r in (0, 1):
        ids = torch.tensor([rows.encoded[r].input_ids])
        embeds = bb.model.get_input_embeddings()(ids.clamp(min=0)).clone()
        for i, one in enumerate(ids[0].tolist()):
            if one < 0:
                embeds[0, i] = slots[-1 - one]
        types = rows.encoded[r].token_type_ids
        more = {"token_type_ids": torch.tensor([types])} if types and bb.uses_token_type else {}
        with torch.no_grad():
            logits = bb.model(inputs_embeds=embeds, **more).logits[0, rows.encoded[r].read[0]]
        want = torch.log_softmax(logits[reader.tokens].float() @ reader.mean, -1)
        torch.testing.assert_close(got[r].detach(), want, rtol=1e-5, atol=1e-5)
    method.loss(batch).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in method.prompt.parameters() if p.ndim > 1)


def test_word_dropout_drops_whole_words_in_training_alone() -> None:
    method, rows = build("pet", "bert", "words", double=False, word_dropout=0.4)
    batch = rows.train_batch(list(range(8)))
    ids = batch["input_ids"]
    assert method.lm is method.backbone
    method.train()
    torch.manual_seed(0)
    embeds = method.backbone.embed(ids)
    got = method.edit(ids, embeds)
    dropped = (got == 0).all(-1) & batch["attention_mask"].bool()  # padding is zero anyway
    assert torch.equal(got[~dropped], embeds[~dropped])  # nothing rescaled, no dimension dropped alone
    special = torch.isin(ids, torch.tensor(method.backbone.tokenizer.all_special_ids))
    assert not (dropped & special).any() and 0.2 < float(dropped.sum() / (~special).sum()) < 0.6
    method.eval()
    assert torch.equal(method.edit(ids, embeds), embeds)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", ["pet", "cls", "adapet", "ptuning"])
def test_every_method_overfits_eight_rows(name: str, family: str) -> None:
    method, rows = build(name, family, "words", double=False)
    optimizer = torch.optim.AdamW(
        [{"params": [p for p in method.parameters() if p.requires_grad]}], lr=2e-3 if family != "albert" else 5e-3
    )
    batch, gold = rows.train_batch(list(range(8))), torch.tensor(rows.gold[:8])
    for step in range(120):
        optimizer.zero_grad()
        method.loss(batch).backward()
        optimizer.step()
        if step % 10 == 9 and bool((method.scores(batch).argmax(1) == gold).all()):
            return
    raise AssertionError(f"{name} on {family}: {(method.scores(batch).argmax(1) == gold).sum()} of 8 after 120 updates")
