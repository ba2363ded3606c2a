"""One training: when dev is looked at, which weights are kept, and that looking changes nothing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fewnlu.methods.fit import Rule, look_interval
from fewnlu.methods.method import lr_factor
from fewnlu.splits.strategy import Split
from tests.methods.toy import HP, Toy, train

NAN = math.nan


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def _reference(scores: list[float], every: int, patience: int) -> tuple[list[int], int | None]:
    """Spec 3.0, written down once more and slowly: looks made, and the look whose weights are kept."""
    looks: list[int] = []
    best: int | None = None
    for i, score in enumerate(scores):
        looks.append((i + 1) * every)
        seen = [s for s in scores[: i + 1] if not math.isnan(s)]
        if not math.isnan(score) and score == max(seen):
            best = looks[-1]
        # Looks since the last that was higher than all before it.
        waited = 0
        for j in range(i, -1, -1):
            earlier = [s for s in scores[:j] if not math.isnan(s)]
            if not math.isnan(scores[j]) and (not earlier or scores[j] > max(earlier)):
                break
            waited += 1
        if waited >= patience:
            break
    return looks, best


@given(
    st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.5, 0.75, 1.0, NAN]), max_size=20), st.integers(1, 5), st.integers(1, 7)
)
@settings(max_examples=300, deadline=None)
def test_rule_equals_a_slow_reference(scores: list[float], every: int, patience: int) -> None:
    rule = Rule(every, patience)
    script = iter(scores)
    for step in range(every * len(scores) + 1):
        if rule.due(step):
            rule.see(step, next(script))
    looks, best = _reference(scores, every, patience)
    assert [step for step, _ in rule.looks] == looks
    assert rule.best_step == best


@pytest.mark.parametrize(
    ("steps", "ratio", "every"),
    [
        (250, 0.02, 5),
        (250, 0.04, 10),
        (500, 0.02, 10),
        (500, 0.04, 20),
        (30, 0.2, 6),
        (100, 0.29, 29),
        (4, 0.1, 1),
        (7, 1.0, 7),
    ],
)
def test_look_interval(steps: int, ratio: float, every: int) -> None:
    assert look_interval(steps, ratio) == every


def test_earliest_stop_of_the_paper_is_seven_looks() -> None:
    fitted, _ = train(hs=[{**HP, "max_steps": 20, "eval_ratio": 0.1}], dev=[0.5] * 10)
    assert [s for s, _ in fitted[0].looks] == [2, 4, 6, 8, 10, 12, 14]
    assert (fitted[0].steps_done, fitted[0].chosen_step) == (14, 14)  # the later of equal looks


@pytest.mark.parametrize("micro", [4, 2, 1])
def test_i078_looks_count_optimiser_updates_under_accumulation(micro: int) -> None:
    fitted, method = train(hs=[{**HP, "max_steps": 8, "eval_ratio": 0.25}], micro=micro)
    assert [s for s, _ in fitted[0].looks] == [2, 4, 6, 8]
    assert len(method.rows) == 8 * 4 // micro


def test_i080_interval_longer_than_an_epoch() -> None:
    fitted, _ = train(
        hs=[{**HP, "max_steps": 50, "eval_ratio": 0.2}],
        split=Split(tuple(range(8)), tuple(range(16, 32))),
        dev=[0.5] * 5,
    )
    assert [s for s, _ in fitted[0].looks] == [10, 20, 30, 40, 50]


def test_i076_order_and_weights_do_not_depend_on_looks() -> None:
    done = {}
    for name, every in (("never", 1.0), ("some", 0.25), ("each", 1 / 12)):
        split = Split(tuple(range(10)), () if name == "never" else tuple(range(16, 32)))
        hp = {**HP, "max_steps": 12, "eval_ratio": every, "patience": 99}
        _, method = train(hs=[hp], split=split, dropout=0.3, dev=[0.1 * i for i in range(12)])
        done[name] = method
    for name in ("some", "each"):
        assert done[name].rows == done["never"].rows
        assert done[name].losses == done["never"].losses  # bit for bit, dropout included
        assert torch.equal(done[name].linear.weight, done["never"].linear.weight)  # rising scores: the last is best


def test_i081_best_weights_are_restored_and_tested() -> None:
    """Scripted dev scores 0.9, 0.1, 0.1: the first look's weights score dev and test."""
    looks: list[torch.Tensor] = []
    method = Toy(HP)
    script = iter([0.9, 0.1, 0.1, 0.1])

    def measure(scores: np.ndarray, rows: Any) -> float:
        looks.append(method.linear.weight.detach().clone())
        return next(script)

    fitted, _ = train(hs=[HP], dev=measure, method=method)
    one = fitted[0]
    assert one.chosen_step == 2
    assert torch.equal(method.linear.weight, looks[0]) and not torch.equal(looks[0], looks[-1])
    with torch.no_grad():
        expected = torch.log_softmax(method.linear(method.features), -1).double().numpy()
    assert one.test_scores is not None and one.dev_scores is not None
    np.testing.assert_allclose(one.test_scores, expected, atol=1e-6)
    np.testing.assert_allclose(one.dev_scores, expected[16:], atol=1e-6)


def test_i085_dev_score_is_over_all_dev_rows_not_the_last_batch() -> None:
    seen: list[int] = []

    def measure(scores: np.ndarray, rows: Any) -> float:
        seen.append(len(rows))
        assert scores.shape == (16, 2)
        return 0.5

    train(dev=measure, eval_batch=3)
    assert seen == [16] * 4


