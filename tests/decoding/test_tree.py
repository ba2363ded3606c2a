"""Draws and probabilities of the tree, against the stubs' known ones and against the Outlines library."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fewnlu.decoding.decoder import Reading, match
from fewnlu.decoding.dummy import DummyBackend, DummyDecoder
from fewnlu.decoding.likelihood import LikelihoodDecoder
from fewnlu.decoding.outlines import OutlinesDecoder, begins
from fewnlu.decoding.transformers import encode
from fewnlu.decoding.tree import TreeDecoder
from fewnlu.errors import ConfigError
from fewnlu.prompts.question import Question
from fewnlu.protocol.answerstats import expected_accuracy
from tests.decoding.models import backbone, backend

FAMILIES = ["llama", "gpt2"]
PROMPTS = ["it was", "the food is bad and the service was okay ; we will not", "does the word bank have the same"]


def frequencies(draws: list[int], n: int) -> np.ndarray:
    return np.bincount(draws, minlength=n) / len(draws)


def stub() -> DummyBackend:
    """Fault I041: 'yes' .30 in one token; 'no' spelt n .35 then o .10."""
    after = {"": {"yes": 0.30, "n": 0.35, "maybe": 0.35}, "n": {"o": 0.10, "ot": 0.90}, "yes": {"</s>": 1.0}}
    return DummyBackend(["yes", "n", "o", "ot", "maybe"], lambda prompt, path: after.get(path, {"</s>": 1.0}))


def test_i041_the_sampler_and_the_model_may_prefer_different_answers_and_both_are_known():
    choices = [["yes", "no"]]
    tree = TreeDecoder(stub()).read(["?"], choices, [range(4000)])[0]
    assert tree.probs == pytest.approx([0.30 / 0.65, 0.35 / 0.65])
    assert frequencies(tree.draws, 2) == pytest.approx([0.462, 0.538], abs=0.03)
    ranked = LikelihoodDecoder(stub()).read(["?"], choices, [[0]])[0]
    assert ranked.draws == [0]
    assert np.exp(ranked.log_probs) / np.exp(ranked.log_probs).sum() == pytest.approx([0.896, 0.104], abs=5e-4)
    assert int(np.argmax(ranked.probs)) == 1  # the report counts such rows


def test_a_path_is_left_as_soon_as_one_answer_is_left():
    asked = []

    def following(prompt: str, path: str) -> dict[str, float]:
        asked.append(path)
        return {"g": 0.25, "o": 0.75, "r": 1.0, "n": 1.0}

    reading = TreeDecoder(DummyBackend(["g", "o", "r", "n"], following)).read(["?"], [["grr", "on"]], [range(100)])[0]
    assert asked == [""] and reading.probs == pytest.approx([0.25, 0.75]) and reading.nodes == 1


def test_bounds_are_certified_at_every_budget():
    choices = ["aab", "aba", "abb", "baa", "b"]
    letters = lambda prompt, path: {"a": 0.6, "b": 0.3, "</s>": 0.1}  # noqa: E731
    exact = [math.exp(v) for v in TreeDecoder(DummyBackend(["a", "b"], letters)).log_probs(["?"], [choices])[0]]
    assert sum(exact) == pytest.approx(1)
    gaps = []
    for budget in range(1, 7):
        decoder = TreeDecoder(DummyBackend(["a", "b"], letters), node_budget=budget, tolerance=0)
        one = decoder.read(["?"], [choices], [[]])[0]
        assert all(a - 1e-12 <= p <= b + 1e-12 for a, p, b in zip(one.lower, exact, one.upper, strict=True))
        gaps.append(one.gap)
    assert gaps == sorted(gaps, reverse=True) and gaps[0] > 0.1 and gaps[-1] < 1e-9


@pytest.mark.parametrize("family", FAMILIES)
def test_i039_padding_batch_and_shared_prefix_change_nothing(family):
    choices = [["great", "good", "greatest"], ["terrible", "good", "terrace", "te"], ["a", "ab", "abc"]]
    seeds = [list(range(50)) for _ in PROMPTS]
    together = TreeDecoder(backend(family)).read(PROMPTS, choices, seeds)
    for prompt, own, runs, both in zip(PROMPTS, choices, seeds, together, strict=True):
        alone = TreeDecoder(backend(family)).read([prompt], [own], [runs])[0]
        assert alone.lower == pytest.approx(both.lower, abs=1e-4) and alone.draws == both.draws
    shared = TreeDecoder(backend(family))
    prompts = [f"the movie was great and {p}" for p in PROMPTS]
    plain = shared.read(prompts, choices, seeds)
    shared.prepare(prompts, choices)
    assert len(shared._prefix) > 3
    again = shared.read(prompts, choices, seeds)
    assert [r.draws for r in plain] == [r.draws for r in again]
    part = shared.read(prompts[1:2], choices[1:2], [seeds[1][10:20]])[0]
    assert part.draws == again[1].draws[10:20]  # a draw depends on its own seed alone


@pytest.mark.parametrize("family", FAMILIES)
def test_probabilities_are_those_of_reading_each_path_anew(family):
    """The kept cache against whole sequences read one by one."""
    import torch

    own, prompt, choices = backbone(family), PROMPTS[0], ("great", "good", "greatest")
    constraint = backend(family).vocabulary.constraint(choices)
    mass = dict.fromkeys(range(3), 0.0)

    def walk(path: list[int], prefix: bytes, p: float) -> None:
        step = constraint.step(prefix)
        ids = torch.tensor([encode(own.tokenizer, prompt) + path])
        with torch.no_grad():
            logits = own.model(input_ids=ids).logits[0, -1].double()
        shares = torch.softmax(logits[torch.from_numpy(step.tokens)], 0).tolist()
        for token, end, share in zip(step.tokens.tolist(), step.prefixes, shares, strict=True):
            if end is None:
                mass[constraint.index[prefix]] += p * share
            else:
                walk([*path, token], end, p * share)

    walk([], b"", 1.0)
    found = TreeDecoder(backend(family)).log_probs([prompt], [list(choices)])[0]
    assert np.exp(found) == pytest.approx(list(mass.values()), abs=1e-5)


def test_the_tree_draws_as_outlines_does():
    """Chi-square on 20,000 draws each; the tree's against the exact probabilities, too."""
    from scipy import stats

    choices, n = ["ja", "jo", "ne", "no"], 20_000
    tree = TreeDecoder(backend()).read(["yes"], [choices], [range(n)])[0]
    reference = OutlinesDecoder(backbone())
    drawn: list[int] = []
    for start in range(0, n, 10_000):
        rows = 10_000
        found = reference.draw(["yes"] * rows, [choices] * rows, [[start + i] for i in range(rows)])
        drawn += [d for (d,) in found]
    counts = np.array([np.bincount(tree.draws, minlength=4), np.bincount(drawn, minlength=4)])
    assert counts.min() > 100 and stats.chi2_contingency(counts).pvalue > 0.001
    assert stats.chisquare(counts[0], n * np.array(tree.probs)).pvalue > 0.001
    assert stats.chisquare(counts[1], n * np.array(tree.probs)).pvalue > 0.001


