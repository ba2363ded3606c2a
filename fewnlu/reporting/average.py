"""The paper's "Avg." over seven SuperGLUE tasks (FewNLU, Tables 3 and 5; spec 1.3)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fewnlu.protocol.records import canonical
from fewnlu.reporting.studies import Summary

# Task -> the metrics whose mean is its score. ReCoRD is no part of the paper's average.
TASKS: dict[str, tuple[str, ...]] = {
    "boolq": ("accuracy",),
    "rte": ("accuracy",),
    "wic": ("accuracy",),
    "cb": ("accuracy", "macro_f1"),
    "multirc": ("f1a", "em"),
    "wsc": ("accuracy",),
    "copa": ("accuracy",),
}
# Parts of a study's config that go with its task: "reading" is only there where a task has several masks.
OF_A_TASK = ("task", "reading", "pool")


def paper_average(scores: Mapping[str, Mapping[str, float]], *, first_metric: bool = False) -> float | None:
    """Mean over the seven tasks, CB being (accuracy + macro-F1) / 2 and MultiRC (F1a + EM) / 2.

    Args:
        scores: task -> metric -> score, in any unit; other tasks and metrics are not looked at.
        first_metric: CB and MultiRC count with accuracy and F1a alone, as in the paper's rows "best combined" and
            "RoBERTa-large, fully supervised".

    Returns:
        None unless every task has its metrics; NaN where one of them is NaN.
    """
    parts = []
    for task, metrics in TASKS.items():
        wanted = metrics[:1] if first_metric else metrics
        if task not in scores or any(name not in scores[task] for name in wanted):
            return None
        parts.append(math.fsum(scores[task][name] for name in wanted) / len(wanted))
    return math.fsum(parts) / len(parts)


@dataclass
class Average:
    """The paper's average of seven studies that differ in the task, and in limits of its test set, alone.

    Attributes:
        members: their summaries, in the order of `TASKS`.
        test: over the test means at h*; a fraction.
        dev: plain mean over the dev means at h*, which select on the same numbers.
        majority: as `test`, of the majority class.
        rho: plain mean of the seven Spearman correlations; NaN where one is not defined, never as if it were 0.
        limited: tasks whose test set was limited, so that this is not quite the paper's number.
    """

    members: Sequence[Summary]
    test: float
    dev: float
    majority: float
    rho: float
    limited: Sequence[str]


def averages(summaries: Iterable[Summary]) -> list[Average]:
    """One average per method × model × split (paradigm, seeds and whatever else is compared), in the order given.

    Where a task is there twice in such a group (two test limits, say), nothing tells which one is meant, and the group
    has no average.
    """
    groups: dict[str, list[Summary]] = {}
    for one in summaries:
        config = one.study.config
        if config and config["task"]["name"] in TASKS and one.test:
            rest = {name: part for name, part in config.items() if name not in OF_A_TASK}
            rest["data"] = {name: part for name, part in (rest.get("data") or {}).items() if name != "limit_test"}
            groups.setdefault(canonical([rest, one.study.seeds, one.study.k_total]), []).append(one)
    found = []
    for group in groups.values():
        by_task = {one.study.config["task"]["name"]: one for one in group}
        if len(by_task) < len(group):
            continue
        test = paper_average({task: {m: s.mean for m, s in one.test.items()} for task, one in by_task.items()})
        if test is None:
            continue
        majority = paper_average({task: one.controls.get("majority") or {} for task, one in by_task.items()})
        members = [by_task[task] for task in TASKS]
        found.append(
            Average(
                members,
                test,
                dev=_mean(one.choice.mean for one in members),
                majority=math.nan if majority is None else majority,
                rho=_mean(one.rho for one in members),
                limited=[t for t in TASKS if _limited(by_task[t].study.config)],
            )
        )
    return found


def _limited(config: Mapping[str, Any]) -> bool:
    return (config.get("data") or {}).get("limit_test") is not None


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return sum(numbers) / len(numbers)