def test_i083_nan_looks_never_win() -> None:
    fitted, _ = train(dev=[NAN, 0.6, 0.7, NAN])
    assert fitted[0].chosen_step == 6
    assert [s for s, _ in fitted[0].looks] == [2, 4, 6, 8]


def test_i083_only_nan_looks_fail_and_nothing_is_tested() -> None:
    method = Toy(HP)
    with pytest.raises(FloatingPointError, match="4 looks"):
        train(dev=[NAN] * 4, method=method)
    assert all(len(rows) <= 7 and min(rows) >= 16 for rows in method.eval_rows)  # dev rows alone


def test_i093_a_loss_that_is_not_finite_fails_the_run() -> None:
    with pytest.raises(FloatingPointError, match="update 3"):
        train(poison=2)


def test_without_dev_the_last_weights_are_tested() -> None:
    fitted, method = train(split=Split(tuple(range(16)), ()))
    assert fitted[0].looks == [] and fitted[0].dev_scores is None
    assert fitted[0].chosen_step == fitted[0].steps_done == 8
    with torch.no_grad():
        expected = torch.log_softmax(method.linear(method.features), -1).double().numpy()
    np.testing.assert_allclose(fitted[0].test_scores, expected, atol=1e-6)


def test_without_dev_every_h_that_shares_a_training_gets_its_result() -> None:
    hs = [{**HP, "eval_ratio": ratio} for ratio in (0.25, 0.5, 1.0)]
    fitted, _ = train(hs=hs, split=Split(tuple(range(16)), ()))
    assert len(fitted) == 3
    for one in fitted:
        assert one.chosen_step == 8 and one.dev_scores is None
        np.testing.assert_array_equal(one.test_scores, fitted[0].test_scores)


def test_i073_no_update_scores_the_untrained_weights() -> None:
    fitted, method = train(hs=[{**HP, "max_steps": 0}])
    assert (fitted[0].steps_done, fitted[0].chosen_step, fitted[0].looks) == (0, 0, [])
    assert method.rows == [] and fitted[0].dev_scores is not None and fitted[0].test_scores is not None


def test_i063_test_rows_are_read_once_after_training() -> None:
    _, method = train(test=False)
    _, tested = train(test=True)
    assert tested.eval_rows[: len(method.eval_rows)] == method.eval_rows
    rest = [row for rows in tested.eval_rows[len(method.eval_rows) :] for row in rows]
    assert sorted(rest) == list(range(32))


def test_i070_loss_of_an_update_does_not_depend_on_accumulation() -> None:
    losses = {}
    for micro in (16, 8, 2):
        _, method = train(hs=[{**HP, "batch_size": 16, "max_steps": 6}], micro=micro)
        losses[micro] = np.asarray(method.losses).reshape(6, -1).mean(1)
    np.testing.assert_allclose(losses[8], losses[16], atol=1e-5)
    np.testing.assert_allclose(losses[2], losses[16], atol=1e-5)


def test_i040_scores_do_not_move_with_the_evaluation_batch() -> None:
    scores = [train(eval_batch=n)[0][0].test_scores for n in (1, 2, 7, 64)]
    for other in scores[1:]:
        np.testing.assert_allclose(other, scores[0], atol=1e-4)
        assert (other.argmax(1) == scores[0].argmax(1)).all()


def test_shared_trajectory_equals_separate_trainings_bit_for_bit() -> None:
    hs = [{**HP, "max_steps": 12, "eval_ratio": r, "patience": p} for r in (1 / 12, 0.25, 0.5) for p in (1, 2, 6)]
    together, _ = train(hs=hs, dropout=0.2)
    for h, one in zip(hs, together, strict=True):
        (alone,), _ = train(hs=[h], dropout=0.2)
        assert (one.looks, one.chosen_step, one.steps_done) == (alone.looks, alone.chosen_step, alone.steps_done)
        np.testing.assert_array_equal(one.dev_scores, alone.dev_scores)
        np.testing.assert_array_equal(one.test_scores, alone.test_scores)


def test_what_fails_after_an_h_has_stopped_is_not_its_failure() -> None:
    """Alone, the first h stops at update 4 and never meets the loss that is not finite at update 10."""
    hs = [{**HP, "max_steps": 12, "eval_ratio": 1 / 6, "patience": p} for p in (1, 99)]
    assert train(hs=hs[:1], dev=[0.5] * 6, poison=9)[0][0].steps_done == 4
    stopped, went_on = train(hs=hs, dev=[0.5] * 6, poison=9)[0]
    assert stopped.steps_done == 4 and isinstance(went_on, FloatingPointError)


def test_learning_rate_schedule() -> None:
    assert [lr_factor(i, 10, 0.2) for i in range(11)] == [0, 0.5, 1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8, 0]
    assert [lr_factor(i, 4, 0.0) for i in range(5)] == [1, 0.75, 0.5, 0.25, 0]
    assert lr_factor(0, 100, 0.29) == 0 and lr_factor(29, 100, 0.29) == 1  # 100 * 0.29 is 28.999…


def test_optimiser_decays_matrices_alone() -> None:
    optimizer = Toy(HP).configure_optimizers()["optimizer"]
    assert [(g["weight_decay"], [p.ndim for p in g["params"]]) for g in optimizer.param_groups] == [
        (0.01, [2]),
        (0.0, [1]),
    ]
    assert optimizer.defaults["betas"] == (0.9, 0.999) and optimizer.defaults["eps"] == 1e-8