def test_i044_all_draws_are_in_the_set():
    choices = ["-1", "0", "1"]
    for decoder in (TreeDecoder(backend()), OutlinesDecoder(backbone())):
        rows = 1 if decoder.shares_reading else 200
        runs = 200 // rows
        draws = decoder.draw([PROMPTS[0]] * rows, [choices] * rows, [range(r, r + runs) for r in range(rows)])
        assert sum(len(d) for d in draws) == 200 and {d for own in draws for d in own} <= {0, 1, 2}


def test_a_kept_generator_draws_as_a_fresh_one_and_batches_are_reproducible():
    choices, seeds = [["great", "good"], ["a", "b", "c"], ["great", "good"]], [[1, 2], [3, 4], [5, 6]]
    kept = OutlinesDecoder(backbone())
    first = kept.draw(PROMPTS, choices, seeds)
    assert kept.draw(PROMPTS, choices, seeds) == first and len(kept._generators) == 2
    assert OutlinesDecoder(backbone()).draw(PROMPTS, choices, seeds) == first
    assert backbone().tokenizer.padding_side == "right"  # the backbone's own tokenizer stays as it was


def test_sampling_is_stated_whatever_the_checkpoint_says(monkeypatch):
    """A checkpoint's own generation_config (greedy, top-k) must not decide."""
    model = backbone().model
    monkeypatch.setattr(model.generation_config, "do_sample", False)
    monkeypatch.setattr(model.generation_config, "top_k", 1)
    rows = 300
    drawn = OutlinesDecoder(backbone()).draw(["yes"] * rows, [["ja", "no"]] * rows, [[i] for i in range(rows)])
    assert len({d for (d,) in drawn}) == 2


def test_outlines_gets_prompts_as_they_are_and_answers_are_escaped():
    import copy

    from fewnlu.backbones.backbone import Backbone

    tokenizer = copy.deepcopy(backbone().tokenizer)
    tokenizer.chat_template = "{% for m in messages %}USER {{ m['content'] }}{% endfor %}"
    decoder = OutlinesDecoder(Backbone(backbone().model, tokenizer, "causal"))
    _, inputs = decoder.model._prepare_model_inputs(["it was"], True)
    assert inputs["input_ids"][0].tolist() == tokenizer("it was").input_ids
    assert {match(t, ["a.c", "(b|"]) for t in decoder._generate(("a.c", "(b|"), ["it was"] * 20, list(range(20)))} <= {
        0,
        1,
    }


