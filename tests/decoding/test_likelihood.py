"""Ranking by probability: rules that are named, answers of several pieces, joints between prompt and answer."""

from __future__ import annotations

import numpy as np
import pytest

from fewnlu.decoding.build import build_decoder, check_decode
from fewnlu.decoding.constraint import Vocabulary
from fewnlu.decoding.dummy import DummyBackend
from fewnlu.decoding.likelihood import LikelihoodDecoder, closed, rank, shares, spell
from fewnlu.decoding.transformers import TransformersBackend
from fewnlu.decoding.tree import TreeDecoder
from fewnlu.errors import ConfigError
from tests.decoding.models import backbone, backend


def test_i022_i042_the_rule_decides_and_is_a_setting():
    log_probs, texts, tokens = [-1.0, -1.5], ["ja", "helemaal niet waar"], [1, 3]
    assert int(np.argmax(rank(log_probs, texts, tokens, "sum"))) == 0
    assert int(np.argmax(rank(log_probs, texts, tokens, "token"))) == 1
    log_probs, tokens = [-0.9, -2.03], [1, 4]
    assert int(np.argmax(rank(log_probs, ["A", "B"], tokens, "sum"))) == 0
    assert int(np.argmax(rank(log_probs, ["A", "B"], tokens, "token"))) == 1
    with pytest.raises(ConfigError, match=r"decode\.normalise"):
        rank([0.0], ["a"], [1], "words")
    with pytest.raises(ConfigError, match="did you mean 'token'"):
        check_decode({"name": "likelihood", "normalise": "tokens"})


def test_i023_characters_are_no_bytes():
    texts = ["financieel", "financiële"]
    assert rank([-10.0, -10.0], texts, [1, 1], "char") == [-1.0, -1.0]
    assert rank([-10.0, -11.0], texts, [1, 1], "byte") == [-1.0, -1.0]


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_i027_answers_of_several_pieces_are_scored_whole_and_in_any_order(family):
    import torch

    own, tokenizer = backbone(family), backbone(family).tokenizer
    answers = [" great", " terrible", " onwaarschijnlijk"]
    decoder = LikelihoodDecoder(backend(family))
    found = decoder.log_probs(["it was"], [answers])[0]
    assert len(spell(backend(family), "it was", answers[0])) == 1
    for answer, value in zip(answers, found, strict=True):
        before, whole = tokenizer("it was").input_ids, tokenizer("it was" + answer).input_ids
        with torch.no_grad():
            logs = torch.log_softmax(own.model(input_ids=torch.tensor([whole])).logits[0].double(), -1)
        want = sum(float(logs[i - 1, whole[i]]) for i in range(len(before), len(whole)))
        assert value == pytest.approx(want, abs=1e-3)
    turned = decoder.log_probs(["it was"], [answers[::-1]])[0]
    assert turned[::-1] == pytest.approx(found, abs=1e-5)
    assert sum(shares(found)) == pytest.approx(1)


def test_i036_an_answer_always_has_a_token():
    class Merging:
        """': C' is one piece of 'Answer: C'."""

        vocabulary = backend().vocabulary

        def encode(self, text: str) -> list[int]:
            return {"Answer:": [1, 2], "Answer: C": [1, 3]}[text]

    ids = spell(Merging(), "Answer:", " C")  # type: ignore[arg-type]
    assert ids and backbone().tokenizer.decode(ids) == " C"
    found = LikelihoodDecoder(backend()).log_probs(["it was"], [[" C", " D"]])[0]
    assert np.isfinite(found).all()


def test_i048_ranking_stores_both_readings():
    reading = LikelihoodDecoder(backend()).read(["it was"], [[" great", " bad"]], [[1, 2]])[0]
    assert reading.draws[0] == reading.draws[1] == int(np.argmax(reading.log_probs))
    assert sum(reading.probs) == pytest.approx(1)


NUMBERS = {"": {"5": 0.6, "7": 0.4}, "5": {"0": 0.7, "</s>": 0.3}, "5|0": {"0": 0.2, "</s>": 0.8}}


