"""Vectors of labelled units for strategies that look at the text (`SplitStrategy.needs_vectors`).

The strategies stay pure functions of (units, vectors, k, seed): who reads the rows (`protocol.setup`) hands the vectors
over. Nothing here needs a model, so a command's splits are known, counted and checked before one is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fewnlu.errors import ConfigError, DataError, choices

ENCODERS = ("tfidf",)


def unit_vectors(encoder: str, units: Sequence[str], texts: Sequence[str]) -> Any:
    """One L2-normalised float64 vector per unit, [units, D], units in the order in which they first occur.

    Args:
        encoder: ``tfidf``: scikit-learn's word weights over these texts, deterministic.
        units: unit key per row; a unit's vector is the mean over its rows.
        texts: text per row.

    Raises:
        ConfigError: an unknown encoder. DataError: texts without a word.
    """
    import numpy as np

    if encoder not in ENCODERS:
        raise ConfigError(f"split.vectors={encoder!r}: {choices(encoder, ENCODERS)}")
    from sklearn.feature_extraction.text import TfidfVectorizer

    try:
        # A token is a run of word characters of any length: the default drops "I", "7" and every CJK character.
        rows = TfidfVectorizer(token_pattern=r"(?u)\b\w+\b").fit_transform(texts).toarray()
    except ValueError as err:
        raise DataError(f"split.vectors={encoder}: the labelled rows' texts have no word to compare ({err})") from None
    order: dict[str, int] = {}
    of = np.array([order.setdefault(unit, len(order)) for unit in units])
    sums = np.zeros((len(order), rows.shape[1]))
    np.add.at(sums, of, rows)
    norms = np.linalg.norm(sums, axis=1, keepdims=True)
    return sums / np.where(norms > 0, norms, 1.0)
