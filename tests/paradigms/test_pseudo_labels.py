"""Sizes, balance and choice of pseudo-labels against the words of the specification (3.6)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewnlu.paradigms.pseudo_labels import combine, draw, quotas


def test_sizes_of_the_paper() -> None:
    """n = 32, s = 3: generation 1 trains on 32 + 64 rows, generation 2 on 32 + 256."""
    assert sum(quotas([16, 16], 3, 1)) == 64 and sum(quotas([16, 16], 3, 2)) == 256
    assert quotas([16, 16], 5, 1) == [64, 64]
    assert quotas([20, 12], 3, 1) == [40, 24]  # balance of the labelled rows
    assert quotas([10, 5, 2], 1.5, 1) == [4, 2, 0]  # int(25.5) - 17 = 8; floors may sum to less
    assert quotas([0, 0], 3, 1) == [0, 0]


@given(st.lists(st.integers(0, 40), min_size=2, max_size=4), st.floats(1.1, 6), st.integers(1, 3))
@settings(max_examples=100, deadline=None)
def test_sizes_never_exceed_the_scale(counts: list[int], scale: float, generation: int) -> None:
    n = sum(counts)
    found = quotas(counts, scale, generation)
    assert sum(found) <= n * scale**generation - n + 1e-6
    assert all(a > 0 for a, b in zip(counts, found, strict=True) if b)


def test_teachers_are_averaged_before_the_softmax() -> None:
    one, two = np.array([[2.0, 0.0], [0.0, 1.0]]), np.array([[0.0, 1.0], [0.0, 3.0]])
    want = np.exp([[1.0, 0.5], [0.0, 2.0]])
    np.testing.assert_allclose(combine([one, two]), want / want.sum(1, keepdims=True))


def test_draws_by_class_and_confidence() -> None:
    rng = np.random.default_rng(0)
    p = rng.uniform(0.5, 1.0, 200)
    probabilities = np.stack([np.where(np.arange(200) < 150, p, 1 - p), np.where(np.arange(200) < 150, 1 - p, p)], 1)
    found = draw(probabilities, [40, 20], 7)
    assert found == draw(probabilities, [40, 20], 7) != draw(probabilities, [40, 20], 8)
    assert [sum(f.column == y for f in found) for y in (0, 1)] == [40, 20]
    assert len({f.row for f in found}) == 60  # without replacement
    assert all((f.row < 150) == (f.column == 0) and f.confidence == pytest.approx(p[f.row]) for f in found)
    means = [np.mean([f.confidence for f in draw(probabilities, [40, 0], seed)]) for seed in range(100)]
    assert np.mean(means) > p[:150].mean() + 0.005  # confident rows come more often


def test_a_class_with_too_few_rows_repeats_them_and_an_empty_one_gives_none() -> None:
    probabilities = np.array([[0.9, 0.1, 0.0], [0.8, 0.2, 0.0], [0.2, 0.8, 0.0]])
    found = draw(probabilities, [5, 2, 4], 0)
    rows = sorted(f.row for f in found if f.column == 0)
    assert len(rows) == 5 and set(rows) == {0, 1} and max(rows.count(0), rows.count(1)) == 3
    assert [f.row for f in found if f.column == 1] == [2, 2]
    assert not [f for f in found if f.column == 2]
