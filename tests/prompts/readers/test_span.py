"""A free span: masks, targets, what is written, and the rule that compares it."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from fewnlu.backbones.backbone import Backbone
from fewnlu.errors import ConfigError
from fewnlu.prompts.preview import toy_tokenizer
from fewnlu.prompts.readers import Reading, reader_for
from fewnlu.prompts.readers.span import same_span
from tests.prompts.readers.stubs import Stub, batch_of
from tests.tasks.samples import sample
from tests.tiny import tiny_model, tiny_tokenizer


@pytest.mark.parametrize(
    ("prediction", "candidate", "same"),
    [
        ("Tina", "tina", True),
        ("the tree", "Tree", True),  # every word of the candidate is predicted
        ("tree", "the old tree", True),  # every predicted word is in the candidate
        ("Tina Ana", "Ana Maria", False),
        ("", "Ana", False),
        (" . 3", "Ana", False),
        ("Lev Kamen", '"Lev Kamen",', True),
    ],
)
def test_words_decide_whatever_case_and_punctuation(prediction, candidate, same):
    assert same_span(prediction, candidate) is same


def test_an_empty_answer_counts_as_right_in_the_toolkit_alone():
    assert same_span("", "Ana", empty=True) and not same_span("", "Ana")


@pytest.fixture
def wsc(tmp_path):
    task, rows = sample(tmp_path, "wsc")
    return task, rows, toy_tokenizer(task, rows)


def test_masks_are_those_of_the_longest_labelled_span_for_every_row(wsc):
    task, rows, tokenizer = wsc
    reader = reader_for(tokenizer, "masked", task.patterns[0], task, Reading(), rows)
    encoded = reader.encode(rows)
    assert [len(e.read) for e in encoded] == [2, 2] and not encoded[0].evaluate  # nothing tells the candidate's length
    assert list(encoded[0].targets[1]) == [tokenizer.convert_tokens_to_ids("Ana"), tokenizer.pad_token_id]
    long = dataclasses.replace(rows[0], fields={**rows[0].fields, "candidate": "the map of the old map"})
    assert len(reader.encode([long])[0].read) == 2
    with pytest.raises(ConfigError, match="no labelled rows"):
        reader_for(tokenizer, "masked", task.patterns[0], task, Reading(), [])


def test_masks_of_the_paper_follow_the_candidate(wsc):
    task, rows, tokenizer = wsc
    reader = reader_for(tokenizer, "masked", task.patterns[0], task, Reading(masks="paper"), rows)
    many = [dataclasses.replace(rows[0], id=str(i)) for i in range(60)]
    encoded = reader.encode(many)
    assert {len(e.read) for e in encoded} == {1, 2, 3, 4}
    assert {len((e.evaluate or (e,))[0].read) for e in encoded} == {2}
    assert encoded == reader.encode(many)


def test_only_rows_of_the_positive_class_are_trained_on(wsc):
    task, rows, tokenizer = wsc
    reader = reader_for(tokenizer, "masked", task.patterns[0], task, Reading(), rows)
    assert [reader.trains_on(task.gold(r)) for r in rows] == [True, False]
    assert reader.notes([1, 0, 0]) == ["a cloze trains on rows of class True only: 1 of 3 train rows"]
    assert reader.notes([1, 1]) == []


@pytest.mark.parametrize("kind", ["masked", "causal"])
def test_trailing_pads_are_dropped(wsc, kind):
    task, rows, tokenizer = wsc
    reader = reader_for(tokenizer, kind, task.patterns[0], task, Reading(), rows)
    ana = tokenizer.convert_tokens_to_ids("Ana")
    first = [e.read[0] for e in reader.encode(rows)]

    def words(ids: list[int], position: int) -> dict[int, float]:
        return {ana if position == first[0] else tokenizer.pad_token_id: 9.0}

    written = reader.write(Stub(tokenizer, kind, words), batch_of(reader, task, rows))
    assert written == ["Ana", "Ana"]
    scores = reader.scores(Stub(tokenizer, kind, words), batch_of(reader, task, rows))
    assert scores.argmax(1).tolist() == [1, 0]


@pytest.mark.parametrize(("family", "kind"), [("bert", "masked"), ("llama", "causal")])
def test_loss_is_cross_entropy_of_the_span_and_its_end(wsc, family, kind):
    task, rows, _ = wsc
    torch.set_num_threads(1)
    tokenizer = tiny_tokenizer(family)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    backbone = Backbone(tiny_model(family, tokenizer), tokenizer, kind)
    reader = reader_for(tokenizer, kind, task.patterns[1], task, Reading(), rows)
    total = 0.0
    for one in reader.encode(rows):
        sequence = one.train[0] if one.train else one
        ids = torch.tensor([sequence.input_ids])
        states = backbone.hidden(ids, torch.ones_like(ids), token_type_ids=torch.zeros_like(ids))
        table = torch.log_softmax(backbone.logits(states[0, sequence.read])[:, : len(tokenizer)], -1)
        target = torch.tensor(one.targets[1])
        assert target[-1] == tokenizer.pad_token_id or len(target) == reader.longest
        total -= table[torch.arange(len(target)), target].mean().item()
    loss = reader.loss(backbone, batch_of(reader, task, rows, train=True))
    assert loss.item() == pytest.approx(total / len(rows), rel=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("fill", ["left_to_right", "most_confident_first"])
def test_rows_written_together_or_apart_are_the_same(wsc, fill):
    task, rows, _ = wsc
    tokenizer = tiny_tokenizer("bert")
    backbone = Backbone(tiny_model("bert", tokenizer), tokenizer, "masked")
    reader = reader_for(tokenizer, "masked", task.patterns[2], task, Reading(fill=fill), rows)
    both = reader.write(backbone, batch_of(reader, task, rows))
    assert both == [reader.write(backbone, batch_of(reader, task, [r]))[0] for r in rows]
