"""Comparison of answer texts, as the official ReCoRD (and SQuAD) evaluation does it (spec 4.4)."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence


def normalised_answer(text: str) -> str:
    """Lower case, without punctuation and articles, white space collapsed."""
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def exact_match(prediction: str, answers: Sequence[str]) -> float:
    """1.0 if the prediction equals one of the answers after `normalised_answer`."""
    return float(any(normalised_answer(prediction) == normalised_answer(a) for a in answers))


def token_f1(prediction: str, answers: Sequence[str]) -> float:
    """The best F1 of word overlap with any of the answers; two empty texts count 1 (no overlap can be counted)."""
    return max((_f1(normalised_answer(prediction).split(), normalised_answer(a).split()) for a in answers), default=0.0)


def _f1(prediction: list[str], answer: list[str]) -> float:
    if not prediction or not answer:
        return float(prediction == answer)
    common = sum((Counter(prediction) & Counter(answer)).values())
    return 2 * common / (len(prediction) + len(answer))
