"""Bagging (FewNLU, ACL 2022, section 3; spec 2.3): train is a bootstrap draw, dev is what was never drawn.

Only the ACL version has this strategy and no code was released. The choices that its text leaves open:

- N·r is rounded down, as for Multi-Splits, and counts *draws*: with r = 0.5 and N = 64, 32 draws hold about 25.3
  distinct units. A unit drawn twice is twice in train and so has twice the weight.
- dev is all units never drawn (out of bag), so its size varies, N(1 - 1/N)^(N·r) on average: 38.7 of 64 for r = 0.5.
- A draw that leaves no unit out is drawn anew: without dev nothing can be selected. This matters for a handful of
  units only.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from fewnlu.errors import ConfigError
from fewnlu.splits.multisplit import take
from fewnlu.splits.strategy import SplitStrategy, split_seeds


class Strategy(SplitStrategy):
    """Draw N·r units with replacement by the k-th split seed.

    Args:
        k: number of splits K; the first K of any larger K are the same.
        ratio: r, draws per labelled unit; 0 < r <= 1 (1 is the classical bootstrap).
    """

    name = "bagging"
    nested = True

    def __init__(self, *, k: int = 4, ratio: float = 0.5) -> None:
        super().__init__(k=k)
        if isinstance(ratio, bool) or not isinstance(ratio, (int, float)) or not 0 < ratio <= 1:
            raise ConfigError(f"split.ratio={ratio!r}: expected draws per labelled unit, above 0 and at most 1")
        self.ratio = float(ratio)

    def check(self, n_units: int) -> None:
        if n_units < 2 or take(n_units, self.ratio) < 1:
            raise ConfigError(
                f"split.ratio={self.ratio:g}: {take(n_units, self.ratio)} draws from {n_units} labelled units; bagging "
                "needs at least one draw and two units"
            )

    def units(self, n: int, k: int, seed: int, labels: Sequence[str] | None = None) -> tuple[list[int], list[int]]:
        rng = random.Random(split_seeds(seed, k + 1)[k])
        while True:
            train = [rng.randrange(n) for _ in range(take(n, self.ratio))]
            dev = sorted(set(range(n)) - set(train))
            if dev:
                return train, dev
