"""`report compare`: paired differences of studies that are scored on the same test rows, corrected over the table."""

from __future__ import annotations

import argparse
import math
import sys
from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

from fewnlu.errors import ConfigError, choices
from fewnlu.protocol.comparison import Comparison, corrected
from fewnlu.protocol.intervals import ESTIMAND
from fewnlu.reporting.checks import mixtures
from fewnlu.reporting.commands import emit, read
from fewnlu.reporting.layout import METRIC_NAMES, MISSING, Table, count, percent
from fewnlu.reporting.names import (
    labels,
    method_name,
    model_name,
    score_name,
    seeds_differ,
    seeds_text,
    split_name,
    task_name,
)
from fewnlu.reporting.scores import SELECT, compare_runs
from fewnlu.reporting.studies import Summary, summarise
from fewnlu.reporting.sure import chosen_runs


def run(args: argparse.Namespace) -> int:
    """Print, and with --out write, the comparisons of a folder; 0 whatever they say."""
    if not 0.5 <= args.level < 1:
        raise ConfigError(f"--level {args.level:g}: expected a share from 0.5 to below 1, such as 0.95")
    studies = read(args.dirs)
    summaries = [summarise(s) for s in studies]
    names = dict(zip(map(id, summaries), labels([s.study for s in summaries]), strict=True))
    metric = args.metric or SELECT
    known = {name for s in summaries for name in s.test} - {SELECT}
    if args.metric and args.metric not in known:
        raise ConfigError(f"--metric {args.metric}: {choices(args.metric, sorted(known))}")
    pairs, missing = all_pairs(summaries, names, args.against, args.level, metric)
    if not pairs and not missing:
        raise ConfigError("nothing to compare: no two studies are scored on the same test rows")
    scores = {score_name(s.study.config) for s in summaries if s.test}
    if metric != SELECT:
        scores = {METRIC_NAMES.get(metric, metric)}
    score = scores.pop() if len(scores) == 1 else "what selects in its task"
    emit([comparison_table(pairs, args.level, score)], args.format, args.out, mixtures(studies))
    if args.out is not None:
        from fewnlu.reporting.figures import difference_figure

        difference_figure(pairs, Path(args.out))
    ranked = mean_ranks(summaries, metric)
    if ranked is not None:
        ranks, distance, n_tasks = ranked
        order = ", ".join(f"{n} {r:.2f}" for n, r in sorted(ranks.items(), key=lambda x: x[1]))
        print(f"\nmean ranks over {n_tasks} tasks: {order}; Nemenyi's critical distance at 5 % {distance:.2f}")
        if args.out is not None:
            from fewnlu.reporting.figures import critical_differences

            critical_differences(ranks, distance, n_tasks, Path(args.out))
    for text in missing:
        print(f"not compared: {text}", file=sys.stderr)
    return 0


def all_pairs(
    summaries: Sequence[Summary], names: dict[int, str], against: str | None, level: float, metric: str = SELECT
) -> tuple[list[Comparison], list[str]]:
    """Every two studies of one task and test set, or all with the one that `against` names; and what can't be."""
    groups: dict[tuple[str, str], list[Summary]] = defaultdict(list)
    for s in summaries:
        runs = chosen_runs(s)
        if runs and runs[0]["rows"].get("test"):
            groups[task_name(s.study), runs[0]["rows"]["test"]["sha256"]].append(s)
    pairs, missing, matched = [], [], False
    for found in groups.values():
        meant = [] if against is None else _meant(found, names, against)
        matched = matched or bool(meant)
        for a, b in combinations(found, 2):
            if against is not None:
                hit = [s in meant for s in (a, b)]
                if not any(hit):
                    continue
                if hit[0]:
                    a, b = b, a
            one = compare_runs(chosen_runs(a), chosen_runs(b), (names[id(a)], names[id(b)]), level, metric)
            if isinstance(one, str):
                missing.append(one)
            else:
                pairs.append(one)
    if against is not None and not matched:
        raise ConfigError(f"--against {against}: no study of that name; there are {'; '.join(names.values())}")
    return corrected(pairs), missing


