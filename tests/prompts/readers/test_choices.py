"""Answers of several tokens: against slow references on tiny models, and on models whose answers are known."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch

from fewnlu.backbones.backbone import Backbone
from fewnlu.errors import ConfigError
from fewnlu.prompts.readers import Reading, reader_for
from fewnlu.tasks.task import Pattern, Row, Task
from tests.prompts.readers.stubs import Stub, batch_of
from tests.prompts.toys import byte_bpe, characters, wordpiece
from tests.tasks.samples import sample_task
from tests.tiny import tiny_model, tiny_tokenizer

FILLS = ("parallel", "left_to_right", "most_confident_first")


def task_of(words: dict[str, Any], template: str = "{text~} It was [MASK*] .") -> Task:
    pattern = Pattern(0, template, {k: (v,) if isinstance(v, str) else v for k, v in words.items()})
    return dataclasses.replace(
        sample_task("reviews"), labels=tuple(words), patterns={0: pattern}, fields={"text": "text"}, max_length=200
    )


def row(text: str, label: str | None, row_id: str = "r", **meta: Any) -> Row:
    return Row(row_id, {"text": text}, label, row_id, meta)


@pytest.fixture(scope="module")
def tiny() -> dict[str, Backbone]:
    torch.set_num_threads(1)
    out = {}
    for family, kind in (("bert", "masked"), ("roberta", "masked"), ("llama", "causal")):
        tokenizer = tiny_tokenizer(family)
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        out[family] = Backbone(tiny_model(family, tokenizer, surplus=10), tokenizer, kind)  # type: ignore[arg-type]
    return out


ANSWERS = {"no": "bad", "yes": "great movie", "so": "the acting was okay"}
ROWS = [row("the movie", "yes", "0"), row("a man is playing a guitar on the street", "no", "1"), row("it", "so", "2")]


def log_p(backbone: Backbone, ids: list[int], position: int) -> torch.Tensor:
    one = torch.tensor([ids])
    states = backbone.hidden(one, torch.ones_like(one), token_type_ids=torch.zeros_like(one))
    return torch.log_softmax(backbone.logits(states[0, position])[: backbone.n_tokens].double(), -1)


def slow(backbone: Backbone, context: list[int], masks: list[int], answer: list[int], fill: str) -> float:
    """One answer, one mask at a time, one row at a time."""
    ids, left, total = list(context), dict(zip(masks, answer, strict=True)), 0.0
    start = list(ids)
    while left:
        seen = start if fill == "parallel" else ids
        found = {place: log_p(backbone, seen, place)[token].item() for place, token in left.items()}
        best = min(left) if fill == "left_to_right" else max(found, key=lambda p: found[p])
        total += found[best]
        ids[best] = left.pop(best)
    return total


@torch.no_grad()
@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_i027_joint_scores_equal_a_slow_reference(tiny, family, fill):
    backbone, task = tiny[family], task_of(ANSWERS)
    reader = reader_for(backbone.tokenizer, "masked", task.patterns[0], task, Reading(fill=fill))
    scores = reader.scores(backbone, batch_of(reader, task, ROWS))
    for r, encoded in enumerate(reader.encode(ROWS)):
        for target in encoded.targets:
            one = encoded.evaluate[target.sequence]
            assert len(one.read) == len(target.ids) == one.input_ids.count(backbone.tokenizer.mask_token_id)
            want = slow(backbone, one.input_ids, one.read, list(target.ids), fill)
            assert scores[r, target.column].item() == pytest.approx(want, abs=1e-3)


@torch.no_grad()
def test_causal_scores_are_sums_over_the_following_tokens(tiny):
    backbone, task = tiny["llama"], task_of(ANSWERS)
    reader = reader_for(backbone.tokenizer, "causal", task.patterns[0], task, Reading())
    scores = reader.scores(backbone, batch_of(reader, task, ROWS))
    for r, encoded in enumerate(reader.encode(ROWS)):
        for target in encoded.targets:
            ids, want = list(encoded.input_ids), 0.0
            for token in target.ids:
                want += log_p(backbone, ids, len(ids) - 1)[token].item()
                ids.append(token)
            assert scores[r, target.column].item() == pytest.approx(want, abs=1e-3)
        assert not backbone.tokenizer.decode(encoded.input_ids).rstrip().endswith(".")  # text after the mask is dropped


@torch.no_grad()
@pytest.mark.parametrize("family", ["bert", "llama"])
def test_i027_i040_order_of_labels_and_batches_do_not_matter(tiny, family):
    backbone, task = tiny[family], task_of(ANSWERS)
    kind = backbone.kind
    reader = reader_for(backbone.tokenizer, kind, task.patterns[0], task, Reading())
    whole = reader.scores(backbone, batch_of(reader, task, ROWS))
    for r, one in enumerate(ROWS):
        assert torch.allclose(reader.scores(backbone, batch_of(reader, task, [one]))[0], whole[r], atol=1e-4)
    turned = task_of(dict(reversed(ANSWERS.items())))
    other = reader_for(backbone.tokenizer, kind, turned.patterns[0], turned, Reading())
    assert torch.allclose(other.scores(backbone, batch_of(other, turned, ROWS)).flip(1), whole, atol=1e-4)


@torch.no_grad()
def test_i027_a_word_of_one_piece_scores_as_at_one_mask(tiny):
    backbone = tiny["bert"]
    one, several = (
        task_of({"no": "bad", "yes": "great"}, "{text~} It was [MASK] ."),
        task_of({"no": "bad", "yes": "great"}),
    )
    scores = []
    for task in (one, several):
        reader = reader_for(backbone.tokenizer, "masked", task.patterns[0], task, Reading())
        rows = [dataclasses.replace(r, label="no") for r in ROWS]
        scores.append(torch.log_softmax(reader.scores(backbone, batch_of(reader, task, rows)), -1))
    assert torch.allclose(scores[0], scores[1], atol=1e-5)


@torch.no_grad()
def test_i035_rows_of_no_word_change_nothing(tiny):
    backbone, task = tiny["bert"], task_of(ANSWERS)
    reader = reader_for(backbone.tokenizer, "masked", task.patterns[0], task, Reading())
    before = reader.scores(backbone, batch_of(reader, task, ROWS))
    bias = dict(backbone.model.named_parameters())["cls.predictions.bias"]
    kept = bias.detach().clone()
    bias[backbone.n_tokens :] = 1e4
    after = reader.scores(backbone, batch_of(reader, task, ROWS))
    bias.copy_(kept)
    assert torch.equal(before, after)


@torch.no_grad()
@pytest.mark.parametrize(("length", "winner"), [("sum", "yes"), ("mean", "no")])
def test_i022_sum_and_mean_are_a_setting(length, winner):
    tokenizer = wordpiece()
    task = task_of({"yes": "good", "no": "was bad terrible"})
    asked = {1: [("good", -1.0)], 3: [("was", -0.5), ("bad", -0.5), ("terrible", -0.5)]}

    def words(sequence: list[int], position: int) -> dict[int, float]:
        places = [i for i, token in enumerate(sequence) if token == tokenizer.mask_token_id]
        word, value = asked[len(places)][places.index(position)]
        logit = value + math.log(len(tokenizer) - 1) - math.log(1 - math.exp(value))  # all other words share the rest
        return {tokenizer.convert_tokens_to_ids(word): logit}

    reader = reader_for(tokenizer, "masked", task.patterns[0], task, Reading(length=length, fill="parallel"))
    scores = reader.scores(Stub(tokenizer, "masked", words), batch_of(reader, task, [row("It", "yes")]))
    assert scores[0].tolist() == pytest.approx([-1.0, -1.5 if length == "sum" else -0.5], abs=1e-5)
    assert task.labels[int(scores[0].argmax())] == winner


def test_i023_the_unit_of_length_is_the_token():
    for unit in ("characters", "bytes"):
        with pytest.raises(ConfigError, match=r"reading\.length.*sum, mean"):
            Reading(length=unit)


def test_i028_labels_with_one_start_are_told_apart_further_along():
    tokenizer, task = characters(), task_of({"neu": "neutraal", "neg": "negatief"})
    reader = reader_for(tokenizer, "masked", task.patterns[0], task, Reading())
    assert [len(t.ids) for t in reader.encode([row("a", "neu")])[0].targets] == [8, 8]
    tokenizer.backend_tokenizer.normalizer = __import__("tokenizers").normalizers.Replace("good", "bad")
    same = task_of({"neg": "bad", "pos": "good"})
    with pytest.raises(ConfigError, match=r"label 'neg'.*label 'pos'"):
        reader_for(tokenizer, "masked", same.patterns[0], same, Reading())


def test_i026_the_first_piece_is_never_the_word():
    tokenizer, task = byte_bpe(), task_of({"neg": "abominable", "pos": "great"})
    reader = reader_for(tokenizer, "masked", task.patterns[0], task, Reading())
    lengths = [len(t.ids) for t in reader.encode([row("it", "pos")])[0].targets]
    assert lengths[0] > 1 and lengths[1] == 1


def hinge(cost: list[list[float]], right: list[list[int]]) -> float:
    total = 0.0
    for own, gold in zip(cost, right, strict=True):
        wrong = [c for j, c in enumerate(own) if j not in gold]
        total += sum(max(0.0, 1 + own[g] - w) for g in gold for w in wrong) / len(gold)
    return total / len(cost)


@pytest.mark.parametrize("candidates", [False, True])
def test_hinge_is_per_example_over_all_wrong_answers(tiny, candidates):
    backbone = tiny["bert"]
    task = task_of(ANSWERS)
    rows = ROWS
    if candidates:
        task = dataclasses.replace(task, labels=(), patterns={0: Pattern(0, "{text~} [MASK*] .", {})})
        texts = [("bad", "great movie"), ("yes", "no", "it was okay", "the food"), ("dog", "cake", "city of ice")]
        rights = [(1,), (0, 2), (2,)]
        rows = [
            row("the movie", c[g[0]], str(i), candidates=c, answers=tuple(c[j] for j in g), right=g)
            for i, (c, g) in enumerate(zip(texts, rights, strict=True))
        ]
    reader = reader_for(backbone.tokenizer, "masked", task.patterns[0], task, Reading())
    batch = batch_of(reader, task, rows, train=True)
    cost, right = [], []
    for one, r in zip(reader.encode(rows), rows, strict=True):
        own = [0.0] * len(one.targets)
        for t in one.targets:
            table = [log_p(backbone, one.input_ids, p)[i].item() for p, i in zip(one.read, t.ids, strict=False)]
            own[t.column] = -sum(table) / (len(table) if candidates else 1)  # texts of the row: mean, fixed words: sum
        cost.append(own)
        right.append(list(r.meta.get("right", (task.gold(r),))))
    loss = reader.loss(backbone, batch)
    assert loss.item() == pytest.approx(hinge(cost, right), rel=1e-4)
    loss.backward()
    grads = [p.grad for p in backbone.parameters() if p.grad is not None]
    assert grads and all(torch.isfinite(g).all() for g in grads)
    backbone.zero_grad()


def test_rows_with_fewer_candidates_have_minus_infinity(tiny):
    backbone = tiny["roberta"]
    task = dataclasses.replace(task_of(ANSWERS), labels=(), patterns={0: Pattern(0, "{text~} [MASK*] .", {})})
    rows = [
        row("it", "yes", "0", candidates=("yes", "no"), answers=("yes",), right=(0,)),
        row("it", "no", "1", candidates=("a man", "no", "the dog"), answers=("no",), right=(1,)),
    ]
    reader = reader_for(backbone.tokenizer, "masked", task.patterns[0], task, Reading())
    with torch.no_grad():
        scores = reader.scores(backbone, batch_of(reader, task, rows))
    assert scores.shape == (2, 3) and scores[0, 2] == -torch.inf and torch.isfinite(scores[scores > -torch.inf]).all()


def test_batch_hinge_is_the_toolkits_and_needs_two_choices(tiny):
    backbone = tiny["bert"]
    task = task_of({"no": "bad", "yes": "great movie"})
    rows = [dataclasses.replace(r, label="yes") for r in ROWS]
    reader = reader_for(backbone.tokenizer, "masked", task.patterns[0], task, Reading(hinge="batch"))
    right, wrong = [], []
    for one in reader.encode(rows):
        for t in one.targets:
            values = [log_p(backbone, one.input_ids, p)[i].item() for p, i in zip(one.read, t.ids, strict=False)]
            (right if t.column == 1 else wrong).extend(values)
    want = max(0.0, 1 - sum(right) / len(right) + sum(wrong) / len(wrong))
    assert reader.loss(backbone, batch_of(reader, task, rows, train=True)).item() == pytest.approx(want, rel=1e-4)
    three = task_of(ANSWERS)
    with pytest.raises(ConfigError, match=r"reading\.hinge=batch"):
        reader_for(backbone.tokenizer, "masked", three.patterns[0], three, Reading(hinge="batch"))


def test_later_passes_run_only_what_is_open(tiny):
    """Three answers of 1, 2 and 4 pieces: no pass holds an answer that is filled already."""
    tokenizer, task = wordpiece(), task_of({"a": "good", "b": "was bad", "c": "Yes No Maybe true"})
    reader = reader_for(tokenizer, "masked", task.patterns[0], task, Reading())
    stub = Stub(tokenizer, "masked", lambda ids, position: {})
    with torch.no_grad():
        reader.scores(stub, batch_of(reader, task, [row("It", "a", "0"), row("It was", "b", "1")]))
    assert [n for n, _ in stub.passes] == [6, 4, 2, 2]
