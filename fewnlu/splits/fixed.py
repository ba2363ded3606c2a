"""No selection (the toolkit's fix setting; spec 2.3): all labelled units train, there is no dev set."""

from __future__ import annotations

from collections.abc import Sequence

from fewnlu.splits.ordered import OrderedStrategy


class Strategy(OrderedStrategy):
    """K = 1, the last weights are scored. For fixed hyper-parameters, as in the paper's Table 1."""

    name = "fixed"
    has_dev = False

    def __init__(self) -> None:
        super().__init__(k=1, order="file")

    def units(self, n: int, k: int, seed: int, labels: Sequence[str] | None = None) -> tuple[list[int], list[int]]:
        return list(range(n)), []
