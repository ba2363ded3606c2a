"""Multi-Splits (FewNLU section 3, "Multi-Splits"; spec 2.3): K independent random splits at ratio r."""

from __future__ import annotations

import random
from collections.abc import Sequence

from fewnlu.errors import ConfigError
from fewnlu.splits.strategy import SplitStrategy, split_seeds


class Strategy(SplitStrategy):
    """Shuffle the units with the k-th split seed; the first N·r train, the others are dev.

    r does not depend on K, dev sets of different k overlap, and the first K splits of any larger K are the same.

    Args:
        k: number of splits K.
        ratio: r, share of the units that trains; 0 < r < 1.
        stratify: keep r within every class (rounded to whole units; not in the paper). A class of two or more units is
            in train and in dev, as far as both have room for all classes.
    """

    name = "multisplit"
    nested = True

    def __init__(self, *, k: int = 4, ratio: float = 0.5, stratify: bool = False) -> None:
        super().__init__(k=k)
        if isinstance(ratio, bool) or not isinstance(ratio, (int, float)) or not 0 < ratio < 1:
            raise ConfigError(f"split.ratio={ratio!r}: expected a share between 0 and 1")
        if not isinstance(stratify, bool):
            raise ConfigError(f"split.stratify={stratify!r}: expected true or false")
        self.ratio, self.stratify = float(ratio), stratify

    def check(self, n_units: int) -> None:
        train = take(n_units, self.ratio)
        if train < 1 or train >= n_units:
            raise ConfigError(
                f"split.ratio={self.ratio:g}: of {n_units} labelled units {train} would train and "
                f"{n_units - train} would be dev; both need at least one"
            )

    def units(self, n: int, k: int, seed: int, labels: Sequence[str] | None = None) -> tuple[list[int], list[int]]:
        rng = random.Random(split_seeds(seed, k + 1)[k])
        order = list(range(n))
        rng.shuffle(order)
        if not self.stratify or labels is None:
            cut = take(n, self.ratio)
            return order[:cut], order[cut:]
        quota = quotas(labels, self.ratio)
        train: list[int] = []
        dev: list[int] = []
        for unit in order:
            side = train if quota[labels[unit]] > 0 else dev
            quota[labels[unit]] -= side is train
            side.append(unit)
        return train, dev


def take(n: int, ratio: float) -> int:
    """N·r rounded down, free of float error (the toolkit's int(100 * 0.29) is 28; spec 2.6, quirk 3)."""
    return int(n * ratio + 1e-9)


def quotas(labels: Sequence[str], ratio: float) -> dict[str, int]:
    """Units of each class that train: N·r in all, by largest remainders; at least one unit of a class on each side.

    What the classes of few units get more or less than their share is taken from the largest class. A class of one unit
    is on one side. Where train or dev has fewer units than there are classes, those furthest off their share give way.
    """
    classes = sorted(set(labels))
    sizes = {c: sum(label == c for label in labels) for c in classes}
    least = {c: min(1, sizes[c] - 1) for c in classes}
    most = {c: max(1, sizes[c] - 1) for c in classes}
    quota = {c: min(max(take(sizes[c], ratio), least[c]), most[c]) for c in classes}
    total = take(len(labels), ratio)
    for c in sorted(classes, key=lambda c: (quota[c] - sizes[c] * ratio, c)):
        quota[c] += sum(quota.values()) < total and quota[c] < most[c]
    while (off := total - sum(quota.values())) != 0:
        step = 1 if off > 0 else -1
        if free := [c for c in classes if least[c] <= quota[c] + step <= most[c]]:
            quota[max(free, key=lambda c: sizes[c])] += step
            continue
        order = classes if step > 0 else classes[::-1]  # the first name keeps or gets a unit on ties
        free = [c for c in order if 0 <= quota[c] + step <= sizes[c]]
        quota[max(free, key=lambda c: step * (sizes[c] * ratio - quota[c]))] += step
    return quota
