"""Intervals, the paired test, Holm and n/a cases; coverage on simulated studies, a short version of the benchmark."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest

from fewnlu.protocol.comparison import compare, corrected, holm, mcnemar, spearman_interval
from fewnlu.protocol.intervals import (
    detectable,
    difference_interval,
    mean_squares,
    p_value,
    runs_interval,
    score_interval,
)


def benchmark(name: str):
    path = Path(__file__).resolve().parents[2] / "benchmarks" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", path)
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_mean_squares_against_a_table_worked_by_hand():
    # rows 1 2 6 / 3 8 7: grand mean 4.5, run means 3 and 6, row means 2, 5, 6.5
    ms = mean_squares([[1, 2, 6], [3, 8, 7]])
    assert float(ms.mean) == 4.5
    assert float(ms.run) == pytest.approx(3 * (1.5**2 * 2))
    assert float(ms.row) == pytest.approx(2 * (2.5**2 + 0.5**2 + 2**2) / 2)
    total = sum((x - 4.5) ** 2 for x in (1, 2, 6, 3, 8, 7))
    assert float(ms.rest) == pytest.approx((total - 13.5 - 21) / 2)
    variance, df = ms.variance()
    assert float(variance) == pytest.approx((13.5 + 10.5 - ms.rest) / 6)
    assert 1 <= float(df) <= 5


def test_mean_squares_are_unbiased_for_the_variance_of_the_mean():
    rng = np.random.default_rng(0)
    shape = (20000, 4, 30)
    d = rng.normal(size=(20000, 4, 1)) * 0.5 + rng.normal(size=(20000, 1, 30)) * 0.7 + rng.normal(size=shape)
    ms = mean_squares(d)
    true = 0.25 / 4 + 0.49 / 30 + 1 / 120
    assert float(np.mean((ms.run + ms.row - ms.rest) / 120)) == pytest.approx(true, rel=0.03)
    assert float(ms.mean.var()) == pytest.approx(true, rel=0.03)


@pytest.mark.parametrize(("split", "row", "k", "n"), [(0.3, 1.0, 4, 56), (0.6, 1.5, 4, 277), (0.6, 1.0, 8, 56)])
def test_intervals_cover_and_the_paired_test_is_honest(split, row, k, n):
    coverage = benchmark("coverage")
    found = coverage.measure(coverage.Setting(split, row, k, n), 3000, np.random.default_rng(1))
    # three Monte Carlo errors (0.4 points) around what 4,000 studies show
    assert 0.93 <= found.covered <= 0.972
    assert all(0.035 <= f <= 0.068 for f in found.false.values())


def test_the_batch_formula_of_the_benchmark_is_the_interval_itself():
    coverage = benchmark("coverage")
    rng = np.random.default_rng(2)
    tables = (rng.random((50, 4, 40)) < 0.7).astype(float)
    inside = coverage.score_covered(mean_squares(tables), 0.66, 0.95)
    assert inside.tolist() == [i.low <= 0.66 <= i.high for i in map(score_interval, tables)]
    other = (rng.random((50, 4, 40)) < 0.6).astype(float)
    separated = coverage.separated(mean_squares(tables - other), 0.95)
    assert separated.tolist() == [compare(a, b).p < 0.05 for a, b in zip(tables, other, strict=True)]


def test_standard_error_is_never_zero_for_a_score_between_zero_and_one():
    """Fault I020: 14 right of 307 has an error of 0.0119."""
    one = score_interval([[1.0] * 14 + [0.0] * 293])
    assert one.std_error == pytest.approx(0.0119, abs=5e-5) and 0 < one.low < 14 / 307 < one.high
    rng = np.random.default_rng(0)
    for _ in range(300):
        k, n = rng.integers(1, 5), rng.integers(2, 6)
        table = (rng.random((k, n)) < rng.random()).astype(float)
        found = score_interval(table)
        assert (found.std_error == 0) == (found.estimate in (0.0, 1.0)), table
        assert 0 <= found.low <= found.estimate <= found.high <= 1


def test_scores_of_zero_and_one_have_the_exact_interval():
    best = score_interval(np.ones((4, 10)))
    assert (best.low, best.high, best.std_error) == (pytest.approx(0.025 ** (1 / 10)), 1.0, 0.0)
    assert score_interval(np.zeros((4, 10))).high == pytest.approx(1 - 0.025 ** (1 / 10))


def test_runs_without_effect_say_so():
    """Fault I021: three seeds of a zero-shot run are one run, not a spread of 0."""
    row = [1.0] * 7 + [0.0] * 3
    one, three = score_interval([row]), score_interval([row] * 3)
    assert three.std_error == pytest.approx(one.std_error) and three.df == pytest.approx(9)
    assert "no effect" in three.note and three.varied != one.varied
    seeds = runs_interval([0.7, 0.8, 0.9])
    assert seeds.std_error * math.sqrt(3) == pytest.approx(0.1) and "rows are fixed" in seeds.varied
    same = runs_interval([0.7, 0.7, 0.7])
    assert not same.known and math.isnan(same.std_error) and "no visible effect" in same.note


def test_what_is_not_known_is_not_zero():
    assert math.isnan(score_interval([[1.0]]).std_error)
    assert math.isnan(difference_interval([[0.0, math.nan]]).estimate)
    assert not runs_interval([]).known and math.isnan(runs_interval([math.nan, 0.5]).estimate)
    assert not runs_interval([0.5]).known
    identical = compare(np.eye(4), np.eye(4))
    assert identical.p == 1 and not identical.difference.known and math.isnan(identical.detectable)
    shifted = compare(np.ones((2, 3)), np.zeros((2, 3)))  # always right against never right: no spread to judge by
    assert math.isnan(shifted.p) and shifted.separated is None


def test_fewer_runs_give_a_wider_interval():
    """Fault I054: a run that failed leaves the others, with the wider interval."""
    rng = np.random.default_rng(3)
    p = 1 / (1 + np.exp(-(0.8 + rng.normal(size=(10, 1)) * 0.8 + rng.normal(size=(1, 300)))))
    table = (rng.random((10, 300)) < p).astype(float)
    ten = score_interval(table)
    nine = score_interval(np.delete(table, 3, axis=0))
    three = score_interval(table[:3])
    assert (ten.n_runs, nine.n_runs) == (10, 9)
    assert three.high - three.low > ten.high - ten.low


def test_mcnemar_is_exact_and_used_for_single_runs():
    assert mcnemar(0, 0) == 1.0 and mcnemar(5, 5) == 1.0
    assert mcnemar(1, 8) == pytest.approx(2 * (1 + 9) / 2**9)
    a = [[1.0, 1, 1, 1, 1, 1, 1, 1, 0, 1]]
    b = [[0.0, 0, 0, 0, 0, 0, 0, 0, 1, 1]]
    one = compare(a, b)
    assert one.p == pytest.approx(mcnemar(8, 1)) and "8 : 1" in one.test
    assert compare(a * 2, b * 2).test == "two-way random effects"


def test_holm():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    found = holm([0.01, math.nan, 0.02])
    assert found[0] == pytest.approx(0.02) and math.isnan(found[1]) and found[2] == pytest.approx(0.02)
    assert holm([]) == [] and holm([0.9, 0.8]) == [1.0, 1.0]
    rng = np.random.default_rng(0)
    table = corrected([compare(rng.random((4, 50)), rng.random((4, 50))) for _ in range(5)])
    assert all(c.p_holm >= c.p for c in table)


def test_detectable_difference_is_detected_with_the_stated_power():
    rng = np.random.default_rng(4)
    hits, sizes = 0, []
    for _ in range(400):
        d = rng.normal(size=(4, 1)) * 0.03 + rng.normal(size=(1, 100)) * 0.2 + rng.normal(size=(4, 100)) * 0.3
        found = difference_interval(d)
        sizes.append(detectable(found))
        hits += p_value(difference_interval(d + 0.0943)) < 0.05
    # 0.0943 is the mean of `detectable` over these studies
    assert np.mean(sizes) == pytest.approx(0.0943, rel=0.15) and 0.7 < hits / 400 < 0.92


def test_spearman_interval():
    rng = np.random.default_rng(5)
    x = rng.normal(size=24)
    found = spearman_interval(x, x + 0.5 * rng.normal(size=24))
    assert found.low < found.rho < found.high and found.n_points == 24 and found.tied == 0
    assert found == spearman_interval(x, x + 0) or found.rho < 1
    again = spearman_interval(np.round(x), x)
    assert again.tied > 10 and again.low < again.rho <= again.high
    for dev, test in (([1, 1, 1], [1, 2, 3]), ([1, 2], [1, 2])):
        assert math.isnan(spearman_interval(dev, test).rho)
    assert math.isnan(spearman_interval([1, 2, 3, 4], [1, 2, 3, 4]).low)


def test_weighted_ranks_are_the_ranks_of_the_drawn_points():
    from scipy import stats

    from fewnlu.protocol.comparison import _weighted_ranks

    rng = np.random.default_rng(6)
    x = np.round(rng.normal(size=12), 0)
    weights = rng.multinomial(12, np.full(12, 1 / 12), size=20).astype(float)
    for row, ranks in zip(weights, _weighted_ranks(x, weights), strict=True):
        picked = np.repeat(np.arange(12), row.astype(int))
        assert np.allclose(stats.rankdata(x[picked]), ranks[picked])


def test_tables_of_different_shape_are_refused():
    with pytest.raises(ValueError, match="paired"):
        compare(np.ones((4, 3)), np.ones((4, 2)))
    with pytest.raises(ValueError, match="2 runs"):
        mean_squares(np.ones((1, 3)))
