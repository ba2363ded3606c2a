"""Which tokens an answer may be spelt with."""

from __future__ import annotations

import time
import tracemalloc

import pytest

from fewnlu.decoding.constraint import Constraint, Vocabulary
from fewnlu.errors import ConfigError
from tests.decoding.models import backbone, metaspace


def vocabulary(*tokens: str, eos: int | None = 0) -> Vocabulary:
    return Vocabulary({i + 1: t.encode() for i, t in enumerate(tokens)}, eos)


def paths(constraint: Constraint, prefix: bytes = b"") -> set[tuple[int, ...]]:
    """All token paths that end in an answer (end tokens included)."""
    found: set[tuple[int, ...]] = set()
    step = constraint.step(prefix)
    for token, end in zip(step.tokens.tolist(), step.prefixes, strict=True):
        found |= {(token,)} if end is None else {(token, *rest) for rest in paths(constraint, end)}
    return found


def test_any_spelling_of_an_answer_and_nothing_else():
    v = vocabulary("j", "a", "ja", "jan", "n", "e", "x", "")
    assert paths(Constraint(["ja", "nee"], v)) == {(1, 2, 0), (3, 0), (5, 6, 6, 0)}


def test_an_answer_that_begins_another_may_end_or_go_on():
    v = vocabulary("j", "a", "ja", "jaha", "h", "ha")
    constraint = Constraint(["ja", "jaha"], v)
    assert {(3, 0), (1, 2, 0), (4, 0), (3, 6, 0), (3, 5, 2, 0), (1, 2, 6, 0), (1, 2, 5, 2, 0)} == paths(constraint)
    assert constraint.decided(b"ja") is None and constraint.decided(b"jah") == 1
    with pytest.raises(ConfigError, match="no end token"):
        Constraint(["ja", "jaha"], vocabulary("j", "a", "h", eos=None))


def test_dead_ends_are_never_entered_and_what_cannot_be_spelt_is_refused():
    v = vocabulary("j", "ja", "ne", "e")  # "a" is no token: after "j" nothing could follow
    assert paths(Constraint(["ja", "nee"], v)) == {(2, 0), (3, 4, 0)}
    with pytest.raises(ConfigError, match="'nu'"):
        Constraint(["ja", "nu"], v)


@pytest.mark.parametrize("choices", [[], [""], ["ja", "ja"]])
def test_bad_choices_are_refused(choices):
    with pytest.raises(ConfigError):
        Constraint(choices, vocabulary("j", "a"))


def test_i043_the_spelling_that_begins_a_word_is_allowed():
    tokenizer = metaspace()
    v = Vocabulary.of_tokenizer(tokenizer)
    own = tokenizer.convert_tokens_to_ids(["▁P", "izza", "</s>"])
    assert tuple(own) in paths(Constraint([" Pizza"], v))
    assert all(ids[0] != own[0] for ids in paths(Constraint(["Pizza"], v)))  # without the space it can't be


def test_i044_special_tokens_added_later_are_never_part_of_an_answer():
    import copy

    tokenizer = copy.deepcopy(backbone().tokenizer)
    before = len(tokenizer)
    tokenizer.add_special_tokens({"pad_token": "<|pad|>", "sep_token": "<|sep|>"})
    special = set(tokenizer.all_special_ids)
    found = paths(Constraint(["-1", "0", "1"], Vocabulary.of_tokenizer(tokenizer)))
    assert found and not {t for path in found for t in path[:-1]} & special
    assert {tokenizer.decode(path[:-1]) for path in found} == {"-1", "0", "1"}
    named = Constraint(["<|pad|>", "0"], Vocabulary.of_tokenizer(tokenizer, rows=before))
    assert max(t for path in paths(named) for t in path) < before  # its text is spelt, never its id


def test_i046_characters_of_several_byte_tokens_can_be_spelt():
    tokenizer = backbone().tokenizer
    assert len(tokenizer("é", add_special_tokens=False).input_ids) > 1
    v = Vocabulary.of_tokenizer(tokenizer)
    answers = ["één", "ja", "coördinatie"]
    constraint = Constraint(answers, v)
    for answer in answers:
        ids = v.spell(answer.encode())
        assert ids is not None and tokenizer.decode(ids) == answer
        prefix = b""
        for token in ids:
            step = constraint.step(prefix)
            prefix = step.prefixes[step.tokens.tolist().index(token)]
        assert constraint.decided(prefix) == answers.index(answer)
    sentencepiece = metaspace()
    spelt = Vocabulary.of_tokenizer(sentencepiece).spell("é".encode())
    assert spelt == sentencepiece.convert_tokens_to_ids(["<0xC3>", "<0xA9>"])


def test_a_thousand_choices_over_fifty_thousand_tokens():
    import numpy as np

    rng = np.random.default_rng(0)
    letters = [chr(97 + i) for i in range(26)] + [" "]
    tokens = set(letters)
    while len(tokens) < 50_000:
        tokens.add("".join(rng.choice(letters, rng.integers(2, 8))))
    choices = ["".join(rng.choice(letters, rng.integers(10, 40))) for _ in range(1000)]
    tracemalloc.start()
    begun = time.process_time()
    v = Vocabulary({i + 1: t.encode() for i, t in enumerate(sorted(tokens))}, 0)
    constraint = v.constraint(tuple(choices))
    assert len(constraint.step(b"").tokens) > 100
    assert time.process_time() - begun < 5
    assert tracemalloc.get_traced_memory()[1] < 500e6
    tracemalloc.stop()
    assert v.constraint(tuple(choices)) is constraint  # built once per label set
