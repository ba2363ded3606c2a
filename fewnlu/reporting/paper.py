"""The paper's Tables 1 and 3 to 7 from summaries: same rows and columns, own numbers, every cell from records."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from fewnlu.protocol.records import canonical
from fewnlu.protocol.selection import DevScores, fullest, select
from fewnlu.reporting.layout import METRIC_NAMES, MISSING, Table, mean_std, number, percent
from fewnlu.reporting.names import (
    method_name,
    model_name,
    published_name,
    seeds_differ,
    seeds_text,
    split_name,
    study_file,
    task_name,
    tasks_of,
)
from fewnlu.reporting.studies import Spread, Study, Summary, dev_table, places
from fewnlu.reporting.views import factor_values, order_values, spread_of

COLUMN_NAMES = METRIC_NAMES | {"accuracy": "Acc", "macro_f1": "F1"}
OVER_RUNS = "Scores in percent: mean±sample std (n-1) over the K runs of h*, which was chosen on dev alone."


def paper_tables(summaries: Sequence[Summary]) -> list[Table]:
    """All tables that the records have something for."""
    usable = [s for s in summaries if s.study.config and s.study.runs]
    tables = [*patterns(usable), *strategies(usable), *correlations(usable), sensitivity(usable), *methods(usable)]
    tables += [best_combinations(usable), *gaps(usable)]
    return [t for t in tables if t is not None and t.rows]


def _pivot(
    summaries: Sequence[Summary], row_of: Callable[[Summary], str], cells: Callable[[Summary, str], list[str]]
) -> tuple[list[str], list[list[str]], list[tuple[str, dict[str, Summary]]]]:
    """Tasks as columns, one row per `row_of`; studies of other seeds or labelled rows, and those that would share a
    cell, get rows of their own, so that a row's average is of one kind."""
    tasks = tasks_of([s.study for s in summaries])
    by_name = _groups(summaries, row_of)
    kinds = {id(s): _kind(s.study, by_name[row_of(s)]) for s in summaries}
    grid: dict[str, dict[str, Summary]] = {}
    for (name, kind), same in _groups(summaries, lambda s: (row_of(s), kinds[id(s)])).items():
        taken = [task_name(s.study) for s in same]
        for s in same:
            label = f"{name} {kind}" if kind else name
            label += f" #{s.study.key[:8]}" if taken.count(task_name(s.study)) > 1 else ""
            grid.setdefault(label, {})[task_name(s.study)] = s
    width = {t: max(len(cells(s, t)) for s in summaries if task_name(s.study) == t) for t in tasks}
    rows = []
    for name, found in grid.items():
        row = [name]
        for task in tasks:
            row += cells(found[task], task) if task in found else [MISSING] * width[task]
        rows.append(row)
    return tasks, rows, list(grid.items())


def _kind(study: Study, others: Sequence[Summary]) -> str:
    """Seeds and choice of labelled rows, as far as studies of one name differ in them."""
    parts = [seeds_text(study)] if seeds_differ([o.study for o in others]) else []
    for name in ("n_labeled", "per_class"):
        if len({(o.study.config.get("data") or {}).get(name) for o in others}) > 1:
            parts.append(f"{name}={(study.config.get('data') or {}).get(name) or 'all'}")
    return " ".join(parts)


def _metrics(summaries: Sequence[Summary], task: str) -> list[str]:
    config = next(s.study.config["task"] for s in summaries if task_name(s.study) == task)
    return list(config.get("select") or config["metrics"])


def _score_columns(summaries: Sequence[Summary]) -> list[str]:
    columns = []
    for task in tasks_of([s.study for s in summaries]):
        names = _metrics(summaries, task)
        columns += [task] if len(names) == 1 else [f"{task} {COLUMN_NAMES.get(n, n)}" for n in names]
    return columns


def _scores(summaries: Sequence[Summary], row_of: Callable[[Summary], str]) -> tuple[list[str], list[list[str]]]:
    def cells(s: Summary, task: str) -> list[str]:
        none = Spread(math.nan, math.nan, 0)
        found = [s.test.get(n, none) for n in _metrics(summaries, task)]
        return [mean_std(f.mean, f.std) for f in found]

    tasks, rows, grid = _pivot(summaries, row_of, cells)
    header = _score_columns(summaries)
    if len(tasks) > 1:
        header = [*header, "avg"]
        for row, (_, found) in zip(rows, grid, strict=True):
            means = [found[t].test["select"].mean for t in tasks if t in found and found[t].test]
            row.append(percent(sum(means) / len(means)) if len(means) == len(tasks) else MISSING)
    return header, rows


