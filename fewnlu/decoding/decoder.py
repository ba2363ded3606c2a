"""The waist between what is asked and how it is answered: `draw`, and `log_probs` where they can be had.

A decoder is given texts and answers as they are written, never token ids, so that a remote endpoint could be one.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from fewnlu.errors import ConfigError


@dataclass(slots=True)
class Reading:
    """What one prompt was answered.

    Attributes:
        draws: index into the prompt's choices, one per seed.
        lower, upper: certified bounds of each choice's probability under the constrained sampler; equal (to rounding)
            where it is known exactly; empty where the decoder can't tell.
        log_probs: log-probability of each choice under the unconstrained model; empty where it wasn't asked.
        nodes: how many points of the answers' tree were evaluated.
        raw: the texts as they were produced, where the decoder produces texts.
    """

    draws: list[int]
    lower: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    nodes: int = 0
    raw: list[str] = field(default_factory=list)

    @property
    def gap(self) -> float:
        """Probability that is not yet assigned to an answer: 0 where the bounds are closed; 1 where there are none."""
        return max(0.0, 1.0 - sum(self.lower)) if self.lower else 1.0

    @property
    def probs(self) -> list[float]:
        """The bounds' mid-points, normalised; empty without bounds."""
        middle = [(a + b) / 2 for a, b in zip(self.lower, self.upper, strict=True)]
        total = sum(middle)
        return [p / total for p in middle] if total > 0 else []


class Decoder:
    """Base of all decoders; a new one is a new file. `prompts` are whole texts, templates already applied."""

    name: str
    shares_reading = True  # whether all runs come from one reading of a prompt

    def prepare(self, prompts: Sequence[str], choices: Sequence[Sequence[str]]) -> None:
        """See all prompts of a job beforehand: to find what they share, and to refuse what can't be answered.

        Raises:
            ConfigError: a choice that the model can't spell, a prompt that is too long.
        """

    def lengths(self, prompts: Sequence[str]) -> list[int]:
        """Tokens per prompt (characters, where the decoder has no tokenizer), for sorting into batches."""
        return [len(p) for p in prompts]

    def read(
        self, prompts: Sequence[str], choices: Sequence[Sequence[str]], seeds: Sequence[Sequence[int]]
    ) -> list[Reading]:
        """Draws and whatever else this decoder learns from one reading of each prompt.

        Args:
            prompts: [rows].
            choices: [rows][answers], exactly as they may follow the prompt.
            seeds: [rows][runs]; equal seeds draw equally.
        """
        return [Reading(d) for d in self.draw(prompts, choices, seeds)]

    def draw(
        self, prompts: Sequence[str], choices: Sequence[Sequence[str]], seeds: Sequence[Sequence[int]]
    ) -> list[list[int]]:
        """Index of the drawn choice per prompt and seed, [rows][runs]."""
        return [r.draws for r in self.read(prompts, choices, seeds)]

    def log_probs(self, prompts: Sequence[str], choices: Sequence[Sequence[str]]) -> list[list[float]]:
        """Log-probability of each choice, [rows][answers].

        Raises:
            NotImplementedError: this decoder only draws.
        """
        raise NotImplementedError(f"decode={self.name} only draws answers; take tree or likelihood")


def check_choices(choices: Sequence[str]) -> None:
    """Raise a ConfigError unless these are at least one distinct, non-empty answers."""
    if not choices or any(not c for c in choices):
        raise ConfigError(f"choices {list(choices)!r}: expected at least one answer, none of them empty")
    if len(set(choices)) != len(choices):
        twice = next(c for c in choices if list(choices).count(c) > 1)
        raise ConfigError(f"choices: {twice!r} is there twice, so a draw of it could not be told apart")


def match(output: str, choices: Sequence[str]) -> int:
    """Which choice an output is; −1 for none (fault I024).

    The rule: white space around it does not count; case does, unless exactly one choice differs in nothing else.
    """
    trimmed = [c.strip() for c in choices]
    text = output.strip()
    if trimmed.count(text) == 1:
        return trimmed.index(text)
    folded = [i for i, c in enumerate(trimmed) if c.casefold() == text.casefold()]
    return folded[0] if len(folded) == 1 and text not in trimmed else -1


def uniform(seed: int, step: int) -> float:
    """A number in [0, 1) that depends on the seed and the step alone: no state, so no order of evaluation matters."""
    digest = hashlib.blake2b(f"{seed}/{step}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / (1 << 53)


def derive_seed(*parts: object) -> int:
    """A 63-bit seed from anything that has a text, such as (model, task, row id, run)."""
    text = "\x1f".join(str(p) for p in parts)
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big") >> 1


def normalised(log_probs: Sequence[float]) -> list[float]:
    """Log-probabilities shifted so that their exponentials sum to one; −inf stays."""
    top = max(log_probs)
    if top == -math.inf:
        raise ValueError("every choice has probability 0")
    total = top + math.log(sum(math.exp(v - top) for v in log_probs))
    return [v - total for v in log_probs]
