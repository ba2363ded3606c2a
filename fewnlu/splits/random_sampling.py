"""Random sampling (FewNLU, ACL 2022, section 3; spec 2.3): train and dev are drawn independently and may overlap.

Only the ACL version has this strategy and no code was released. Read as: two draws *without* replacement from all N
units, N·r (rounded down) for train and the other count, N - N·r, for dev. With r = 0.5 and N = 64 the two share 16
units on average, which a model can have memorised: dev scores are optimistic by design, and that is what the paper
shows with it. It is here to be compared, not to be used.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from fewnlu.errors import ConfigError
from fewnlu.splits.multisplit import take
from fewnlu.splits.strategy import SplitStrategy, split_seeds


class Strategy(SplitStrategy):
    """Two independent draws by the k-th split seed; within each no unit comes twice.

    Args:
        k: number of splits K; the first K of any larger K are the same.
        ratio: r, share of the units that trains; 0 < r < 1.
    """

    name = "rand"
    nested = True

    def __init__(self, *, k: int = 4, ratio: float = 0.5) -> None:
        super().__init__(k=k)
        if isinstance(ratio, bool) or not isinstance(ratio, (int, float)) or not 0 < ratio < 1:
            raise ConfigError(f"split.ratio={ratio!r}: expected a share between 0 and 1")
        self.ratio = float(ratio)

    def check(self, n_units: int) -> None:
        train = take(n_units, self.ratio)
        if not 0 < train < n_units:
            raise ConfigError(
                f"split.ratio={self.ratio:g}: of {n_units} labelled units {train} would train and "
                f"{n_units - train} would be dev; both need at least one"
            )

    def units(self, n: int, k: int, seed: int, labels: Sequence[str] | None = None) -> tuple[list[int], list[int]]:
        rng = random.Random(split_seeds(seed, k + 1)[k])
        cut = take(n, self.ratio)
        return rng.sample(range(n), cut), rng.sample(range(n), n - cut)
