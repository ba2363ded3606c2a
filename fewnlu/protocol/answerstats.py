"""Closed forms and controls of answered questions: what five draws only estimate, and what needs no model."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fewnlu.decoding.decoder import Reading
from fewnlu.prompts.question import Question
from fewnlu.tasks.metrics import compute

CONTROL_DRAWS, FEW_DRAWS, MANY = 1000, 20, 5000  # of more than so many rows a few draws tell as much


def expected_accuracy(questions: Sequence[Question], readings: Sequence[Reading]) -> dict[str, float] | None:
    """Accuracy and its decoding noise in closed form, from each row's probability of the right answer.

    Returns:
        `value` (from the bounds' mid-points), certified `low` and `high`, and `sd`, the standard deviation of one run's
        accuracy over its draws: sqrt(sum p(1-p)) / n. None where a row has no bounds.
    """
    if not all(r.lower for r in readings):
        return None
    low = high = value = variance = 0.0
    for q, r in zip(questions, readings, strict=True):
        right = [i for i, label in enumerate(q.labels) if label == q.gold]
        p = sum(r.probs[i] for i in right)
        low += sum(r.lower[i] for i in right)
        high += min(1.0, sum(r.upper[i] for i in right))
        value += p
        variance += p * (1 - p)
    n = len(questions)
    value = min(max(value, low), high)  # three sums of floats
    return {"value": value / n, "low": low / n, "high": high / n, "sd": math.sqrt(max(0.0, variance)) / n}


def controls(
    questions: Sequence[Question], labels: Sequence[str], names: Sequence[str], positive: str | None, seed: int = 0
) -> dict[str, dict[str, float]]:
    """What needs no model: the most frequent gold label, and a uniform guess among each row's own answers.

    Chance is exact for accuracy, otherwise the mean of 1,000 seeded draws, or of 20 where there are more than 5,000
    rows.
    """
    import numpy as np

    gold = [labels.index(q.gold) for q in questions]
    majority = np.full(len(gold), np.bincount(gold, minlength=len(labels)).argmax())
    rng = np.random.default_rng(seed)
    own = [[labels.index(label) for label in q.labels] for q in questions]
    found = {name: 0.0 for name in names}
    n = CONTROL_DRAWS if len(gold) <= MANY else FEW_DRAWS
    for _ in range(n):
        drawn = np.array([o[int(u * len(o))] for o, u in zip(own, rng.random(len(own)), strict=True)])
        for name, value in compute(names, drawn, gold, labels, positive=positive).items():
            found[name] += value
    chance = {name: value / n for name, value in found.items()}
    if "accuracy" in chance:
        chance["accuracy"] = float(np.mean([o.count(g) / len(o) for o, g in zip(own, gold, strict=True)]))
    return {"majority": compute(names, majority, gold, labels, positive=positive), "chance": chance}