def test_i050_no_cache_on_disk_is_needed(monkeypatch, tmp_path):
    """Generators are kept in memory: jobs share no file, and a home that can't be written costs nothing."""
    import outlines.caching

    def broken(*args: object, **options: object) -> None:
        raise OSError("read-only file system")

    monkeypatch.setattr(outlines.caching, "get_cache", broken)
    monkeypatch.setenv("OUTLINES_CACHE_DIR", str(tmp_path / "cache"))
    assert OutlinesDecoder(backbone()).draw(["yes"], [["ja", "no"]], [[1]])[0][0] in (0, 1)
    assert not (tmp_path / "cache").exists()


def test_answers_that_begin_one_another_are_told_apart_only_by_the_tree():
    """outlines_core 0.2.14 drops some spellings of the longer one; the record warns of such rows."""
    assert begins(["great", "good", "greatest"]) and not begins(["great", "good"])


def test_i048_each_choice_has_a_probability():
    reading = TreeDecoder(backend()).read([PROMPTS[0]], [["great", "good", "bad"]], [[1]])[0]
    assert sum(reading.probs) == pytest.approx(1) and reading.gap < 1e-3
    cold = TreeDecoder(backend(), temperature=1e-3).read([PROMPTS[0]], [["great", "bad"]], [range(20)])[0]
    warm = TreeDecoder(backend()).read([PROMPTS[0]], [["great", "bad"]], [[1]])[0]
    assert set(cold.draws) == {int(np.argmax(warm.probs))}
    with pytest.raises(NotImplementedError, match="only draws"):
        OutlinesDecoder(backbone()).log_probs(["a"], [["b"]])


def test_the_closed_form_matches_ten_thousand_runs_of_the_dummy():
    rng = np.random.default_rng(1)
    table = {f"row {i}": rng.dirichlet([1, 1, 1]) for i in range(40)}
    decoder = DummyDecoder(lambda prompt, choices: table[prompt])
    prompts, runs = list(table), 10_000
    readings = decoder.read(prompts, [["A", "B", "C"]] * 40, [[i * runs + r for r in range(runs)] for i in range(40)])
    gold = rng.integers(0, 3, 40)
    questions = [
        Question(p, p, ("A", "B", "C"), ("A", "B", "C"), "ABC"[g], "") for p, g in zip(prompts, gold, strict=True)
    ]
    accuracy = (np.array([r.draws for r in readings]) == gold[:, None]).mean(0)
    found = expected_accuracy(questions, readings)
    assert found is not None
    assert found["value"] == pytest.approx(accuracy.mean(), abs=4 * found["sd"] / math.sqrt(runs))
    assert found["sd"] == pytest.approx(accuracy.std(ddof=1), rel=0.03)
    assert found["low"] == pytest.approx(found["high"]) == pytest.approx(found["value"])


def test_i024_white_space_does_not_count_and_case_by_a_rule():
    choices = ["ja", "nee"]
    assert [match(t, choices) for t in ("ja", "ja ", " ja\n", "Ja", "jaa", "")] == [0, 0, 0, 0, -1, -1]
    assert match("JA", ["ja", "Ja"]) == -1 and match("Ja", ["ja", "Ja"]) == 1


def test_wrong_settings_are_refused():
    with pytest.raises(ConfigError, match="temperature"):
        TreeDecoder(stub(), temperature=0)
    tight = TreeDecoder(backend())
    with pytest.raises(ConfigError, match="tokens"):
        tight.prepare(["yes " * 300], [["a"]])
    assert Reading([0]).gap == 1.0 and Reading([0]).probs == []


def test_prompts_are_read_in_groups_with_little_padding():
    from fewnlu.decoding.transformers import groups

    lengths = [300, 100, 290, 40, 110, 10, 12, 280]
    found = groups(lengths, 64, 1 / 8)
    assert sorted(i for group in found for i in group) == list(range(8))
    assert [sorted(group) for group in found] == [[0, 2, 7], [1, 4], [3, 6], [5]]
    assert groups(lengths, 10**6, 1 / 8) == [sorted(range(8), key=lambda i: -lengths[i])]
    assert groups([5], 64, 1 / 8) == [[0]]
    assert [sorted(group) for group in groups(lengths, 64, 1 / 32)] == [[0, 2], [7], [4], [1], [3, 6], [5]]
