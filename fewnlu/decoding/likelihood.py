"""Ranking answers by the model's own probability of each, written as its tokenizer writes it after the prompt.

Step-by-step masked sampling can prefer another answer than the model does, because it decides on the first token before
it sees how unlikely the rest is (fault I041). Both are read off the same nodes here, so that a report can show where
they differ. By which rule answers of different length are compared is named (faults I022, I023, I042).

An answer whose path begins another's (5 and 50 of tokens 5, 0) is only given where the model ends there, so its
probability holds that of the end token, as in the tree; otherwise it would hold the longer one's, and always win.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fewnlu.decoding.backend import Backend, Forest
from fewnlu.decoding.constraint import Vocabulary
from fewnlu.decoding.decoder import Decoder, Reading, normalised
from fewnlu.decoding.tree import TreeDecoder
from fewnlu.errors import ConfigError, choices

NORMALISATIONS = ("sum", "token", "char", "byte")


class LikelihoodDecoder(Decoder):
    """Answers with the choice of the highest score; every run answers alike.

    Args:
        backend: the model.
        normalise: 'sum': log-probability of the whole answer; 'token', 'char', 'byte': that divided by the answer's
            length in tokens (an end token apart), characters (code points) or UTF-8 bytes.
        node_budget: for the sampler's probabilities, see `TreeDecoder`.
    """

    name = "likelihood"

    def __init__(self, backend: Backend, normalise: str = "sum", node_budget: int = 32) -> None:
        if normalise not in NORMALISATIONS:
            raise ConfigError(f"decode.normalise={normalise!r}: {choices(normalise, NORMALISATIONS)}")
        self.backend, self.normalise = backend, normalise
        self.tree = TreeDecoder(backend, node_budget=node_budget)

    def prepare(self, prompts: Sequence[str], choices: Sequence[Sequence[str]]) -> None:
        self.tree.prepare(prompts, choices)
        for own in dict.fromkeys(tuple(c) for c in choices):
            for text in own:
                spell(self.backend, prompts[0] if prompts else "", text)

    def lengths(self, prompts: Sequence[str]) -> list[int]:
        return self.tree.lengths(prompts)

    def read(
        self, prompts: Sequence[str], choices: Sequence[Sequence[str]], seeds: Sequence[Sequence[int]]
    ) -> list[Reading]:
        spelt = [[spell(self.backend, p, c) for c in own] for p, own in zip(prompts, choices, strict=True)]
        forest = self.tree.open(prompts)  # one reading for both
        sums = path_log_probs(forest, [closed(own, self.backend.vocabulary) for own in spelt])
        walked = self.tree.walk(forest, choices, [[] for _ in prompts])
        for reading, own, values, ids, runs in zip(walked, choices, sums, spelt, seeds, strict=True):
            reading.log_probs = values
            ranked = rank(values, own, [len(i) for i in ids], self.normalise)
            best = int(np.argmax(ranked))
            reading.draws = [best] * len(runs)
        return walked

    def log_probs(self, prompts: Sequence[str], choices: Sequence[Sequence[str]]) -> list[list[float]]:
        """Log-probability of each whole answer (not normalised by length, not renormalised over the answers)."""
        spelt = [[spell(self.backend, p, c) for c in own] for p, own in zip(prompts, choices, strict=True)]
        ends = [closed(own, self.backend.vocabulary) for own in spelt]
        return path_log_probs(self.tree.open(prompts), ends)


def rank(log_probs: Sequence[float], texts: Sequence[str], n_tokens: Sequence[int], normalise: str) -> list[float]:
    """Scores that answers are compared by: log-probabilities, divided by the length that the rule names."""
    if normalise == "sum":
        return list(log_probs)
    if normalise == "token":
        sizes = list(n_tokens)
    elif normalise == "char":
        sizes = [len(t) for t in texts]
    elif normalise == "byte":
        sizes = [len(t.encode("utf-8")) for t in texts]
    else:
        raise ConfigError(f"decode.normalise={normalise!r}: {choices(normalise, NORMALISATIONS)}")
    return [v / n for v, n in zip(log_probs, sizes, strict=True)]


def spell(backend: Backend, prompt: str, answer: str) -> list[int]:
    """The answer's ids as the tokenizer writes them after the prompt; at least one (fault I036).

    Where a token spans prompt and answer the two are not cut there: the answer is spelt apart, in as few tokens as the
    vocabulary allows, for the prompt's ids must stay those that are read.

    Raises:
        ConfigError: the vocabulary can't spell the answer.
    """
    before, whole = backend.encode(prompt), backend.encode(prompt + answer)
    wanted = answer.encode("utf-8", "surrogatepass")
    if len(whole) > len(before) and whole[: len(before)] == before:
        rest = whole[len(before) :]
        if b"".join(backend.vocabulary.texts.get(i, b"\xff") for i in rest) == wanted:
            return rest
    found = backend.vocabulary.spell(wanted)
    if not found:
        raise ConfigError(f"answer {answer!r}: {backend.vocabulary.name} has no tokens that spell it")
    return found


def closed(spelt: Sequence[Sequence[int]], vocabulary: Vocabulary) -> list[list[int]]:
    """A row's token paths [answers][ids], with the end token behind each that begins another: disjoint events.

    Raises:
        ConfigError: it would be needed, and the model has none.
    """
    begun = {tuple(ids[:n]) for ids in spelt for n in range(len(ids))}
    if vocabulary.eos is None and any(tuple(ids) in begun for ids in spelt):
        raise ConfigError(f"an answer begins another one, and {vocabulary.name} has no end token to tell them apart")
    return [[*ids, *([vocabulary.eos] if tuple(ids) in begun and vocabulary.eos is not None else [])] for ids in spelt]


def path_log_probs(forest: Forest, spelt: Sequence[Sequence[Sequence[int]]]) -> list[list[float]]:
    """Log-probability of given token paths under the unconstrained model, [rows][answers].

    Args:
        spelt: [rows][answers] token ids.
    """
    totals = [[0.0] * len(own) for own in spelt]
    live = {row for row, own in enumerate(spelt) if own}
    depth = 0
    while live:
        paths: dict[tuple[int, tuple[int, ...]], list[tuple[int, int]]] = {}
        for row in sorted(live):
            for answer, ids in enumerate(spelt[row]):
                if depth < len(ids):
                    paths.setdefault((row, tuple(ids[:depth])), []).append((answer, ids[depth]))
        tokens = np.unique([token for asked in paths.values() for _, token in asked])
        logits, norms = forest.evaluate(list(paths), tokens, whole=True)
        assert norms is not None
        for i, ((row, _), asked) in enumerate(paths.items()):
            for answer, token in asked:
                totals[row][answer] += float(logits[i, np.searchsorted(tokens, token)] - norms[i])
        depth += 1
        live = {row for row in live if any(depth < len(ids) for ids in spelt[row])}
    return totals


def shares(log_probs: Sequence[float]) -> list[float]:
    """Probabilities of the answers among themselves: they sum to 1 (fault I048)."""
    return [math.exp(v) for v in normalised(log_probs)]


__all__: list[Any] = ["NORMALISATIONS", "LikelihoodDecoder", "closed", "path_log_probs", "rank", "shares", "spell"]
