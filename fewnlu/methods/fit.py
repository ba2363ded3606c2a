"""One training and what each point of H got out of it: its chosen weights, and dev and test scored with them.

Several points of H that differ only in when dev is looked at share one training: each one's stopping rule is replayed
on the scores of a common set of looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fewnlu.methods import distributed, training
from fewnlu.methods.looks import Measure, Rule, look_interval, score_rows
from fewnlu.methods.method import FewShotMethod
from fewnlu.progress import RunBar
from fewnlu.splits.datamodule import FewShotData, Table


@dataclass
class Fitted:
    """What one h got out of a training.

    Attributes:
        looks: (optimiser update, dev score) of every look.
        chosen_step: update whose weights were scored; the last one where there is no dev set.
        steps_done: updates made until this h stopped.
        dev_scores / test_scores: log-scores [rows, labels] of the chosen weights, None where there is no such set.
        after: what a paradigm asked the trained method for.
        record / warnings: what a paradigm adds to the run's record.
    """

    looks: list[tuple[int, float]]
    chosen_step: int
    steps_done: int
    dev_scores: np.ndarray | None
    test_scores: np.ndarray | None
    after: Any = None
    record: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def fit(
    method: FewShotMethod,
    data: FewShotData,
    *,
    hs: Sequence[dict[str, Any]],
    test: Table | None,
    dev_score: Any,
    trainer_flags: dict[str, Any],
    loggers: list[Any],
    eval_batch: int,
    title: str,
    steps: int | None = None,
) -> list[Fitted | FloatingPointError]:
    """Train once and return one result per h of `hs`, which may differ in eval_ratio and patience alone.

    Args:
        method: freshly built on restored weights.
        data: connected DataModule of the split.
        hs: canonical points of H that share this training.
        test: the test table; scored once per distinct chosen step, after training, with the chosen weights.
        dev_score: (log-scores, row positions of the labelled table) -> the scalar that selects.
        trainer_flags: `trainer` section of the config.
        loggers: Lightning loggers.
        eval_batch: rows per evaluation batch.
        title: for the progress bar.
        steps: updates to make, where that is not all of the schedule's hp.max_steps.

    Returns:
        Per h what came of it; an error for an h that failed where another did not: one that had stopped before the loss
        was no longer finite is done.

    Raises:
        FloatingPointError: a loss that is not finite, or no look with a usable dev score, for all of the `hs`.
    """
    total = hs[0]["max_steps"] if steps is None else steps
    dev_rows = list(data.split.dev)
    rules = [Rule(look_interval(total, h["eval_ratio"]), h["patience"]) for h in hs] if dev_rows else []

    measure = Measure(data.labeled, dev_rows, dev_score, eval_batch)
    done = training.Trained(rules)
    if total > 0:
        train = training.train if data.devices == 1 else distributed.train
        with RunBar(title, total) as bar:
            done = train(method, data, rules, measure, bar, flags=trainer_flags, loggers=loggers, total=total)
    results: list[Fitted | FloatingPointError] = []
    test_scores: dict[int, np.ndarray] = {}
    per_h: list[Rule | None] = [*done.rules] or [None] * len(hs)  # without dev rows all h end alike
    for rule in per_h:
        step = done.steps if rule is None else rule.best_step
        if done.diverged is not None and (rule is None or not rule.stopped):
            results.append(done.diverged)
            continue
        if rule is not None and total > 0 and step is None:
            results.append(
                FloatingPointError(
                    f"no usable dev score in {len(rule.looks)} looks (all are NaN): nothing was selected, "
                    "so nothing is tested"
                )
            )
            continue
        dev_values = None
        if rule is not None and step is not None:
            method.load_snapshot(done.weights[step])
            dev_values = done.dev_scores[step]
        elif dev_rows:
            dev_values = measure.scores(method)
        step = step or 0
        if test is not None and step not in test_scores:
            test_scores[step] = score_rows(method, test, range(len(test)), eval_batch)
        results.append(
            Fitted(
                looks=list(rule.looks) if rule else [],
                chosen_step=step,
                steps_done=rule.looks[-1][0] if rule and rule.stopped else done.steps,
                dev_scores=dev_values,
                test_scores=test_scores.get(step),
            )
        )
    done.weights.clear()
    if all(isinstance(one, FloatingPointError) for one in results):
        assert isinstance(results[0], FloatingPointError)
        raise results[0]
    return results


__all__ = ["Fitted", "Measure", "Rule", "fit", "look_interval", "score_rows"]
