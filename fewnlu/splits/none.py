"""No split: nothing trains, nothing is selected (zero-shot)."""

from __future__ import annotations

from collections.abc import Sequence

from fewnlu.splits.strategy import SplitStrategy


class Strategy(SplitStrategy):
    """K = 1 with empty train and dev sets, whatever rows there are (none will do)."""

    name = "none"
    has_dev = False

    def __init__(self) -> None:
        super().__init__(k=1)

    def units(self, n: int, k: int, seed: int, labels: Sequence[str] | None = None) -> tuple[list[int], list[int]]:
        return [], []
