"""Pseudo-labels: how many of each class, and which rows (spec 3.6). Pure functions on scores; no model here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Pseudo(NamedTuple):
    """A row of the pool with the label that the teachers gave it."""

    row: int
    column: int
    confidence: float


def combine(scores: Sequence[np.ndarray]) -> np.ndarray:
    """Probabilities [rows, labels]: the softmax of the mean of the teachers' scores [rows, labels]."""
    mean = np.mean(np.stack(scores), axis=0)
    shifted = np.exp(mean - mean.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)


def quotas(counts: Sequence[int], scale: float, generation: int) -> list[int]:
    """New rows per class for a generation (1, 2, …): int(n·s^g) − n in all, as the labelled rows are balanced.

    Args:
        counts: labelled train rows per class of this very split, n in all.
        scale: s. Floors may make the sum fall short.
    """
    n = sum(counts)
    new = int(n * scale**generation + 1e-9) - n
    return [count * new // n for count in counts] if n else [0] * len(counts)


def draw(probabilities: np.ndarray, wanted: Sequence[int], seed: int) -> list[Pseudo]:
    """Per class, rows of which it is the likeliest, without replacement, with chances proportional to their confidence.

    A class with fewer such rows than wanted has each of them as often as needed; a class without any gives none.

    Args:
        probabilities: [rows, labels].
        wanted: rows per class.
        seed: of the draws.
    """
    rng = np.random.Generator(np.random.PCG64(seed))
    label, confidence = probabilities.argmax(axis=1), probabilities.max(axis=1)
    out: list[Pseudo] = []
    for column, quota in enumerate(wanted):
        rows = np.flatnonzero(label == column)
        if not len(rows) or quota < 1:
            continue
        rows = np.tile(rows, -(-quota // len(rows)))
        weights = confidence[rows] / confidence[rows].sum()
        chosen = rng.choice(len(rows), size=quota, replace=False, p=weights)
        out += [Pseudo(int(rows[i]), column, float(confidence[rows[i]])) for i in chosen]
    return out