def _groups(summaries: Sequence[Summary], key: Callable[[Summary], Any]) -> dict[Any, list[Summary]]:
    out = defaultdict(list)
    for s in summaries:
        out[key(s)].append(s)
    return dict(out)


def patterns(summaries: Sequence[Summary]) -> list[Table]:
    """Table 1: per pattern the best h on dev and its test score; the best pattern on dev is a labelled row (I025)."""
    out = []
    seeded = seeds_differ([s.study for s in summaries])
    for s in summaries:
        study = s.study
        by_pattern: dict[Any, list[DevScores]] = defaultdict(list)
        for one in dev_table(study):
            if "pattern" in one.h:
                by_pattern[one.h["pattern"]].append(one)
        if len(by_pattern) < 2:
            continue
        names = sorted({n for one in dev_table(study) for n in one.h} - {"pattern"})
        rows = []
        for pattern in sorted(by_pattern):
            choice = select(by_pattern[pattern])
            results = study.runs[canonical(dict(choice.h))] if choice.h is not None else []
            if not results and len(by_pattern[pattern]) == 1:  # no dev set: the only h of this pattern
                results = study.runs[canonical(dict(by_pattern[pattern][0].h))]
            rows.append([str(pattern), *_row_of(results, names)])
        tested = [r for r in rows if r[-2] != MISSING]
        if len(tested) == len(rows):
            mean = sum(float(r[-2]) for r in rows) / len(rows)
            rows.append(["mean of patterns", *[""] * len(names), MISSING, f"{mean:.2f}", MISSING])
        if s.choice.h is not None:
            star = study.runs[canonical(dict(s.choice.h))]
            rows.append([f"best on dev: {s.choice.h.get('pattern')}", *_row_of(star, names)])
        title = f"Table 1 layout: patterns of {task_name(study)}, {method_name(study)}, {model_name(study)}, "
        out.append(
            Table(
                f"table1-{study_file(study)}",
                title + split_name(study) + (f", seeds {seeds_text(study)}" if seeded else ""),
                ["pattern", *names, "dev", "test", "std"],
                rows,
                ["Per pattern the h with the highest dev mean; percent; std over its runs (n-1)."],
            )
        )
    return out


def _row_of(results: Sequence[dict[str, Any]], names: Sequence[str]) -> list[str]:
    if not results:
        return [*[MISSING] * len(names), MISSING, MISSING, MISSING]
    h = results[0]["h"]
    dev = Spread.of([r["dev"]["select"] for r in results]) if all(r["dev"] for r in results) else None
    test = Spread.of([r["test"]["select"] for r in results]) if all(r["test"] for r in results) else None
    return [
        *(f"{h[n]:g}" if isinstance(h.get(n), float) else str(h.get(n, MISSING)) for n in names),
        percent(dev.mean if dev else None),
        percent(test.mean if test else None),
        percent(test.std if test else None),
    ]


def strategies(summaries: Sequence[Summary]) -> list[Table]:
    """Table 3a (ACL: Table 2): test score of h* by split strategy, one table per model and method."""
    out = []
    for (model, method), found in _groups(summaries, lambda s: (model_name(s.study), method_name(s.study))).items():
        if len({split_name(s.study) for s in found}) < 2 or not any(s.test for s in found):
            continue
        header, rows = _scores(found, lambda s: split_name(s.study))
        title = f"Table 3a layout: test score of h* by strategy, {method}, {model}"
        out.append(Table(_file("table3a", model, method), title, ["strategy", *header], rows, [OVER_RUNS]))
    return out


def correlations(summaries: Sequence[Summary]) -> list[Table]:
    """Table 3b (ACL: Table 3): Spearman's rho of dev and test means over H; undefined is "–", never 0."""
    out = []
    for (model, method), found in _groups(summaries, lambda s: (model_name(s.study), method_name(s.study))).items():
        if all(math.isnan(s.rho) for s in found):
            continue
        tasks, rows, grid = _pivot(found, lambda s: split_name(s.study), lambda s, _: [number(s.rho)])
        header = ["strategy", *tasks]
        if len(tasks) > 1:
            header.append("avg")
            for row, (_, cells) in zip(rows, grid, strict=True):
                rhos = [cells[t].rho for t in tasks if t in cells and not math.isnan(cells[t].rho)]
                row.append(number(sum(rhos) / len(rhos)) if len(rhos) == len(tasks) else MISSING)
        points = ", ".join(f"{split_name(s.study)} on {task_name(s.study)} {s.n_points}" for s in found)
        title = f"Table 3b layout: dev-test Spearman over H, {method}, {model}"
        note = "Points of H: " + points + ". No average where a task has no rho."
        out.append(Table(_file("table3b", model, method), title, header, rows, [note]))
    return out


