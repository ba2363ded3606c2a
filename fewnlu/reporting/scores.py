"""The test score of some runs as values per (run, row), for intervals and paired differences; from predictions alone.

A task's score is the mean of its selecting metrics (`task.select`). Accuracy is a mean over rows as it stands, exact
match a mean over groups; F1, macro-F1 and MCC are linearised (`protocol.influence`), and tables say so. Where the task
has groups of rows (MultiRC: the answers to a question), groups take the place of rows for every metric.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fewnlu.protocol.comparison import Comparison, compare
from fewnlu.protocol.influence import LINEARISED, METRICS, unit_values
from fewnlu.protocol.intervals import Interval, difference_interval, runs_interval, score_interval
from fewnlu.reporting.outcomes import Outcomes, outcomes, same_splits

SELECT = "select"
HOW = "linearised (infinitesimal jackknife)"


@dataclass
class Scored:
    """Values whose mean over the units is each run's score.

    Attributes:
        values: [R, U].
        units: names of rows or groups [U].
        what: "test rows", or what a group is.
        how: empty, or which approximation the values are.
        bounded: whether the score lies in 0..1.
        runs: the results they come from [R].
    """

    values: Any
    units: list[str]
    what: str
    how: str
    bounded: bool
    runs: list[dict[str, Any]]

    def by_split(self) -> tuple[list[int], Any]:
        """(k, table [K, U]): repetitions of one split are averaged, as they share its rows."""
        import numpy as np

        ks = sorted({r["k"] for r in self.runs})
        return ks, np.array([self.values[[i for i, r in enumerate(self.runs) if r["k"] == k]].mean(0) for k in ks])


def names_of(config: dict[str, Any], metric: str) -> list[str]:
    """The metrics whose mean a score is: those that select, or the one."""
    return list(config["task"].get("select") or config["task"]["metrics"]) if metric == SELECT else [metric]


def scored(
    results: Sequence[dict[str, Any]], metric: str = SELECT, found: Outcomes | str | None = None
) -> Scored | str:
    """Values of runs on their test rows; a sentence that says why where there are none.

    Args:
        metric: of the records, or "select" for the score that the task selects by.
        found: their outcomes, where they are read already.
    """
    import numpy as np

    if not results or any(not r["test"] for r in results):
        return "no test score"
    config = results[0]["config"]
    names = names_of(config, metric)
    for name in names:
        if any(r["test"]["metrics"].get(name) is None for r in results):
            return f"no test {name}"
        if name not in METRICS:
            return f"{name} can't be had from labels alone"
    found = outcomes(results) if found is None else found
    if isinstance(found, str):
        return found
    group = config["task"].get("group")
    groups = _groups(found.ids, config["task"]) if group else None
    if groups is None and "em" in names:
        return f"groups of rows ({group}) can't be read off the rows' ids"
    parts = [_values(name, found, config["task"], groups) for name in names]
    for name, part in zip(names, parts, strict=True):
        if isinstance(part, str):
            return part
        if np.isnan(part).any():
            return f"{name} of a run that always says the same has no derivative"
        stated = [float(r["test"]["metrics"][name]) for r in results]
        if not np.allclose(part.mean(1), stated, rtol=0, atol=1e-9):
            return f"{name} of the records is not that of their predictions"
    return Scored(
        np.mean(np.array(parts), axis=0),
        list(dict.fromkeys(groups)) if groups is not None else found.ids,
        f"groups of test rows ({group})" if groups is not None else "test rows",
        HOW if set(names) & set(LINEARISED) or (groups is not None and set(names) != {"em"}) else "",
        "mcc" not in names,
        list(results),
    )


def interval_of(
    results: Sequence[dict[str, Any]],
    metric: str = SELECT,
    level: float = 0.95,
    found: Outcomes | str | None = None,
) -> Interval | str:
    """Interval of a test score over runs and rows; over runs alone where there are no values per row; else why not."""
    values = scored(results, metric, found)
    if isinstance(values, str):
        stated = [
            r["test"][SELECT] if metric == SELECT else r["test"]["metrics"].get(metric) for r in results if r["test"]
        ]
        if not stated or len(stated) < len(results) or None in stated or "is not that of" in values:
            return values
        by_split: dict[int, list[float]] = {}
        for r, value in zip(results, stated, strict=True):
            by_split.setdefault(r["k"], []).append(float(value))
        one = runs_interval([sum(v) / len(v) for v in by_split.values()], level)
        return replace(one, note="; ".join(filter(None, [values, one.note])))
    table = values.by_split()[1]
    if values.how and table.max() - table.min() < 1e-12:
        one = difference_interval(table, level)  # without the exact interval, which only shares of rows have
    else:
        one = (score_interval if values.bounded else difference_interval)(table, level)
    varied = one.varied.replace("test rows", values.what)
    if len(table) == 1 and len(results) > 1:
        varied = varied.replace("one run", f"one split, its {len(results)} runs averaged")
    return replace(one, varied=varied, note="; ".join(filter(None, [values.how, one.note])))


def compare_runs(
    a: Sequence[dict[str, Any]],
    b: Sequence[dict[str, Any]],
    names: tuple[str, str],
    level: float = 0.95,
    metric: str = SELECT,
) -> Comparison | str:
    """A minus B in test score, paired by split number and row or group; a sentence where they can't be paired."""
    if a and b and names_of(a[0]["config"], metric) != names_of(b[0]["config"], metric):
        return f"{names[0]} and {names[1]} have different scores (task.select)"
    left, right = scored(a, metric), scored(b, metric)
    for name, found in zip(names, (left, right), strict=True):
        if isinstance(found, str):
            return f"{name}: {found}"
    assert isinstance(left, Scored) and isinstance(right, Scored)
    hashes = [one.runs[0]["rows"]["test"]["sha256"] for one in (left, right)]
    if hashes[0] != hashes[1] or left.units != right.units:
        return f"{names[0]} and {names[1]} are scored on different test rows"
    (ks, table), (other_ks, other) = left.by_split(), right.by_split()
    common = [k for k in ks if k in other_ks]
    if not common:
        return f"{names[0]} and {names[1]} share no split number"
    notes = [left.how] if left.how else []
    if left.what != "test rows":
        notes.append(f"rows are {left.what}")
    if len(common) < max(len(ks), len(other_ks)):
        notes.append(f"only the {len(common)} splits that both have")
    if not same_splits(left.runs, right.runs, common):
        notes.append("splits differ: runs are paired by number, which is right for independent splits")
    pick, other_pick = [ks.index(k) for k in common], [other_ks.index(k) for k in common]
    return compare(table[pick], other[other_pick], names, level=level, note="; ".join(notes))


