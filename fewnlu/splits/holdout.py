"""One split (the toolkit's dev32 setting; spec 2.3): the first N·r units train, the rest is dev."""

from __future__ import annotations

from collections.abc import Sequence

from fewnlu.errors import ConfigError
from fewnlu.splits.multisplit import take
from fewnlu.splits.ordered import OrderedStrategy


class Strategy(OrderedStrategy):
    """K = 1.

    Args:
        ratio: r, share of the units that trains; 0 < r < 1.
        order: see `OrderedStrategy`; ``file`` gives FewGLUE's own train32/dev32.
    """

    name = "single"

    def __init__(self, *, ratio: float = 0.5, order: str = "shuffled") -> None:
        super().__init__(k=1, order=order)
        if isinstance(ratio, bool) or not isinstance(ratio, (int, float)) or not 0 < ratio < 1:
            raise ConfigError(f"split.ratio={ratio!r}: expected a share between 0 and 1")
        self.ratio = float(ratio)

    def check(self, n_units: int) -> None:
        if not 0 < take(n_units, self.ratio) < n_units:
            raise ConfigError(f"split.ratio={self.ratio:g}: leaves train or dev empty with {n_units} labelled units")

    def units(self, n: int, k: int, seed: int, labels: Sequence[str] | None = None) -> tuple[list[int], list[int]]:
        order = self.ordered(n, seed)
        cut = take(n, self.ratio)
        return order[:cut], order[cut:]
