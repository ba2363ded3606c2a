"""Stand-ins with known probabilities, for tests and for trying a protocol out: no weights, no tokenizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fewnlu.decoding.backend import Backend, Forest, Path
from fewnlu.decoding.constraint import Vocabulary
from fewnlu.decoding.decoder import Decoder, Reading, uniform

Next = Callable[[str, str], Mapping[str, float]]


class DummyDecoder(Decoder):
    """Draws answers from given probabilities.

    Args:
        probs: (prompt, choices) -> probability of each choice.
    """

    name = "dummy"

    def __init__(self, probs: Callable[[str, Sequence[str]], Sequence[float]]) -> None:
        self.probs = probs

    def read(
        self, prompts: Sequence[str], choices: Sequence[Sequence[str]], seeds: Sequence[Sequence[int]]
    ) -> list[Reading]:
        found = []
        for prompt, own, runs in zip(prompts, choices, seeds, strict=True):
            p = list(self.probs(prompt, own))
            cumulative = np.cumsum(p)
            aims = np.array([uniform(int(s), 0) for s in runs]) * cumulative[-1]
            draws = np.minimum(np.searchsorted(cumulative, aims, side="right"), len(p) - 1).tolist()
            found.append(Reading(draws, p, p, [math.log(v) if v > 0 else -math.inf for v in p], 1))
        return found

    def log_probs(self, prompts: Sequence[str], choices: Sequence[Sequence[str]]) -> list[list[float]]:
        return [r.log_probs for r in self.read(prompts, choices, [[] for _ in prompts])]


class DummyBackend(Backend):
    """A language model given as a function.

    Args:
        tokens: what the tokens write; their ids are their positions. `end` is the end token.
        following: (prompt, tokens so far joined by "|") -> probability of each next token, by its text; what is left
            out has none.
    """

    def __init__(self, tokens: Sequence[str], following: Next, end: str = "</s>") -> None:
        self.tokens, self.following = list(tokens), following
        if end not in self.tokens:
            self.tokens.append(end)
        eos = self.tokens.index(end)
        self.vocabulary = Vocabulary({i: t.encode() for i, t in enumerate(self.tokens) if i != eos}, eos, "the dummy")
        self._prompts: list[str] = []

    def encode(self, text: str) -> list[int]:
        """One id a prompt: the place where its text is kept (0 is a start token)."""
        if text not in self._prompts:
            self._prompts.append(text)
        return [0, self._prompts.index(text)]

    def open(self, prompts: Sequence[Sequence[int]], prefix: Sequence[int] = ()) -> Forest:
        return _DummyForest(self, [self._prompts[p[-1]] for p in prompts])


class _DummyForest(Forest):
    def __init__(self, backend: DummyBackend, prompts: Sequence[str]) -> None:
        self.backend, self.prompts = backend, prompts

    def evaluate(
        self, paths: Sequence[Path], tokens: np.ndarray, whole: bool = False
    ) -> tuple[np.ndarray, np.ndarray | None]:
        out = np.full((len(paths), len(tokens)), -np.inf)
        for i, (row, path) in enumerate(paths):
            p = self.backend.following(self.prompts[row], "|".join(self.backend.tokens[t] for t in path))
            for j, token in enumerate(tokens.tolist()):
                value = p.get(self.backend.tokens[token], 0.0)
                out[i, j] = math.log(value) if value > 0 else -math.inf
        return out, np.zeros(len(paths)) if whole else None
