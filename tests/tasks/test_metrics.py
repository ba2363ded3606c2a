import copy

import numpy as np
import pytest

from fewnlu.errors import ConfigError, DataError
from fewnlu.tasks.metrics import argmax, compute, controls, select_score
from fewnlu.tasks.task import CLASS_METRICS, task_from_config
from tests.tasks.test_task import MINIMAL, shipped

THREE = ("a", "b", "c")


def macro_f1(gold, predicted, labels=THREE):
    return compute(["macro_f1"], np.array(predicted), gold, labels)["macro_f1"]


def test_i013_macro_f1_is_of_the_whole_set():
    # There is no batch in the interface; the value is that of the whole set and not a mean of parts.
    assert macro_f1([0, 0, 1, 1, 2, 2], [0, 1, 1, 1, 2, 0]) == pytest.approx(0.6556, abs=5e-5)


def test_i014_accuracy_is_of_the_whole_set():
    assert compute(["accuracy"], np.array([0, 1, 2, 0, 1]), [0, 1, 2, 0, 0], THREE)["accuracy"] == 0.8


def test_i015_macro_f1_over_classes_seen_in_gold_or_prediction():
    assert macro_f1([0, 0, 1, 1], [0, 0, 1, 1]) == 1.0
    assert macro_f1([0, 0, 0, 1], [0, 0, 0, 0]) == pytest.approx(0.4286, abs=5e-5)


def test_i017_macro_f1_is_the_mean_of_f1():
    assert macro_f1([0, 0, 0, 1], [0, 0, 1, 1]) == pytest.approx(0.7333, abs=5e-5)


def test_i005_scores_follow_the_declared_labels():
    scores = np.array([[0.9, 0.1]] * 4)
    assert compute(["accuracy"], scores, [0] * 4, ["positive", "negative"])["accuracy"] == 1.0
    assert (argmax(scores) == 0).all()


@pytest.mark.filterwarnings("ignore:A single label")
def test_agrees_with_scikit_learn():
    from sklearn import metrics

    rng = np.random.default_rng(1)
    for n_labels in (2, 3, 5):
        labels = [str(i) for i in range(n_labels)]
        for _ in range(30):
            gold, predicted = rng.integers(0, n_labels, (2, rng.integers(1, 12)))
            found = compute(CLASS_METRICS, predicted, gold, labels, positive="1")
            assert found["accuracy"] == pytest.approx(metrics.accuracy_score(gold, predicted))
            assert found["macro_f1"] == pytest.approx(
                metrics.f1_score(gold, predicted, average="macro", zero_division=0)
            )
            one = metrics.f1_score(gold, predicted, labels=[1], average="macro", zero_division=0)
            assert found["f1_binary"] == pytest.approx(one)
            assert found["mcc"] == pytest.approx(metrics.matthews_corrcoef(gold, predicted), abs=1e-12)


@pytest.mark.parametrize("row", [[np.nan, 0.0], [np.inf, 0.0], [-np.inf, -np.inf]])
def test_i093_scores_that_are_not_finite_are_no_prediction(row):
    with pytest.raises(DataError, match="row 1"):
        compute(["accuracy"], np.array([[0.0, 1.0], row]), [0, 0], "ab")
    with pytest.raises(DataError, match="not class ids"):
        compute(["accuracy"], np.array([0.0, np.nan]), [0, 0], "ab")


def test_a_missing_candidate_is_no_nan():
    assert argmax([[-np.inf, -5.0], [1.0, 1.0]]).tolist() == [1, 0]


def test_misuse_is_refused():
    with pytest.raises(DataError, match="no rows"):
        compute(["accuracy"], np.zeros((0, 2)), [], "ab")
    with pytest.raises(DataError, match="gold label 2"):
        compute(["accuracy"], np.array([0]), [2], "ab")
    with pytest.raises(ConfigError, match=r"task.positive"):
        compute(["f1_binary"], np.array([0]), [0], "ab")
    with pytest.raises(ConfigError, match="unknown metric"):
        compute(["bleu"], np.array([0]), [0], "ab")


def test_selection_is_the_unweighted_mean_of_the_task():
    assert select_score(shipped("cb"), {"accuracy": 0.5, "macro_f1": 0.3}) == pytest.approx(0.4)
    assert np.isnan(select_score(shipped("cb"), {"accuracy": np.nan, "macro_f1": 0.3}))
    with pytest.raises(ConfigError, match="macro_f1"):
        select_score(shipped("cb"), {"accuracy": 0.5})


def test_controls():
    cfg = copy.deepcopy(MINIMAL) | {"metrics": list(CLASS_METRICS), "positive": "pos"}
    found = controls(task_from_config(cfg), [0, 0, 0, 1])
    assert found["majority"] == {
        "accuracy": 0.75,
        "macro_f1": pytest.approx(3 / 7),
        "weighted_f1": pytest.approx(9 / 14),
        "f1_binary": 0.0,
        "mcc": 0.0,
        "f1a": 0.0,
    }
    assert found["chance"]["accuracy"] == 0.5 and 0.3 < found["chance"]["macro_f1"] < 0.55
    assert abs(found["chance"]["mcc"]) < 0.1
    assert found == controls(task_from_config(cfg), [0, 0, 0, 1])


@pytest.mark.parametrize("n", [100, 80_000, 100_000, 4_000_000])
def test_mcc_of_many_rows_is_that_of_few(n):
    gold = np.arange(n) % 2
    predicted = np.where(np.arange(n) // 2 % 10 == 0, 1 - gold, gold)  # 90 % right in both classes
    found = compute(["mcc"], predicted, gold, "ab")["mcc"]
    assert found == pytest.approx(0.8, abs=1e-12)


def test_chance_is_drawn_in_parts_of_bounded_memory(monkeypatch):
    import tracemalloc

    names = [*CLASS_METRICS, "em"]
    task = task_from_config(copy.deepcopy(MINIMAL) | {"metrics": names, "positive": "pos", "group": "{id}"})
    gold = [i % 2 for i in range(5000)]
    meta = [{"group": str(i // 2)} for i in range(5000)]
    whole = controls(task, gold, meta=meta)
    monkeypatch.setattr("fewnlu.tasks.metrics._AT_ONCE", 50_000, raising=False)
    tracemalloc.start()
    parts = controls(task, gold, meta=meta)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10e6, "a thousand draws of 5,000 rows are 40 MB"
    assert parts == whole
