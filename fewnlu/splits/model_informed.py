"""Model-informed splits (FewNLU, ACL 2022, after Søgaard et al. 2021; spec 2.3): two clusters become train and dev.

The papers cluster BERT's vectors in two and leave open how K > 1 runs differ; no code was released. The choices here:

- Vectors are TF-IDF weights of the rows' text (`vectors: tfidf`). The study's own model would have to be read before
  any split is known, and its vectors would make the splits, which all methods and models share (Algorithm 1, step 1),
  depend on the model. TF-IDF makes train and dev differ in vocabulary, which is what the strategy is after.
- Run k is 2-means on L2-normalised vectors from *one* start by the k-th split seed. More starts would end in the same
  optimum for every k. Two k can still end in the same clusters: the report says how many of the K splits are distinct.
- The larger cluster trains (of equal ones, that of the first unit). For odd k the roles are swapped, if both have at
  least max(8, classes) units.
- Where 2-means leaves fewer than 2 units on a side, it starts again (at most 20 times), then the split is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fewnlu.errors import ConfigError, choices
from fewnlu.splits.strategy import SplitStrategy, split_seeds

SWAP_AT_LEAST = 8  # units on both sides for a swap of roles
STARTS = 20
SIDE_AT_LEAST = 2


class Strategy(SplitStrategy):
    """Two clusters of the units' vectors; needs `vectors` set, [units, D], before units are split.

    Args:
        k: number of splits K; the first K of any larger K are the same.
        vectors: which vectors, see `splits.vectors`.
    """

    name = "mi"
    nested = True
    needs_vectors = True

    def __init__(self, *, k: int = 4, vectors: str = "tfidf") -> None:
        from fewnlu.splits.vectors import ENCODERS

        super().__init__(k=k)
        if vectors not in ENCODERS:
            raise ConfigError(f"split.vectors={vectors!r}: {choices(vectors, ENCODERS)}")
        self.encoder = vectors

    def check(self, n_units: int) -> None:
        if n_units < 2 * SIDE_AT_LEAST:
            raise ConfigError(f"split=mi: {n_units} labelled units cannot become two clusters of {SIDE_AT_LEAST}")

    def units(self, n: int, k: int, seed: int, labels: Sequence[str] | None = None) -> tuple[list[int], list[int]]:
        if self.vectors is None or len(self.vectors) != n:
            raise ValueError(f"split=mi needs one vector per unit, set as `vectors`, for {n} units")
        sides = _clusters(self.vectors, split_seeds(seed, k + 1)[k])
        least = max(SWAP_AT_LEAST, len(set(labels)) if labels is not None else 0)
        if k % 2 and min(map(len, sides)) >= least:
            sides.reverse()
        return sides[0], sides[1]


def _clusters(vectors: Any, seed: int) -> list[list[int]]:
    """Positions of the larger and the smaller cluster."""
    import warnings

    import numpy as np
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    for start in range(STARTS):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # equal vectors: fewer clusters than two
            found = KMeans(2, n_init=1, algorithm="lloyd", random_state=seed + start * 10007).fit_predict(vectors)
        # Numbered by first unit, so that sorting by size is stable whatever sklearn calls the clusters.
        first = [np.flatnonzero(found == found[0]).tolist(), np.flatnonzero(found != found[0]).tolist()]
        if min(map(len, first)) >= SIDE_AT_LEAST:
            return sorted(first, key=len, reverse=True)
    raise ConfigError(
        f"split=mi: 2-means leaves fewer than {SIDE_AT_LEAST} of {len(vectors)} labelled units on a side; their texts "
        "are too much alike for this strategy"
    )
