"""K as a view: a study cut to its first K splits, curves over K, and what varies with one factor of h."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fewnlu.protocol.records import canonical
from fewnlu.protocol.selection import mean, std
from fewnlu.reporting.names import method_name, model_name, split_name, task_name
from fewnlu.reporting.studies import Study, Summary, places, summarise

CURVE = (2, 4, 8, 16)  # the paper's K (spec 1.5)


def splits_of(study: Study) -> int:
    """K of a study: as its strategy needs, or one more than the highest split that any h has."""
    return study.k_total or 1 + max((r["k"] for results in study.runs.values() for r in results), default=-1)


def at_k(study: Study, k: int) -> Study | None:
    """The study as it would be with K = k; None where its records don't hold that.

    Multi-Splits, bagging and the like: the first k of more splits are the k splits. CV and MDL: only a sweep of that K.
    """
    if study.k_total is not None:
        return study if study.k_total == k else None
    if splits_of(study) < k:
        return None
    runs = {h: [r for r in results if r["k"] < k] for h, results in study.runs.items()}
    failed = [f for f in study.failed if (f.get("k") or 0) < k]
    return replace(study, runs={h: r for h, r in runs.items() if r}, failed=failed)


def k_curves(
    studies: Sequence[Study], ks: Sequence[int] = CURVE
) -> dict[tuple[str, str, str, str], dict[int, Summary]]:
    """(task, model, method, strategy) -> K -> what K splits would have chosen and scored; curves of one point too.

    CV and MDL studies of different K, which are studies of their own, join into one curve.
    """
    groups: dict[tuple[str, str], dict[int, Summary]] = {}
    names: dict[tuple[str, str], tuple[str, str, str, str]] = {}
    for study in studies:
        if not study.runs:
            continue
        group = (study.key, canonical(study.seeds))  # K is in neither
        names[group] = (
            task_name(study),
            model_name(study),
            method_name(study),
            split_name(replace(study, k_total=None)),
        )
        for k in ks:
            cut = at_k(study, k)
            if cut is not None:
                groups.setdefault(group, {})[k] = summarise(cut)
    count = Counter(names[group] for group in groups)
    curves = {}
    for group, by_k in groups.items():
        name = names[group]
        if count[name] > 1:  # other options, data or seeds
            seeds = " ".join(f"{k}{v}" for k, v in next(iter(by_k.values())).study.seeds.items())
            name = (*name[:3], f"{name[3]} #{group[0][:8]} {seeds}")
        curves[name] = by_k
    return curves


def factor_values(study: Study, star: dict[str, Any]) -> dict[str, list[tuple[Any, float, float]]]:
    """One factor at a time around h*: factor -> (value, dev mean, test mean) of every h that differs in it alone.

    h* itself is among them. Factors with a single value are left out. Only h with the same runs as h* count.
    """
    by_h = {h: results for h, results in study.runs.items()}
    full = places(by_h[canonical(star)])
    out: dict[str, list[tuple[Any, float, float]]] = {}
    for factor in star:
        rest = {k: v for k, v in star.items() if k != factor}
        found = [
            (results[0]["h"][factor], *_means(results))
            for results in by_h.values()
            if places(results) == full
            and factor in results[0]["h"]
            and {k: v for k, v in results[0]["h"].items() if k != factor} == rest
        ]
        if len(found) > 1:
            out[factor] = sorted(found, key=lambda f: (str(type(f[0])), f[0]))
    return out


def order_values(studies: Sequence[Study], study: Study, star: dict[str, Any]) -> list[tuple[Any, float, float]]:
    """(seed.train, dev mean, test mean) of h* over studies that differ in `seed.train` alone: the training order.

    Only seeds that have the same runs of h* as `study` count.
    """
    found = []
    full = places(study.runs.get(canonical(star), ()))
    for other in studies:
        same = {k: v for k, v in other.seeds.items() if k != "train"} == {
            k: v for k, v in study.seeds.items() if k != "train"
        }
        results = other.runs.get(canonical(star))
        if other.key == study.key and other.k_total == study.k_total and same and results and places(results) == full:
            found.append((other.seeds.get("train"), *_means(results)))
    return sorted(found, key=lambda f: str(f[0])) if len(found) > 1 else []


def spread_of(values: Sequence[tuple[Any, float, float]]) -> tuple[float, float]:
    """Sample std over a factor's values of the dev and of the test means (Table 4); NaN where a set is missing."""
    return std([v[1] for v in values]), std([v[2] for v in values])


def _means(results: Sequence[dict[str, Any]]) -> tuple[float, float]:
    dev = [r["dev"]["select"] for r in results if r["dev"] and r["dev"]["select"] is not None]
    test = [r["test"]["select"] for r in results if r["test"]]
    nan = float("nan")
    return mean(dev) if len(dev) == len(results) else nan, mean(test) if len(test) == len(results) else nan