def sensitivity(summaries: Sequence[Summary]) -> Table | None:
    """Table 4: one factor at a time around h*; std over its values of the means, dev and test."""
    studies = [s.study for s in summaries]
    rows = []
    seeded = seeds_differ([s.study for s in summaries])
    for s in summaries:
        if s.choice.h is None:
            continue
        star = dict(s.choice.h)
        factors = factor_values(s.study, star)
        order = order_values(studies, s.study, star)
        if order:
            factors = {"train order (seed.train)": order, **factors}
        for factor, values in factors.items():
            dev, test = spread_of(values)
            shown = ", ".join(f"{v[0]:g}" if isinstance(v[0], float) else str(v[0]) for v in values)
            who = [task_name(s.study), method_name(s.study), model_name(s.study), split_name(s.study)]
            if seeded:
                who[3] += f" {seeds_text(s.study)}"
            rows.append([*who, factor, percent(dev), percent(test), str(len(values)), shown])
    if not rows:
        return None
    return Table(
        "table4",
        "Table 4 layout: sensitivity of the score to one factor, the others as in h*",
        ["task", "method", "model", "strategy", "factor", "std on dev", "std on test", "values", "of"],
        rows,
        [
            "In points: sample std (n-1) over the factor's values of the mean over runs. The paper prints values above "
            "2.0 in bold. Factors with one value around h* are left out."
        ],
    )


def methods(summaries: Sequence[Summary]) -> list[Table]:
    """Table 5: test score of h* by model and method, one table per strategy."""
    out = []
    for split, found in _groups(summaries, lambda s: split_name(s.study)).items():
        if not any(s.test for s in found):
            continue
        header, rows = _scores(found, lambda s: f"{model_name(s.study)}\t{method_name(s.study)}")
        rows = [[*(r[0].split("\t") if "\t" in r[0] else [r[0], ""]), *r[1:]] for r in rows]
        title = f"Table 5 layout: test score of h* by method, {split}"
        out.append(Table(_file("table5", split), title, ["base model", "method", *header], rows, [OVER_RUNS]))
    return out


def best_combinations(summaries: Sequence[Summary]) -> Table | None:
    """Table 6: the combination with the highest dev mean per task (on dev: choosing on test would be optimistic)."""
    rows = []
    for task in tasks_of([s.study for s in summaries]):
        found = [s for s in summaries if task_name(s.study) == task and s.choice.h is not None]
        if len({(method_name(s.study), model_name(s.study)) for s in found}) < 2:
            continue
        best = min(found, key=lambda s: (-round(s.choice.mean, 12), s.study.name))
        test = best.test.get("select")
        names = [method_name(best.study), model_name(best.study), split_name(best.study)]
        score = mean_std(test.mean, test.std) if test else MISSING
        rows.append([task, *names, percent(best.choice.mean), score, str(len(found))])
    header = ["task", "method", "model", "strategy", "dev", "test", "of studies"]
    notes = ["Best by dev mean. Dev scores of different strategies or data are not the same quantity."]
    return Table("table6", "Table 6 layout: best combination per task", header, rows, notes) if rows else None


def gaps(summaries: Sequence[Summary], reference: str = "PET") -> list[Table]:
    """Table 7: absolute test score and gap to PET of the same task, model and strategy."""
    from fewnlu.reporting.published import load

    prev = {(r.cells["method"], r.cells["task"]): r for r in load("arxiv_table7") if r.cells["which"] == "prev"}
    rows = []
    for s in summaries:
        ours = s.test.get("select")
        key = (task_name(s.study), model_name(s.study), split_name(s.study))
        base = [
            o
            for o in summaries
            if method_name(o.study) == reference
            and key == (task_name(o.study), model_name(o.study), split_name(o.study))
            and o.study.seeds == s.study.seeds
            and o.test
        ]
        if not ours or len(base) != 1:
            continue
        gap = ours.mean - base[0].test["select"].mean
        before = prev.get((published_name(s.study), key[0]))
        rows.append(
            [
                *(method_name(s.study), *key, percent(ours.mean), f"{100 * gap:+.2f}"),
                (before.shown("abs") if before else "") or MISSING,
                (before.shown("rel") if before else "") or MISSING,
            ]
        )
    if len({r[0] for r in rows}) < 2:
        return []
    header = ["method", "task", "model", "strategy", "test", f"gap to {reference}", "prior reports", "prior gap"]
    note = "Prior reports: from memory of the original papers, ALBERT, other data; not published numbers of this table."
    return [Table("table7", f"Table 7 layout: scores and gaps to {reference}", header, rows, [note])]


