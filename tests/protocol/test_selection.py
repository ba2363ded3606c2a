"""h* is chosen on dev alone; ties, gaps and NaN; Spearman with average ranks."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fewnlu.protocol.selection import DevScores, mean, select, std
from fewnlu.protocol.statistics import spearman

NAN = math.nan


def rows(**table: list[float]) -> list[DevScores]:
    return [DevScores({"lr": name}, scores) for name, scores in table.items()]


def test_i063_selection_cannot_see_test_scores() -> None:
    assert {f.name for f in dataclasses.fields(DevScores)} == {"h", "scores", "places"}


def test_highest_mean_wins() -> None:
    choice = select(rows(a=[0.5, 0.7], b=[0.9, 0.5], c=[0.6, 0.6]))
    assert choice.h == {"lr": "b"}
    assert (choice.mean, choice.tied, choice.candidates, choice.left_out) == (pytest.approx(0.7), 1, 3, 0)
    assert choice.std == pytest.approx(math.sqrt(0.08))  # n - 1


def test_ties_go_to_the_smaller_std_then_to_canonical_json() -> None:
    choice = select(rows(a=[0.5, 0.9], b=[0.6, 0.8], c=[0.8, 0.6]))
    assert (choice.h, choice.tied) == ({"lr": "b"}, 3)
    table = [DevScores({"b": 1, "a": v}, [0.5, 0.5]) for v in (3, 1, 2)]
    for order in itertools.permutations(table):
        assert select(order).h == {"a": 1, "b": 1}


def test_means_equal_but_for_rounding_are_ties() -> None:
    choice = select(rows(a=[0.3, 0.1, 0.2], b=[0.1, 0.2, 0.3], c=[0.2, 0.2, 0.2 + 1e-16]))
    assert choice.tied == 3 and choice.h == {"lr": "c"}


def test_an_incomplete_h_is_not_compared() -> None:
    choice = select(rows(a=[1.0], b=[0.6, 0.6], c=[0.5, 0.5]))
    assert (choice.h, choice.candidates, choice.left_out) == ({"lr": "b"}, 2, 1)


def test_nan_is_never_chosen() -> None:
    choice = select(rows(a=[NAN, 1.0], b=[0.1, 0.2], c=[]))
    assert (choice.h, choice.candidates, choice.left_out) == ({"lr": "b"}, 1, 2)
    nothing = select(rows(a=[NAN], b=[]))
    assert nothing.h is None and math.isnan(nothing.mean) and nothing.left_out == 2


def test_std_of_one_run_is_not_zero() -> None:
    assert math.isnan(std([0.5])) and math.isnan(std([])) and math.isnan(mean([]))
    assert std([0.70, 0.80, 0.90]) == pytest.approx(0.1)


@given(st.dictionaries(st.integers(0, 9), st.lists(st.sampled_from([0.25, 0.5, 0.75, 1.0]), min_size=2, max_size=2)))
@settings(max_examples=100, deadline=None)
def test_selection_does_not_depend_on_the_order_of_rows(table: dict[int, list[float]]) -> None:
    found = [DevScores({"lr": lr}, scores) for lr, scores in table.items()]
    once = select(found)
    random.Random(0).shuffle(found)
    again = select(found)
    assert (once.h, once.tied, once.candidates) == (again.h, again.tied, again.candidates)
    if found:
        assert once.mean == max(float(np.mean(s)) for s in table.values())


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=3, max_size=30))
@settings(max_examples=100, deadline=None)
def test_spearman_is_pearson_of_average_ranks(pairs: list[tuple[int, int]]) -> None:
    x, y = [p[0] / 7 for p in pairs], [p[1] / 3 for p in pairs]
    rho = spearman(x, y)
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert math.isnan(rho)
    else:
        assert rho == pytest.approx(np.corrcoef(stats.rankdata(x), stats.rankdata(y))[0, 1], abs=1e-12)


@pytest.mark.parametrize(
    ("dev", "test"),
    [([], []), ([0.5, 0.6], [0.5, 0.6]), ([0.5] * 4, [0.1, 0.2, 0.3, 0.4]), ([0.1, 0.2, NAN], [0.1, 0.2, 0.3])],
)
def test_spearman_is_nan_where_it_is_not_defined(dev: Any, test: Any) -> None:
    assert math.isnan(spearman(dev, test)) and math.isnan(spearman(test, dev))


def test_spearman_takes_means_equal_but_for_rounding_as_ties() -> None:
    assert math.isnan(spearman([0.1 + 0.2, 0.3, 0.3], [1, 2, 3]))
    with pytest.raises(ValueError, match="3 values"):
        spearman([1, 2, 3], [1, 2])
