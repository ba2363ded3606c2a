"""Linearised metrics: each run's metric as a mean over rows or groups, checked against the metrics themselves."""

from __future__ import annotations

import numpy as np
import pytest

from fewnlu.protocol.influence import LINEARISED, METRICS, unit_values
from fewnlu.tasks.metrics import compute
from tests.protocol.test_intervals import benchmark

LABELS = ["a", "b", "c"]


def drawn(seed: int, n: int = 60, c: int = 3):
    rng = np.random.default_rng(seed)
    gold = rng.choice(c, size=n)
    said = np.where(rng.random((4, n)) < 0.6, gold, rng.choice(c, size=(4, n)))
    return gold, said, np.repeat(np.arange(n // 4), 4)


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("name", METRICS)
def test_the_mean_of_the_values_is_the_metric(name, grouped):
    for seed in range(5):
        gold, said, groups = drawn(seed)
        units = groups if grouped or name == "em" else None
        values = unit_values(name, gold, said, 3, positive=1, units=units)
        assert values.shape == (4, 15 if units is not None else 60)
        meta = [{"group": g} for g in groups]
        expected = [compute([name], one, gold, LABELS, meta, positive="b")[name] for one in said]
        assert values.mean(1) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", ["accuracy", *LINEARISED])
def test_values_are_the_derivative_by_a_units_weight(name):
    """A unit that is there 501 times, not 500, moves the metric by its value's distance from the mean."""
    gold, said, groups = drawn(1, n=24)
    values = unit_values(name, gold, said[:1], 3, positive=1, units=groups)[0]
    for unit in range(6):
        moved = []
        for extra in (1, -1):
            weight = np.where(groups == unit, 500 + extra, 500)
            more = [np.repeat(one, weight) for one in (gold, said[0])]
            moved.append(compute([name], more[1], more[0], LABELS, positive="b")[name])
        slope = (moved[0] - moved[1]) / (2 / 500)
        assert 6 * slope == pytest.approx(values[unit] - values.mean(), abs=2e-4)


def test_a_class_that_is_never_seen_does_not_count():
    gold, said = [0, 1, 0, 1], [[0, 1, 1, 1]]
    assert unit_values("macro_f1", gold, said, 3).mean() == pytest.approx(
        compute(["macro_f1"], said[0], gold, LABELS)["macro_f1"]
    )


def test_what_has_no_derivative_is_not_a_number():
    assert np.isnan(unit_values("mcc", [0, 1, 0], [[1, 1, 1]], 2)).all()
    with pytest.raises(ValueError, match="linearised"):
        unit_values("answer_f1", [0], [[0]], 2)
    with pytest.raises(ValueError, match="counts one class"):
        unit_values("f1a", [0], [[0]], 2)


@pytest.mark.parametrize("number", [0, 4])
def test_intervals_of_linearised_metrics_cover(number):
    coverage = benchmark("coverage")
    setting = coverage.LABELLED[number]  # 56 rows with a rare label; 60 questions of five answers
    names = ("macro_f1", "f1a", "em") if setting.size > 1 else ("macro_f1", "mcc")
    found = coverage.metrics_covered(setting, 300, np.random.default_rng(3), names, large=100)
    for name, (truth, bias, covered) in found.items():
        # three Monte Carlo errors of 1.3 points below 95 %, one more for rare labels
        assert 0.2 < truth < 0.8 and abs(bias) < 0.025 and covered > 0.9, (name, found)