def _file(*parts: str) -> str:
    import re

    return re.sub(r"[^A-Za-z0-9._+=-]+", "_", "-".join(parts))


def studies_table(summaries: Sequence[Summary]) -> Table:
    """Long form: one line per study, full precision, with the ids of the runs of h*, to check every other table by."""
    from fewnlu.reporting.sure import chosen_runs

    rows = []
    for s in summaries:
        study, test = s.study, s.test.get("select")
        runs = chosen_runs(s)
        rows.append(
            [
                *(task_name(study), method_name(study), model_name(study), split_name(study)),
                seeds_text(study),
                str(len(study.runs)),
                f"{study.n_runs}" + (f" ({len(study.failed)} failed)" if study.failed else ""),
                canonical(dict(s.choice.h)) if s.choice.h is not None else MISSING,
                str(s.choice.tied),
                *_full(s.choice.mean, s.choice.std),
                *_full(test.mean if test else math.nan, test.std if test else math.nan),
                str(len(runs)),
                number(s.rho, 6),
                study.key[:8],
                study.name,
                " ".join(f"k{r['k']}-r{r['rep']}-{r['key'][:8]}" for r in runs),
            ]
        )
    header = ["task", "method", "model", "strategy", "seeds", "|H|", "runs", "h*", "tied", "dev mean", "dev std"]
    header += ["test mean", "test std", "n", "Spearman", "study key", "folder", "runs of h*"]
    note = "Fractions. std: sample standard deviation (n-1) over the n runs of h*; empty for one run."
    return Table("studies", "Studies", header, rows, [note])


def _full(mean: float, std: float) -> list[str]:
    return [MISSING if math.isnan(x) else f"{x:.6f}" for x in (mean, std)]


def k_table(curves: dict[tuple[str, str, str, str], dict[int, Summary]]) -> Table | None:
    """What K splits would have chosen and scored (the paper's K-curves): score, spread and rho by K."""
    rows = []
    for ident, by_k in curves.items():
        for k, s in sorted(by_k.items()):
            test = s.test.get("select")
            score = (percent(test.mean), percent(test.std)) if test else (MISSING, MISSING)
            star = canonical(dict(s.choice.h)) if s.choice.h is not None else MISSING
            rows.append([*ident, str(k), percent(s.choice.mean), *score, number(s.rho), str(s.n_points), star])
    header = ["task", "model", "method", "strategy", "K", "dev", "test", "std", "Spearman", "points", "h*"]
    notes = [
        "Multi-Splits, bagging, random and model-informed: the first K of the splits there are; CV and MDL: rerun."
    ]
    return Table("k_curves", "K-curves: h* as K splits choose it", header, rows, notes) if rows else None


def seeds_table(studies: Sequence[Study], summaries: Sequence[Summary]) -> Table | None:
    """One line per study run with several seeds: mean, SD, n and the ids (fault I118); seeds with fewer runs not."""
    from fewnlu.reporting.sure import chosen_runs

    groups = _groups(summaries, lambda s: (s.study.key, s.study.k_total))
    rows = []
    for found in groups.values():
        tested = [s for s in found if s.test]
        same = fullest(places(chosen_runs(s)) for s in tested)
        left = len(found)
        found = [s for s in tested if places(chosen_runs(s)) == same]
        left -= len(found)
        means = [s.test["select"].mean for s in found]
        if len(means) < 2:
            continue
        spread = Spread.of(means)
        study = found[0].study
        who = [task_name(study), method_name(study), model_name(study), split_name(study)]
        seeds = "; ".join(seeds_text(s.study) for s in found) + (f"; {left} not whole, left out" if left else "")
        rows.append([*who, percent(spread.mean), percent(spread.std), str(spread.n), study.key[:8], seeds])
    header = ["task", "method", "model", "strategy", "test", "SD over seeds", "n", "study key", "seeds"]
    note = "Mean of the studies' test means and its sample SD (n-1) over seeds; h* is chosen anew for each."
    return Table("seeds", "The same study under several seeds", header, rows, [note]) if rows else None
