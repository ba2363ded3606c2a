"""What CV, MDL, the single split and fixed have in common: one order of the units, cut into contiguous parts.

The released toolkit cuts in file order and never shuffles (spec 2.6, quirk 1): `order=file`. The default shuffles the
units once with `seed.split`, the same order for every k.
"""

from __future__ import annotations

import random

from fewnlu.errors import ConfigError, choices
from fewnlu.splits.strategy import SplitStrategy

ORDERS = ("shuffled", "file")


class OrderedStrategy(SplitStrategy):
    """Base of the strategies that cut one order of the units.

    Args:
        k: number of splits K.
        order: ``shuffled`` (once, by `seed.split`) or ``file`` (as the rows stand).
    """

    def __init__(self, *, k: int = 1, order: str = "shuffled") -> None:
        super().__init__(k=k)
        if order not in ORDERS:
            raise ConfigError(f"split.order={order!r}: {choices(order, ORDERS)}")
        self.order = order

    def ordered(self, n: int, seed: int) -> list[int]:
        """The order of n units."""
        order = list(range(n))
        if self.order == "shuffled":
            random.Random(seed).shuffle(order)
        return order


def folds(items: list[int], k: int) -> list[list[int]]:
    """k contiguous folds whose sizes differ by at most one, larger ones first (the toolkit's rounding could leave
    folds empty; spec 2.6, quirk 2)."""
    size, extra = divmod(len(items), k)
    out, start = [], 0
    for i in range(k):
        end = start + size + (i < extra)
        out.append(items[start:end])
        start = end
    return out
