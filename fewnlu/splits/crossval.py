"""K-fold cross-validation (FewNLU section 3; spec 2.3): each fold is dev once, the others train."""

from __future__ import annotations

from collections.abc import Sequence

from fewnlu.errors import ConfigError
from fewnlu.splits.ordered import OrderedStrategy, folds


class Strategy(OrderedStrategy):
    """Run k: dev = fold k, train = the other folds, in order. Fold sizes depend on K, so K is part of the splits.

    Args:
        k: number of folds K, 2 or more.
        order: see `OrderedStrategy`.
    """

    name = "cv"

    def __init__(self, *, k: int = 4, order: str = "shuffled") -> None:
        super().__init__(k=k, order=order)
        if k < 2:
            raise ConfigError(f"split.k={k}: cross-validation needs at least 2 folds")

    def check(self, n_units: int) -> None:
        if self.k > n_units:
            raise ConfigError(
                f"split.k={self.k}: more folds than the {n_units} labelled units, some dev set would be empty; "
                f"choose 2 to {n_units}"
            )

    def units(self, n: int, k: int, seed: int, labels: Sequence[str] | None = None) -> tuple[list[int], list[int]]:
        parts = folds(self.ordered(n, seed), self.k)
        return [u for i, part in enumerate(parts) if i != k for u in part], parts[k]
