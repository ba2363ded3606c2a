"""Noisy Student: self-training whose students learn with words dropped (Xie et al. 2020; spec 3.7)."""

from __future__ import annotations

from typing import Any

from fewnlu.paradigms.self_training import Paradigm as SelfTraining


class Paradigm(SelfTraining):
    """As iPET, and from generation 1 on each word's embedding is zeroed in training with probability `word_dropout`.

    Whole words are dropped, at every update others; the released toolkit drops dimensions of all words at once.
    """

    name = "noisy_student"

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        self.word_dropout = self._number("word_dropout", 0.05, 0, 1)