def _meant(found: Sequence[Summary], names: dict[int, str], text: str) -> list[Summary]:
    """The study of a task and test set that --against means: by its whole label, method or name, else by a part.

    Raises:
        ConfigError: several.
    """
    whole = [s for s in found if text in (names[id(s)], method_name(s.study), s.study.name)]
    hits = whole or [s for s in found if text in names[id(s)] or text in s.study.name]
    if len(hits) > 1:
        which = "; ".join(f"{names[id(s)]} ({s.study.name})" for s in hits)
        raise ConfigError(f"--against {text}: {len(hits)} studies of {task_name(hits[0].study)} are meant: {which}")
    return hits


def comparison_table(pairs: Sequence[Comparison], level: float, score: str) -> Table:
    """Comparisons as a table, in points; what could not be compared is not in it.

    Args:
        score: name of what is compared.
    """
    rows = []
    for c in pairs:
        d = c.difference
        rows.append(
            [
                *(c.a, c.b, f"{100 * d.estimate:+.2f}"),
                f"{100 * d.low:+.2f} to {100 * d.high:+.2f}" if d.known else MISSING,
                _p(c.p),
                _p(c.p_holm),
                {True: "yes", False: "no", None: MISSING}[c.separated],
                percent(c.detectable),
                f"{d.n_runs} × {d.n_rows}",
                c.test,
                "; ".join(filter(None, [d.varied, d.note, c.note])),
            ]
        )
    header = ["A", "B", "A − B", f"{100 * level:g} % interval", "p", "p (Holm)", "apart", "least difference to show"]
    notes = [
        f"Difference of the test score ({score}) in points. About: {ESTIMAND}.",
        f"p (Holm): corrected over the {count(sum(not math.isnan(c.p) for c in pairs), 'test')} of this table. Least "
        "difference: what this many runs and rows, spread as these, would show with 80 % power before the correction.",
    ]
    return Table("comparisons", "Comparisons", [*header, "runs × rows", "test", "what varies"], rows, notes)


def _p(value: float) -> str:
    return MISSING if math.isnan(value) else "<0.0001" if value < 1e-4 else f"{value:.4f}"


def mean_ranks(summaries: Sequence[Summary], metric: str = SELECT) -> tuple[dict[str, float], float, int] | None:
    """Mean rank of each (method, model, strategy) over tasks that all have, and Nemenyi's critical distance (Demšar
    2006); None for fewer than three tasks or two methods, several studies in one place, or a task whose studies are
    scored on different rows or by different metrics."""
    import numpy as np
    from scipy import stats

    scores: dict[str, dict[str, float]] = defaultdict(dict)
    kinds: dict[str, set[tuple[str, str]]] = defaultdict(set)
    seeded = seeds_differ([s.study for s in summaries])
    for s in summaries:
        if metric in s.test and s.study.config:
            name = f"{method_name(s.study)} · {model_name(s.study)} · {split_name(s.study)}"
            name += f" · {seeds_text(s.study)}" if seeded else ""
            task = task_name(s.study)
            if task in scores[name]:
                return None
            scores[name][task] = s.test[metric].mean
            score = score_name(s.study.config) if metric == SELECT else metric
            kinds[task].add((score, chosen_runs(s)[0]["rows"]["test"]["sha256"]))
    if any(len(found) > 1 for found in kinds.values()):
        return None
    tasks = set.intersection(*(set(v) for v in scores.values())) if scores else set()
    if len(tasks) < 3 or len(scores) < 2:
        return None
    table = np.array([[scores[n][t] for t in sorted(tasks)] for n in scores])
    ranks = stats.rankdata(-np.round(table, 12), axis=0).mean(1)
    k, n = table.shape
    q = stats.studentized_range.ppf(0.95, k, np.inf) / math.sqrt(2)
    return dict(zip(scores, map(float, ranks), strict=True)), float(q * math.sqrt(k * (k + 1) / (6 * n))), n