def numbers() -> DummyBackend:
    return DummyBackend(["5", "0", "7"], lambda prompt, path: NUMBERS.get(path, {"</s>": 1.0}))


def test_an_answer_that_begins_another_holds_its_end():
    """The model always ends where an answer does, so ranking and the tree know the same probabilities."""
    own = ["5", "50", "7", "500"]
    want = [0.6 * 0.3, 0.6 * 0.7 * 0.8, 0.4, 0.6 * 0.7 * 0.2]
    found = LikelihoodDecoder(numbers()).log_probs(["?"], [own])[0]
    assert np.exp(found) == pytest.approx(want) and sum(want) == pytest.approx(1)
    assert TreeDecoder(numbers()).log_probs(["?"], [own])[0] == pytest.approx(found)
    assert shares(found) == pytest.approx(want)
    reading = LikelihoodDecoder(numbers()).read(["?"], [own[:3]], [[0]])[0]
    assert reading.draws == [1]  # not 5, which would hold all of 50 were its end not scored
    assert np.exp(reading.log_probs) == pytest.approx([0.6 * 0.3, 0.6 * 0.7, 0.4])  # nothing follows 50 here


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_an_answer_that_begins_another_is_scored_as_by_the_tree(family):
    """Where each answer has one spelling, the tree's odds at a point are those of the whole model."""
    import torch

    answers = [" great", " greats", " bad"]
    (great, s), (bad,) = (spell(backend(family), "it was", a) for a in answers[1:])
    model = TransformersBackend(backbone(family))
    eos = model.vocabulary.eos
    model.vocabulary = Vocabulary({great: b" great", s: b"s", bad: b" bad"}, eos)
    found = LikelihoodDecoder(model).read(["it was"], [answers], [[0]])[0].log_probs
    ids = [*model.encode("it was"), great]
    with torch.no_grad():
        logs = torch.log_softmax(backbone(family).model(input_ids=torch.tensor([ids])).logits[0].double(), -1)
    first, last = logs[-2], logs[-1]
    want = [float(v) for v in (first[great] + last[eos], first[great] + last[s], first[bad])]
    assert found == pytest.approx(want, abs=1e-3)
    assert LikelihoodDecoder(model).log_probs(["it was"], [answers])[0] == pytest.approx(want, abs=1e-3)
    tree = TreeDecoder(model).log_probs(["it was"], [answers])[0]
    assert tree[0] - tree[1] == pytest.approx(found[0] - found[1], abs=1e-3)
    turned = LikelihoodDecoder(model).log_probs(["it was"], [answers[::-1]])[0]
    assert turned[::-1] == pytest.approx(found, abs=1e-5)


def test_answers_that_begin_others_need_an_end_token():
    vocabulary = Vocabulary({1: b"5", 2: b"0"}, None)
    assert closed([[1, 2], [2]], vocabulary) == [[1, 2], [2]]
    with pytest.raises(ConfigError, match="begins another one, and the model has no end token"):
        closed([[1, 2], [1]], vocabulary)


def test_spelling_does_not_look_through_the_vocabulary():
    class Watched(dict):
        def items(self):
            raise AssertionError("the whole vocabulary, for one answer")

    vocabulary = Vocabulary.of_tokenizer(backbone().tokenizer)
    vocabulary.ids = Watched(vocabulary.ids)

    model = TransformersBackend(backbone())
    model.vocabulary = vocabulary
    assert spell(model, "it was", " great") == spell(backend(), "it was", " great")
    assert all(i in vocabulary.ids[text] for i, text in vocabulary.texts.items())


def test_decoders_are_built_by_name():
    cfg = {"name": "tree", "temperature": 1.0, "node_budget": 3}
    assert build_decoder(cfg, backbone()).name == "tree"
    assert build_decoder({"name": "outlines", "temperature": 1.0}, backbone()).name == "outlines"
    for bad in ({"name": "trees"}, {**cfg, "temperature": -1}, {**cfg, "node_budget": -1}):
        with pytest.raises(ConfigError, match="decode"):
            check_decode(bad)
