"""What a split strategy is: a pure function of (units, k, seed), wrapped as a factory of DataModules.

Splits are drawn once and shared by every h and every method (FewNLU, Algorithm 1, step 1). What is split are units:
rows that must stay together (spec 2.2) have one unit key.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fewnlu.errors import ConfigError
from fewnlu.plugins import find


@dataclass(frozen=True)
class Split:
    """Row indices of one (train, dev) pair; `dev` is empty where a strategy has no dev set."""

    train: tuple[int, ...]
    dev: tuple[int, ...]


class SplitStrategy:
    """Base of all strategies; a new one is a new file with a subclass named `Strategy`.

    Attributes:
        nested: the first K of K + n splits are the K splits, so that K is a view and not part of a run's identity.
        has_dev: False where all rows train and nothing is selected.
        needs_vectors: splits depend on the texts: whoever reads the rows sets `vectors`, one per unit (see
            `splits.vectors.unit_vectors`, with `encoder`), before units are split.
    """

    name: str
    nested: bool = False
    has_dev: bool = True
    needs_vectors: bool = False
    encoder: str = ""
    vectors: Any = None

    def __init__(self, *, k: int = 1) -> None:
        if not isinstance(k, int) or isinstance(k, bool) or k < 1:
            raise ConfigError(f"split.k={k!r}: expected a whole number of splits, 1 or more")
        self.k = k

    def check(self, n_units: int) -> None:
        """Raise a ConfigError where this many units cannot be split so."""

    def units(self, n: int, k: int, seed: int, labels: Sequence[str] | None = None) -> tuple[list[int], list[int]]:
        """Train and dev *unit* positions of split k (0-based) of n units; pure.

        Args:
            n: number of units.
            k: index of the split, 0 <= k < K.
            seed: `seed.split`.
            labels: one label per unit, for stratification.
        """
        raise NotImplementedError

    def split(self, units: Sequence[str], k: int, seed: int, labels: Sequence[str] | None = None) -> Split:
        """Train and dev *row* positions of split k; rows of one unit are never separated.

        Args:
            units: unit key per row, in file order.
            k: index of the split.
            seed: `seed.split`.
            labels: label per row (a unit's label is that of its first row).
        """
        order: dict[str, list[int]] = {}
        for row, unit in enumerate(units):
            order.setdefault(unit, []).append(row)
        keys = list(order)
        self.check(len(keys))
        first = [labels[order[key][0]] for key in keys] if labels is not None else None
        train, dev = self.units(len(keys), k, seed, first)
        return Split(tuple(r for u in train for r in order[keys[u]]), tuple(r for u in dev for r in order[keys[u]]))

    def splits(self, units: Sequence[str], seed: int, labels: Sequence[str] | None = None) -> list[Split]:
        """All K splits."""
        return [self.split(units, k, seed, labels) for k in range(self.k)]

    def datamodules(self, units: Sequence[str], seed: int, labels: Sequence[str] | None = None) -> list[Any]:
        """The factory: one LightningDataModule per split, to be connected to encoded rows (see `FewShotData`)."""
        from fewnlu.splits.datamodule import FewShotData

        return [FewShotData(k, split) for k, split in enumerate(self.splits(units, seed, labels))]


MOST = 10_000  # splits; each is drawn and checked before the first training


def split_seeds(seed: int, k: int) -> list[int]:
    """Seeds of the first k splits, a prefix sequence (spec 2.1: `random.Random(seed)`, `randint(0, 10000)` k times)."""
    rng = random.Random(seed)
    return [rng.randint(0, 10000) for _ in range(k)]


def build_strategy(conf: dict[str, Any]) -> SplitStrategy:
    """The strategy of a config's `split` section.

    Raises:
        ConfigError: an unknown name or option.
    """
    options = {k: v for k, v in conf.items() if k not in {"name", "run"}}
    name = str(conf.get("name"))
    if isinstance(options.get("k"), int) and options["k"] > MOST:
        raise ConfigError(f"split.k={options['k']}: expected at most {MOST} splits")
    cls = find("split", name)
    try:
        return cls(**options)
    except TypeError as err:
        raise ConfigError(f"split={name}: {err}") from None


def runs_of(conf: dict[str, Any], k: int) -> list[int]:
    """Which splits to run: all K, or those that `split.run` lists.

    Raises:
        ConfigError: an index outside 0 .. K-1.
    """
    run = conf.get("run")
    wanted = list(range(k)) if run is None else run if isinstance(run, list) else [run]
    if not wanted:
        raise ConfigError("split.run=[]: no split would be run; list some of 0 to " + f"{k - 1}, or null for all")
    for one in wanted:
        if isinstance(one, bool) or not isinstance(one, int) or not 0 <= one < k:
            raise ConfigError(
                f"split.run={run!r}: split {one!r} does not exist; with split.k={k} they are 0 to {k - 1}"
            )
    return sorted(set(wanted))
