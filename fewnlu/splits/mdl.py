"""MDL splits (FewNLU section 3, after Perez et al. 2021; spec 2.3): train grows fold by fold."""

from __future__ import annotations

from collections.abc import Sequence

from fewnlu.errors import ConfigError
from fewnlu.splits.ordered import OrderedStrategy, folds


class Strategy(OrderedStrategy):
    """The first ⌊N/2⌋ units are the base, the others K folds; run k: train = base and folds before k, dev = fold k.

    Args:
        k: number of folds K.
        order: see `OrderedStrategy`.
    """

    name = "mdl"

    def __init__(self, *, k: int = 4, order: str = "shuffled") -> None:
        super().__init__(k=k, order=order)

    def check(self, n_units: int) -> None:
        if n_units < 2 or self.k > n_units - n_units // 2:
            raise ConfigError(
                f"split.k={self.k}: the second half of {n_units} labelled units has "
                f"{n_units - n_units // 2} for {self.k} folds, some dev set would be empty; choose at most "
                f"{n_units - n_units // 2}"
            )

    def units(self, n: int, k: int, seed: int, labels: Sequence[str] | None = None) -> tuple[list[int], list[int]]:
        order = self.ordered(n, seed)
        parts = folds(order[n // 2 :], self.k)
        return order[: n // 2] + [u for part in parts[:k] for u in part], parts[k]