def _values(name: str, found: Outcomes, task: dict[str, Any], groups: list[str] | None) -> Any:
    """[R, U]; a sentence where predictions are not among the task's labels."""
    if name == "accuracy" and groups is None:
        return found.right
    labels = task.get("labels")
    if not isinstance(labels, list):
        return f"{name} needs labels, each row has its own candidates"
    place = {str(label): i for i, label in enumerate(labels)}
    if not {str(g) for g in found.gold} <= set(place):
        return "gold labels that are none of the task's"
    for said in found.said:  # an answer that is none of the labels is a class of its own, never right
        for one in said:
            place.setdefault(str(one), len(place))
    number = {g: i for i, g in enumerate(dict.fromkeys(groups))} if groups is not None else {}
    return unit_values(
        name,
        [place[str(g)] for g in found.gold],
        [[place[str(s)] for s in said] for said in found.said],
        len(place),
        positive=place.get(str(task.get("positive"))),
        units=[number[g] for g in groups] if groups is not None else None,
    )


def _groups(ids: Sequence[str], task: dict[str, Any]) -> list[str] | None:
    """Each row's group, from its id: ``{p}-{q}`` of ``{p}-{q}-{a}``. None where ids don't tell it beyond doubt."""
    names = re.findall(r"\{([^{}]+)\}", str(task["id"]))
    wanted = re.findall(r"\{([^{}]+)\}", str(task["group"]))
    if not set(wanted) <= set(names) or len(set(names)) < len(names):
        return None
    literal = [re.escape(part) for part in re.split(r"\{[^{}]+\}", str(task["id"]))]
    forms = [re.compile(literal[0] + "".join(f"({how}){part}" for part in literal[1:])) for how in (".+?", ".+")]
    out = []
    for one in ids:
        few, many = (form.fullmatch(one) for form in forms)
        if few is None or many is None or few.groups() != many.groups():
            return None
        fields = dict(zip(names, few.groups(), strict=True))
        out.append(re.sub(r"\{([^{}]+)\}", lambda m, f=fields: f[m[1]], str(task["group"])))  # type: ignore[misc]
    return out
